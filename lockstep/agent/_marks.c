/* HOT (budget 50 ns a mark, 600 ns a block): the marks of a training process, appended and stored by C.
 *
 * contracts/marks.py is the layout, mark_buffer.py the same in Python, for processes without this extension; a test
 * holds both to the same bytes. May live here: clocks, marks, blocks, pwrite. May not: what marks mean.
 *
 * Every call holds the GIL from begin to end, pwrite included (descriptors.py gives the reason), so no two calls
 * overlap, and no signal handler of the training runs inside one, but where it calls Python (`claim_thread`,
 * `at_store`, `at_boundary`, `device`). Marks that C++ makes without the GIL wait in a queue (_mark_queue.h) for the next call that
 * appends. Built for the stable ABI of Python 3.11.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEADER_BYTES 48
#define MARK_BYTES 24
#define BLOCK_MARKS 40
#define BLOCK_BYTES 1024
#define MARKS_VERSION 1
#define OTHER_THREAD 0x8000
#define FLUSH_INTERVAL_NS 100000000ull
#define FLUSH_EVENT_NS 10000000ull
#define POLL_INTERVAL_NS 100000000ull
#define ISSUE_SLOTS 128
#define PAYLOAD_BYTES_MAX ((1ll << 39) - 1)
#define SITE_MAX ((1ll << 40) - 1)
#define MISSING INT64_MIN

enum {
    BEGIN = 1, DATA_BEGIN, DATA_END, BACKWARD_BEGIN, BACKWARD_END, OPTIMIZER_BEGIN, OPTIMIZER_END, SCALER_BEGIN,
    SCALER_END, CLOSURE_BEGIN, CLOSURE_END, PHASE_BEGIN, PHASE_END, EXPLICIT, STEP_END, ISSUE, DONE, DONE_UNKNOWN,
    EXPECT, WAIT_BEGIN, WAIT_END, GC_BEGIN, GC_END, BATCH_TOKENS, BATCH_WORK, BATCH, BATCH_EVALUATED, ANNOTATION,
    FLAGS, COMPILED, AGENT_COST, FAILURE, FINISH, THREAD, FUSED_STEP, UNMEASURED, UNMEASURED_BUS, MODEL_FLOPS, ISSUE_BUS,
    MARKS_LOST = 50
};

enum { NO_END, BACKWARDS, OPTIMIZERS, STEPS }; /* `boundary_ends` */
#define EVALUATION 4 /* records.Flag */
#define MET_MAX 8

typedef struct {
    uint64_t time_ns;
    uint16_t kind, detail;
    uint32_t subject;
    int64_t argument;
} Mark;

typedef struct {
    uint32_t checksum;
    uint16_t count, version;
    uint64_t sequence, position, backward_ends, optimizer_ends, step_ends;
} Header;

typedef struct {
    Header header;
    Mark marks[BLOCK_MARKS];
} Block;

_Static_assert(sizeof(Mark) == MARK_BYTES && sizeof(Header) == HEADER_BYTES, "as contracts/marks.py has it");
_Static_assert(sizeof(Block) <= BLOCK_BYTES, "a block fits its slot");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "marks are little endian"
#endif

#include "_mark_queue.h"

typedef struct {
    PyObject_HEAD
    /* What each mark reads comes first, next to the block that it writes: caches are cold. */
    unsigned long long thread; /* the training thread; 0: no one's, the buffer is inert */
    PyObject *clock, *cpu_clock;
    Channel *open_channel; /* the one below, once others may leave marks in it */
    uint64_t due_ns, event_due_ns, end_due_ns;
    unsigned long long key; /* makes identities of addresses */
    uint64_t backward_ends, optimizer_ends, step_ends; /* until now; those of the header are until its first mark */
    uint64_t backward_depth, ends_at_backward;
    uint64_t elsewhere_ns; /* when a thread of its own last began or ended an optimizer's step that is yet to be noted */
    Block block;
    long long offset;
    unsigned long block_count;
    int file;
    unsigned long long failures; /* blocks that could not be stored */
    Channel *channel;
    uint64_t reported_lost;
    uint64_t attempt; /* how often a ring was opened */
    PyObject *in_flight; /* futures of collectives whose end is still to be noted, by `in_flight_key` */
    PyObject *device; /* called behind the marks that a device has an event of */
    PyObject *claim_thread, *at_store, *at_boundary, *meet, *watch_closure;
    PyObject *compilations, *stats_name, *graphs_name, *add_callback_name, *nbytes_name, *site_name, *get_future_name;
    uint64_t polled_ns;
    unsigned long long poll_interval_ns;
    int wants_poll;
    unsigned settling;       /* ends of steps that still call at_boundary */
    unsigned boundary_ends;  /* the ends of which number boundary_at calls it */
    unsigned long long boundary_at;
    long long flags_offset;
    uint64_t flags;
    int64_t graphs_seen, graphs_before, graphs_noted;
    unsigned int mark_cost_ns;
    unsigned short collective_cost_ns;
    uint32_t met[MET_MAX];
    unsigned met_next;
    uint32_t elsewhere;           /* identity of the optimizer that a thread of its own steps, or stepped last */
    unsigned stepping_elsewhere;  /* steps of optimizers under way there */
} MarkBuffer;

/* CRC-32 as zlib has it. A full block is summed four bytes a turn (slicing, Kounavis and Berry 2008); the few marks of a
 * step byte by byte, from 1 KB of tables: the other 3 KB, which a training's own work leaves in no cache, cost 4 us. */
#define BYTEWISE_MAX 512
static uint32_t crc_table[4][256];

static void make_crc_table(void)
{
    for (uint32_t index = 0; index < 256; index++) {
        uint32_t value = index;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? 0xEDB88320u ^ value >> 1 : value >> 1;
        crc_table[0][index] = value;
    }
    for (uint32_t index = 0; index < 256; index++)
        for (int slice = 1; slice < 4; slice++) {
            const uint32_t former = crc_table[slice - 1][index];
            crc_table[slice][index] = former >> 8 ^ crc_table[0][former & 0xFF];
        }
}

static uint32_t crc32_of(const unsigned char *data, size_t size) /* size: a multiple of 4 */
{
    const unsigned char *end = data + size;
    uint32_t crc = ~0u;
    if (size <= BYTEWISE_MAX)
        while (data < end)
            crc = crc_table[0][(crc ^ *data++) & 0xFF] ^ crc >> 8;
    for (; data < end; data += 4) {
        uint32_t word;
        memcpy(&word, data, sizeof word);
        word ^= crc;
        crc = crc_table[3][word & 0xFF] ^ crc_table[2][word >> 8 & 0xFF] ^ crc_table[1][word >> 16 & 0xFF]
            ^ crc_table[0][word >> 24];
    }
    return ~crc;
}

