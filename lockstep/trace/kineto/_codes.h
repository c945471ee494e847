/* Codes of texts that repeat, in the order in which they first came; a text is where it stands, and is not copied. */

#ifndef LOCKSTEP_CODES_H
#define LOCKSTEP_CODES_H

#include "_json.h"

#include <stdlib.h>

#define FIRST_ITEMS 4096
#define FIRST_SLOTS 1024

typedef struct {
    int32_t begin, end; /* both 0: missing */
} Span;

typedef struct {
    char *items;
    size_t count, room, size;
} Array;

typedef struct { /* codes of texts, of one span or two, in the order in which they first came */
    Array spans; /* Span[2] each */
    Array hashes; /* uint64_t each */
    int32_t *slots; /* code + 1 */
    size_t mask;
    int32_t last; /* code + 1 of the text before: threads and categories come in runs */
} Codes;

static void *
append(Array *array)
{
    if (array->count == array->room) {
        size_t room = array->room ? 2 * array->room : FIRST_ITEMS;
        char *items = realloc(array->items, room * array->size);
        if (items == NULL)
            return NULL;
        array->items = items;
        array->room = room;
    }
    return array->items + array->size * array->count++;
}

static uint64_t
hash_of(uint64_t hash, Text at, Text end)
{
    uint64_t bytes;
    hash ^= (uint64_t)(end - at);
    for (; end - at >= 8; at += 8) {
        memcpy(&bytes, at, 8);
        hash = (hash ^ bytes) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 32;
    }
    bytes = 0;
    memcpy(&bytes, at, (size_t)(end - at));
    hash = (hash ^ bytes) * 0x9E3779B97F4A7C15ull;
    return hash ^ hash >> 29;
}

static int
is_same(Text text, Span one, Span other)
{
    return one.end - one.begin == other.end - other.begin &&
           memcmp(text + one.begin, text + other.begin, (size_t)(one.end - one.begin)) == 0;
}

static inline int
has_code(const Codes *codes, Text text, int32_t code, Span first, Span second)
{
    const Span *known = (const Span *)codes->spans.items + 2 * code;
    return is_same(text, known[0], first) && is_same(text, known[1], second);
}

static int
grow_slots(Codes *codes)
{
    size_t size = codes->slots ? 2 * (codes->mask + 1) : FIRST_SLOTS;
    int32_t *slots = calloc(size, sizeof *slots);
    if (slots == NULL)
        return -1;
    free(codes->slots);
    codes->slots = slots;
    codes->mask = size - 1;
    for (size_t code = 0; code < codes->hashes.count; code++) {
        size_t slot = ((uint64_t *)codes->hashes.items)[code] & codes->mask;
        while (slots[slot])
            slot = (slot + 1) & codes->mask;
        slots[slot] = (int32_t)code + 1;
    }
    return 0;
}

/* Return the code of two spans together, -1 without memory. */
static int32_t
code_of(Codes *codes, Text text, Span first, Span second)
{
    if (codes->last && has_code(codes, text, codes->last - 1, first, second))
        return codes->last - 1;
    if (codes->slots == NULL || 2 * codes->hashes.count > codes->mask) {
        if (grow_slots(codes) < 0)
            return -1;
    }
    uint64_t hash = hash_of(hash_of(0, text + first.begin, text + first.end), text + second.begin, text + second.end);
    size_t slot = hash & codes->mask;
    for (; codes->slots[slot]; slot = (slot + 1) & codes->mask) {
        int32_t code = codes->slots[slot] - 1;
        if (((uint64_t *)codes->hashes.items)[code] == hash && has_code(codes, text, code, first, second)) {
            codes->last = code + 1;
            return code;
        }
    }
    Span *spans = append(&codes->spans);
    uint64_t *hashes = append(&codes->hashes);
    if (spans == NULL || hashes == NULL)
        return -1;
    spans[0] = first;
    spans[1] = second;
    *hashes = hash;
    codes->last = codes->slots[slot] = (int32_t)codes->hashes.count;
    return codes->last - 1;
}

static void
release(Codes *codes)
{
    free(codes->spans.items);
    free(codes->hashes.items);
    free(codes->slots);
}

#endif
