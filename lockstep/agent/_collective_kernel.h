/* A kernel in front of one of torch's collectives, as torch's dispatcher calls Python ones (hooks/python_kernel.py).
 *
 * Included by _marks.c, behind the mark buffer. python_kernel.py has the same in Python, for processes without this
 * extension; a test holds both to the same marks. A common collective runs no bytecode here: of one tensor, or a list of
 * one, on the host, of a group met before, on the training thread, while no graph is captured. What else there is goes to
 * Python: `issue_any` and `complete`. Their failures, and those of what is read here, end at the boundary (boundary.py).
 */

typedef struct {
    PyObject_HEAD
    MarkBuffer *buffer;
    PyObject *handle, *redispatch;            /* torch's operator, and the unbound method that passes a call on to it */
    PyObject *raw_repr, *has;                 /* unbound methods of DispatchKeySet */
    PyObject *after_key, *host_key;           /* keys behind this kernel's; the one of tensors on the host */
    PyObject *unbox_group, *unbox_work;       /* static methods of ProcessGroup and Work */
    PyObject *known, *captures;               /* GroupUse by id of a group; graphs whose capture is under way */
    PyObject *issue_any, *complete, *absorbs; /* `complete` returns whether it noted the end, `issue_any` an ordinal or None */
    Py_ssize_t group_index, payload_index;    /* -1: of each rank another call site; no payload */
    Py_ssize_t async_index;                   /* -1: always asynchronous */
    int64_t bits, synchronous_bits;           /* what the operator adds to its group's call site */
    int has_future;                           /* whether its Works have one, until one has none */
    uint64_t keys;                            /* the key set of the last call, and what follows from it */
    PyObject *passed_keys;
    int is_on_host;
} CollectiveKernel;

#define NO_ORDINAL (-3)

/* Return the keys behind this kernel's, and whether the tensors are on the host. Calls have the same key set again and
 * again: it is looked at once. Another thread may call meanwhile with another one. */
static PyObject *look_at_keys(CollectiveKernel *self, PyObject *keyset, int *is_on_host)
{
    PyObject *raw = PyObject_CallFunctionObjArgs(self->raw_repr, keyset, NULL);
    const uint64_t keys = raw == NULL ? 0 : PyLong_AsUnsignedLongLong(raw);
    Py_XDECREF(raw);
    if (PyErr_Occurred())
        return NULL;
    if (self->passed_keys == NULL || keys != self->keys) {
        PyObject *has_host = PyObject_CallFunctionObjArgs(self->has, keyset, self->host_key, NULL);
        const int has = has_host == NULL ? -1 : PyObject_IsTrue(has_host);
        Py_XDECREF(has_host);
        PyObject *passed_keys = has < 0 ? NULL : PyNumber_And(keyset, self->after_key);
        if (passed_keys == NULL)
            return NULL;
        PyObject *former = self->passed_keys;
        self->keys = keys;
        self->is_on_host = has;
        self->passed_keys = passed_keys;
        Py_XDECREF(former);
    }
    *is_on_host = self->is_on_host;
    Py_INCREF(self->passed_keys);
    return self->passed_keys;
}

/* The arguments of `redispatch`: the operator, the key set behind this kernel's, and those of the call. */
#define BEFORE_ARGUMENTS 2

static PyObject *passed_arguments(PyObject *handle, PyObject *keys, PyObject *given)
{
    const Py_ssize_t count = PyTuple_Size(given) - 1;
    PyObject *passed = PyTuple_New(BEFORE_ARGUMENTS + count);
    for (Py_ssize_t index = 0; passed != NULL && index < BEFORE_ARGUMENTS + count; index++) {
        PyObject *argument = index == 0 ? handle : index == 1 ? keys : PyTuple_GetItem(given, index - 1);
        Py_INCREF(argument);
        PyTuple_SetItem(passed, index, argument);
    }
    return passed;
}

static int64_t nbytes(MarkBuffer *buffer, PyObject *tensors)
{
    if (PyList_CheckExact(tensors)) {
        if (PyList_Size(tensors) != 1)
            return NO_ANSWER;
        tensors = PyList_GetItem(tensors, 0);
        if (PyList_CheckExact(tensors))
            return NO_ANSWER;
    }
    PyObject *value = PyObject_GetAttr(tensors, buffer->nbytes_name);
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
            return FAILED;
        PyErr_Clear(); /* a sparse tensor */
        return NO_ANSWER;
    }
    const int64_t bytes = integer(value);
    Py_DECREF(value);
    return bytes > PAYLOAD_BYTES_MAX ? PAYLOAD_BYTES_MAX : bytes;
}