/* Clocks. A buffer that was given clocks of its own (tests) asks them; -1 is an error. */

static int read_clock(PyObject *callable, clockid_t id, uint64_t *ns)
{
    if (callable == NULL) {
        struct timespec now;
        clock_gettime(id, &now);
        *ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
        return 0;
    }
    PyObject *value = PyObject_CallNoArgs(callable);
    if (value == NULL)
        return -1;
    *ns = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

/* Storing. */

static void begin_block(MarkBuffer *self, uint64_t position)
{
    Header *header = &self->block.header;
    header->position = position;
    header->backward_ends = self->backward_ends;
    header->optimizer_ends = self->optimizer_ends;
    header->step_ends = self->step_ends;
    header->count = 0;
}

static void store(MarkBuffer *self)
{
    Header *header = &self->block.header;
    if (header->count == 0)
        return;
    const uint64_t last_ns = self->block.marks[header->count - 1].time_ns;
    const unsigned char *bytes = (const unsigned char *)&self->block;
    const size_t size = HEADER_BYTES + (size_t)header->count * MARK_BYTES;
    header->checksum = crc32_of(bytes + sizeof header->checksum, size - sizeof header->checksum);
    const off_t at = self->offset + (off_t)(header->sequence % self->block_count) * BLOCK_BYTES;
    if (pwrite(self->file, bytes, size, at) != (ssize_t)size)
        self->failures++;
    header->sequence++;
    begin_block(self, header->position + header->count);
    self->due_ns = last_ns + FLUSH_INTERVAL_NS;
    self->event_due_ns = last_ns + FLUSH_EVENT_NS;
    if (last_ns >= self->polled_ns + self->poll_interval_ns)
        self->wants_poll = 1;
}

/* Appending. 1: appended, 0: not this thread's to append, -1: an exception is set. */

enum policy { OWN, CLAIMING, STEPPING, ANY };
enum { WORKS_FOR_BACKWARD = 2, STEPS_ELSEWHERE };

static inline int admit(MarkBuffer *self, enum policy policy, uint16_t *kind)
{
    if (PyThread_get_thread_ident() == self->thread)
        return 1;
    if (policy == ANY) {
        *kind |= OTHER_THREAD;
        return self->thread != 0;
    }
    if (policy == OWN || self->claim_thread == NULL)
        return 0;
    PyObject *answer = PyObject_CallFunctionObjArgs(self->claim_thread, policy == STEPPING ? Py_True : Py_False, NULL);
    if (answer == NULL)
        return -1;
    const long claim = PyLong_AsLong(answer); /* -1 and an exception for what is none */
    const int is_guarded_failure = answer == Py_None;
    Py_DECREF(answer);
    if (is_guarded_failure) {
        PyErr_Clear();
        return 0;
    }
    return (int)claim;
}

static inline void put(MarkBuffer *self, uint64_t now, uint16_t kind, uint16_t detail, uint32_t subject, int64_t argument)
{
    Header *header = &self->block.header;
    self->block.marks[header->count] = (Mark){now, kind, detail, subject, argument};
    if (++header->count == BLOCK_MARKS || now >= self->due_ns)
        store(self);
}

/* Append what others left in the channel, each with the time when they did: before the next mark's time is taken, and
 * before that mark is counted, since a block may be stored here. */
static void drain(MarkBuffer *self)
{
    Channel *channel = self->open_channel;
    const Mark *mark;
    while ((mark = front(channel)) != NULL) {
        put(self, mark->time_ns, mark->kind, mark->detail, mark->subject, mark->argument);
        pop(channel);
    }
    const uint64_t lost = atomic_load_explicit(&channel->lost, memory_order_relaxed);
    if (lost != self->reported_lost) {
        put(self, monotonic_ns(), MARKS_LOST, 0, 0, (int64_t)(lost - self->reported_lost));
        self->reported_lost = lost;
    }
}

static inline void drain_if_any(MarkBuffer *self)
{
    if (self->open_channel != NULL && front(self->open_channel) != NULL)
        drain(self);
}

static void set_thread(MarkBuffer *self, unsigned long long thread)
{
    self->thread = thread;
    atomic_store(&self->channel->thread, thread);
    if (thread == 0)
        quiet(self->channel);
}

static int is_given(PyObject *callable)
{
    return callable != NULL && callable != Py_None;
}

static int call(PyObject *callable)
{
    PyObject *answer = PyObject_CallNoArgs(callable);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 1;
}

static uint32_t last_ordinal(MarkBuffer *self) /* of the mark appended last */
{
    return (uint32_t)(self->block.header.position + self->block.header.count - 1);
}

static int call_device(MarkBuffer *self, uint16_t kind, uint16_t detail, uint32_t subject)
{
    PyObject *device = self->device;
    if (!is_given(device))
        return 1;
    Py_INCREF(device);
    PyObject *answer = PyObject_CallFunction(
        device, "iiII", (int)kind, (int)detail, (unsigned)subject, (unsigned)last_ordinal(self));
    Py_DECREF(device);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 1;
}

static int append(
    MarkBuffer *self, enum policy policy, uint16_t kind, uint16_t detail, uint32_t subject, int64_t argument, uint64_t *now)
{
    uint64_t here;
    if (now == NULL)
        now = &here;
    const int admitted = admit(self, policy, &kind);
    if (admitted != 1)
        return admitted < 0 ? -1 : 0;
    drain_if_any(self);
    if (read_clock(self->clock, CLOCK_MONOTONIC, now) < 0)
        return -1;
    put(self, *now, kind, detail, subject, argument);
    return 1;
}

/* The running step's flags also lie in a word of the ring: a step that hangs may store no mark any more. */

static void store_flags(MarkBuffer *self)
{
    if (self->flags_offset >= 0
        && pwrite(self->file, &self->flags, sizeof self->flags, self->flags_offset) != sizeof self->flags)
        self->failures++;
}

static void set_flags(MarkBuffer *self, uint64_t flags)
{
    if (flags != self->flags && self->thread != 0) {
        self->flags = flags;
        store_flags(self);
    }
}

/* torch.compile's own count of graphs, which never decreases here: a training may clear its counters. */

static void note_compiled(MarkBuffer *self, uint64_t now)
{
    if (self->compilations == NULL || !PyDict_Check(self->compilations))
        return;
    PyObject *stats = PyDict_GetItemWithError(self->compilations, self->stats_name);
    PyObject *value = stats != NULL && PyDict_Check(stats) ? PyDict_GetItemWithError(stats, self->graphs_name) : NULL;
    const int64_t graphs = value == NULL ? 0 : PyLong_AsLongLong(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        Py_CLEAR(self->compilations);
        return;
    }
    if (graphs < self->graphs_seen)
        self->graphs_before += self->graphs_seen;
    self->graphs_seen = graphs;
    if (self->graphs_before + graphs != self->graphs_noted) {
        self->graphs_noted = self->graphs_before + graphs;
        put(self, now, COMPILED, 0, 0, self->graphs_noted);
    }
}

/* After a mark of the training thread that is the end number `ends` of its sort. */
static int pass_boundary(MarkBuffer *self, unsigned sort, uint64_t ends, int settles)
{
    const int is_settling = settles && self->settling > 0;
    if (is_settling)
        self->settling--;
    if (self->at_boundary == NULL || !(is_settling || (sort == self->boundary_ends && ends == self->boundary_at)))
        return 1;
    return call(self->at_boundary);
}

/* On the training thread. */
static int append_end_at(
    MarkBuffer *self, uint64_t now, uint16_t kind, uint32_t subject, uint64_t *ends, unsigned sort)
{
    uint64_t cpu_ns;
    if (read_clock(self->cpu_clock, CLOCK_THREAD_CPUTIME_ID, &cpu_ns) < 0)
        return -1;
    note_compiled(self, now);
    ++*ends;
    put(self, now, kind, 0, subject, (int64_t)cpu_ns);
    if (now >= self->end_due_ns) { /* whenever a wait stored last: a step that ended shows */
        self->end_due_ns = now + FLUSH_EVENT_NS;
        store(self);
    }
    set_flags(self, 0);
    if (self->device != NULL && call_device(self, kind, kind == BACKWARD_END, 0) < 0)
        return -1;
    return pass_boundary(self, sort, *ends, self->backward_depth == 0);
}

static int append_end(
    MarkBuffer *self, enum policy policy, uint16_t kind, uint32_t subject, uint64_t *ends, unsigned sort)
{
    uint64_t now;
    const int admitted = admit(self, policy, &kind);
    if (admitted != 1)
        return admitted < 0 ? -1 : 0;
    drain_if_any(self);
    if (read_clock(self->clock, CLOCK_MONOTONIC, &now) < 0)
        return -1;
    return append_end_at(self, now, kind, subject, ends, sort);
}

/* An optimizer that a thread of its own steps (offloaded to the host): the training thread notes its step where it goes
 * on, at the next batch, backward, or end of the attempt, with the time when it ended; when it began, if it still runs:
 * then it overlaps with the next step, and when it ends depends on chance. */

static int begin_elsewhere(MarkBuffer *self, uint32_t optimizer)
{
    self->elsewhere = optimizer;
    self->stepping_elsewhere++;
    return read_clock(self->clock, CLOCK_MONOTONIC, &self->elsewhere_ns) < 0 ? -1 : 0;
}

static PyObject *end_elsewhere(MarkBuffer *self)
{
    self->stepping_elsewhere--;
    if (self->elsewhere_ns != 0 && read_clock(self->clock, CLOCK_MONOTONIC, &self->elsewhere_ns) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int note_elsewhere(MarkBuffer *self)
{
    if (self->elsewhere_ns == 0 || self->backward_depth != 0 || PyThread_get_thread_ident() != self->thread)
        return 1;
    drain_if_any(self);
    const Header *header = &self->block.header;
    const uint64_t last_ns = header->count != 0 ? self->block.marks[header->count - 1].time_ns
                                                : self->due_ns - FLUSH_INTERVAL_NS; /* of the last store */
    const uint64_t ended_ns = self->elsewhere_ns > last_ns ? self->elsewhere_ns : last_ns;
    self->elsewhere_ns = 0;
    put(self, ended_ns, OPTIMIZER_BEGIN, 0, self->elsewhere, 0);
    if (self->device != NULL && call_device(self, OPTIMIZER_BEGIN, 0, 0) < 0)
        return -1;
    return append_end_at(self, ended_ns, OPTIMIZER_END, 0, &self->optimizer_ends, OPTIMIZERS);
}

static int is_elsewhere(MarkBuffer *self)
{
    return self->stepping_elsewhere != 0 && PyThread_get_thread_ident() != self->thread;
}

/* What a store leaves to be done in Python: readers ask for signs of life, and write requests. */
static int poll(MarkBuffer *self)
{
    if (PyThread_get_thread_ident() != self->thread)
        return 1;
    self->wants_poll = 0;
    self->polled_ns = self->due_ns - FLUSH_INTERVAL_NS; /* the time of the last store */
    return self->at_store == NULL ? 1 : call(self->at_store);
}

static PyObject *none(MarkBuffer *self, int appended)
{
    if (appended < 0 || (self->wants_poll && poll(self) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* The same for a mark that a device has an event of. */
static PyObject *noted(MarkBuffer *self, int appended, uint16_t kind)
{
    if (appended > 0 && self->device != NULL)
        appended = call_device(self, kind, 0, 0);
    return none(self, appended);
}

static int64_t integer(PyObject *value)
{
    return PyLong_AsLongLong(value); /* -1 and an exception for what is none */
}

static uint32_t identity(MarkBuffer *self, PyObject *object)
{
    return (uint32_t)(((uint64_t)(uintptr_t)object ^ self->key) >> 4);
}

/* Methods without arguments. */

#define MARK(NAME, POLICY, KIND) \
    static PyObject *NAME(MarkBuffer *self, PyObject *unused) \
    { \
        return none(self, append(self, POLICY, KIND, 0, 0, 0, NULL)); \
    }

#define EVENT_MARK(NAME, POLICY, KIND) \
    static PyObject *NAME(MarkBuffer *self, PyObject *unused) \
    { \
        return noted(self, append(self, POLICY, KIND, 0, 0, 0, NULL), KIND); \
    }

EVENT_MARK(data_end, OWN, DATA_END)
EVENT_MARK(closure_begin, OWN, CLOSURE_BEGIN)
EVENT_MARK(closure_end, OWN, CLOSURE_END)
EVENT_MARK(wait_end, ANY, WAIT_END)
MARK(begin_explicit, CLAIMING, EXPLICIT)

static PyObject *batch_evaluated(MarkBuffer *self, PyObject *unused)
{
    const int appended = append(self, OWN, BATCH_EVALUATED, 0, 0, 0, NULL);
    if (appended > 0)
        set_flags(self, self->flags | EVALUATION);
    return none(self, appended);
}

static PyObject *data_begin(MarkBuffer *self, PyObject *unused)
{
    if (note_elsewhere(self) < 0)
        return NULL;
    return noted(self, append(self, OWN, DATA_BEGIN, 0, 0, 0, NULL), DATA_BEGIN);
}

static PyObject *backward_begin(MarkBuffer *self, PyObject *unused)
{
    if (note_elsewhere(self) < 0)
        return NULL;
    const int appended = append(self, CLAIMING, BACKWARD_BEGIN, 0, 0, 0, NULL);
    if (appended > 0 && self->backward_depth++ == 0)
        self->ends_at_backward = self->optimizer_ends;
    return noted(self, appended, BACKWARD_BEGIN);
}

static PyObject *backward_end(MarkBuffer *self, PyObject *unused)
{
    uint16_t kind = BACKWARD_END;
    if (admit(self, OWN, &kind) <= 0)
        Py_RETURN_NONE;
    if (self->backward_depth > 0)
        self->backward_depth--;
    if (self->optimizer_ends != self->ends_at_backward) /* the step may end here */
        return none(self, append_end(self, OWN, BACKWARD_END, 0, &self->backward_ends, BACKWARDS));
    uint64_t now;
    drain_if_any(self); /* before the end is counted: a block may be stored here */
    if (read_clock(self->clock, CLOCK_MONOTONIC, &now) < 0)
        return NULL;
    self->backward_ends++;
    put(self, now, BACKWARD_END, 0, 0, MISSING);
    if ((self->device != NULL && call_device(self, BACKWARD_END, 0, 0) < 0))
        return NULL;
    return none(self, pass_boundary(self, BACKWARDS, self->backward_ends, 0));
}

static PyObject *optimizer_end(MarkBuffer *self, PyObject *unused)
{
    if (is_elsewhere(self))
        return end_elsewhere(self);
    return none(self, append_end(self, OWN, OPTIMIZER_END, 0, &self->optimizer_ends, OPTIMIZERS));
}

static PyObject *step_end(MarkBuffer *self, PyObject *unused)
{
    return none(self, append_end(self, CLAIMING, STEP_END, 0, &self->step_ends, STEPS));
}

static PyObject *wait_begin(MarkBuffer *self, PyObject *unused)
{
    uint64_t now = 0;
    const int appended = append(self, ANY, WAIT_BEGIN, 0, 0, 0, &now);
    if (appended > 0 && now >= self->event_due_ns)
        store(self);
    return noted(self, appended, WAIT_BEGIN);
}

static PyObject *flush(MarkBuffer *self, PyObject *unused)
{
    if (self->thread != 0) {
        drain_if_any(self);
        store(self);
    }
    Py_RETURN_NONE;
}

static PyObject *take_thread(MarkBuffer *self, uint16_t kind, uint16_t detail, uint32_t subject)
{
    uint64_t now, cpu_ns;
    if (read_clock(self->clock, CLOCK_MONOTONIC, &now) < 0
        || read_clock(self->cpu_clock, CLOCK_THREAD_CPUTIME_ID, &cpu_ns) < 0)
        return NULL;
    set_thread(self, PyThread_get_thread_ident());
    self->backward_depth = self->elsewhere_ns = 0;
    self->stepping_elsewhere = 0;
    put(self, now, kind, detail, subject, (int64_t)cpu_ns);
    Py_RETURN_NONE;
}

static PyObject *begin(MarkBuffer *self, PyObject *unused)
{
    return take_thread(self, BEGIN, self->collective_cost_ns, self->mark_cost_ns);
}

static PyObject *change_thread(MarkBuffer *self, PyObject *unused)
{
    return take_thread(self, THREAD, 0, 0);
}

static PyObject *store_words(MarkBuffer *self, PyObject *unused)
{
    for (unsigned slot = 0; slot < ISSUE_SLOTS; slot++)
        if (atomic_load(&self->channel->issues[slot][0]) != 0)
            store_issues(self->channel, slot);
    store_flags(self);
    Py_RETURN_NONE;
}

static PyObject *finish(MarkBuffer *self, PyObject *unused)
{
    if (note_elsewhere(self) < 0)
        return NULL;
    const int appended = append(self, ANY, FINISH, 0, 0, 0, NULL);
    if (appended > 0)
        store(self);
    set_thread(self, 0);
    return none(self, appended);
}

/* Methods with one argument. */

/* Begin the step of an optimizer or a scaler. Autograd's own thread may do that, for the backward that it works for, and
 * a thread of the training's that does nothing else. `optimizer` is what steps, also where a scaler does. */
static int begin_optimizer(MarkBuffer *self, uint16_t kind, uint32_t subject, int64_t argument, uint32_t optimizer)
{
    const int admitted = admit(self, STEPPING, &kind);
    if (admitted == STEPS_ELSEWHERE)
        return begin_elsewhere(self, optimizer);
    if (admitted == WORKS_FOR_BACKWARD) {
        uint64_t now;
        drain_if_any(self); /* before it is counted, as in append_end */
        if (read_clock(self->clock, CLOCK_MONOTONIC, &now) < 0)
            return -1;
        self->optimizer_ends++;
        put(self, now, FUSED_STEP | OTHER_THREAD, 0, 0, 0);
        return 0;
    }
    return admitted == 1 ? append(self, OWN, kind, 0, subject, argument, NULL) : admitted;
}

static PyObject *optimizer_begin(MarkBuffer *self, PyObject *optimizer)
{
    const uint32_t number = identity(self, optimizer);
    return noted(self, begin_optimizer(self, OPTIMIZER_BEGIN, number, 0, number), OPTIMIZER_BEGIN);
}

/* Show an optimizer that was not met before, as far as that is remembered, to `meet`. */
static int meet_optimizer(MarkBuffer *self, PyObject *optimizer)
{
    const uint32_t met = identity(self, optimizer);
    for (unsigned index = 0; index < MET_MAX; index++)
        if (self->met[index] == met)
            return 1;
    if (PyThread_get_thread_ident() != self->thread && !(is_elsewhere(self) && met == self->elsewhere))
        return 1;
    self->met[self->met_next++ % MET_MAX] = met;
    PyObject *answer = PyObject_CallFunctionObjArgs(self->meet, optimizer, NULL);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 1;
}

static PyObject *scaler_end(MarkBuffer *self, PyObject *scaler)
{
    if (is_elsewhere(self))
        return end_elsewhere(self);
    return none(self, append_end(self, OWN, SCALER_END, identity(self, scaler), &self->optimizer_ends, OPTIMIZERS));
}

#define INTEGER_MARK(NAME, POLICY, KIND, DETAIL, SUBJECT, ARGUMENT) \
    static PyObject *NAME(MarkBuffer *self, PyObject *given) \
    { \
        const int64_t value = integer(given); \
        if (value == -1 && PyErr_Occurred()) \
            return NULL; \
        return none(self, append(self, POLICY, KIND, DETAIL, SUBJECT, ARGUMENT, NULL)); \
    }

INTEGER_MARK(phase_begin, CLAIMING, PHASE_BEGIN, (uint16_t)value, 0, 0)
INTEGER_MARK(phase_end, OWN, PHASE_END, (uint16_t)value, 0, 0)
INTEGER_MARK(done, ANY, DONE, 0, (uint32_t)value, 0)
INTEGER_MARK(done_unknown, ANY, DONE_UNKNOWN, 0, (uint32_t)value, 0)
INTEGER_MARK(expect, ANY, EXPECT, 0, (uint32_t)value, 0)
INTEGER_MARK(compiled, OWN, COMPILED, 0, 0, value)
INTEGER_MARK(spend, ANY, AGENT_COST, 0, 0, value)

static PyObject *flag(MarkBuffer *self, PyObject *given)
{
    const int64_t value = integer(given);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    const int appended = append(self, ANY, FLAGS, 0, 0, value, NULL);
    if (appended > 0)
        set_flags(self, self->flags | (uint64_t)value);
    return none(self, appended);
}

static PyObject *fail(MarkBuffer *self, PyObject *given)
{
    const int64_t value = integer(given);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    const int appended = append(self, ANY, FAILURE, 0, 0, value, NULL);
    if (appended > 0)
        store(self);
    set_thread(self, 0);
    return none(self, appended);
}

/* Methods with several arguments. */

static int has_arguments(const char *name, Py_ssize_t got, Py_ssize_t expected)
{
    if (got == expected)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s: got %zd arguments, expected %zd", name, got, expected);
    return 0;
}

static PyObject *scaler_begin(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("scaler_begin", count, 2))
        return NULL;
    const uint32_t scaler = identity(self, given[0]), optimizer = identity(self, given[1]);
    return noted(self, begin_optimizer(self, SCALER_BEGIN, scaler, (int64_t)optimizer, optimizer), SCALER_BEGIN);
}

/* torch's hooks of optimizers: (optimizer, arguments, named arguments). */

static PyObject *optimizer_pre_hook(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("optimizer_pre_hook", count, 3))
        return NULL;
    PyObject *appended = optimizer_begin(self, given[0]);
    if (appended != NULL && is_given(self->meet) && meet_optimizer(self, given[0]) < 0) {
        Py_DECREF(appended);
        return NULL;
    }
    if (appended == NULL || !is_given(self->watch_closure))
        return appended;
    const Py_ssize_t arguments = PyObject_Size(given[1]), named = PyObject_Size(given[2]);
    PyErr_Clear(); /* what has no size holds no closure */
    if (arguments < 2 && named < 1)
        return appended;
    Py_DECREF(appended);
    return PyObject_CallFunctionObjArgs(self->watch_closure, given[1], given[2], NULL);
}

static PyObject *optimizer_post_hook(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    return optimizer_end(self, NULL);
}

static PyObject *model_flops(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("model_flops", count, 2))
        return NULL;
    const int64_t unit = integer(given[0]), value = integer(given[1]);
    if (PyErr_Occurred())
        return NULL;
    return none(self, append(self, OWN, MODEL_FLOPS, (uint16_t)unit, 0, value, NULL));
}

static PyObject *issue_bus(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("issue_bus", count, 2))
        return NULL;
    const int64_t ordinal = integer(given[0]), value = integer(given[1]);
    if (PyErr_Occurred())
        return NULL;
    return none(self, append(self, ANY, ISSUE_BUS, 0, (uint32_t)ordinal, value, NULL));
}

static PyObject *unmeasured(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("unmeasured", count, 4))
        return NULL;
    const int64_t domain = integer(given[0]), collectives = integer(given[1]), payload = integer(given[2]);
    const int64_t bus = integer(given[3]);
    if (PyErr_Occurred())
        return NULL;
    const int appended = append(self, ANY, UNMEASURED, (uint16_t)domain, (uint32_t)collectives, payload, NULL);
    return none(self, appended <= 0 ? appended : append(self, ANY, UNMEASURED_BUS, (uint16_t)domain, 0, bus, NULL));
}

static PyObject *open_ring(MarkBuffer *self, PyObject *given, PyObject *named)
{
    static char *names[] = {"file", "offset", "block_count", "issues_offset", "flags_offset", NULL};
    int file;
    long long offset, issues_offset = -1, flags_offset = -1;
    unsigned long block_count;
    if (!PyArg_ParseTupleAndKeywords(
            given, named, "iLk|LL:open", names, &file, &offset, &block_count, &issues_offset, &flags_offset))
        return NULL;
    if (block_count == 0 || offset < 0) {
        PyErr_Format(
            PyExc_ValueError, "ring of marks: got %lu blocks at offset %lld, expected 1 or more at 0 or more", block_count,
            offset);
        return NULL;
    }
    Channel *channel = make_channel(file, issues_offset);
    if (channel == NULL)
        return PyErr_NoMemory();
    self->attempt++;
    set_thread(self, 0);
    channel_release(&self->channel->shared);
    self->channel = channel;
    self->open_channel = NULL; /* who used the former one finds it inert, and asks for this one */
    self->reported_lost = 0;
    self->file = file;
    self->offset = offset;
    self->block_count = block_count;
    self->flags_offset = flags_offset;
    self->due_ns = self->event_due_ns = self->end_due_ns = self->polled_ns = 0;
    self->wants_poll = 0;
    self->settling = self->boundary_ends = 0;
    self->backward_ends = self->optimizer_ends = self->step_ends = 0;
    self->backward_depth = self->ends_at_backward = 0;
    self->flags = 0;
    self->graphs_noted = -1;
    self->block.header.version = MARKS_VERSION;
    self->block.header.sequence = 0;
    begin_block(self, 0);
    Py_RETURN_NONE;
}

static PyObject *annotate(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("annotate", count, 2))
        return NULL;
    const int64_t quantity = integer(given[0]), value = integer(given[1]);
    if (PyErr_Occurred())
        return NULL;
    return none(self, append(self, CLAIMING, ANNOTATION, (uint16_t)quantity, 0, value, NULL));
}

