"""What a step log lacks in its midst: a rank that reported before and after a step has done it, so its record is lost.

Pure. Steps that no rank reported are none: a log may hold every tenth. What a rank lacks before its first record, after
its last one, or where it goes back to an earlier step, may never have been. A record that came so late that a hang had
been looked for is lost as well: it was not there.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.decide.losses import Losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.record.steplog import StepLog

_MS = 1_000_000
_LAG_STEPS = 8  # ranks of one log end so close together, as in a standstill


def losses_of(log: "StepLog", late_seconds: float) -> Losses | None:
    """Return what is lost of a log, or came later than `late_seconds`; None where that is too much for evidence."""
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
    # Of one step in one attempt: ranks go back together, so that each counts attempts for itself.
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
    """Return the rows by rank and start, without those that came so long after a later one of their rank."""
    order = np.lexsort((log.columns["start_ns"], log.columns["rank"]))
    arrival_ms, rank = log.arrival_ns[order] // _MS, log.columns["rank"][order]
    arrival_ms += rank * (int(np.ptp(arrival_ms)) + 1) if len(rank) else 0  # no rank's are among those of another
    next_ms = np.minimum.accumulate(arrival_ms[::-1])[::-1]
    is_late = (arrival_ms[:-1] - next_ms[1:] > late_seconds * 1e3) & (rank[:-1] == rank[1:])
    return np.delete(order, np.flatnonzero(is_late))