/* The call site of a group that was met before, without its operator. */
static int64_t known_site(CollectiveKernel *self, PyObject *boxed)
{
    int64_t site = FAILED;
    PyObject *group = PyObject_CallFunctionObjArgs(self->unbox_group, boxed, NULL);
    PyObject *key = group == NULL ? NULL : PyLong_FromVoidPtr(group);
    PyObject *use = key == NULL ? NULL : PyDict_GetItemWithError(self->known, key); /* borrowed */
    if (use != NULL) {
        PyObject *value = PyObject_GetAttr(use, self->buffer->site_name);
        site = value == NULL ? FAILED : integer(value);
        Py_XDECREF(value);
    } else if (!PyErr_Occurred())
        site = NO_ANSWER;
    Py_XDECREF(key);
    Py_XDECREF(group);
    return site;
}

/* The ordinal of a common collective; NO_ANSWER: it is none, FAILED: an exception is set. */
static int64_t issue_common(CollectiveKernel *self, PyObject *passed, int64_t bits)
{
    MarkBuffer *buffer = self->buffer;
    if (self->group_index < 0 || PyThread_get_thread_ident() != buffer->thread || PyDict_Size(self->captures) != 0)
        return NO_ANSWER;
    PyObject *boxed = PyTuple_GetItem(passed, BEFORE_ARGUMENTS + self->group_index); /* borrowed, as the next one */
    PyObject *tensors =
        self->payload_index < 0 ? NULL : PyTuple_GetItem(passed, BEFORE_ARGUMENTS + self->payload_index);
    if (boxed == NULL || (self->payload_index >= 0 && tensors == NULL))
        return FAILED;
    const int64_t site = known_site(self, boxed);
    const int64_t payload = site < 0 || tensors == NULL ? 0 : nbytes(buffer, tensors);
    if (PyErr_Occurred())
        return FAILED;
    return site < 0 || payload < 0 ? NO_ANSWER : issue_at(buffer, site | bits, payload);
}

/* The ordinal of any collective; NO_ORDINAL: nothing is recorded. */
static int64_t issue_one(CollectiveKernel *self, PyObject *passed, int64_t bits)
{
    int64_t ordinal = issue_common(self, passed, bits);
    if (ordinal != NO_ANSWER)
        return ordinal;
    PyObject *arguments = PyTuple_GetSlice(passed, BEFORE_ARGUMENTS, PyTuple_Size(passed));
    PyObject *answer =
        arguments == NULL ? NULL : PyObject_CallFunction(self->issue_any, "LO", (long long)bits, arguments);
    Py_XDECREF(arguments);
    if (answer == NULL)
        return FAILED;
    ordinal = answer == Py_None ? NO_ORDINAL : integer(answer);
    Py_DECREF(answer);
    return ordinal;
}

/* See to it that a collective's end is noted: 0, or -1 where an exception is set. */
static int complete_one(
    CollectiveKernel *self, int is_on_host, int is_synchronous, int64_t ordinal, PyObject *passed, PyObject *result)
{
    MarkBuffer *buffer = self->buffer;
    if (!is_on_host) {
        const Py_ssize_t index = self->payload_index < 0 ? 0 : self->payload_index;
        PyObject *tensors = PyTuple_GetItem(passed, BEFORE_ARGUMENTS + index);
        PyObject *answer = tensors == NULL
            ? NULL
            : PyObject_CallFunction(
                  self->complete, "LOOO", (long long)ordinal, is_synchronous ? Py_True : Py_False, tensors, result);
        const int is_noted = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_noted != 0)
            return is_noted < 0 ? -1 : 0;
    }
    if (!is_synchronous && self->has_future) {
        const int has_future = await_work(buffer, self->unbox_work, (uint32_t)ordinal, result);
        if (has_future == 0)
            self->has_future = 0;
        return has_future < 0 ? -1 : 0;
    }
    return note_expected(buffer, (uint32_t)ordinal);
}

/* Whether what is raised now, in `part`, is a failure of the agent's own, which is counted; else it stays raised. */
static int is_absorbed(CollectiveKernel *self, PyObject *part)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    PyObject *answer = PyObject_CallFunctionObjArgs(self->absorbs, part, value, NULL);
    if (answer == Py_False) {
        Py_DECREF(answer);
        PyErr_Restore(type, value, trace);
        return 0;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(answer);
    return answer != NULL; /* else a signal handler raised meanwhile */
}