static PyObject *batch(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("batch", count, 3))
        return NULL;
    const int64_t samples = integer(given[0]), tokens = integer(given[1]), work = integer(given[2]);
    if (PyErr_Occurred())
        return NULL;
    if (tokens != MISSING && append(self, OWN, BATCH_TOKENS, 0, 0, tokens, NULL) < 0)
        return NULL;
    if (work != MISSING && append(self, OWN, BATCH_WORK, 0, 0, work, NULL) < 0)
        return NULL;
    return none(self, append(self, OWN, BATCH, 0, 0, samples, NULL));
}

#define NO_ANSWER (-2)
#define FAILED (-1)

/* The ordinal of a collective; NO_ANSWER: the buffer is inert, FAILED: an exception is set. */
static int64_t issue_at(MarkBuffer *self, int64_t site, int64_t payload)
{
    if (site < 0 || site > SITE_MAX || payload < 0 || payload > PAYLOAD_BYTES_MAX) {
        PyErr_Format(
            PyExc_ValueError, "issue: got call site %lld and %lld bytes, expected 0 to %lld and 0 to %lld",
            (long long)site, (long long)payload, (long long)SITE_MAX, (long long)PAYLOAD_BYTES_MAX);
        return FAILED;
    }
    const uint16_t detail = (uint16_t)site;
    const int64_t argument = (int64_t)((uint64_t)payload << 24 | (uint64_t)site >> 16);
    uint64_t now;
    uint16_t kind = ISSUE;
    if (admit(self, ANY, &kind) <= 0)
        return NO_ANSWER;
    drain_if_any(self);
    if (read_clock(self->clock, CLOCK_MONOTONIC, &now) < 0)
        return FAILED;
    const uint32_t ordinal = atomic_fetch_add_explicit(&self->channel->issued, 1, memory_order_relaxed);
    put(self, now, kind, detail, ordinal, argument);
    count_issue(self->channel, detail >> 9, now);
    if (self->device != NULL && call_device(self, ISSUE, detail, ordinal) < 0)
        return FAILED;
    if (self->wants_poll && poll(self) < 0)
        return FAILED;
    return ordinal;
}

