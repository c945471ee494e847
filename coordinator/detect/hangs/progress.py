"""Progress of the ranks of one run, from announcements, which contain it only while a node's ranks make no steps.

Pure. The verdict is requested at every tick of a stall and recomputed only if something new was reported.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.hangs.hang import who_is_late
from coordinator.detect.hangs.waiting_ranks import ISSUE_FIELDS, Progress
from coordinator.intake.groups import NO_GROUP
from lockstep.contracts.messages import FINISHED, OPERATIONS, UNWATCHED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.detect.hangs.hang import Hang
    from coordinator.intake.groups import GroupTable
    from coordinator.intake.timeline import StepTimeline
    from coordinator.intake.topology import Membership
    from lockstep.contracts.domains import Topology
    from lockstep.contracts.messages import NodeAnnouncement

_DOMAIN = ISSUE_FIELDS.index("domain")


def is_going_on(timeline: "StepTimeline", evaluated_step: int) -> bool:
    """Whether most ranks record steps after the one under way: then a record is missing, and no rank waits."""
    return bool(len(timeline.last_steps)) and float(np.median(timeline.last_steps)) > evaluated_step + 1


@dataclass(frozen=True, slots=True)
class _NodeProgress:
    """Report of one node: rows of (rank, step, sign of life, flags, ended, gone) and rows of ISSUE_FIELDS.

    The domain of an issue is the id of its group in the run's `GroupTable`.
    """

    ranks: "NDArray[np.int64]"
    issues: "NDArray[np.int64]"


@dataclass(slots=True)
class ProgressBook:
    """The latest reports of all nodes of a run. `revision` increases with every change."""

    revision: int = 0
    _verdict: "tuple[tuple[int, bytes], Hang | None] | None" = None
    _nodes: dict[str, _NodeProgress] = field(default_factory=dict)
    _groups: "GroupTable | None" = None
    _host_of: dict[int, str] = field(default_factory=dict)

    def apply_announcement(self, announcement: "NodeAnnouncement", membership: "Membership") -> None:
        """Replace the report of one node; a node whose ranks make steps reports no progress.

        `membership` must have applied the announcement already: ranks of other nodes are left out, and groups are
        those of its table.
        """
        self._groups = membership.groups
        infos = [info for info in announcement.ranks if membership.nodes[info.rank] == announcement.node]
        self._host_of |= {info.rank: info.hostname for info in infos}
        reporting = [info for info in infos if info.progress is not None and info.state != UNWATCHED]
        if not reporting:
            if self._nodes.pop(announcement.node, None) is not None:
                self.revision += 1
            return
        group_ids = membership.groups_of(announcement.node)
        ranks, issues = [], []
        for info in reporting:
            assert info.progress is not None
            gone = info.progress.is_alive is False and info.state != FINISHED
            step = -1 if info.progress.last_step is None else info.progress.last_step
            ranks.append((info.rank, step, info.heartbeat_unix_ns, info.progress.flags, info.state == FINISHED, gone))
            issues += [
                (info.rank, group_ids[i.group], OPERATIONS.index(i.operation), i.peer, i.issued, i.last_unix_ns)
                for i in info.progress.issues
                if group_ids[i.group] != NO_GROUP
            ]
        self._nodes[announcement.node] = _NodeProgress(
            np.array(ranks, dtype=np.int64), np.array(issues, dtype=np.int64).reshape(-1, len(ISSUE_FIELDS))
        )
        self.revision += 1

    def gathered(self, world_size: int) -> Progress | None:
        """Merge all reports, None if there are none; issues in groups outside the world are left out."""
        if not self._nodes:
            return None
        assert self._groups is not None
        ranks = np.concatenate([node.ranks for node in self._nodes.values()])
        rank, step, sign_unix_ns, flags, ended, gone = ranks.T
        issues = np.concatenate([node.issues for node in self._nodes.values()])
        group_ids, place = np.unique(issues[:, _DOMAIN], return_inverse=True)
        domains = [self._groups.domain(group_id, world_size) for group_id in group_ids.tolist()]
        known = np.array([domain is not None for domain in domains], dtype=bool)
        issues[:, _DOMAIN] = (np.cumsum(known) - 1)[place]
        return Progress(
            domains=tuple(domain for domain in domains if domain is not None),
            rank=rank,
            step=step,
            sign_unix_ns=sign_unix_ns,
            flags=flags,
            ended=ended.astype(bool),
            gone=gone.astype(bool),
            issues=issues[known[place]],
        )

    def locate(self, topology: "Topology", timeline: "StepTimeline") -> "Hang | None":
        """Return the verdict on which ranks have not arrived; None if nothing shows a hang."""
        inside = timeline.ranks < topology.world_size
        last_steps = timeline.last_steps[inside]
        known = (self.revision, last_steps.tobytes())
        if self._verdict is None or self._verdict[0] != known:
            last_step_of_world = np.full(topology.world_size, -1, dtype=np.int64)
            last_step_of_world[timeline.ranks[inside]] = last_steps
            hang = who_is_late(self.gathered(topology.world_size), topology, last_step_of_world)
            if hang is not None and not hang.is_measured:
                hang = replace(hang, behind_host_steps=self._behind_host(hang, last_step_of_world))
            self._verdict = known, hang
        return self._verdict[1]

    def _behind_host(self, hang: "Hang", last_step_of_world: "NDArray[np.int64]") -> int:
        """Return the least number of steps by which a late rank is behind its host; 0 for a rank of an unknown host."""
        furthest: dict[str, int] = {}
        for rank, last in enumerate(last_step_of_world.tolist()):
            host = self._host_of.get(rank, "")
            furthest[host] = max(last, furthest.get(host, last))
        hosts = {rank: self._host_of.get(rank, "") for rank in hang.ranks}
        return min(furthest[host] - int(last_step_of_world[rank]) if host else 0 for rank, host in hosts.items())
