/* The grammar of JSON, strictly: skip_value returns what follows a value, NULL where there is none. */

#ifndef LOCKSTEP_JSON_H
#define LOCKSTEP_JSON_H

#include <stdint.h>
#include <string.h>

#define DEPTH_MAX 128

typedef const unsigned char *Text;

#if defined(__SSE2__) && defined(__GNUC__)
#include <emmintrin.h>
#define HAS_SIXTEEN 1

/* Each *_16 returns a bit for each of sixteen bytes. */
static inline unsigned
no_space_16(Text at)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)at);
    __m128i space = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')), line = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n'));
    __m128i tab = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\t')), back = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\r'));
    return 0xffffu ^ (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(space, line), _mm_or_si128(tab, back)));
}

static inline unsigned
no_digit_16(Text at)
{
    __m128i value = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)at), _mm_set1_epi8('0'));
    return 0xffffu ^ (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(value, _mm_set1_epi8(9)), value));
}

/* Quotes, backslashes and bytes below the space. */
static inline unsigned
ends_plain_16(Text at)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)at), control = _mm_set1_epi8(0x1f);
    __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
    __m128i below = _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes);
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), below));
}
#endif

static inline int
is_space(unsigned char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

/* One space follows most colons and commas; a new line is indented with up to a dozen. */
static inline Text
skip_spaces(Text at, Text end)
{
    if (at < end && *at > ' ')
        return at;
    if (end - at > 1 && is_space(*at) && at[1] > ' ')
        return at + 1;
#ifdef HAS_SIXTEEN
    for (; end - at >= 16; at += 16) {
        unsigned others = no_space_16(at);
        if (others)
            return at + __builtin_ctz(others);
    }
#endif
    while (at < end && is_space(*at))
        at++;
    return at;
}

static inline int
is_digit(Text at, Text end)
{
    return at < end && *at >= '0' && *at <= '9';
}

/* Half of a surrogate pair is text to some readers and an error to others: NULL for all of them, Python decides. */
static Text
skip_escape(Text at, Text end)
{
    if (end - at < 2)
        return NULL;
    if (at[1] != 'u')
        return at[1] && strchr("\"\\/bfnrt", at[1]) ? at + 2 : NULL;
    if (end - at < 6)
        return NULL;
    if ((at[2] | 0x20) == 'd' && at[3] >= '8')
        return NULL;
    for (int each = 2; each < 6; each++) {
        unsigned char letter = at[each] | 0x20;
        if (!((at[each] >= '0' && at[each] <= '9') || (letter >= 'a' && letter <= 'f')))
            return NULL;
    }
    return at + 6;
}

/* Whether a byte of eight is a quote, a backslash or below the space (exact below the first such byte). */
static inline uint64_t
ends_plain(uint64_t bytes)
{
    const uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
    uint64_t quote = bytes ^ (ones * '"'), backslash = bytes ^ (ones * '\\');
    return (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((bytes - ones * 0x20) & ~bytes)) & tops;
}

/* Return the first quote, backslash or byte below the space, `end` where there is none. */
static inline Text
skip_plain(Text at, Text end)
{
    uint64_t bytes, found = 0;
#ifdef HAS_SIXTEEN
    for (; end - at >= 16; at += 16) {
        unsigned ends = ends_plain_16(at);
        if (ends)
            return at + __builtin_ctz(ends);
    }
#endif
    for (; end - at >= 8; at += 8) {
        memcpy(&bytes, at, 8);
        if ((found = ends_plain(bytes)) != 0)
            break;
    }
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (end - at >= 8)
        return at + (__builtin_ctzll(found) >> 3);
#endif
    while (at < end && *at != '"' && *at != '\\' && *at >= 0x20)
        at++;
    return at;
}

/* Return what follows the key whose opening quote is at `at`, NULL for one with an escape too. */
static inline Text
skip_key(Text at, Text end)
{
    at = skip_plain(at + 1, end);
    return at < end && *at == '"' ? at + 1 : NULL;
}

/* Return what follows the string whose opening quote is at `at`. */
static inline Text
skip_string(Text at, Text end)
{
    at++;
    for (;;) {
        at = skip_plain(at, end);
        if (at >= end || *at < 0x20)
            return NULL;
        if (*at == '"')
            return at + 1;
        if ((at = skip_escape(at, end)) == NULL)
            return NULL;
    }
}

/* Return what follows one digit or more, NULL where there is none. */
static inline Text
skip_digits(Text at, Text end)
{
    if (!is_digit(at, end))
        return NULL;
#ifdef HAS_SIXTEEN
    for (; end - at >= 16; at += 16) { /* a loop by digits ends where no processor predicts it */
        unsigned others = no_digit_16(at);
        if (others)
            return at + __builtin_ctz(others);
    }
#endif
    while (is_digit(at, end))
        at++;
    return at;
}

static Text
skip_number(Text at, Text end)
{
    at += *at == '-';
    if (at < end && *at == '0')
        at++;
    else if ((at = skip_digits(at, end)) == NULL)
        return NULL;
    if (at < end && *at == '.' && (at = skip_digits(at + 1, end)) == NULL)
        return NULL;
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        at += at < end && (*at == '+' || *at == '-');
        at = skip_digits(at, end);
    }
    return at;
}

static Text
skip_literal(Text at, Text end)
{
    static const char *const literals[] = {"true", "false", "null"};
    for (size_t each = 0; each < sizeof literals / sizeof *literals; each++) {
        size_t length = strlen(literals[each]);
        if ((size_t)(end - at) >= length && memcmp(at, literals[each], length) == 0)
            return at + length;
    }
    return NULL;
}

static Text skip_container(Text at, Text end, int depth);

/* Return what follows the value at `at`, NULL if that is none. */
static inline Text
skip_value(Text at, Text end, int depth)
{
    if (at >= end)
        return NULL;
    if (*at == '"')
        return skip_string(at, end);
    if (is_digit(at, end) || *at == '-')
        return skip_number(at, end);
    return *at == '{' || *at == '[' ? skip_container(at, end, depth) : skip_literal(at, end);
}

/* Return what follows the list or object that opens at `at`. */
static Text
skip_container(Text at, Text end, int depth)
{
    int is_object = *at == '{';
    unsigned char closing = is_object ? '}' : ']';
    if (depth > DEPTH_MAX)
        return NULL;
    at = skip_spaces(at + 1, end);
    if (at < end && *at == closing)
        return at + 1;
    for (;;) {
        if (is_object) {
            if (at >= end || *at != '"' || (at = skip_string(at, end)) == NULL)
                return NULL;
            at = skip_spaces(at, end);
            if (at >= end || *at != ':')
                return NULL;
            at = skip_spaces(at + 1, end);
        }
        if ((at = skip_value(at, end, depth + 1)) == NULL)
            return NULL;
        at = skip_spaces(at, end);
        if (at >= end)
            return NULL;
        if (*at == closing)
            return at + 1;
        if (*at != ',')
            return NULL;
        at = skip_spaces(at + 1, end);
    }
}

#endif
