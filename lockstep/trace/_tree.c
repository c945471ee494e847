/* Spans of one thread to a call tree: build(starts, ends, calls, annotations, moments, places).
 *
 * tree.py has what it does, and does the same in Python for installations without this extension; a test holds both to
 * the same trees. Starts, ends and moments are int64, calls int32, one byte in annotations for each call. Before the
 * span at each of the places (int64, in order) the totals until the moment are noted. Built for the stable ABI of
 * Python 3.11.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROOT (-1)
#define DEPTH_MAX 4096 /* tree.DEPTH_MAX */
#define SPANS_MAX ((Py_ssize_t)1 << 30)

typedef struct {
    int64_t end;
    int32_t node, call;
} Open;

typedef struct {
    int64_t start, serial, end;
    int32_t call;
} Deferred;

typedef struct {
    const unsigned char *annotations; /* by call: whether it is one */
    int32_t *parents, *calls, *slots; /* by node; of a node that is looked for by parent and call: node + 1 */
    int64_t *totals, *counts;         /* by node */
    Deferred *deferred;               /* a heap by start; the serial keeps ties in order */
    Open stack[DEPTH_MAX];
    int64_t serial;
    size_t mask;
    int32_t nodes, waiting, depth;
} Tree;

static int
comes_before(const Deferred *one, const Deferred *other)
{
    return one->start < other->start || (one->start == other->start && one->serial < other->serial);
}

static void
push_deferred(Tree *tree, Deferred added)
{
    int32_t at = tree->waiting++;
    for (; at && comes_before(&added, &tree->deferred[(at - 1) / 2]); at = (at - 1) / 2)
        tree->deferred[at] = tree->deferred[(at - 1) / 2];
    tree->deferred[at] = added;
}

static Deferred
pop_deferred(Tree *tree)
{
    Deferred first = tree->deferred[0], last = tree->deferred[--tree->waiting];
    int32_t at = 0;
    for (int64_t child; (child = 2 * (int64_t)at + 1) < tree->waiting; at = (int32_t)child) {
        if (child + 1 < tree->waiting && comes_before(&tree->deferred[child + 1], &tree->deferred[child]))
            child++;
        if (!comes_before(&tree->deferred[child], &last))
            break;
        tree->deferred[at] = tree->deferred[child];
    }
    tree->deferred[at] = last;
    return first;
}

static int32_t
node_of(Tree *tree, int32_t parent, int32_t call)
{
    uint64_t key = (uint64_t)(uint32_t)parent << 32 | (uint32_t)call;
    key = (key ^ key >> 29) * 0x9E3779B97F4A7C15ull;
    size_t slot = (size_t)(key ^ key >> 32) & tree->mask;
    for (; tree->slots[slot]; slot = (slot + 1) & tree->mask) {
        int32_t node = tree->slots[slot] - 1;
        if (tree->parents[node] == parent && tree->calls[node] == call)
            return node;
    }
    tree->parents[tree->nodes] = parent;
    tree->calls[tree->nodes] = call;
    tree->totals[tree->nodes] = tree->counts[tree->nodes] = 0;
    tree->slots[slot] = tree->nodes + 1;
    return tree->nodes++;
}

/* Let an annotation begin where the outermost frame ends inside which it was entered. */
static void
defer(Tree *tree, int64_t end, int32_t call)
{
    int64_t left = INT64_MIN;
    for (int32_t at = 0; at < tree->depth; at++)
        if (tree->stack[at].end < end && tree->stack[at].end > left)
            left = tree->stack[at].end;
    push_deferred(tree, (Deferred){left, ++tree->serial, end, call});
}

static void
enter(Tree *tree, int64_t start, int64_t end, int32_t call)
{
    Open *stack = tree->stack;
    while (tree->depth && stack[tree->depth - 1].end <= start)
        tree->depth--;
    if (tree->depth && end > stack[tree->depth - 1].end) {
        if (tree->annotations[call]) {
            defer(tree, end, call);
            return;
        }
        /* Annotations on top of the stack end where the frame begins inside which they are left. */
        for (Open *top; tree->depth && (top = &stack[tree->depth - 1], tree->annotations[top->call]) && top->end < end;) {
            tree->totals[top->node] -= top->end - start;
            tree->depth--;
        }
        if (tree->depth && stack[tree->depth - 1].end < end)
            end = stack[tree->depth - 1].end;
    }
    if (tree->depth == DEPTH_MAX)
        return;
    int32_t node = node_of(tree, tree->depth ? stack[tree->depth - 1].node : ROOT, call);
    tree->totals[node] += end - start;
    tree->counts[node]++;
    stack[tree->depth++] = (Open){end, node, call};
}

static void
enter_deferred(Tree *tree)
{
    Deferred next = pop_deferred(tree);
    enter(tree, next.start, next.end, next.call);
}

/* The totals so far, without what open spans last beyond a moment. */
static void
note_totals(const Tree *tree, int64_t moment, int64_t *totals)
{
    memcpy(totals, tree->totals, (size_t)tree->nodes * sizeof *totals);
    for (int32_t at = 0; at < tree->depth; at++)
        if (tree->stack[at].end > moment)
            totals[tree->stack[at].node] -= tree->stack[at].end - moment;
}