static PyObject *issue(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("issue", count, 2))
        return NULL;
    const int64_t site = integer(given[0]), payload = integer(given[1]);
    if (PyErr_Occurred())
        return NULL;
    const int64_t ordinal = issue_at(self, site, payload);
    if (ordinal == NO_ANSWER)
        Py_RETURN_NONE;
    return ordinal == FAILED ? NULL : PyLong_FromLongLong(ordinal);
}

/* A collective in flight. What its future calls runs no bytecode: torch would swallow what a signal handler of the training
 * raises there, and a thread of the backend holds the interpreter lock no longer than it has to. */

#define ORDINAL_BITS 32

static PyObject *end_in_flight(PyObject *bound, PyObject *future)
{
    MarkBuffer *self = (MarkBuffer *)PyTuple_GetItem(bound, 0);
    PyObject *key = PyTuple_GetItem(bound, 1);
    const unsigned long long number = PyLong_AsUnsignedLongLong(key);
    if (number >> ORDINAL_BITS == self->attempt && append(self, ANY, DONE, 0, (uint32_t)number, 0, NULL) < 0)
        return NULL;
    if (PyDict_DelItem(self->in_flight, key) < 0)
        PyErr_Clear(); /* a forked child has forgotten it */
    Py_RETURN_NONE;
}

