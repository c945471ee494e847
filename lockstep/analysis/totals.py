"""Collectives by name: of one rank, and of all ranks with what they moved."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lockstep.diagnosis.communication_causes.bandwidth import bandwidths
from lockstep.diagnosis.communication_causes.collectives import Group, RankCollectives
from lockstep.diagnosis.communication_causes.matching import CollectiveTable
from lockstep.trace.columns import ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTotal:
    """Collectives of one kind in one group; `bytes` is their sum, None if any is unknown.

    `total_ns` and `shortest_ns` are of durations on one rank, or of transmissions (without waiting) if several ranks
    were matched; then `bus_bandwidth` is the median in bytes per second, None if unknown.
    """

    kind: str
    group: Group
    count: int
    total_ns: int
    shortest_ns: int
    bytes: int | None
    bus_bandwidth: float | None = None


def totals_of_rank(collectives: RankCollectives) -> list[CollectiveTotal]:
    """Return the totals of one rank, those that take longest first."""
    places: dict[tuple[str, Group], list[int]] = defaultdict(list)
    for place, key in enumerate(zip(collectives.kinds, collectives.groups, strict=True)):
        places[key].append(place)
    found = []
    for (kind, group), at in places.items():
        duration_ns, size = collectives.duration_ns[at], collectives.bytes[at]
        found.append(
            CollectiveTotal(
                kind=kind,
                group=group,
                count=len(at),
                total_ns=int(duration_ns.sum()),
                shortest_ns=int(duration_ns.min()),
                bytes=None if (size == ABSENT).any() else int(size.sum()),
            )
        )
    return sorted(found, key=lambda each: -each.total_ns)


def totals_of_table(table: CollectiveTable) -> list[CollectiveTotal]:
    """Return the totals of matched collectives, those that take longest first."""
    rates = bandwidths(table)
    places: dict[tuple[str, Group], list[int]] = defaultdict(list)
    for place, key in enumerate(zip(table.kinds, table.groups, strict=True)):
        places[key].append(place)
    found = []
    for (kind, group), at in places.items():
        spent_ns, bus, size = np.nan_to_num(rates.transmission_ns[at]), rates.bus[at], table.bytes[at]
        known = bus[np.isfinite(bus)]
        found.append(
            CollectiveTotal(
                kind=kind,
                group=group,
                count=len(at),
                total_ns=int(spent_ns.sum()),
                shortest_ns=int(spent_ns.min()),
                bytes=None if (size == ABSENT).any() else int(size.sum()),
                bus_bandwidth=float(np.median(known)) if len(known) else None,
            )
        )
    return sorted(found, key=lambda each: -each.total_ns)
