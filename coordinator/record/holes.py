"""What a step log lacks in its midst: a rank that reported before and after a step has done it, so its record is lost.

Pure. Steps that no rank reported are none: a log may hold every tenth. What a rank lacks before its first record, after
its last one, or where it goes back to an earlier step, may never have been.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.decide.losses import Losses

if TYPE_CHECKING:
    from coordinator.record.steplog import StepLog

_LAG_STEPS = 8  # ranks of one log end so close together, as in a standstill


def losses_of(log: "StepLog") -> Losses | None:
    """Return what is lost of a log; None where so much is lost that the log is no evidence."""
    rank, step = log.columns["rank"], log.columns["step"]
    order = np.lexsort((log.columns["start_ns"], rank))
    rank, place = rank[order], np.unique(step, return_inverse=True)[1].reshape(-1)[order]
    onward = np.diff(place)
    is_same = rank[1:] == rank[:-1]
    before = np.flatnonzero(is_same & (onward > 1))
    gaps = onward[before] - 1
    lost = int(gaps.sum())
    if lost > log.count:
        return None
    # Of one step in one attempt: ranks go back together, so that each counts attempts for itself.
    attempt = np.concatenate(([0], np.cumsum(is_same & (onward <= 0))))
    first = np.searchsorted(rank, rank)
    attempt -= attempt[first]
    within = np.arange(lost) - np.repeat(np.cumsum(gaps) - gaps, gaps)
    holes = np.stack((np.repeat(attempt[before], gaps), np.repeat(place[before], gaps) + 1 + within))
    most = np.unique(holes, axis=1, return_counts=True)[1].max(initial=0)
    last = np.flatnonzero(np.diff(rank, append=-1))
    end = attempt[last] * (int(place.max(initial=0)) + 1) + place[last]
    gone = rank[last][end < np.median(end) - _LAG_STEPS] if len(end) else rank
    return Losses(
        lost=lost,
        records=log.count,
        longest_steps=int(gaps.max(initial=0)),
        most_ranks=int(most),
        gone=frozenset(gone.tolist()),
    )