static PyMethodDef end_in_flight_method = {"end_in_flight", end_in_flight, METH_O, "Note that a collective is done."};

/* 0, or -1 where an exception is set. */
static int await_future(MarkBuffer *self, uint32_t ordinal, PyObject *future)
{
    PyObject *key = PyLong_FromUnsignedLongLong(self->attempt << ORDINAL_BITS | ordinal);
    PyObject *bound = key == NULL ? NULL : PyTuple_Pack(2, (PyObject *)self, key);
    PyObject *callback = bound == NULL ? NULL : PyCFunction_New(&end_in_flight_method, bound);
    PyObject *answer = NULL;
    if (callback != NULL && PyDict_SetItem(self->in_flight, key, future) == 0)
        answer = PyObject_CallMethodObjArgs(future, self->add_callback_name, callback, NULL);
    Py_XDECREF(callback);
    Py_XDECREF(bound);
    Py_XDECREF(key);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

static int note_expected(MarkBuffer *self, uint32_t ordinal)
{
    const int appended = append(self, ANY, EXPECT, 0, ordinal, 0, NULL);
    return appended < 0 || (self->wants_poll && poll(self) < 0) ? -1 : 0;
}

/* Whether the Work that a collective returned has a future, which notes its end; -1 where an exception is set. */
static int await_work(MarkBuffer *self, PyObject *unbox, uint32_t ordinal, PyObject *work)
{
    if (PyTuple_CheckExact(work)) {
        work = PyTuple_GetItem(work, PyTuple_Size(work) - 1);
        if (work == NULL)
            return -1;
    }
    PyObject *unboxed = PyObject_CallFunctionObjArgs(unbox, work, NULL);
    PyObject *future = unboxed == NULL ? NULL : PyObject_CallMethodObjArgs(unboxed, self->get_future_name, NULL);
    Py_XDECREF(unboxed);
    if (future == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
            return -1;
        PyErr_Clear();
        return note_expected(self, ordinal);
    }
    const int awaited = await_future(self, ordinal, future);
    Py_DECREF(future);
    return awaited < 0 ? -1 : 1;
}

static PyObject *device_mark(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("device_mark", count, 4))
        return NULL;
    const int64_t kind = integer(given[0]), detail = integer(given[1]), subject = integer(given[2]),
                  argument = integer(given[3]);
    if (PyErr_Occurred())
        return NULL;
    const int appended = append(self, ANY, (uint16_t)kind, (uint16_t)detail, (uint32_t)subject, argument, NULL);
    if (appended < 0)
        return NULL;
    return appended ? PyLong_FromUnsignedLong(last_ordinal(self)) : PyLong_FromLong(-1);
}

