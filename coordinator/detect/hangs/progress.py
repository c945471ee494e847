"""Where the ranks of one run stand, gathered from announcements; nodes tell it only while their ranks make no steps.

Pure. A verdict is made anew only when something new is known: it is asked for at every tick of a standstill.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.hangs.hang import who_is_late
from coordinator.detect.hangs.waiting import ISSUE_FIELDS, Progress
from lockstep.contracts.domains import Domain, unpack_ranks
from lockstep.contracts.messages import OPERATIONS
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.detect.hangs.hang import Hang
    from coordinator.intake.timeline import Timeline
    from lockstep.contracts.domains import Topology
    from lockstep.contracts.messages import GroupInfo, NodeAnnouncement

_DOMAINS_MAX = 1 << 18  # groups that one run ever named; after that names are forgotten with the next silence
_FAILED = "failed"
_ENDED = "finished"
_Name = tuple[str, str, tuple[tuple[int, ...], ...]]


def is_going_on(timeline: "Timeline", judged_step: int) -> bool:
    """Whether most ranks record steps beyond the one under way: then a record is waited for, and no rank waits."""
    return bool(len(timeline.last_steps)) and float(np.median(timeline.last_steps)) > judged_step + 1


@dataclass(frozen=True, slots=True)
class _NodeProgress:
    """What one node told: rows of rank, step, sign of life, flags, ended, gone, and rows of ISSUE_FIELDS."""

    ranks: "NDArray[np.int64]"
    issues: "NDArray[np.int64]"


@dataclass(slots=True)
class ProgressBook:
    """What all nodes of a run told last. Announcements must have passed `topology.Membership.take`.

    `revision` grows with everything new.
    """

    revision: int = 0
    _verdict: "tuple[tuple[int, bytes], Hang | None] | None" = None
    _nodes: dict[str, _NodeProgress] = field(default_factory=dict)
    _domains: dict[_Name, int] = field(default_factory=dict)
    _unpacked: list[Domain] = field(default_factory=list)
    _host_of: dict[int, str] = field(default_factory=dict)

    def take(self, announcement: "NodeAnnouncement") -> None:
        """Take what one node says; a node whose ranks make steps says nothing, and what it said before is forgotten."""
        self._host_of |= {info.rank: info.hostname for info in announcement.ranks}
        told = [i for i in announcement.ranks if i.progress is not None and i.state != _FAILED]
        if not told:
            if self._nodes.pop(announcement.node, None) is not None:
                self.revision += 1
            return
        if not self._nodes and len(self._domains) > _DOMAINS_MAX:
            self._domains.clear()
            self._unpacked.clear()
        domains = [self._domain(group) if group.kind in DOMAIN_KINDS else -1 for group in announcement.groups]
        ranks, issues = [], []
        for info in told:
            assert info.progress is not None
            gone = info.progress.is_alive is False and info.state != _ENDED
            step = -1 if info.progress.last_step is None else info.progress.last_step
            ranks.append((info.rank, step, info.heartbeat_unix_ns, info.progress.flags, info.state == _ENDED, gone))
            issues += [
                (info.rank, domains[i.group], OPERATIONS.index(i.operation), i.peer, i.issued, i.last_unix_ns)
                for i in info.progress.issues
                if domains[i.group] >= 0
            ]
        self._nodes[announcement.node] = _NodeProgress(
            np.array(ranks, dtype=np.int64), np.array(issues, dtype=np.int64).reshape(-1, len(ISSUE_FIELDS))
        )
        self.revision += 1

    def gathered(self) -> Progress | None:
        """Return all of it, None where no node tells anything."""
        if not self._nodes:
            return None
        ranks = np.concatenate([node.ranks for node in self._nodes.values()])
        rank, step, sign_unix_ns, flags, ended, gone = ranks.T
        return Progress(
            domains=tuple(self._unpacked),
            rank=rank,
            step=step,
            sign_unix_ns=sign_unix_ns,
            flags=flags,
            ended=ended.astype(bool),
            gone=gone.astype(bool),
            issues=np.concatenate([node.issues for node in self._nodes.values()]),
        )

    def locate(self, topology: "Topology", timeline: "Timeline") -> "Hang | None":
        """Return who has not arrived, by all that is known now; None where nothing tells a hang."""
        inside = timeline.ranks < topology.world_size
        last_steps = timeline.last_steps[inside]
        known = (self.revision, last_steps.tobytes())
        if self._verdict is None or self._verdict[0] != known:
            last_step_of_world = np.full(topology.world_size, -1, dtype=np.int64)
            last_step_of_world[timeline.ranks[inside]] = last_steps
            hang = who_is_late(self.gathered(), topology, last_step_of_world)
            if hang is not None and not hang.is_measured:
                hang = replace(hang, is_of_hosts=self._are_hosts(hang, last_step_of_world))
            self._verdict = known, hang
        return self._verdict[1]

    def _are_hosts(self, hang: "Hang", last_step_of_world: "NDArray[np.int64]") -> bool:
        """Whether the late ranks are all of their hosts that made steps lately; where a host is unknown they may be."""
        lately = np.flatnonzero(last_step_of_world >= (hang.onset_step or 0) - 1)
        size_of = Counter(self._host_of.get(rank, "") for rank in lately.tolist())
        hosts = Counter(self._host_of.get(rank, "") for rank in hang.ranks)
        return all(not host or size_of[host] == count for host, count in hosts.items())

    def _domain(self, group: "GroupInfo") -> int:
        name = (group.kind, group.name, tuple(map(tuple, group.ranks)))
        index = self._domains.setdefault(name, len(self._unpacked))
        if index == len(self._unpacked):
            self._unpacked.append(Domain(group.kind, group.name, unpack_ranks(group.ranks, where="announcement")))
        return index
