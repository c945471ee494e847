"""Collectives by hand: ranks that arrive and leave when a test defines."""

import numpy as np

from lockstep.diagnosis.communication_causes.collectives import Group, RankCollectives
from lockstep.diagnosis.communication_causes.waiting import evaluate_waiting, group_waiting
from lockstep.trace.columns import ABSENT

MS = 1_000_000
DP: Group = ("dp", (0, 1, 2, 3))
WALL_NS = 1_790_857_026_000_000_000
"""A wall clock's moment: as a float it would be off by 100 ns."""


def rank_of(
    rank,
    spans,
    *,
    group=DP,
    groups=None,
    kinds="all_reduce",
    sizes=4 * MS,
    numbers=None,
    transit=None,
    host="n0",
    shared=True,
    offset_ns=0,
) -> RankCollectives:
    """Return a rank's collectives of (start, duration) in ns; what is one value holds for all."""
    count = len(spans)
    names = groups if groups is not None else [group] * count
    return RankCollectives(
        rank=rank,
        kinds=[kinds] * count if isinstance(kinds, str) else list(kinds),
        groups=names,
        start_ns=np.array([WALL_NS + offset_ns + start for start, _ in spans], np.int64),
        duration_ns=np.array([duration for _, duration in spans], np.int64),
        bytes=np.full(count, sizes, np.int64) if isinstance(sizes, int) else np.array(sizes, np.int64),
        sequence=np.arange(count) if numbers is None else np.array(numbers, np.int64),
        transit_ns=None if transit is None else np.array(transit, np.int64),
        host=host,
        clock_is_shared=shared,
        group_sizes={each: len(each[1]) or ABSENT for each in set(names)},
    )


def job(arrivals_ns, transmission_ns, **more) -> list[RankCollectives]:
    """Return ranks that arrive at `arrivals_ns` (one row a collective) and leave `transmission_ns` after the last."""
    ranks = range(len(arrivals_ns[0]))
    return [
        rank_of(rank, [(row[rank], max(row) + transmission_ns - row[rank]) for row in arrivals_ns], **more)
        for rank in ranks
    ]


def evaluated(table, window_ns, computing=()):
    """Return what the waiting in the collectives of a table shows; `computing` is by rank."""
    computing = dict(computing)
    hides = any(len(each.start_ns) for each in computing.values())
    return evaluate_waiting(group_waiting(table, computing), window_ns, hides=hides)
