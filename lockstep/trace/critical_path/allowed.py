# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""What last allowed each op to begin, and when: its stream, its launch, a recorded wait, or work that ended then.

It follows from the trace alone, so it is computed for all ops at once; the walk then goes from op to op (`walk`).
Shape suffix: O all ops.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT
from lockstep.trace.critical_path.lanes import ALIGNED_NS, Lanes, Numbers
from lockstep.trace.critical_path.path import CODE_OF, DependencyKind
from lockstep.trace.critical_path.waits import TraceWaits

HANDED_OVER_NS = 100_000
"""A host backend's thread that starts its next collective within this time had it waiting: 7 to 30 us in the recordings
(once 153), and more than 2 ms if the thread itself was waiting for one."""
NEVER_NS = -(1 << 63)


class Launches(NamedTuple):
    """When and by which thread each op was launched, ABSENT if unknown; arrays of shape (n_ops,)."""

    time_ns: Numbers
    thread: Numbers


class Allowed(NamedTuple):
    """What allowed each op to begin, arrays of shape (n_ops,).

    `time_ns` is when, NEVER_NS where nothing in the trace can have; `op` is another op, ABSENT where it was what one of
    the trace's threads did, `thread`. `why` is a code of `DependencyKind`.
    """

    time_ns: Numbers
    op: Numbers
    thread: Numbers
    why: NDArray[np.int8]

    def note(self, at: Numbers, time_ns: Numbers, why: DependencyKind, *, op: Numbers | int = ABSENT) -> None:
        """Record that `op`, or the first thread, allowed the ops at these indices to begin."""
        self.time_ns[at], self.op[at], self.thread[at], self.why[at] = time_ns, op, 0, CODE_OF[why]


def allowed_by(lanes: Lanes, waits: TraceWaits, launches: Launches, *, has_threads: bool) -> Allowed:
    """Return what allowed the ops to begin.

    For equal times a recorded wait takes precedence, then the stream, then the launch.
    """
    start_ns_O, on_device_O = lanes.start_ns, lanes.on_device
    found = Allowed(
        np.full(len(lanes), NEVER_NS),
        np.full(len(lanes), ABSENT, np.int64),
        np.zeros(len(lanes), np.int64),
        np.full(len(lanes), CODE_OF[DependencyKind.STREAM], np.int8),
    )
    before_O = lanes.before()
    after = np.flatnonzero(before_O != ABSENT)
    found.note(after, lanes.end_ns[before_O[after]], DependencyKind.STREAM, op=before_O[after])
    launched = np.flatnonzero(on_device_O & (launches.thread != ABSENT) & (launches.time_ns > found.time_ns))
    found.note(launched, launches.time_ns[launched], DependencyKind.LAUNCH)
    found.thread[launched] = launches.thread[launched]
    _note_recorded(found, lanes, waits)
    if not waits.are_recorded:
        _note_aligned(found, lanes, np.flatnonzero(on_device_O & (found.time_ns < start_ns_O - ALIGNED_NS)))
    is_known_O = np.where(on_device_O, found.time_ns != NEVER_NS, found.time_ns >= start_ns_O - HANDED_OVER_NS)
    _note_unknown(found, lanes, np.flatnonzero(~is_known_O), has_threads=has_threads)
    return found


def _note_recorded(found: Allowed, lanes: Lanes, waits: TraceWaits) -> None:
    """Note recorded waits that ended last, one by one: a trace has few."""
    recorded = CODE_OF[DependencyKind.RECORDED_WAIT]
    for op, others in waits.waited_for.items():
        start_ns = lanes.start_ns[op]
        for other in others:
            until_ns, best_ns = min(lanes.end_ns[other], start_ns), found.time_ns[op]
            is_last = until_ns > best_ns or (until_ns == best_ns and found.why[op] != recorded)
            if lanes.start_ns[other] < start_ns and is_last:
                found.time_ns[op], found.op[op], found.why[op] = until_ns, other, recorded


def _note_aligned(found: Allowed, lanes: Lanes, late: Numbers) -> None:
    """Add what ended on another stream just before these ops began, if that is later than what is known."""
    other = lanes.ended_elsewhere(late)
    end_ns = np.where(other == ABSENT, NEVER_NS, lanes.end_ns[other])
    aligned = (end_ns > lanes.start_ns[late] - ALIGNED_NS) & (end_ns > found.time_ns[late])
    found.note(late[aligned], end_ns[aligned], DependencyKind.ALIGNMENT, op=other[aligned])


def _note_unknown(found: Allowed, lanes: Lanes, ops: Numbers, *, has_threads: bool) -> None:
    """Add a predecessor for ops without any record: the host, else the op that ended last."""
    if has_threads:
        found.note(ops, lanes.start_ns[ops], DependencyKind.RAN_LAST)
        return
    last = lanes.ended_last(lanes.start_ns[ops])
    found.note(ops, np.where(last == ABSENT, NEVER_NS, lanes.end_ns[last]), DependencyKind.ALIGNMENT, op=last)
    found.why[ops[last == ABSENT]] = CODE_OF[DependencyKind.STREAM]
