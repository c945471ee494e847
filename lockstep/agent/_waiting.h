/* A call that waits for communication, between a mark of its begin and one of its end (hooks/waits.py).
 *
 * Included by _marks.c, behind the mark buffer. A descriptor as functions are: as an attribute of a class it is a method.
 */

typedef struct {
    PyObject_HEAD
    PyObject *call;               /* what waits */
    PyObject *buffer;             /* a MarkBuffer */
    PyObject *works_for_backward; /* whether another thread than the training thread waits for that */
    PyObject *method_type;        /* types.MethodType */
    PyObject *dict;
} Waiting;

static PyObject *waiting_call(Waiting *self, PyObject *given, PyObject *named)
{
    MarkBuffer *buffer = (MarkBuffer *)self->buffer;
    if (PyThread_get_thread_ident() != buffer->thread) {
        PyObject *answer = PyObject_CallNoArgs(self->works_for_backward);
        if (answer == NULL)
            return NULL; /* of a signal handler: our own are caught in Python */
        const int is_ours = answer == Py_True;
        Py_DECREF(answer);
        if (!is_ours)
            return PyObject_Call(self->call, given, named);
    }
    PyObject *begun = wait_begin(buffer, NULL);
    if (begun == NULL)
        return NULL;
    Py_DECREF(begun);
    PyObject *type, *value, *trace;
    PyObject *result = PyObject_Call(self->call, given, named);
    PyErr_Fetch(&type, &value, &trace);
    PyObject *ended = wait_end(buffer, NULL);
    if (ended == NULL) { /* what a signal handler raised meanwhile goes before, as in a `finally` */
        Py_XDECREF(result);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return NULL;
    }
    Py_DECREF(ended);
    PyErr_Restore(type, value, trace);
    return result;
}

static PyObject *waiting_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    if (instance == NULL || instance == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyObject_CallFunctionObjArgs(((Waiting *)self)->method_type, self, instance, NULL);
}

static PyObject *waiting_make(PyTypeObject *type, PyObject *given, PyObject *named)
{
    static char *names[] = {"call", "buffer", "works_for_backward", "method_type", NULL};
    PyObject *call, *buffer, *works_for_backward, *method_type;
    if (!PyArg_ParseTupleAndKeywords(
            given, named, "OOOO:Waiting", names, &call, &buffer, &works_for_backward, &method_type))
        return NULL;
    if (!is_buffer(buffer, "Waiting"))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Waiting *self = (Waiting *)allocate(type, 0); /* zeroed */
    if (self == NULL)
        return NULL;
    self->call = optional(call);
    self->buffer = optional(buffer);
    self->works_for_backward = optional(works_for_backward);
    self->method_type = optional(method_type);
    return (PyObject *)self;
}

static int waiting_traverse(Waiting *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->buffer);
    Py_VISIT(self->works_for_backward);
    Py_VISIT(self->method_type);
    Py_VISIT(self->dict);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int waiting_clear(Waiting *self)
{
    Py_CLEAR(self->dict); /* nothing else: a call may be under way; what refers to this object is a class's attribute */
    return 0;
}

static void waiting_deallocate(Waiting *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    waiting_clear(self);
    Py_XDECREF(self->call);
    Py_XDECREF(self->buffer);
    Py_XDECREF(self->works_for_backward);
    Py_XDECREF(self->method_type);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef waiting_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Waiting, dict), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef waiting_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot waiting_slots[] = {
    {Py_tp_new, waiting_make},
    {Py_tp_call, waiting_call},
    {Py_tp_descr_get, waiting_get},
    {Py_tp_traverse, waiting_traverse},
    {Py_tp_clear, waiting_clear},
    {Py_tp_dealloc, waiting_deallocate},
    {Py_tp_members, waiting_members},
    {Py_tp_getset, waiting_attributes},
    {0, NULL},
};

static PyType_Spec waiting_specification = {
    .name = "lockstep.agent._marks.Waiting",
    .basicsize = sizeof(Waiting),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = waiting_slots,
};
