"""Finds ranks that work on the same samples or hold the same experts, from the communication domains. Pure."""

from collections.abc import Iterable

from lockstep.contracts import domains

REPLICA_KINDS = ("tp", "cp", "pp")
"""Kinds of domain whose ranks work on the same samples, so that an uneven batch slows all of them."""


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
    """Return the ranks of one rank's replica, itself included; many times faster than computing all replicas."""
    joined = [domain.ranks for domain in topology.domains if domain.kind in REPLICA_KINDS]
    members = {rank}
    while True:
        near = [ranks for ranks in joined if not members.isdisjoint(ranks)]
        if len(grown := members.union(*near)) == len(members):
            return members
        members = grown


def places_of(topology: domains.Topology, ranks: Iterable[int]) -> list[int] | None:
    """Return the index of each rank in its expert domain, 0 if it is in none; None if the run has no expert domain.

    Ranks with equal indices hold the same experts, each for the tokens of its own replica.
    """
    place = {
        rank: index for domain in topology.domains if domain.kind == "ep" for index, rank in enumerate(domain.ranks)
    }
    return [place.get(int(rank), 0) for rank in ranks] if place else None