static PyObject *clear_issues(MarkBuffer *self, PyObject *given)
{
    const int64_t slot = integer(given);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    if (slot < 0 || slot >= ISSUE_SLOTS) {
        PyErr_Format(PyExc_ValueError, "issue slot: got %lld, expected 0 to %d", (long long)slot, ISSUE_SLOTS - 1);
        return NULL;
    }
    if (self->thread != 0)
        forget_issues(self->channel, (unsigned)slot);
    Py_RETURN_NONE;
}

static PyObject *collect(MarkBuffer *self, PyObject *const *given, Py_ssize_t count)
{
    if (!has_arguments("collect", count, 2))
        return NULL;
    if (PyThread_get_thread_ident() != self->thread)
        Py_RETURN_NONE;
    PyObject *generation = PyDict_GetItemString(given[1], "generation"); /* borrowed; "start" or "stop" */
    const int64_t number = generation == NULL ? 0 : integer(generation);
    const Py_UCS4 letter = PyUnicode_ReadChar(given[0], 2);
    if (PyErr_Occurred())
        return NULL;
    if (append(self, OWN, letter == 'a' ? GC_BEGIN : GC_END, (uint16_t)number, 0, 0, NULL) < 0)
        return NULL;
    Py_RETURN_NONE; /* without `poll`: no Python code may run inside of a collection */
}

