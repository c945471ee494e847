/* HOT (budget 60 ns a mark, 450 ns an issue): marks of threads that do not hold the interpreter lock, until somebody
 * who does makes the next mark and drains them into the block. Part of _marks.c; _channel.h is what others see.
 *
 * A bounded queue of many producers and one consumer (Vyukov 2010, "Bounded MPMC queue", with turns that begin at 0, so
 * that zeroed memory is an empty queue). A producer that finds it full counts the mark as lost and goes on; no thread
 * waits. Rejected: a lock around the block, which a thread of the backend could hold while the training thread waits.
 *
 * Not here: Python. A thread that ends a collective after the interpreter did finds its channel alive and inert.
 */

#include "_channel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define QUEUE_MARKS 4096u /* two a collective: 2,048 collectives without a mark of the training thread between them */
#define QUIET_TRIES 100000

typedef struct {
    _Atomic uint64_t turn; /* 2n: free for lap n; 2n + 1: holds lap n's mark */
    Mark mark;
} Cell;

typedef struct {
    LockstepChannel shared; /* first: others know a channel by this address */
    _Atomic uint64_t thread; /* the buffer's; 0: inert */
    unsigned generation;     /* of the process that made it */
    _Atomic uint32_t issued; /* ordinal of the next collective */
    _Atomic uint32_t references;
    _Atomic uint32_t writers; /* calls under way that may write to `file` */
    int file;
    long long issues_offset;
    _Atomic uint64_t failures; /* stores that failed */
    _Atomic uint64_t lost;     /* marks that found the queue full */
    _Atomic uint64_t issues[ISSUE_SLOTS][2];
    _Alignas(64) uint64_t head; /* the consumer's, who holds the interpreter lock */
    _Alignas(64) _Atomic uint64_t tail;
    Cell *cells; /* NULL: only the buffer itself makes marks */
} Channel;

static _Atomic unsigned process_generation; /* forks between the first process and this one */

static void count_fork(void)
{
    atomic_fetch_add(&process_generation, 1);
}

