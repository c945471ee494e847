/* The events of a Chrome trace, read without an object for each: scan(text, end).
 *
 * blocks.py and decode.py do the same in Python, for installations without this extension; a test holds both to the
 * same columns. May live here: the grammar of JSON, the fields of an event, codes of what repeats. May not: what
 * arguments mean, files, Python objects of events.
 *
 * Accepts less than JSON allows and no more: whatever is not of the usual form (an escaped key, a time with an exponent,
 * an unknown phase, a field twice) makes the whole call return None, and Python decides. Built for the stable ABI of
 * Python 3.11. Offsets are int32: a piece is 64 MiB at most (pieces.py).
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_codes.h"
#include "_keys.h"
#include "_lists.h"

#define WHOLE_DIGITS_MAX 16 /* of a time in us: with three decimals it fits uint64 */
#define DECIMALS 3
#define ID_DIGITS_MAX 18
#define START_MAX_NS ((1ull << 52) * 1000) /* times.START_MAX_US */
#define DURATION_MAX_NS 1000000000000000ull /* times.DURATION_MAX_US */
#define NO_TIME UINT64_MAX
#define TEXT_MAX ((Py_ssize_t)1 << 30)
#define PHASES "sftiIBEbneSTpFCPNODVvRcr()," /* events.py: of these nothing is read */

/* Integers among an event's arguments, then texts of which pieces have few, then what marks an event as odd. */
enum { EXTERNAL, FORMER_EXTERNAL, CORRELATION, SEQUENCE, BYTES, DEVICE, STREAM, INTEGERS };
enum { DIMENSIONS = INTEGERS, TYPES, STACK, BLOCKS, WARPS, COLLECTIVE, SYNC, ARGUMENTS_READ };
#define ABSENT (-1)

typedef struct { /* scanned.py is the layout */
    int64_t start_ns, duration_ns;
    int64_t integers[INTEGERS];
    int32_t name, thread, category, shapes, stack, occupancy;
    int32_t is_odd; /* an argument is no plain integer, or one that few events have */
    int32_t padding;
    Span arguments;
} Event;

typedef struct {
    Text text;
    Array events, metadata;
    Codes names, threads, categories, shapes, stacks, occupancies;
    Keys keys, argument_keys;
    int64_t count, dropped;
} Scan;

enum { PHASE, NAME, CATEGORY, PROCESS, THREAD, START, DURATION, ARGUMENTS, FIELDS };

/* Add the digits at `at` to a number, `most` at the most; return what follows. */
static inline Text
add_digits(Text at, Text end, Py_ssize_t most, uint64_t *value)
{
    Text last = end - at > most ? at + most : end;
    for (unsigned digit; at < last && (digit = (unsigned)*at - '0') <= 9; at++)
        *value = 10 * *value + digit;
    return at;
}

/* Return a time in us as ns, NO_TIME where it is not written as profilers do. */
static uint64_t
nanoseconds(Text at, Text end)
{
    uint64_t value = 0;
    Text point = add_digits(at, end, WHOLE_DIGITS_MAX, &value);
    Py_ssize_t decimals = 0;
    if (point == at)
        return NO_TIME;
    if (point < end) {
        if (*point != '.')
            return NO_TIME;
        at = add_digits(point + 1, end, DECIMALS, &value);
        if (at != end)
            return NO_TIME;
        decimals = at - point - 1;
    }
    for (; decimals < DECIMALS; decimals++)
        value *= 10;
    return value;
}

#define IS(name) (length == sizeof(name) - 1 && memcmp(at, name, sizeof(name) - 1) == 0)

/* Return which field of an event a key is, FIELDS for another. */
static int
event_field(Text at, Text end)
{
    size_t length = (size_t)(end - at);
    switch (length) {
    case 2:
        return IS("ph") ? PHASE : IS("ts") ? START : FIELDS;
    case 3:
        return IS("cat")   ? CATEGORY
               : IS("pid") ? PROCESS
               : IS("tid") ? THREAD
               : IS("dur") ? DURATION
                           : FIELDS;
    case 4:
        return IS("name") ? NAME : IS("args") ? ARGUMENTS : FIELDS;
    default:
        return FIELDS;
    }
}

