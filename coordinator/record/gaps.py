"""Finds records that a step log has lost: a rank that reported steps before and after a step has done that step too.

Pure. Steps that no rank reported do not count: a log may hold every tenth. Records missing before a rank's first one,
after its last one, or where it goes back to an earlier step may never have existed. A record that arrived so late that
a hang would have been looked for also counts as lost: it was not there in time.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.decide.losses import Losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.record.steplog import StepLog

_MS = 1_000_000
_LAG_STEPS = 8  # the ranks of one log end within this many steps of each other, even in a stall


def losses_of(log: "StepLog", late_seconds: float) -> Losses | None:
    """Return the records that a log lost or received later than `late_seconds`; None if too many to use as evidence."""
    rank, step = log.columns["rank"], log.columns["step"]
    order = _in_time(log, late_seconds)
    rank, place = rank[order], np.unique(step, return_inverse=True)[1].reshape(-1)[order]
    onward = np.diff(place)
    is_same = rank[1:] == rank[:-1]
    before = np.flatnonzero(is_same & (onward > 1))
    gaps = onward[before] - 1
    lost = int(gaps.sum())
    if lost > len(rank):
        return None
    # Steps are compared within an attempt. Ranks restart together, so each rank can count attempts by itself.
    attempt = np.concatenate(([0], np.cumsum(is_same & (onward <= 0))))
    first = np.searchsorted(rank, rank)
    attempt -= attempt[first]
    within = np.arange(lost) - np.repeat(np.cumsum(gaps) - gaps, gaps)
    missing = np.stack((np.repeat(attempt[before], gaps), np.repeat(place[before], gaps) + 1 + within))
    most = np.unique(missing, axis=1, return_counts=True)[1].max(initial=0)
    last = np.flatnonzero(np.diff(rank, append=-1))
    end = attempt[last] * (int(place.max(initial=0)) + 1) + place[last]
    gone = rank[last][end < np.median(end) - _LAG_STEPS] if len(end) else rank
    return Losses(
        lost=lost,
        records=len(rank),
        longest_steps=int(gaps.max(initial=0)),
        most_ranks=int(most),
        gone=frozenset(gone.tolist()),
    )


def _in_time(log: "StepLog", late_seconds: float) -> "NDArray[np.intp]":
    """Return the rows by rank and start, without those that arrived too long after a later row of their rank."""
    order = np.lexsort((log.columns["start_ns"], log.columns["rank"]))
    arrival_ms, rank = log.arrival_ns[order] // _MS, log.columns["rank"][order]
    arrival_ms += rank * (int(np.ptp(arrival_ms)) + 1) if len(rank) else 0  # keeps ranks apart
    next_ms = np.minimum.accumulate(arrival_ms[::-1])[::-1]
    is_late = (arrival_ms[:-1] - next_ms[1:] > late_seconds * 1e3) & (rank[:-1] == rank[1:])
    return np.delete(order, np.flatnonzero(is_late))
