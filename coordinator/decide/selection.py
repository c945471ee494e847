"""Chooses the ranks to profile for an incident: suspects, and healthy ranks in each domain that they delay.

Pure: part of the run's state machine.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from coordinator.decide.incidents import Incident
    from coordinator.settings.run_policy import ProfilePolicy
    from lockstep.contracts.domains import Topology

JOB = "job"
"""Scope of an incident without a culprit: every rank is a suspect."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Ranks to profile, the most important first. Suspects and peers are disjoint."""

    suspects: tuple[int, ...]
    peers: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them, suspects first."""
        return self.suspects + self.peers


def select(
    incident: "Incident",
    topology: "Topology",
    known: "AbstractSet[int]",
    in_trouble: "AbstractSet[int]",
    policy: "ProfilePolicy",
) -> Selection:
    """Return the ranks to profile; `known` are the existing ranks, `in_trouble` those of any open incident.

    Peers do the same work as the first suspect: they are of its stage, one from each of its domains, then the nearest
    ranks, up to `policy.peers`. A slowdown of the whole job has no peers. One rank of each stage is chosen, up to
    `policy.job_ranks`, and their functions are compared with what is expected of any rank.
    """
    present = frozenset(rank for rank in known if rank < topology.world_size)
    if incident.scope == JOB or not incident.ranks:
        return Selection(_spread(topology, present, policy.job_ranks), ())
    suspects = tuple(rank for rank in incident.ranks if rank in present)[: policy.suspects]
    if not suspects:
        return Selection((), ())
    healthy = present - in_trouble - set(incident.ranks)
    return Selection(suspects, _peers(topology, suspects[0], healthy, policy.peers))


def _spread(topology: "Topology", present: "AbstractSet[int]", max_ranks: int) -> tuple[int, ...]:
    """Return one rank of each stage in turn until `max_ranks` are chosen."""
    by_stage: dict[int, list[int]] = {}
    for rank in sorted(present):
        by_stage.setdefault(topology.stages[rank], []).append(rank)
    chosen: list[int] = []
    while len(chosen) < max_ranks and by_stage:
        chosen += [by_stage[stage].pop(0) for stage in sorted(by_stage)]
        by_stage = {stage: ranks for stage, ranks in by_stage.items() if ranks}
    return tuple(chosen[:max_ranks])


def _peers(topology: "Topology", suspect: int, healthy: "AbstractSet[int]", max_ranks: int) -> tuple[int, ...]:
    stage = topology.stages[suspect]
    alike = [
        next((rank for rank in domain.ranks if rank in healthy and topology.stages[rank] == stage), None)
        for domain in topology.of_rank(suspect)
    ]
    of_domains = [rank for rank in alike if rank is not None]
    near = [rank for rank in topology.peers(suspect) if rank in healthy]
    return tuple(dict.fromkeys((*of_domains, *near)))[:max_ranks]
