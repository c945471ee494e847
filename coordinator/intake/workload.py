"""Identifies a run's workload from what its ranks announced, to recognise the same job under different names.

Pure. A workload is everything announced that determines the duration of a healthy step: each rank's device, number
format, parameters and process groups, and which ranks share a node. Versions, host names and names of groups are
excluded on purpose: if one of them makes a job slower, the comparison must show it.
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
    """Facts by node and rank: each announcement of a node replaces its previous one. Bounded by the run's nodes."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[int, _RankWork]] = {}
        self._known: dict[_RankWork, _RankWork] = {}

    def note(self, announcement: "NodeAnnouncement") -> None:
        """Apply an announcement that the run has accepted; ranks whose facts are not known yet are skipped."""
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

    @property
    def devices(self) -> list[str]:
        """The names of all ranks' devices, each once."""
        return sorted({work.device for ranks in self._of_node.values() for work in ranks.values()})

    def digest(self, topology: "Topology", nodes: "Mapping[int, str]") -> str:
        """Return a digest that identifies this workload; empty until every rank has announced its facts.

        `nodes` maps each rank to its owner: another node may still announce a rank that has moved.
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
