"""When the training thread waits in a collective.

torch on host backends has no event for it: DDP waits for its buckets inside `run_backward`, as part of its self time.
Without this module a rank that waits would look like one that works. A wait is the time in which the innermost call of
the thread can block, while a collective is in flight on the backend's own thread. Such calls nest: FSDP's hooks wait
inside `run_backward`. A trace without stacks has no such calls; there a wait is the time in which the thread is in no
operator while a collective is in flight.
"""

import numpy as np

from lockstep.trace.columns import OPERATOR, PYTHON, Mask, TraceColumns
from lockstep.trace.intervals import Intervals, common, merged, without
from lockstep.trace.self_time import innermost_pieces

WAIT_NAME = "wait for collectives"
SHORTEST_WAIT_NS = 100_000
"""Between two operators the autograd engine spends 5 to 50 us of its own in the recordings; a wait is longer."""

_BLOCKING = ("run_backward", "<built-in method wait of", "<built-in method barrier of")


def waits(columns: TraceColumns, thread: Mask, collectives: Mask) -> Intervals:
    """Return the waits among the events of the training thread, given those that are host collectives elsewhere."""
    if not collectives.any() or not thread.any():
        return Intervals(columns.start_ns[:0], columns.start_ns[:0])
    standing = _blocked(columns, thread) if _has_frames(columns, thread) else _in_no_operator(columns, thread)
    found = common(standing, merged(columns.start_ns[collectives], columns.end_ns[collectives]))
    long = found.end_ns - found.start_ns >= SHORTEST_WAIT_NS
    return Intervals(found.start_ns[long], found.end_ns[long])


def _has_frames(columns: TraceColumns, thread: Mask) -> bool:
    return bool((thread & (columns.category == columns.category_code(PYTHON))).any())


def _blocked(columns: TraceColumns, thread: Mask) -> Intervals:
    """Return when the innermost call of the thread is one that can block."""
    blocking = thread & columns.named(
        lambda name: name.startswith("<built-in") and any(each in name for each in _BLOCKING)
    )
    inside = merged(columns.start_ns[blocking], columns.end_ns[blocking])
    if not blocking.any():
        return inside
    pieces = innermost_pieces(columns, thread & _within(columns, inside))
    blocks = blocking[pieces.event]
    return merged(pieces.start_ns[blocks], pieces.end_ns[blocks])


def _in_no_operator(columns: TraceColumns, thread: Mask) -> Intervals:
    """Return when the thread is in no operator, from its first event to its last."""
    operators = thread & (columns.category == columns.category_code(OPERATOR))
    whole = Intervals(columns.start_ns[thread].min(keepdims=True), columns.end_ns[thread].max(keepdims=True))
    return without(whole, merged(columns.start_ns[operators], columns.end_ns[operators]))


def _within(columns: TraceColumns, outer: Intervals) -> Mask:
    """Return which events lie whole in one interval of a set: callees do, callers do not."""
    at = np.searchsorted(outer.start_ns, columns.start_ns, side="right") - 1
    within: Mask = (at >= 0) & (columns.end_ns <= outer.end_ns[at])
    return within
