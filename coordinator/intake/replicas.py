"""Ranks of a run that work on the same samples, or hold the same experts, by its communication domains. Pure."""

from collections.abc import Iterable

from lockstep.contracts import domains

REPLICA_KINDS = ("tp", "cp", "pp")
"""Ranks joined by these work on the same samples, so an uneven batch slows them together."""


def replicas_of(topology: domains.Topology) -> list[int]:
    """Return the replica of each rank: ranks joined by tensor, context or pipeline parallelism share one."""
    parent = list(range(topology.world_size))

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for domain in topology.domains:
        if domain.kind in REPLICA_KINDS:
            first = root(domain.ranks[0])
            for rank in domain.ranks[1:]:
                parent[root(rank)] = first
    return [root(rank) for rank in range(topology.world_size)]


def replica_members(topology: domains.Topology, rank: int) -> set[int]:
    """Return the ranks of one rank's replica, itself included; many times quicker than laying out all of them."""
    joined = [domain.ranks for domain in topology.domains if domain.kind in REPLICA_KINDS]
    members = {rank}
    while True:
        near = [ranks for ranks in joined if not members.isdisjoint(ranks)]
        if len(grown := members.union(*near)) == len(members):
            return members
        members = grown


def places_of(topology: domains.Topology, ranks: Iterable[int]) -> list[int] | None:
    """Return the place of each rank in its expert domain, 0 for one without; None where there is no such domain.

    Ranks of one place hold the same experts, each for the tokens of its own replicas.
    """
    place = {
        rank: index for domain in topology.domains if domain.kind == "ep" for index, rank in enumerate(domain.ranks)
    }
    return [place.get(int(rank), 0) for rank in ranks] if place else None