static int
allocate(Tree *tree, size_t spans)
{
    size_t slots = 16; /* pages that no node is in are never touched */
    while (slots < 2 * spans + 2)
        slots *= 2;
    tree->mask = slots - 1;
    tree->slots = calloc(slots, sizeof *tree->slots);
    tree->parents = malloc((spans + 1) * sizeof *tree->parents);
    tree->calls = malloc((spans + 1) * sizeof *tree->calls);
    tree->totals = malloc((spans + 1) * sizeof *tree->totals);
    tree->counts = malloc((spans + 1) * sizeof *tree->counts);
    tree->deferred = malloc((spans + 1) * sizeof *tree->deferred);
    return tree->slots && tree->parents && tree->calls && tree->totals && tree->counts && tree->deferred ? 0 : -1;
}

static void
release(Tree *tree)
{
    free(tree->slots);
    free(tree->parents);
    free(tree->calls);
    free(tree->totals);
    free(tree->counts);
    free(tree->deferred);
    free(tree);
}

enum { STARTS, ENDS, CALLS, ANNOTATIONS, MOMENTS, PLACES, COLUMNS };

/* Whether the columns have the lengths of each other and every call is known. */
static int
is_sound(const Py_buffer *columns, Py_ssize_t count)
{
    const int32_t *calls = columns[CALLS].buf;
    if (columns[STARTS].len != 8 * count || columns[ENDS].len != 8 * count || columns[CALLS].len != 4 * count ||
        count > SPANS_MAX || columns[MOMENTS].len % 8 || columns[MOMENTS].len != columns[PLACES].len)
        return 0;
    for (Py_ssize_t span = 0; span < count; span++)
        if (calls[span] < 0 || calls[span] >= columns[ANNOTATIONS].len)
            return 0;
    return 1;
}

/* Add the totals until a moment to a list; return -1 without memory. */
static int
append_totals(const Tree *tree, int64_t moment, PyObject *noted)
{
    PyObject *totals = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)tree->nodes * (Py_ssize_t)sizeof moment);
    if (totals == NULL)
        return -1;
    note_totals(tree, moment, (int64_t *)(void *)PyBytes_AsString(totals));
    int status = PyList_Append(noted, totals);
    Py_DECREF(totals);
    return status;
}

/* Enter all spans; return -1 without memory. */
static int
enter_all(Tree *tree, const Py_buffer *columns, Py_ssize_t count, PyObject *noted)
{
    const int64_t *starts = columns[STARTS].buf, *ends = columns[ENDS].buf;
    const int64_t *moments = columns[MOMENTS].buf, *places = columns[PLACES].buf;
    const int32_t *calls = columns[CALLS].buf;
    Py_ssize_t moment = 0, moment_count = columns[MOMENTS].len / 8;
    for (Py_ssize_t span = 0; span <= count; span++) {
        for (; moment < moment_count && (places[moment] <= span || span == count); moment++)
            if (append_totals(tree, moments[moment], noted) < 0)
                return -1;
        if (span == count)
            break;
        while (tree->waiting && tree->deferred[0].start <= starts[span])
            enter_deferred(tree);
        enter(tree, starts[span], ends[span], calls[span]);
    }
    while (tree->waiting)
        enter_deferred(tree);
    return 0;
}

static PyObject *
tree_of(const Py_buffer *columns, Py_ssize_t count)
{
    Tree *tree = calloc(1, sizeof *tree);
    PyObject *noted = PyList_New(0), *result = NULL;
    if (tree == NULL || noted == NULL || allocate(tree, (size_t)count) < 0) {
        PyErr_NoMemory();
    }
    else {
        tree->annotations = columns[ANNOTATIONS].buf;
        if (enter_all(tree, columns, count, noted) == 0)
            result = Py_BuildValue("(y#y#y#y#O)", (char *)tree->parents, (Py_ssize_t)tree->nodes * 4,
                                   (char *)tree->calls, (Py_ssize_t)tree->nodes * 4, (char *)tree->totals,
                                   (Py_ssize_t)tree->nodes * 8, (char *)tree->counts, (Py_ssize_t)tree->nodes * 8,
                                   noted);
    }
    Py_XDECREF(noted);
    if (tree)
        release(tree);
    return result;
}

static PyObject *
build(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer columns[COLUMNS];
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*:build", &columns[0], &columns[1], &columns[2], &columns[3],
                          &columns[4], &columns[5]))
        return NULL;
    Py_ssize_t count = columns[STARTS].len / 8;
    if (is_sound(columns, count))
        result = tree_of(columns, count);
    else
        PyErr_Format(PyExc_ValueError, "spans: got %zd starts, %zd ends, %zd calls or a call without its kind, expected "
                     "as many of each", count, columns[ENDS].len / 8, columns[CALLS].len / 4);
    for (int each = 0; each < COLUMNS; each++)
        PyBuffer_Release(&columns[each]);
    return result;
}

static PyMethodDef methods[] = {
    {"build", build, METH_VARARGS, "Return the nodes' parents, calls, totals and counts, and the totals until moments."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_tree", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC
PyInit__tree(void)
{
    return PyModule_Create(&module);
}