static void release_capsule(PyObject *capsule)
{
    LockstepChannel *channel = PyCapsule_GetPointer(capsule, LOCKSTEP_CHANNEL_CAPSULE);
    if (channel != NULL)
        channel->release(channel);
}

static PyObject *channel(MarkBuffer *self, PyObject *unused)
{
    if (open_channel(self->channel) < 0)
        return PyErr_NoMemory();
    self->open_channel = self->channel;
    PyObject *capsule = PyCapsule_New(&self->channel->shared, LOCKSTEP_CHANNEL_CAPSULE, release_capsule);
    if (capsule != NULL)
        channel_retain(&self->channel->shared);
    return capsule;
}

static PyMethodDef methods[] = {
#define METHOD(NAME, FLAGS_, DOC) {#NAME, (PyCFunction)(void (*)(void))NAME, FLAGS_, DOC}
    {"open", (PyCFunction)(void (*)(void))open_ring, METH_VARARGS | METH_KEYWORDS, "Go over to a ring, forget all."},
    METHOD(begin, METH_NOARGS, "Begin an attempt; the calling thread is the training thread."),
    METHOD(change_thread, METH_NOARGS, "Make the calling thread the training thread."),
    METHOD(data_begin, METH_NOARGS, "Begin to wait for a batch."),
    METHOD(data_end, METH_NOARGS, "End it."),
    METHOD(batch, METH_FASTCALL, "Count the batch fetched last: samples, tokens, work; MISSING is not known."),
    METHOD(batch_evaluated, METH_NOARGS, "Mark the batch fetched last as an evaluation's."),
    METHOD(backward_begin, METH_NOARGS, "Begin a backward."),
    METHOD(backward_end, METH_NOARGS, "End it."),
    METHOD(optimizer_begin, METH_O, "Begin the step of an optimizer."),
    METHOD(optimizer_end, METH_NOARGS, "End it."),
    METHOD(optimizer_pre_hook, METH_FASTCALL, "The same as torch's hook before an optimizer's step."),
    METHOD(optimizer_post_hook, METH_FASTCALL, "The same as torch's hook after it."),
    METHOD(scaler_begin, METH_FASTCALL, "Begin the step of a gradient scaler for an optimizer."),
    METHOD(scaler_end, METH_O, "End it."),
    METHOD(closure_begin, METH_NOARGS, "Begin to evaluate the model inside an optimizer's step."),
    METHOD(closure_end, METH_NOARGS, "End it."),
    METHOD(phase_begin, METH_O, "Begin a phase that the training names."),
    METHOD(phase_end, METH_O, "End it."),
    METHOD(begin_explicit, METH_NOARGS, "From now on steps end at step_end only."),
    METHOD(step_end, METH_NOARGS, "End the step."),
    METHOD(issue, METH_FASTCALL, "Note a collective: call site, payload bytes. Return its ordinal, None if inert."),
    METHOD(issue_bus, METH_FASTCALL, "Note the bus bytes of a collective: ordinal, bytes."),
    METHOD(unmeasured, METH_FASTCALL, "Note collectives not dispatched: domain, count, payload bytes, bus bytes."),
    METHOD(clear_issues, METH_O, "Give an issue slot to another group: it counts from 0."),
    METHOD(done, METH_O, "Note that a collective is done."),
    METHOD(done_unknown, METH_O, "Note that it will not be known when a collective is done."),
    METHOD(expect, METH_O, "Take the end of the next wait as the time when a collective was done."),
    METHOD(wait_begin, METH_NOARGS, "Begin to wait for communication."),
    METHOD(wait_end, METH_NOARGS, "End it."),
    METHOD(collect, METH_FASTCALL, "For gc.callbacks."),
    METHOD(annotate, METH_FASTCALL, "Add to a quantity of the step: index in ANNOTATED, value."),
    METHOD(model_flops, METH_FASTCALL, "Note the model's FLOPs: index in FLOPS_UNITS, bits of a float64."),
    METHOD(flag, METH_O, "Flag the running step."),
    METHOD(compiled, METH_O, "Note how many graphs were compiled so far."),
    METHOD(spend, METH_O, "Add to what the agent cost the running step, ns."),
    METHOD(fail, METH_O, "Note how many hooks failed, and be inert."),
    METHOD(finish, METH_NOARGS, "Note that the attempt ended well, and be inert."),
    METHOD(flush, METH_NOARGS, "Store what was appended."),
    METHOD(store_words, METH_NOARGS, "Store issues and flags, in a file that was written again."),
    METHOD(device_mark, METH_FASTCALL, "Append a mark of a device: kind, detail, subject, argument. Return its ordinal."),
    METHOD(channel, METH_NOARGS, "Return a capsule by which C++ leaves marks without the interpreter lock (_channel.h)."),
    {NULL, NULL, 0, NULL},
};

static PyObject *get_thread(MarkBuffer *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(self->thread);
}

static int assign_thread(MarkBuffer *self, PyObject *value, void *unused)
{
    const unsigned long long thread = value == NULL ? 0 : PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred())
        return -1;
    set_thread(self, thread);
    return 0;
}

static PyObject *get_failures(MarkBuffer *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(self->failures + atomic_load(&self->channel->failures));
}

