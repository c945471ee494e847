"""From announcements to the shape of a run: ranks, hosts, communication domains, stages and replicas.

Pure. A lying node can announce what it likes of itself; world size is what most ranks say.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.contracts import domains
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.contracts.messages import NodeAnnouncement, RankInfo

_SPAN_PARTS = 3
_FINISHED = "finished"
_VOTE_SECONDS = 60.0  # what ranks said that a smaller attempt left behind does not count

REPLICA_KINDS = ("tp", "cp", "pp")
"""Ranks joined by these work on the same samples, so an uneven batch slows them together."""


@dataclass(slots=True)
class Membership:
    """What the nodes of one run have announced. `degrees` (from the configuration) goes before announced groups."""

    degrees: str = ""
    order: str = domains.DEFAULT_ORDER
    infos: "dict[int, RankInfo]" = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    _groups: dict[str, list[domains.Domain]] = field(default_factory=dict)
    _ranks_of_world: Counter[int] = field(default_factory=Counter)
    _finished: int = 0

    def take(self, announcement: "NodeAnnouncement") -> "tuple[list[RankInfo], bool]":
        """Take what one node says; return the ranks whose incarnation changed, and whether the shape did.

        Costs what the node's own ranks cost while all ranks agree on the size of the world.

        Raises
        ------
        MalformedError
            A group is no list of ranks, or there are too many; nothing of the announcement was taken then.
        """
        groups = _unpacked(announcement, f"announcement of node {announcement.node}")
        before = self.world_size
        reshaped = self._groups.get(announcement.node) != groups
        restarted = []
        for info in announcement.ranks:
            known = self.infos.get(info.rank)
            if known is not None and known.attempt != info.attempt:
                restarted.append(info)
            reshaped |= known is None or known.world_size != info.world_size
            self._ranks_of_world[info.world_size] += 1
            self._finished += info.state == _FINISHED
            if known is not None:
                self._ranks_of_world[known.world_size] -= 1
                self._finished -= known.state == _FINISHED
            self.infos[info.rank] = info
            self.nodes[info.rank] = announcement.node
        self._ranks_of_world += Counter()  # those that nobody names any more go
        self._groups[announcement.node] = groups
        return restarted, reshaped or before != self.world_size

    @property
    def is_complete(self) -> bool:
        """Whether every rank of the world has been announced."""
        return self._ranks_of_world[self.world_size] >= self.world_size > 0

    @property
    def world_size(self) -> int:
        """World size that most living ranks announce; 0 before the first announcement."""
        if len(self._ranks_of_world) == 1:
            return next(iter(self._ranks_of_world))
        young_ns = (self.heartbeat_unix_s - _VOTE_SECONDS) * 1e9
        votes = Counter(info.world_size for info in self.infos.values() if info.heartbeat_unix_ns >= young_ns)
        return votes.most_common(1)[0][0] if votes else 0

    @property
    def ranks(self) -> list[int]:
        """Announced ranks inside the world, ascending."""
        world = self.world_size
        return sorted(rank for rank, info in self.infos.items() if info.world_size == world)

    @property
    def is_finished(self) -> bool:
        """Whether every announced rank of the world has said that it ended well."""
        if len(self._ranks_of_world) == 1:
            return 0 < self._finished == len(self.infos)
        ranks = self.ranks
        return bool(ranks) and all(self.infos[rank].state == _FINISHED for rank in ranks)

    @property
    def heartbeat_unix_s(self) -> float:
        """Youngest sign of life of any rank."""
        return max((info.heartbeat_unix_ns for info in self.infos.values()), default=0) / 1e9

    def topology(self) -> domains.Topology:
        """Return the domains of the run: configured degrees if they fit its world, else announced groups.

        Raises
        ------
        ConfigError
            The configured degrees do not multiply to this run's world size.
        """
        if self.degrees:
            parsed = domains.parse_degrees(self.degrees, where="domains")
            return domains.from_degrees(parsed, self.world_size, order=self.order)
        return self.announced_topology()

    def announced_topology(self) -> domains.Topology:
        """Return the domains that the process groups make."""
        announced = (group for groups in self._groups.values() for group in groups)
        return domains.from_groups(announced, self.world_size)


def _unpacked(announcement: "NodeAnnouncement", where: str) -> list[domains.Domain]:
    """Return the groups with their ranks; a few bytes of ranges can name a million, so members are counted first."""
    left = WORLD_SIZE_MAX
    groups = []
    for group in announcement.groups:
        if group.kind not in DOMAIN_KINDS:
            continue
        for span in group.ranks:
            if len(span) != _SPAN_PARTS or span[2] < 1 or max(map(abs, span)) > WORLD_SIZE_MAX:
                raise MalformedError("rank range", where=where, got=span, expected="[start, stop, step] in the world")
            left -= len(range(*span))
        if left < 0:
            raise MalformedError("groups", where=where, got="more", expected=f"at most {WORLD_SIZE_MAX} members")
        groups.append(domains.Domain(group.kind, group.name, domains.unpack_ranks(group.ranks, where=where)))
    return groups


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


def places_of(topology: domains.Topology, ranks: "Iterable[int]") -> list[int] | None:
    """Return the place of each rank in its expert domain, 0 for one without; None where there is no such domain.

    Ranks of one place hold the same experts, each for the tokens of its own replicas.
    """
    place = {
        rank: index for domain in topology.domains if domain.kind == "ep" for index, rank in enumerate(domain.ranks)
    }
    return [place.get(int(rank), 0) for rank in ranks] if place else None
