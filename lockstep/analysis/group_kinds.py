"""The purpose of each process group of a job's traces: tensor, data, pipeline, expert or context parallelism.

Sources, in order of precedence: the framework's name of the group; given parallel degrees; a described group of the
same ranks; and a job's only group, if it contains all ranks, is data parallel. Shapes alone show nothing
(`lockstep.agent.kinds`), so the remaining groups have no kind, with a reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from lockstep.analysis.rank import RankAnalysis
from lockstep.contracts.domains import DEFAULT_ORDER, Domain, domains_of_rank
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.kinds import covered_kind, described_kinds, spanned_kind
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.diagnosis.communication_causes.collectives import Group

_WORLD = "world"
_UNKNOWN = "the traces do not record what it is for, and no parallel degrees were given"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDegrees:
    """Parallel degrees by kind, and their order, the fastest varying first."""

    by_kind: Mapping[str, int]
    order: str = DEFAULT_ORDER

    @property
    def world_size(self) -> int:
        """Return the number of ranks that they imply; ep is part of dp."""
        return prod(degree for kind, degree in self.by_kind.items() if kind != "ep")


@dataclass(frozen=True, slots=True)
class GroupKind:
    """`kind` is one of DOMAIN_KINDS or None; `source` states where it is from, or why there is none."""

    kind: str | None
    source: str


@dataclass(slots=True)
class _RecordedGroups:
    """Groups recorded by all traces; described groups by their ranks, and those of one kind in `domains` as well."""

    descriptions: dict[str, str] = field(default_factory=dict)
    domains: list[Domain] = field(default_factory=list)
    by_ranks: dict[tuple[int, ...], str] = field(default_factory=dict)
    whole: set[tuple[int, ...]] = field(default_factory=set)
    world_size: int = 0


def group_kinds(
    ranks: Sequence[RankAnalysis], groups: Iterable[Group], degrees: ParallelDegrees | None = None
) -> dict[Group, GroupKind]:
    """Return the kind of each group. Degrees whose product is not the world size are ignored (see `source`)."""
    known = _known(ranks)
    found = {group: _kind(group, known, degrees) for group in groups}
    several = {tuple(sorted(members)) for _, members in found if len(members) > 1} | known.whole
    for group, claimed in found.items():
        members = tuple(sorted(group[1]))
        if claimed.kind == _WORLD and several == {members}:
            found[group] = replace(claimed, kind="dp", source="the only group, and every rank is in it")
    return found


def _known(ranks: Sequence[RankAnalysis]) -> _RecordedGroups:
    known = _RecordedGroups()
    described: dict[tuple[int, ...], tuple[str, ...]] = {}
    for each in ranks:
        known.world_size = max(known.world_size, each.metadata.world_size)
        known.descriptions |= each.metadata.group_descriptions
        for name, members in each.metadata.groups.items():
            kinds = described_kinds(each.metadata.group_descriptions.get(name, ""))
            in_order = tuple(sorted(members))
            if len(in_order) > 1:
                known.whole.add(in_order)
            if kinds:
                described[in_order] = kinds
            if len(kinds) == 1:
                known.domains.append(Domain(kinds[0], name, in_order))
    for members, kinds in described.items():
        known.by_ranks[members] = spanned_kind(kinds, members, known.domains) or kinds[0]
    return known


def _kind(group: Group, known: _RecordedGroups, degrees: ParallelDegrees | None) -> GroupKind:
    name, ranks = group
    members = tuple(sorted(ranks))
    described = known.descriptions.get(name, "")
    if kind := spanned_kind(described_kinds(described), members, known.domains):
        return GroupKind(kind, f"described as {described:.80}")
    if not members:
        return GroupKind(None, "the traces do not list its ranks")
    why = _UNKNOWN
    if degrees is not None and len(members) > 1:
        covered, why = _covered(members, known.world_size, degrees)
        if covered:
            return GroupKind(covered, why)
    if members in known.by_ranks:
        return GroupKind(known.by_ranks[members], "a described group has the same ranks")
    if len(members) == known.world_size > 1:
        return GroupKind(_WORLD, "every rank is in it")
    return GroupKind(None, why)


def _covered(members: tuple[int, ...], world_size: int, degrees: ParallelDegrees) -> tuple[str | None, str]:
    """Return the kind of the ranks by the degrees, and its source; or None and the reason."""
    listed = ",".join(f"{kind}={degrees.by_kind[kind]}" for kind in DOMAIN_KINDS if kind in degrees.by_kind)
    if world_size > 0 and degrees.world_size != world_size:
        return None, f"the degrees {listed} make {degrees.world_size} ranks, the job has {world_size}"
    try:
        domains = domains_of_rank(degrees.by_kind, members[0], degrees.world_size, order=degrees.order)
    except ConfigError as error:
        return None, str(error)
    if kind := covered_kind(members, domains):
        return kind, f"by the degrees {listed}"
    return None, f"its ranks are no domain of the degrees {listed}"