/* Return which of the arguments that are read a key is, ARGUMENTS_READ for another. */
static int
argument_field(Text at, Text end)
{
    size_t length = (size_t)(end - at);
    switch (length) {
    case 5:
        return IS("bytes") ? BYTES : ARGUMENTS_READ;
    case 6:
        return IS("stream") ? STREAM : IS("device") ? DEVICE : ARGUMENTS_READ;
    case 10:
        return IS("Input Dims") ? DIMENSIONS : IS("Input type") ? TYPES : IS("Call stack") ? STACK : ARGUMENTS_READ;
    case 11:
        return IS("External id")   ? EXTERNAL
               : IS("external id") ? FORMER_EXTERNAL
               : IS("correlation") ? CORRELATION
                                   : ARGUMENTS_READ;
    case 13:
        return IS("blocks per SM") ? BLOCKS : ARGUMENTS_READ;
    case 14:
        return IS("cuda_sync_kind") ? SYNC : ARGUMENTS_READ;
    case 15:
        return IS("Sequence number") ? SEQUENCE : IS("Collective name") ? COLLECTIVE : ARGUMENTS_READ;
    case 25:
        return IS("est. achieved occupancy %") ? WARPS : ARGUMENTS_READ;
    default:
        return ARGUMENTS_READ;
    }
}

/* Fill the spans of an object's fields, and those of its arguments in `nested`, both cleared before.
 *
 * Returns what follows the object, NULL where it is of no usual form.
 */
static inline Text
read_fields(Scan *scan, Keys *keys, Text at, Text end, Span *fields, int count, FieldOf *field_of, Span *nested)
{
    Text text = scan->text;
    int place = 0, field;
    if (at >= end || *at != '{')
        return NULL;
    Text empty = skip_spaces(at + 1, end);
    if (empty < end && *empty == '}')
        return empty + 1;
    do {
        Text value = next_key(keys, place++, at, end, field_of, &field);
        if (value == NULL)
            return NULL;
        if (nested && field == ARGUMENTS && value < end && *value == '{')
            at = read_fields(scan, &scan->argument_keys, value, end, nested, ARGUMENTS_READ, argument_field, NULL);
        else
            at = skip_value(value, end, 0);
        if (at == NULL)
            return NULL;
        if (field < count) {
            if (fields[field].end)
                return NULL;
            fields[field] = (Span){(int32_t)(value - text), (int32_t)(at - text)};
        }
        at = skip_spaces(at, end);
        if (at >= end)
            return NULL;
    } while (*at == ',');
    return *at == '}' ? at + 1 : NULL;
}

static int
is_text(Text text, Span span)
{
    return !span.end || text[span.begin] == '"';
}

/* Whether a process's or thread's id is missing, text, null or an integer. */
static int
is_id(Text text, Span span)
{
    Text at = text + span.begin, end = text + span.end;
    if (!span.end || *at == '"' || *at == 'n')
        return 1;
    at += *at == '-';
    if (end - at > ID_DIGITS_MAX)
        return 0;
    while (is_digit(at, end))
        at++;
    return at == end;
}

/* Return an integer of at most ID_DIGITS_MAX digits, ABSENT where there is none; `is_odd` becomes 1 for another value. */
static int64_t
integer(Text text, Span span, int32_t *is_odd)
{
    Text at = text + span.begin, end = text + span.end;
    int64_t value = 0;
    if (!span.end)
        return ABSENT;
    int is_negative = *at == '-';
    Text first = at += is_negative;
    for (; is_digit(at, end) && at - first < ID_DIGITS_MAX; at++)
        value = 10 * value + (*at - '0');
    if (at == end)
        return is_negative ? -value : value;
    *is_odd = 1;
    return ABSENT;
}

/* Fill in what is read of an event's arguments; return -1 without memory. */
static int
add_arguments(Scan *scan, Event *event, const Span *fields)
{
    static const Span none = {0, 0};
    Text text = scan->text;
    event->is_odd = event->arguments.end && text[event->arguments.begin] != '{';
    for (int each = 0; each < INTEGERS; each++)
        event->integers[each] = integer(text, fields[each], &event->is_odd);
    event->is_odd |= fields[COLLECTIVE].end || fields[SYNC].end;
    event->shapes = event->stack = event->occupancy = ABSENT;
    event->padding = 0;
    if (fields[DIMENSIONS].end || fields[TYPES].end) {
        event->shapes = code_of(&scan->shapes, text, fields[DIMENSIONS], fields[TYPES]);
        if (event->shapes < 0)
            return -1;
    }
    if (fields[BLOCKS].end || fields[WARPS].end) {
        event->occupancy = code_of(&scan->occupancies, text, fields[BLOCKS], fields[WARPS]);
        if (event->occupancy < 0)
            return -1;
    }
    if (fields[STACK].end && text[fields[STACK].begin] == '"') {
        event->stack = code_of(&scan->stacks, text, fields[STACK], none);
        if (event->stack < 0)
            return -1;
    }
    return 0;
}

