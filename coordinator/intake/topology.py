"""Derives the shape of a run from announcements: ranks, nodes and communication domains.

Pure. A faulty or hostile node can announce anything, so each claim is checked against the others. The world size is the
one that most live ranks announce, and memory is allocated for it only once enough ranks do. Groups must fit into that
world. A rank belongs to one node.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from coordinator.intake.groups import NO_GROUP, GroupTable
from coordinator.intake.owners import Owners
from coordinator.intake.refusals import GROUP, RANK_CLAIMED, Refusals
from lockstep.contracts import domains
from lockstep.contracts.limits import HEARTBEAT_SECONDS_MAX
from lockstep.contracts.messages import FAILED, FINISHED, GONE
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from lockstep.contracts.messages import NodeAnnouncement, RankEnding, RankInfo, RunHeartbeat

OWNER_SILENT_SECONDS = 3 * HEARTBEAT_SECONDS_MAX
"""A rank moves to another node that shows it alive after its owner has not done so for this long."""
WORLD_PER_RANK_MAX = 1024
"""Largest world size per rank that announces it. Of a job of 8,192 ranks only one node of 8 may be monitored; yet a
single forged rank must not make the coordinator allocate a million."""
_CLAIMS_PER_RANK_MAX = 8  # nodes that claim one rank; a restart on another node is one claim
_VOTE_SECONDS = 60.0  # older announcements do not count: they are of ranks that a smaller attempt no longer has
_RANKS_PER_RECOUNT = 1024  # votes are recounted after one message per 1,024 ranks: 0.1 ms a message
_ENDED = frozenset((FINISHED, FAILED, GONE))
_NS = 1e-9


@dataclass(slots=True)
class MembershipChange:
    """What a message changed: ranks that began another attempt, and whether the shape of the run changed.

    `is_completed`: the last missing rank of the world was announced. `is_finished`: the last running rank ended well.
    """

    restarted: "list[RankInfo]" = field(default_factory=list)
    is_reshaped: bool = False
    is_completed: bool = False
    is_finished: bool = False


class _Node(NamedTuple):
    """The latest announcement of a node: its ranks and the ids of its groups, each in announced order."""

    revision: int
    ranks: tuple[int, ...]
    groups: tuple[int, ...]


class _Sign(NamedTuple):
    """Sign of life of a rank: when it was last shown alive (coordinator's clock), and the time in its last heartbeat.

    A heartbeat is a sign of life if its time differs from that of the previous one, whatever the node's clock shows.
    The first heartbeat, and an announcement (which may have been retained for long), are as old as the time they carry.
    """

    seen_unix_s: float
    alive_unix_ns: int | None = None

    def announced(self, heartbeat_unix_ns: int, now_s: float) -> "_Sign":
        return _Sign(max(self.seen_unix_s, min(now_s, heartbeat_unix_ns * _NS)), self.alive_unix_ns)

    def beaten(self, alive_unix_ns: int, now_s: float) -> "_Sign":
        if alive_unix_ns == self.alive_unix_ns:
            return self
        seen_unix_s = now_s if self.alive_unix_ns is not None else min(now_s, alive_unix_ns * _NS)
        return _Sign(max(self.seen_unix_s, seen_unix_s), alive_unix_ns)


_NEVER = _Sign(float("-inf"))


class _Claim(NamedTuple):
    """A rank announced by a node that does not own it."""

    info: "RankInfo"
    sign: _Sign


class Membership:
    """What the nodes of one run have announced.

    `degrees` (from the configuration) takes precedence over announced groups.

    `infos` holds each announced rank, without facts and progress, and `nodes` its owner: the node that announced it
    first. Another node that announces the rank is refused, and counted once. The rank moves to that node when the owner
    no longer announces it and the other has shown it alive later, or when the owner has not shown it alive for
    `OWNER_SILENT_SECONDS` longer than the other. A rank that an elastic restart moves therefore follows the restart,
    and no node can take over a live one.

    `last_seen_unix_s` is when any rank was last shown alive, by the coordinator's clock. `announced_ranks` counts what
    all nodes announce, including ranks that others own: memory grows with it.
    """

    def __init__(
        self,
        run: str = "",
        *,
        degrees: str = "",
        order: str = domains.DEFAULT_ORDER,
        refusals: Refusals | None = None,
    ) -> None:
        self.run = run
        self.degrees = degrees
        self.order = order
        self.refusals = refusals or Refusals()
        self.infos: dict[int, RankInfo] = {}
        self.nodes: dict[int, str] = {}
        self.groups = GroupTable()
        self.owners = Owners()
        self._announced: dict[str, _Node] = {}
        self.announced_ranks = 0
        self._signs: dict[int, _Sign] = {}
        self._claims: dict[int, dict[str, _Claim]] = {}
        self._ranks_of_world: Counter[int] = Counter()
        self._finished_of_world: Counter[int] = Counter()
        self._ended_of_world: Counter[int] = Counter()
        self._failed: set[int] = set()
        self._restarted: set[int] = set()  # ranks that began another attempt since the run's current one began
        self._past: dict[int, int] = {}  # attempt of each rank whose ending belongs to the run's previous attempt
        self.last_seen_unix_s = float("-inf")
        self._elected_world = 0
        self._messages_since_count = 0
        self._vouched_world = 0
        self._standing = (False, False)

    def apply_announcement(self, announcement: "NodeAnnouncement", now_s: float) -> MembershipChange:
        """Replace the announcement of one node; the cost depends on that node's ranks and groups only.

        Raises
        ------
        MalformedError
            A group is not a list of ranks of the world; the whole announcement was ignored.
        """
        name, ranks = announcement.node, tuple(info.rank for info in announcement.ranks)
        former = self._announced.get(name, _Node(0, (), ()))
        groups_before = self.groups.revision
        group_ids = self.groups.replace(
            former.groups,
            announcement.groups,
            world_size=max((info.world_size for info in announcement.ranks), default=0),
            rank_count=len(self.infos) + len(ranks),
            where=f"announcement of node {name}",
        )
        self._count_refused_groups(announcement, former, group_ids)
        self._announced[name] = _Node(announcement.revision, ranks, group_ids)
        self.announced_ranks += len(ranks) - len(former.ranks)
        change = MembershipChange(is_reshaped=self.groups.revision != groups_before)
        for info in announcement.ranks:
            bare = replace(info, facts=None, progress=None)
            if self.nodes.get(info.rank, name) == name:
                sign = self._signs.get(info.rank, _NEVER).announced(info.heartbeat_unix_ns, now_s)
                self._assign(bare, name, sign, change)
            else:
                self._claim(bare, name, now_s, change)
        for rank in set(former.ranks) - set(ranks):
            self._drop_claim(rank, name)
            self._settle(rank, change)
        return self._concluded(change)

    def apply_heartbeat(self, node: str, heartbeat: "RunHeartbeat", now_s: float) -> MembershipChange:
        """Note which ranks of a node are alive; ignored if it does not belong to the node's latest announcement."""
        change = MembershipChange()
        announced = self._announced.get(node)
        if announced is None or announced.revision != heartbeat.revision:
            return change
        if len(announced.ranks) != len(heartbeat.alive_unix_ns):
            return change
        for rank, alive_unix_ns in zip(announced.ranks, heartbeat.alive_unix_ns, strict=True):
            if self.nodes[rank] == node:
                self._show(rank, self._signs[rank].beaten(alive_unix_ns, now_s))
            else:
                claims = self._claims.get(rank, {})
                if node in claims:
                    claims[node] = claims[node]._replace(sign=claims[node].sign.beaten(alive_unix_ns, now_s))
                    self._settle(rank, change)
        return self._concluded(change)

    def ranks_of(self, node: str) -> tuple[int, ...] | None:
        """Return the ranks that a node announces, owned or not; None if the node never announced this run."""
        announced = self._announced.get(node)
        return None if announced is None else announced.ranks

    @property
    def node_count(self) -> int:
        """Return the number of nodes that have announced this run."""
        return len(self._announced)

    def groups_of(self, node: str) -> tuple[int, ...]:
        """Return the ids in `groups` of a node's announced groups, in order; NO_GROUP for one that is not stored."""
        announced = self._announced.get(node)
        return announced.groups if announced is not None else ()

    @property
    def is_complete(self) -> bool:
        """Return whether every rank of the world has been announced."""
        return self._ranks_of_world[self.world_size] >= self.world_size > 0

    @property
    def world_size(self) -> int:
        """Return the world size that most live ranks announce; 0 while too few do (`WORLD_PER_RANK_MAX`)."""
        return self._vouched_world

    @property
    def ranks(self) -> list[int]:
        """Return the announced ranks inside the world, ascending."""
        return sorted(rank for rank, info in self.infos.items() if info.world_size == self.world_size)

    @property
    def is_finished(self) -> bool:
        """Return whether every announced rank of the world has ended well."""
        return 0 < self._ranks_of_world[self.world_size] == self._finished_of_world[self.world_size]

    @property
    def is_over(self) -> bool:
        """Return whether the process of every announced rank of the world has ended."""
        return 0 < self._ranks_of_world[self.world_size] == self._ended_of_world[self.world_size]

    @property
    def has_failed(self) -> bool:
        """Return whether the process of any rank failed in this attempt; O(1)."""
        return bool(self._failed)

    @property
    def has_running(self) -> bool:
        """Return whether any node announces a running rank of the world; O(ranks)."""
        announced = {(rank, node) for node, each in self._announced.items() for rank in each.ranks}
        return any(
            info.world_size == self.world_size and info.state not in _ENDED and (rank, self.nodes[rank]) in announced
            for rank, info in self.infos.items()
        )

    def begin_attempt(self) -> None:
        """Begin another attempt of the run: endings of the previous attempt, if announced again, no longer count."""
        of_before = self._failed - self._restarted
        self._past |= {rank: self.infos[rank].attempt for rank in of_before}
        self._failed -= of_before
        self._restarted.clear()

    def endings(self) -> "dict[int, RankEnding]":
        """Return the endings of all ranks of the world that failed in this attempt, by rank."""
        infos = ((rank, self.infos[rank]) for rank in self._failed)
        return {rank: info.ending for rank, info in infos if info.ending and info.world_size == self.world_size}

    @property
    def ended_ranks(self) -> int:
        """Return the number of announced ranks of the world whose process has ended."""
        return self._ended_of_world[self.world_size]

    def topology(self) -> domains.Topology:
        """Return the domains of the run: from the configured degrees if there are any, else from announced groups.

        Raises
        ------
        ConfigError
            The product of the configured degrees is not this run's world size.
        """
        if self.degrees and self.world_size:
            parsed = domains.parse_degrees(self.degrees, where="domains")
            return domains.from_degrees(parsed, self.world_size, order=self.order)
        return self.announced_topology()

    def announced_topology(self) -> domains.Topology:
        """Return the domains that the announced process groups form."""
        return domains.from_groups(self.groups.domains(self.world_size), self.world_size)

    def _assign(self, info: "RankInfo", node: str, sign: _Sign, change: MembershipChange) -> None:
        """Make a node the owner of a rank, or apply what its owner announces about it."""
        rank, known = info.rank, self.infos.get(info.rank)
        if known is not None:
            self._count(known, -1)
            if known.attempt != info.attempt:
                change.restarted.append(info)
                self._restarted.add(rank)
        change.is_reshaped |= known is None or known.world_size != info.world_size
        self._count(info, 1)
        self.infos[rank] = info
        has_failed = info.ending is not None and self._past.get(rank) != info.attempt
        (self._failed.add if has_failed else self._failed.discard)(rank)
        self._show(rank, sign)
        if self.nodes.get(rank) != node:
            self.nodes[rank] = node
            self.owners.assign(rank, node)

    def _show(self, rank: int, sign: _Sign) -> None:
        self._signs[rank] = sign
        self.last_seen_unix_s = max(self.last_seen_unix_s, sign.seen_unix_s)

    def _claim(self, info: "RankInfo", node: str, now_s: float, change: MembershipChange) -> None:
        """Store a node's claim to a rank that another node owns, and move the rank if the claim is justified."""
        claims = self._claims.setdefault(info.rank, {})
        known = claims.get(node)
        sign = _NEVER if known is None else known.sign
        claims[node] = _Claim(info, sign.announced(info.heartbeat_unix_ns, now_s))
        if len(claims) > _CLAIMS_PER_RANK_MAX:
            del claims[min(claims, key=lambda each: (claims[each].sign.seen_unix_s, each))]
        self._settle(info.rank, change)
        owner = self.nodes[info.rank]
        if owner != node and known is None:
            self.refusals.add(RANK_CLAIMED, f"rank {info.rank} of run {self.run} by node {node}, owned by node {owner}")

    def _settle(self, rank: int, change: MembershipChange) -> None:
        """Move a rank to the node that has shown it alive last, if its owner has lost it."""
        claims = self._claims.get(rank)
        if not claims:
            return
        owner = self.nodes[rank]
        claimant = max(claims, key=lambda node: (claims[node].sign.seen_unix_s, node))
        claim, sign = claims[claimant], self._signs[rank]
        is_announced = rank in self._announced[owner].ranks
        if claim.sign.seen_unix_s - sign.seen_unix_s < (OWNER_SILENT_SECONDS if is_announced else 0.0):
            return
        former = _Claim(self.infos[rank], sign)
        self._drop_claim(rank, claimant)
        self._assign(claim.info, claimant, claim.sign, change)
        if is_announced:
            self._claims.setdefault(rank, {})[owner] = former

    def _drop_claim(self, rank: int, node: str) -> None:
        claims = self._claims.get(rank, {})
        if claims.pop(node, None) is not None and not claims:
            del self._claims[rank]

    def _count(self, info: "RankInfo", by: int) -> None:
        for counter, counts in (
            (self._ranks_of_world, True),
            (self._finished_of_world, info.state == FINISHED),
            (self._ended_of_world, info.state in _ENDED),
        ):
            if counts:
                counter[info.world_size] += by
                if not counter[info.world_size]:
                    del counter[info.world_size]

    def _count_refused_groups(
        self, announcement: "NodeAnnouncement", former: _Node, group_ids: tuple[int, ...]
    ) -> None:
        refused = sum(
            group_id == NO_GROUP and group.kind in DOMAIN_KINDS
            for group, group_id in zip(announcement.groups, group_ids, strict=True)
        )
        if refused and group_ids != former.groups:
            self.refusals.add(GROUP, f"{refused} groups of run {self.run} by node {announcement.node}")

    def _concluded(self, change: MembershipChange) -> MembershipChange:
        """Complete the change with its consequences for the whole run, and return it."""
        self._elect(change)
        was_complete, was_finished = self._standing
        self._standing = self.is_complete, self.is_finished
        change.is_completed = self.is_complete and not was_complete
        change.is_finished = self.is_finished and not was_finished
        return change

    def _elect(self, change: MembershipChange) -> None:
        """Update the elected world size.

        Recount only now and then if the ranks disagree, because that visits all of them.
        """
        self._messages_since_count += 1
        is_due = self._messages_since_count * _RANKS_PER_RECOUNT >= len(self.infos)
        if len(self._ranks_of_world) == 1:
            self._elected_world = next(iter(self._ranks_of_world))
        elif is_due or self._elected_world not in self._ranks_of_world:
            self._elected_world = self._most_announced()
            self._messages_since_count = 0
        world = self._elected_world
        vouched = world if world <= WORLD_PER_RANK_MAX * self._ranks_of_world[world] else 0
        if vouched != self._vouched_world:
            self._vouched_world = vouched
            self.owners.resize(vouched, self.nodes)
            change.is_reshaped = True

    def _most_announced(self) -> int:
        """Return the world size that most live ranks announce; on a tie, the smaller one."""
        since_unix_s = self.last_seen_unix_s - _VOTE_SECONDS
        votes = Counter(
            info.world_size for rank, info in self.infos.items() if self._signs[rank].seen_unix_s >= since_unix_s
        )
        return max(votes, key=lambda world: (votes[world], -world), default=0)
