"""What a run's job is, as its ranks announced it: whether jobs of different names are the same one.

Pure. A workload is all of what sets a healthy step's time and is announced: each rank's device, number format,
parameters and process groups, and which ranks share a node. Versions, hosts and names of groups are no part of it:
where one of them makes a job slower, that is to be seen.
"""

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from lockstep.contracts.domains import pack_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.contracts.domains import Topology
    from lockstep.contracts.messages import NodeAnnouncement


class _RankWork(NamedTuple):
    device: str
    device_kind: str
    dtype: str
    parameters: int


class Workload:
    """Facts by node and rank: what a node announces replaces what it announced before. Bounded by its run's nodes."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[int, _RankWork]] = {}
        self._known: dict[_RankWork, _RankWork] = {}

    def note(self, announcement: "NodeAnnouncement") -> None:
        """Take the announcement of a node that the run has taken; what is not known yet is left out."""
        made: dict[int, _RankWork] = {}
        for info in announcement.ranks:
            facts = info.facts
            if facts is not None and facts.parameters and facts.device:
                work = _RankWork(facts.device, facts.device_kind, facts.dtype, facts.parameters)
                made[info.rank] = self._known.setdefault(work, work)
        if made:
            self._of_node[announcement.node] = made
        else:
            self._of_node.pop(announcement.node, None)

    def digest(self, topology: "Topology", nodes: "Mapping[int, str]") -> str:
        """Return what all jobs of this workload share and no other has; empty until every rank has announced itself.

        `nodes` are the ranks' owners: another node may still announce a rank that has moved.
        """
        ranks = []
        for rank in range(topology.world_size):
            work = self._of_node.get(nodes.get(rank, ""), {}).get(rank)
            if work is None:
                return ""
            ranks.append(tuple(work))
        numbers: dict[str, int] = {}
        placement = [numbers.setdefault(nodes[rank], len(numbers)) for rank in range(topology.world_size)]
        groups = sorted((domain.kind, pack_ranks(domain.ranks)) for domain in topology.domains)
        digest = hashlib.sha256()
        for part in (ranks, placement, groups, topology.stages):
            digest.update(repr(part).encode(errors="replace"))
        return digest.hexdigest()[:32]