static PyObject *pass_on(CollectiveKernel *self, int is_on_host, PyObject *passed, PyObject *named)
{
    const Py_ssize_t async_index = BEFORE_ARGUMENTS + self->async_index;
    int is_asynchronous = 1;
    if (self->async_index >= 0 && PyTuple_Size(passed) > async_index) /* defaults at the end are left out */
        is_asynchronous = PyObject_IsTrue(PyTuple_GetItem(passed, async_index));
    int64_t ordinal =
        is_asynchronous < 0 ? FAILED : issue_one(self, passed, is_asynchronous ? self->bits : self->synchronous_bits);
    if (PyErr_Occurred()) {
        if (!is_absorbed(self, self->issue_any))
            return NULL;
        ordinal = NO_ORDINAL;
    }
    PyObject *result = PyObject_Call(self->redispatch, passed, named);
    if (result == NULL || ordinal < 0)
        return result;
    if (complete_one(self, is_on_host, !is_asynchronous, ordinal, passed, result) < 0
        && !is_absorbed(self, self->complete)) {
        Py_DECREF(result);
        return NULL;
    }
    return result;
}

static PyObject *kernel_call(CollectiveKernel *self, PyObject *given, PyObject *named)
{
    if (PyTuple_Size(given) < 1) {
        PyErr_SetString(PyExc_TypeError, "CollectiveKernel: got no arguments, expected a key set first");
        return NULL;
    }
    int is_on_host;
    PyObject *keys = look_at_keys(self, PyTuple_GetItem(given, 0), &is_on_host);
    PyObject *passed = keys == NULL ? NULL : passed_arguments(self->handle, keys, given);
    Py_XDECREF(keys);
    if (passed == NULL)
        return NULL;
    Py_INCREF((PyObject *)self); /* what takes the kernels off drops torch's reference */
    PyObject *result = pass_on(self, is_on_host, passed, named);
    Py_DECREF((PyObject *)self);
    Py_DECREF(passed);
    return result;
}

#define KERNEL_OBJECTS(DO) \
    DO(handle) DO(redispatch) DO(raw_repr) DO(has) DO(after_key) DO(host_key) DO(unbox_group) DO(unbox_work) DO(known) \
    DO(captures) DO(issue_any) DO(complete) DO(absorbs)

static PyObject *kernel_make(PyTypeObject *type, PyObject *given, PyObject *named)
{
    static char *names[] = {"buffer", "handle", "redispatch", "raw_repr", "has", "after_key", "host_key", "unbox_group",
                             "unbox_work", "known", "captures", "issue_any", "complete", "absorbs", "group_index",
                             "payload_index", "async_index", "bits", "synchronous_bits", NULL};
    CollectiveKernel read = {0};
    PyObject *buffer;
    long long bits, synchronous_bits;
    if (!PyArg_ParseTupleAndKeywords(
            given, named, "O$OOOOOOOOO!O!OOOnnnLL:CollectiveKernel", names, &buffer, &read.handle, &read.redispatch,
            &read.raw_repr, &read.has, &read.after_key, &read.host_key, &read.unbox_group, &read.unbox_work,
            &PyDict_Type, &read.known, &PyDict_Type, &read.captures, &read.issue_any, &read.complete, &read.absorbs,
            &read.group_index, &read.payload_index, &read.async_index, &bits, &synchronous_bits))
        return NULL;
    if (!is_buffer(buffer, "CollectiveKernel"))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    CollectiveKernel *self = (CollectiveKernel *)allocate(type, 0); /* zeroed */
    if (self == NULL)
        return NULL;
    Py_INCREF(buffer);
    self->buffer = (MarkBuffer *)buffer;
#define TAKE(NAME) Py_INCREF(read.NAME); self->NAME = read.NAME;
    KERNEL_OBJECTS(TAKE)
    self->group_index = read.group_index;
    self->payload_index = read.payload_index;
    self->async_index = read.async_index;
    self->bits = bits;
    self->synchronous_bits = synchronous_bits;
    self->has_future = 1;
    return (PyObject *)self;
}

static int kernel_traverse(CollectiveKernel *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)self->buffer);
#define VISIT(NAME) Py_VISIT(self->NAME);
    KERNEL_OBJECTS(VISIT)
    Py_VISIT(self->passed_keys);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void kernel_deallocate(CollectiveKernel *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->buffer);
#define DROP(NAME) Py_XDECREF(self->NAME);
    KERNEL_OBJECTS(DROP)
    Py_XDECREF(self->passed_keys);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot kernel_slots[] = {
    {Py_tp_doc, "A kernel in front of a collective: called with a key set and the operator's arguments."},
    {Py_tp_new, kernel_make},
    {Py_tp_call, kernel_call},
    {Py_tp_traverse, kernel_traverse},
    {Py_tp_dealloc, kernel_deallocate},
    {0, NULL},
};

static PyType_Spec kernel_specification = {
    .name = "lockstep.agent._marks.CollectiveKernel",
    .basicsize = sizeof(CollectiveKernel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = kernel_slots,
};
