/* What a scan found as bytes and lists for Python. */

#ifndef LOCKSTEP_LISTS_H
#define LOCKSTEP_LISTS_H

#include "_codes.h"

static PyObject *
bytes_of(const Array *array)
{
    return PyBytes_FromStringAndSize(array->items, (Py_ssize_t)(array->count * array->size));
}

static size_t
write_text(char *to, const char *from, size_t length)
{
    if (to)
        memcpy(to, from, length);
    return length;
}

/* Write a list of JSON of every `step`th of the spans; return its length, which is all that is done without `to`. */
static size_t
write_list(char *to, Text text, const Span *spans, size_t count, size_t step, const char *missing)
{
    size_t length = 1;
    for (size_t each = 0; each < count; each += step) {
        const Span span = spans[each];
        if (each)
            length += write_text(to ? to + length : NULL, ",", 1);
        length += span.end ? write_text(to ? to + length : NULL, (const char *)text + span.begin,
                                        (size_t)(span.end - span.begin))
                           : write_text(to ? to + length : NULL, missing, strlen(missing));
    }
    if (to) {
        to[0] = '[';
        to[length] = ']';
    }
    return length + 1;
}

static PyObject *
list_of(Text text, const Array *array, size_t step, const char *missing)
{
    size_t count = array->count * (array->size / sizeof(Span));
    const Span *spans = (const Span *)(const void *)array->items;
    size_t length = write_list(NULL, text, spans, count, step, missing);
    PyObject *list = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (list)
        write_list(PyBytes_AsString(list), text, spans, count, step, missing);
    return list;
}

static PyObject *
pairs_of(Text text, const Array *array)
{
    PyObject *pairs = PyList_New((Py_ssize_t)array->count);
    const Span *spans = (const Span *)(const void *)array->items;
    for (size_t each = 0; pairs && each < array->count; each++) {
        Span first = spans[2 * each], second = spans[2 * each + 1];
        PyObject *pair = Py_BuildValue("(y#y#)", text + first.begin, (Py_ssize_t)(first.end - first.begin),
                                       text + second.begin, (Py_ssize_t)(second.end - second.begin));
        if (pair == NULL || PyList_SetItem(pairs, (Py_ssize_t)each, pair) < 0)
            Py_CLEAR(pairs);
    }
    return pairs;
}

#endif