static PyGetSetDef attributes[] = {
    {"thread", (getter)get_thread, (setter)assign_thread, "Id of the training thread; 0: the buffer is inert.", NULL},
    {"failures", (getter)get_failures, NULL, "Stores that failed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};


static PyMemberDef members[] = {
#define NUMBER(NAME, TYPE, ACCESS, DOC) {#NAME, TYPE, offsetof(MarkBuffer, NAME), ACCESS, DOC}
    NUMBER(backward_ends, T_ULONGLONG, READONLY, "Ends of backwards in the attempt."),
    NUMBER(optimizer_ends, T_ULONGLONG, READONLY, "Ends of optimizers' steps."),
    NUMBER(step_ends, T_ULONGLONG, READONLY, "Ends of steps that the training names."),
    NUMBER(backward_depth, T_ULONGLONG, READONLY, "Backwards under way."),
    NUMBER(poll_interval_ns, T_ULONGLONG, 0, "Least time between two calls of at_store."),
    NUMBER(settling, T_UINT, 0, "Ends of steps that still call at_boundary."),
    NUMBER(boundary_ends, T_UINT, 0, "Whose end number boundary_at calls it: 1 backward, 2 optimizer, 3 step; 0 none's."),
    NUMBER(boundary_at, T_ULONGLONG, 0, "Number of that end."),
    NUMBER(mark_cost_ns, T_UINT, 0, "What a mark costs, for readers."),
    NUMBER(collective_cost_ns, T_USHORT, 0, "What a collective costs besides its marks, for readers."),
#define CALLABLE(NAME, DOC) {#NAME, T_OBJECT, offsetof(MarkBuffer, NAME), 0, DOC}
    CALLABLE(device, "Called behind the marks that a device has an event of: kind, detail, subject, ordinal; or None."),
    CALLABLE(meet, "Called with an optimizer that steps for the first time, as far as that is remembered; or None."),
    CALLABLE(watch_closure, "Returns arguments of an optimizer with their closure watched; or None."),
    CALLABLE(compilations, "torch.compile's counters, a dict; or None."),
    {"in_flight", T_OBJECT_EX, offsetof(MarkBuffer, in_flight), READONLY, "Futures whose end is to be noted, a dict."},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *optional(PyObject *value)
{
    if (value == NULL || value == Py_None)
        return NULL;
    Py_INCREF(value);
    return value;
}

static PyObject *make(PyTypeObject *type, PyObject *given, PyObject *named)
{
    static char *names[] = {"file", "offset", "block_count", "issues_offset", "flags_offset", "key",
                             "claim_thread", "at_store", "at_boundary", "clock", "cpu_clock", NULL};
    int file;
    long long offset, issues_offset = -1, flags_offset = -1;
    unsigned long block_count;
    unsigned long long key = 0;
    PyObject *claim_thread = NULL, *at_store = NULL, *at_boundary = NULL, *clock = NULL, *cpu_clock = NULL;
    if (!PyArg_ParseTupleAndKeywords(
            given, named, "iLk|$LLKOOOOO:MarkBuffer", names, &file, &offset, &block_count, &issues_offset,
            &flags_offset, &key, &claim_thread, &at_store, &at_boundary, &clock, &cpu_clock))
        return NULL;
    if (block_count == 0 || offset < 0) {
        PyErr_Format(
            PyExc_ValueError, "ring of marks: got %lu blocks at offset %lld, expected 1 or more at 0 or more", block_count,
            offset);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    MarkBuffer *self = (MarkBuffer *)allocate(type, 0); /* zeroed */
    if (self == NULL)
        return NULL;
    self->file = file;
    self->offset = offset;
    self->block_count = block_count;
    self->channel = make_channel(file, issues_offset);
    if (self->channel == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->flags_offset = flags_offset;
    self->key = key;
    self->graphs_noted = -1;
    self->poll_interval_ns = POLL_INTERVAL_NS;
    self->claim_thread = optional(claim_thread);
    self->at_store = optional(at_store);
    self->at_boundary = optional(at_boundary);
    self->clock = optional(clock);
    self->cpu_clock = optional(cpu_clock);
    self->block.header.version = MARKS_VERSION;
    begin_block(self, 0);
    self->stats_name = PyUnicode_InternFromString("stats");
    self->graphs_name = PyUnicode_InternFromString("unique_graphs");
    self->add_callback_name = PyUnicode_InternFromString("add_done_callback");
    self->nbytes_name = PyUnicode_InternFromString("nbytes");
    self->site_name = PyUnicode_InternFromString("site");
    self->get_future_name = PyUnicode_InternFromString("get_future");
    self->in_flight = PyDict_New();
    if (self->stats_name == NULL || self->graphs_name == NULL || self->add_callback_name == NULL
        || self->nbytes_name == NULL || self->site_name == NULL || self->get_future_name == NULL
        || self->in_flight == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int traverse(MarkBuffer *self, visitproc visit, void *arg)
{
    Py_VISIT(self->device);
    Py_VISIT(self->in_flight);
    Py_VISIT(self->claim_thread);
    Py_VISIT(self->at_store);
    Py_VISIT(self->at_boundary);
    Py_VISIT(self->meet);
    Py_VISIT(self->watch_closure);
    Py_VISIT(self->compilations);
    Py_VISIT(self->clock);
    Py_VISIT(self->cpu_clock);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int clear(MarkBuffer *self)
{
    Py_CLEAR(self->device);
    Py_CLEAR(self->claim_thread);
    Py_CLEAR(self->at_store);
    Py_CLEAR(self->at_boundary);
    Py_CLEAR(self->meet);
    Py_CLEAR(self->watch_closure);
    Py_CLEAR(self->compilations);
    Py_CLEAR(self->stats_name);
    Py_CLEAR(self->graphs_name);
    Py_CLEAR(self->add_callback_name);
    Py_CLEAR(self->nbytes_name);
    Py_CLEAR(self->site_name);
    Py_CLEAR(self->get_future_name);
    Py_CLEAR(self->in_flight);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->cpu_clock);
    return 0;
}

static void deallocate(MarkBuffer *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    clear(self);
    if (self->channel != NULL) {
        set_thread(self, 0); /* the file is its owner's, who may close it now */
        channel_release(&self->channel->shared);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Marks of one attempt; mark_buffer.MarkBuffer documents the interface."},
    {Py_tp_new, make},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec specification = {
    .name = "lockstep.agent._marks.MarkBuffer",
    .basicsize = sizeof(MarkBuffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static int is_buffer(PyObject *object, const char *who)
{
    if ((destructor)PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (destructor)deallocate)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s: got a buffer of another type, expected a MarkBuffer of this module", who);
    return 0;
}

#include "_collective_kernel.h"
#include "_waiting.h"

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    const int added = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return added;
}

static int execute(PyObject *module)
{
    make_crc_table();
    if (watch_forks() != 0) {
        PyErr_NoMemory();
        return -1;
    }
    if (add_type(module, "MarkBuffer", &specification) < 0)
        return -1;
    if (add_type(module, "CollectiveKernel", &kernel_specification) < 0)
        return -1;
    return add_type(module, "Waiting", &waiting_specification);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "lockstep.agent._marks",
    .m_doc = "Marks of a training process, appended and stored by C.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__marks(void)
{
    return PyModuleDef_Init(&definition);
}
