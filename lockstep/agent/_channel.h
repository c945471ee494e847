/* How C++ leaves marks without the interpreter lock: a channel of `MarkBuffer`, handed over as a capsule.
 *
 * `_marks.c` makes channels, `hooks/_collectives.cpp` uses them. Every function here may be called by any thread, with or
 * without the lock, also while the interpreter ends and after it: a channel is freed with its last reference.
 */

#ifndef LOCKSTEP_CHANNEL_H
#define LOCKSTEP_CHANNEL_H

#include <stdint.h>

#define LOCKSTEP_CHANNEL_CAPSULE "lockstep.agent._marks.channel"
#define LOCKSTEP_CHANNEL_VERSION 1

/* Marks that `note` takes (contracts/marks.py, MarkKind). */
#define LOCKSTEP_DONE 17
#define LOCKSTEP_EXPECT 19

enum LockstepRole {
    LOCKSTEP_INERT = 0, /* the buffer records nothing: before an attempt, after it, in a forked child */
    LOCKSTEP_TRAINING_THREAD,
    LOCKSTEP_OTHER_THREAD,
};

typedef struct LockstepChannel {
    uint32_t version; /* LOCKSTEP_CHANNEL_VERSION of who made it */
    void (*retain)(struct LockstepChannel *);
    void (*release)(struct LockstepChannel *);
    /* What the calling thread is to the buffer. */
    enum LockstepRole (*role)(struct LockstepChannel *);
    /* Note a collective that is issued now and count it in its issue slot; return its ordinal, -1 where nothing is
     * recorded. Call site and payload as `marks.pack_call_site` and PAYLOAD_BYTES_MAX limit them. */
    int64_t (*issue)(struct LockstepChannel *, uint64_t call_site, uint64_t payload_bytes);
    /* Note one of the kinds above, which happens now, of a collective. */
    void (*note)(struct LockstepChannel *, uint16_t kind, uint32_t ordinal);
} LockstepChannel;

#endif