/* Add a complete event; return -1 where it is of no usual form. */
static int
add_complete(Scan *scan, const Span fields[FIELDS], const Span arguments[ARGUMENTS_READ])
{
    static const Span none = {0, 0};
    Text text = scan->text;
    if (!is_text(text, fields[NAME]) || !is_text(text, fields[CATEGORY]) || !is_id(text, fields[PROCESS]) ||
        !is_id(text, fields[THREAD]))
        return -1;
    uint64_t start_ns = nanoseconds(text + fields[START].begin, text + fields[START].end);
    uint64_t duration_ns = nanoseconds(text + fields[DURATION].begin, text + fields[DURATION].end);
    if (start_ns == NO_TIME || duration_ns == NO_TIME)
        return -1;
    if (start_ns > START_MAX_NS || duration_ns > DURATION_MAX_NS) {
        scan->dropped++;
        return 0;
    }
    Event *event = append(&scan->events);
    if (event == NULL)
        return -1;
    event->start_ns = (int64_t)start_ns;
    event->duration_ns = (int64_t)duration_ns;
    event->name = code_of(&scan->names, text, fields[NAME], none);
    event->thread = code_of(&scan->threads, text, fields[PROCESS], fields[THREAD]);
    event->category = code_of(&scan->categories, text, fields[CATEGORY], none);
    event->arguments = fields[ARGUMENTS];
    if (event->name < 0 || event->thread < 0 || event->category < 0)
        return -1;
    return add_arguments(scan, event, arguments);
}

/* Read the event at `at`; return what follows it, NULL where it is of no usual form. */
static Text
scan_event(Scan *scan, Text at, Text end)
{
    Span fields[FIELDS] = {{0, 0}}, arguments[ARGUMENTS_READ] = {{0, 0}};
    Text after = read_fields(scan, &scan->keys, at, end, fields, FIELDS, event_field, arguments);
    if (after == NULL || fields[PHASE].end - fields[PHASE].begin != 3 || !is_text(scan->text, fields[PHASE]))
        return NULL;
    char phase = (char)scan->text[fields[PHASE].begin + 1];
    scan->count++;
    if (phase == 'X')
        return add_complete(scan, fields, arguments) < 0 ? NULL : after;
    if (phase == 'M') {
        Span *span = append(&scan->metadata);
        if (span == NULL)
            return NULL;
        *span = (Span){(int32_t)(at - scan->text), (int32_t)(after - scan->text)};
        return after;
    }
    return phase && strchr(PHASES, phase) ? after : NULL;
}

/* Whether all of the text is events of the usual form, separated by commas. */
static int
scan_events(Scan *scan, Text end)
{
    Text at = skip_spaces(scan->text, end);
    while ((at = scan_event(scan, at, end)) != NULL) {
        at = skip_spaces(at, end);
        if (at == end)
            return 1;
        if (*at != ',')
            return 0;
        at = skip_spaces(at + 1, end);
    }
    return 0;
}

static PyObject *
result_of(const Scan *scan)
{
    Text text = scan->text;
    return Py_BuildValue("(LLNNNNNNNN)", (long long)scan->count, (long long)scan->dropped, bytes_of(&scan->events),
                         list_of(text, &scan->names.spans, 2, "\"\""), list_of(text, &scan->threads.spans, 1, "null"),
                         list_of(text, &scan->categories.spans, 2, "\"\""), pairs_of(text, &scan->shapes.spans),
                         list_of(text, &scan->stacks.spans, 2, ""), pairs_of(text, &scan->occupancies.spans),
                         list_of(text, &scan->metadata, 1, ""));
}

static PyObject *
scan(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *bytes;
    char *text;
    Py_ssize_t size, end;
    if (!PyArg_ParseTuple(arguments, "Sn:scan", &bytes, &end) || PyBytes_AsStringAndSize(bytes, &text, &size) < 0)
        return NULL;
    if (end < 0 || end > size || size > TEXT_MAX) {
        PyErr_Format(PyExc_ValueError, "end: got %zd of %zd bytes, expected 0 to the text's size, of at most 1 GiB", end,
                     size);
        return NULL;
    }
    const Codes codes = {.spans.size = 2 * sizeof(Span), .hashes.size = sizeof(uint64_t)};
    Scan found = {
        .text = (Text)text,
        .events.size = sizeof(Event),
        .metadata.size = sizeof(Span),
        .names = codes,
        .threads = codes,
        .categories = codes,
        .shapes = codes,
        .stacks = codes,
        .occupancies = codes,
    };
    int is_usual;
    Py_BEGIN_ALLOW_THREADS /* bytes never change, and the caller's arguments hold them */
    is_usual = scan_events(&found, (Text)text + end);
    Py_END_ALLOW_THREADS
    PyObject *result = is_usual ? result_of(&found) : Py_NewRef(Py_None);
    free(found.events.items);
    free(found.metadata.items);
    release(&found.names);
    release(&found.threads);
    release(&found.categories);
    release(&found.shapes);
    release(&found.stacks);
    release(&found.occupancies);
    return result;
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, "Return the events in text[:end], None where one of them is of no usual form."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_scan", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC
PyInit__scan(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "EVENT_BYTES", sizeof(Event)) < 0)
        Py_CLEAR(made);
    return made;
}
