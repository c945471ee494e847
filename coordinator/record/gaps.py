"""Finds records that a step log has lost: a rank that reported steps before and after a step has done that step too.

Pure. Steps that no rank reported do not count: a log may hold every tenth. Records missing before a rank's first one,
after its last one, or where it goes back to an earlier step may never have existed.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.decide.losses import Losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.record.steplog import StepLog

_NS = 1_000_000_000
_LAG_STEPS = 8  # the ranks of one log end within this many steps of each other, even in a stall


def losses_of(log: "StepLog", late_seconds: float, ranks_per_node: int) -> Losses | None:
    """Return the records that a log lost; None if too many to use as evidence.

    Records that arrive later than `late_seconds` after the end of their step are on their way until then. A replay
    delivers the records of a second together, so each interval of `past_s` lasts until the end of its last second.
    """
    order = np.lexsort((log.columns["start_ns"], log.columns["rank"]))
    rank, arrival_ns = log.columns["rank"][order], log.arrival_ns[order]
    steps, place = np.unique(log.columns["step"], return_inverse=True)
    place = place.reshape(-1)[order]
    onward = np.diff(place)
    is_same = rank[1:] == rank[:-1]
    before = np.flatnonzero(is_same & (onward > 1))
    gaps = onward[before] - 1
    count = int(gaps.sum())
    if count > len(rank):
        return None
    # Steps are compared within an attempt. Ranks restart together, so each rank can count attempts by itself.
    attempt = np.concatenate(([0], np.cumsum(is_same & (onward <= 0))))
    attempt -= attempt[np.searchsorted(rank, rank)]
    within = np.arange(count) - np.repeat(np.cumsum(gaps) - gaps, gaps)
    lost = np.stack(
        (np.repeat(rank[before], gaps), np.repeat(attempt[before], gaps), np.repeat(place[before], gaps) + 1 + within)
    )
    lost = lost[:, ~_is_of_hosts(lost, np.unique(rank), ranks_per_node)]
    follows = (np.diff(lost[:2], axis=1) == 0).all(axis=0) & (np.diff(lost[2]) == 1)
    last = np.flatnonzero(np.diff(rank, append=-1))
    end = attempt[last] * (int(place.max(initial=0)) + 1) + place[last]
    gone = rank[last][end < np.median(end) - _LAG_STEPS] if len(end) else rank
    late = _late(log, order, late_seconds)
    past_ns = np.concatenate(
        (
            np.stack((rank[before], arrival_ns[before], arrival_ns[before + 1]), axis=1),
            np.stack((rank, arrival_ns - late, arrival_ns), axis=1)[late > 0],
        )
    )
    return Losses(
        lost=lost.shape[1],
        records=len(rank),
        repeated=int(np.count_nonzero(follows)),
        most_ranks=int(np.unique(lost[1:], axis=1, return_counts=True)[1].max(initial=0)),
        stride_steps=int(np.median(np.diff(steps))) if len(steps) > 1 else 1,
        gone=frozenset(gone.tolist()),
        past_s=_by_rank(past_ns),
    )


def _is_of_hosts(lost: "NDArray[np.int64]", ranks: "NDArray[np.int64]", ranks_per_node: int) -> "NDArray[np.bool_]":
    """Return which lost records (rank, attempt, place of the step) all ranks of their host lack."""
    host = lost[0] // ranks_per_node
    _, group, counts = np.unique(np.stack((host, lost[1], lost[2])), axis=1, return_inverse=True, return_counts=True)
    is_whole: NDArray[np.bool_] = counts[group.reshape(-1)] == np.bincount(ranks // ranks_per_node)[host]
    return is_whole


def _late(log: "StepLog", order: "NDArray[np.intp]", late_seconds: float) -> "NDArray[np.int64]":
    """Return how long each record was on its way beyond what is usual for its rank, ns; 0 if at most `late_seconds`.

    The difference of the clocks of a rank and of the receiver is part of what is usual.
    """
    rank = log.columns["rank"][order]
    way_ns = log.arrival_ns[order] - (log.columns["start_ns"] + log.columns["duration_ns"])[order]
    starts = np.flatnonzero(np.diff(rank, prepend=-1))
    usual_ns = [int(np.median(own)) for own in np.split(way_ns, starts[1:])] if len(rank) else []
    late_ns = way_ns - np.repeat(np.array(usual_ns, dtype=np.int64), np.diff(starts, append=len(rank)))
    kept: NDArray[np.int64] = np.where(late_ns > late_seconds * _NS, late_ns, 0)
    return kept


def _by_rank(past_ns: "NDArray[np.int64]") -> dict[int, tuple[tuple[float, float], ...]]:
    """Return intervals, rows of (rank, begin, end), by rank in order of time, s."""
    past: dict[int, list[tuple[float, float]]] = {}
    for rank, begin, end in past_ns[np.lexsort(past_ns.T[::-1])].tolist():
        past.setdefault(rank, []).append((begin / _NS, end // _NS + 1.0))
    return {rank: tuple(own) for rank, own in past.items()}
