"""Attributes time in collectives to kinds of domains, by matching each communicator to one of a rank's groups. Pure.

The plugin identifies a communicator by a hash and, if the framework gave it one, a name. The matching torch group is
the one of the same size in which this rank has the same place. If groups of two kinds match, none is chosen.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.contracts.messages import GroupInfo

Membership = tuple[int, int]
"""Size of a communicator, and the rank's place in it."""


def times_by_kind(
    time_ns_by_membership: Mapping[Membership, int], groups: "Iterable[GroupInfo]", rank: int
) -> dict[str, int]:
    """Return the time of a rank's collectives by kind of domain, in ns; ambiguous time is left out."""
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
    """Return the index of a rank within ranges (`domains.pack_ranks`), or None if they do not contain it."""
    before = 0
    for span in spans:
        ranks = range(*span)
        if rank in ranks:
            return before + ranks.index(rank)
        before += len(ranks)
    return None
