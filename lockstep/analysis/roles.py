"""Which ranks do the same work: those of one pipeline stage. Ranks of different stages are not peers."""

from collections.abc import Mapping, Sequence

from lockstep.analysis.group_kinds import ParallelDegrees
from lockstep.analysis.rank import RankAnalysis
from lockstep.contracts.domains import domains_of_rank
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.kinds import described_kinds

Roles = Mapping[int, int]
"""The pipeline stage of each rank; empty if there is one stage, or if the stages are unknown."""


def pipeline_stages(ranks: Sequence[RankAnalysis], degrees: ParallelDegrees | None = None) -> Roles:
    """Return the stage of each rank, by given degrees or by the groups that a framework described.

    Degrees that do not match the job's world size are ignored. If only some ranks' stages are known, none is returned.
    """
    found = _by_degrees(ranks, degrees) if degrees is not None else {}
    found = found or _by_groups(ranks)
    return found if len(found) == len(ranks) and len(set(found.values())) > 1 else {}


def _by_degrees(ranks: Sequence[RankAnalysis], degrees: ParallelDegrees) -> dict[int, int]:
    world_size = max((each.metadata.world_size for each in ranks), default=0)
    if degrees.by_kind.get("pp", 1) < 2 or (world_size > 0 and degrees.world_size != world_size):  # noqa: PLR2004
        return {}
    found = {}
    for each in ranks:
        try:
            domains = domains_of_rank(degrees.by_kind, each.rank, degrees.world_size, order=degrees.order)
        except ConfigError:
            return {}
        for domain in domains:
            if domain.kind == "pp":
                found[each.rank] = domain.ranks.index(each.rank)
    return found


def _by_groups(ranks: Sequence[RankAnalysis]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in ranks:
        for name, members in each.metadata.groups.items():
            if described_kinds(each.metadata.group_descriptions.get(name, "")) == ("pp",) and each.rank in members:
                found[each.rank] = sorted(members).index(each.rank)
    return found