/* A fork of the training's, made by Python or not, must be inert at once: its parent goes on writing. */
static int watch_forks(void)
{
    static atomic_flag watched = ATOMIC_FLAG_INIT;
    return atomic_flag_test_and_set(&watched) ? 0 : pthread_atfork(NULL, NULL, count_fork);
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static inline int is_of_this_process(const Channel *channel)
{
    return channel->generation == atomic_load_explicit(&process_generation, memory_order_relaxed);
}

/* Issue words. */

static void store_issues(Channel *channel, unsigned slot)
{
    if (channel->issues_offset < 0)
        return;
    const off_t at = channel->issues_offset + (off_t)(slot * sizeof channel->issues[0]);
    uint64_t words[2];
    do { /* again where another thread issued meanwhile: the later store may be the older count */
        words[0] = atomic_load(&channel->issues[slot][0]);
        words[1] = atomic_load(&channel->issues[slot][1]);
        if (pwrite(channel->file, words, sizeof words, at) != sizeof words)
            atomic_fetch_add(&channel->failures, 1);
    } while (atomic_load(&channel->issues[slot][0]) != words[0]);
}

static void count_issue(Channel *channel, unsigned slot, uint64_t now)
{
    atomic_store(&channel->issues[slot][1], now);
    atomic_fetch_add(&channel->issues[slot][0], 1);
    store_issues(channel, slot);
}

static void forget_issues(Channel *channel, unsigned slot)
{
    atomic_store(&channel->issues[slot][0], 0);
    atomic_store(&channel->issues[slot][1], 0);
    store_issues(channel, slot);
}

/* Producers. */

static int push(Channel *channel, const Mark *mark)
{
    uint64_t place = atomic_load_explicit(&channel->tail, memory_order_relaxed);
    for (;;) {
        Cell *cell = &channel->cells[place % QUEUE_MARKS];
        const uint64_t free_turn = place / QUEUE_MARKS * 2;
        const uint64_t turn = atomic_load_explicit(&cell->turn, memory_order_acquire);
        if (turn < free_turn) {
            atomic_fetch_add_explicit(&channel->lost, 1, memory_order_relaxed);
            return 0;
        }
        if (turn > free_turn)
            place = atomic_load_explicit(&channel->tail, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(
                     &channel->tail, &place, place + 1, memory_order_relaxed, memory_order_relaxed)) {
            cell->mark = *mark;
            atomic_store_explicit(&cell->turn, free_turn + 1, memory_order_release);
            return 1;
        }
    }
}

static enum LockstepRole channel_role(LockstepChannel *shared)
{
    Channel *channel = (Channel *)shared;
    const uint64_t thread = atomic_load_explicit(&channel->thread, memory_order_relaxed);
    if (thread == 0 || !is_of_this_process(channel))
        return LOCKSTEP_INERT;
    return thread == PyThread_get_thread_ident() ? LOCKSTEP_TRAINING_THREAD : LOCKSTEP_OTHER_THREAD;
}

static inline uint16_t kind_here(uint16_t kind, enum LockstepRole role)
{
    return role == LOCKSTEP_TRAINING_THREAD ? kind : kind | OTHER_THREAD;
}

static int64_t channel_issue(LockstepChannel *shared, uint64_t site, uint64_t payload)
{
    Channel *channel = (Channel *)shared;
    if (site > SITE_MAX || payload > PAYLOAD_BYTES_MAX || !is_of_this_process(channel))
        return -1;
    int64_t ordinal = -1;
    atomic_fetch_add(&channel->writers, 1); /* before the role is read: `quiet` stores the role and then waits */
    const enum LockstepRole role = channel_role(shared);
    if (role != LOCKSTEP_INERT) {
        const uint64_t now = monotonic_ns();
        const uint32_t issued = atomic_fetch_add_explicit(&channel->issued, 1, memory_order_relaxed);
        const uint16_t detail = (uint16_t)site;
        const Mark mark = {now, kind_here(ISSUE, role), detail, issued, (int64_t)(payload << 24 | site >> 16)};
        push(channel, &mark);
        count_issue(channel, detail >> 9, now);
        ordinal = issued;
    }
    atomic_fetch_sub(&channel->writers, 1);
    return ordinal;
}

static void channel_note(LockstepChannel *shared, uint16_t kind, uint32_t ordinal)
{
    const enum LockstepRole role = channel_role(shared);
    if (role == LOCKSTEP_INERT)
        return;
    const Mark mark = {monotonic_ns(), kind_here(kind, role), 0, ordinal, 0};
    push((Channel *)shared, &mark);
}

/* The consumer: who holds the interpreter lock. */

static inline const Mark *front(Channel *channel)
{
    Cell *cell = &channel->cells[channel->head % QUEUE_MARKS];
    const uint64_t full_turn = channel->head / QUEUE_MARKS * 2 + 1;
    return atomic_load_explicit(&cell->turn, memory_order_acquire) == full_turn ? &cell->mark : NULL;
}

static inline void pop(Channel *channel)
{
    Cell *cell = &channel->cells[channel->head % QUEUE_MARKS];
    atomic_store_explicit(&cell->turn, channel->head / QUEUE_MARKS * 2 + 2, memory_order_release);
    channel->head++;
}

/* Return once no call writes to the file any more, or soon: a thread that did not come to that has no processor. */
static void quiet(Channel *channel)
{
    if (is_of_this_process(channel)) /* in a forked child, the threads that wrote are not there */
        for (int tries = 0; atomic_load(&channel->writers) != 0 && tries < QUIET_TRIES; tries++)
            sched_yield();
}

/* Life. */

static void channel_retain(LockstepChannel *shared)
{
    atomic_fetch_add_explicit(&((Channel *)shared)->references, 1, memory_order_relaxed);
}

static void channel_release(LockstepChannel *shared)
{
    Channel *channel = (Channel *)shared;
    if (atomic_fetch_sub_explicit(&channel->references, 1, memory_order_acq_rel) == 1) {
        free(channel->cells);
        free(channel);
    }
}

static Channel *make_channel(int file, long long issues_offset)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, sizeof(Channel)) != 0)
        return NULL;
    Channel *channel = memory;
    memset(channel, 0, sizeof *channel);
    channel->shared = (LockstepChannel){
        .version = LOCKSTEP_CHANNEL_VERSION,
        .retain = channel_retain,
        .release = channel_release,
        .role = channel_role,
        .issue = channel_issue,
        .note = channel_note,
    };
    channel->file = file;
    channel->issues_offset = issues_offset;
    channel->generation = atomic_load(&process_generation);
    atomic_store(&channel->references, 1);
    return channel;
}

/* Make room for marks of others; 0, or -1 where there is no memory. */
static int open_channel(Channel *channel)
{
    if (channel->cells == NULL)
        channel->cells = calloc(QUEUE_MARKS, sizeof(Cell));
    return channel->cells == NULL ? -1 : 0;
}
