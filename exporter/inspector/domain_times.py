"""Time in collectives by kind of domain: which of a rank's groups a communicator is. Pure.

The plugin names a communicator by a hash and, where the framework gave it one, a name; torch's group is the one of so
many ranks in which this rank has the same place. Where groups of two kinds are alike in both, it is none of them.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.contracts.messages import GroupInfo

Membership = tuple[int, int]
"""Ranks of a communicator, and the rank's place among them."""


def times_by_kind(
    time_ns_by_membership: Mapping[Membership, int], groups: "Iterable[GroupInfo]", rank: int
) -> dict[str, int]:
    """Return the time of a rank's collectives by kind of domain, in ns; of no kind what could be of several."""
    if not time_ns_by_membership:
        return {}
    kinds: dict[Membership, set[str]] = {}
    for group in groups:
        place = _place(group.ranks, rank)
        if place is not None:
            kinds.setdefault((sum(len(range(*span)) for span in group.ranks), place), set()).add(group.kind)
    times_ns: dict[str, int] = {}
    for membership, time_ns in time_ns_by_membership.items():
        if len(found := kinds.get(membership, set())) == 1:
            (kind,) = found
            times_ns[kind] = times_ns.get(kind, 0) + time_ns
    return times_ns


def _place(spans: Iterable[Iterable[int]], rank: int) -> int | None:
    """Return the index of a rank among those of ranges (`domains.pack_ranks`), None where it is not in them."""
    before = 0
    for span in spans:
        ranks = range(*span)
        if rank in ranks:
            return before + ranks.index(rank)
        before += len(ranks)
    return None
