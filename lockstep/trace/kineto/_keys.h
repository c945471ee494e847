/* Keys of objects, known by their place: writers give the objects of a kind the same keys, in the same layout. */

#ifndef LOCKSTEP_KEYS_H
#define LOCKSTEP_KEYS_H

#include "_json.h"

#define KEY_PLACES 16
#define KEY_KINDS 4

typedef int FieldOf(Text, Text);

typedef struct { /* from the brace, or the value before, up to the key's own value */
    Text begin;
    size_t length; /* 0: none */
    int field;
} Key;

typedef struct { /* by place in the object, the latest kind first */
    Key known[KEY_PLACES][KEY_KINDS];
} Keys;

/* Whether two texts are the same; most are of 8 to 24 bytes, for which a call takes longer. */
static inline int
starts_alike(Text one, Text other, size_t length)
{
    uint64_t mine, theirs;
    if (length < 8)
        return memcmp(one, other, length) == 0;
    for (size_t at = 0; at < length; at += 8) {
        size_t from = at + 8 > length ? length - 8 : at;
        memcpy(&mine, one + from, 8);
        memcpy(&theirs, other + from, 8);
        if (mine != theirs)
            return 0;
    }
    return 1;
}

/* Read a key, from the brace or the value before it; return where its value begins, NULL for no key of usual form. */
static Text
read_key(Text at, Text end, FieldOf *field_of, int *field)
{
    Text key = skip_spaces(at + 1, end);
    if (key >= end || *key != '"' || (at = skip_key(key, end)) == NULL)
        return NULL;
    *field = field_of(key + 1, at - 1);
    at = skip_spaces(at, end);
    return at < end && *at == ':' ? skip_spaces(at + 1, end) : NULL;
}

/* As `read_key`, of the key at a place in its object.
 *
 * Up to its value a key is known by its own bytes: one that is written as an earlier one was is compared, not read.
 */
static inline Text
next_key(Keys *keys, int place, Text at, Text end, FieldOf *field_of, int *field)
{
    if (place >= KEY_PLACES)
        return read_key(at, end, field_of, field);
    Key *known = keys->known[place];
    int kind = 0;
    for (; kind < KEY_KINDS && known[kind].length; kind++)
        if (known[kind].length <= (size_t)(end - at) && starts_alike(at, known[kind].begin, known[kind].length)) {
            *field = known[kind].field;
            return skip_spaces(at + known[kind].length, end);
        }
    Text value = read_key(at, end, field_of, field);
    if (value) {
        for (kind -= kind == KEY_KINDS; kind; kind--)
            known[kind] = known[kind - 1];
        known[0] = (Key){at, (size_t)(value - at), *field};
    }
    return value;
}

#endif
