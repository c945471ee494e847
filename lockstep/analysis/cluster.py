"""Compares all ranks: which ranks wait for which, which functions differ between ranks, and what to do about it.

In Hermes' order (section 4.3): first between components and devices (overlap, R_wait), then inside the component.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median_high

import numpy as np
from numpy.typing import NDArray

from lockstep.analysis.device_types import LOCALISATION, device_types, refusals_between
from lockstep.analysis.differences import new_differences
from lockstep.analysis.doctor_reports import DoctorReport
from lockstep.analysis.exposed import bounded, exposed_ns
from lockstep.analysis.group_kinds import GroupKind, ParallelDegrees, group_kinds
from lockstep.analysis.merge import Refusal, advise, merge_findings, merge_refusals
from lockstep.analysis.network import NetworkEvidence, evaluate_network, network_evidence
from lockstep.analysis.rank import RankAnalysis
from lockstep.analysis.roles import Roles, pipeline_stages
from lockstep.analysis.steady_ranks import find_steady_ranks
from lockstep.analysis.stragglers import costing, evaluated_groups, explain_stragglers, unexplained_ns
from lockstep.analysis.totals import CollectiveTotal, totals_of_table
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.finding import LOW, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.bandwidth import evaluate_bandwidth
from lockstep.diagnosis.communication_causes.collectives import Group, grouped_by_role
from lockstep.diagnosis.communication_causes.contention import find_contention
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.step_waiting import stage_waiting
from lockstep.diagnosis.communication_causes.transmission import evaluate_transmission
from lockstep.diagnosis.communication_causes.waiting import (
    SLOW_RANK,
    GroupWaiting,
    evaluate_waiting,
    group_waiting,
    transmission_by_rank_ns,
)
from lockstep.diagnosis.localisation import NO_GROUP, Localisation, findings_of, gather, localise
from lockstep.diagnosis.localisation.limits import GROUP_MEMBERS
from lockstep.diagnosis.neighbour_fusion import with_fusion_gain
from lockstep.diagnosis.parallelism import POOR_OVERLAP, find_poor_overlap
from lockstep.diagnosis.remedies import ASCEND, PYTORCH
from lockstep.diagnosis.roofline.ascend_rules import find_frequency_drop, slowest_clock
from lockstep.diagnosis.roofline.devices import rated_mhz
from lockstep.trace.steps import StepSource

_FAMILIES_MAX = 16
_SAMPLES_CLOCK = "ascend"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnalysis:
    """All ranks, in order, and the joint results; `findings` are those of ranks and of the cluster, with advice.

    `kinds` is the purpose of each of `groups`. `localisations` has one entry for each type of device, by its name.
    """

    ranks: tuple[RankAnalysis, ...]
    collectives: tuple[CollectiveTotal, ...]
    groups: tuple[GroupWaiting, ...]
    kinds: Mapping[Group, GroupKind]
    localisations: Mapping[str, Localisation]
    findings: tuple[Finding, ...]
    not_evaluated: tuple[Refusal, ...]


def analyse_cluster(
    ranks: Sequence[RankAnalysis],
    *,
    reports: Sequence[DoctorReport] = (),
    paths: Mapping[int, Path] | None = None,
    degrees: ParallelDegrees | None = None,
) -> ClusterAnalysis:
    """Return the joint analysis of the ranks of one window; one rank alone is a cluster as well.

    Ranks must be distinct; `reports` are the doctor's reports found with the traces, `paths` the traces by rank,
    `degrees` the job's parallel degrees if they were given.
    """
    ranks = tuple(sorted(ranks, key=lambda each: each.rank))
    windows_ns = _windows_ns(ranks)
    stages = pipeline_stages(ranks, degrees)
    together = _MultiRankRules(ranks, stages)
    together.communication()
    together.parallelism()
    together.network(network_evidence(ranks, reports, paths or {}))
    together.frequency()
    together.stragglers()
    localisations = together.localise()
    exposed = {each.rank: exposed_ns(each.metadata, each.breakdown) for each in ranks}
    shared = bounded(together.findings, exposed)
    own = together.own_findings()
    findings = merge_findings([*shared, *own], windows_ns)
    framework = ASCEND if any(each.metadata.vendor == "ascend" for each in ranks) else PYTORCH
    by_rank = {each.rank: [found for found in own if found.ranks == (each.rank,)] for each in ranks}
    ranks = tuple(replace(each, findings=tuple(advise(by_rank[each.rank], windows_ns, framework))) for each in ranks)
    refusals = merge_refusals((rank.rank, rank.not_evaluated) for rank in ranks)
    return ClusterAnalysis(
        ranks=ranks,
        collectives=tuple(together.totals),
        groups=tuple(together.in_collectives),
        kinds=group_kinds(ranks, [each.group for each in together.in_collectives], degrees),
        localisations=localisations,
        findings=tuple(advise(findings, windows_ns, framework)),
        not_evaluated=(*together.refusals(), *refusals),
    )


def _windows_ns(ranks: Sequence[RankAnalysis]) -> dict[int, int]:
    """Return, by rank, the window for its losses: its own, at most the median over ranks with as many steps.

    Ranks of a synchronous job end a step together: a longer window was recorded beyond the steps of the others.
    """
    alike: dict[int, list[int]] = {}
    for each in ranks:
        alike.setdefault(len(each.steps), []).append(each.length_ns)
    return {each.rank: min(each.length_ns, median_high(alike[len(each.steps)])) for each in ranks}


class _MultiRankRules:
    """The rules over several ranks; `refused` are rules not evaluated, `noted` those not evaluated on some ranks."""

    def __init__(self, ranks: tuple[RankAnalysis, ...], stages: Roles) -> None:
        self.findings: list[Finding] = []
        self.refused: list[NotEvaluated] = []
        self.noted: list[Refusal] = []
        self.groups: list[GroupWaiting] = []
        self.in_collectives: list[GroupWaiting] = []
        self.totals: list[CollectiveTotal] = []
        self.slow: set[int] = set()
        self._ranks = ranks
        self._stages = stages
        self._types = device_types(ranks)
        self._window_ns = max((each.length_ns for each in ranks), default=0)

    def refusals(self) -> list[Refusal]:
        """Return the rules that were not evaluated on all ranks, then those on some."""
        of_all = dict.fromkeys(self.refused)
        return [*(Refusal(rule=each.rule, reason=each.reason, ranks=()) for each in of_all), *self.noted]

    def parallelism(self) -> None:
        """Evaluate whether components of the ranks overlap; requires `communication`."""
        timed = [each for each in self._ranks if each.length_ns > 0]
        on_devices = [each for each in timed if exposed_ns(each.metadata, each.breakdown) is not None]
        if timed and not on_devices:
            reason = "no device: the collectives of host backends take the cores that compute"
            self.refused.append(NotEvaluated(rule=POOR_OVERLAP, reason=reason))
            return
        known = {each.rank: each.breakdown for each in on_devices}
        steps = {each.rank: each.steps_breakdown for each in on_devices}
        parts = [
            (each.collectives, each.window_ns, next(iter(each.metadata.devices), ""))
            for each in on_devices
            if each.collectives is not None
        ]
        self._ask(
            lambda: with_fusion_gain(
                find_poor_overlap(known, transmission_by_rank_ns(self.in_collectives), steps), parts
            )
        )

    def communication(self) -> None:
        """Match the ranks' collectives and evaluate them; transmissions recorded by the vendor take precedence."""
        own = [each.collectives for each in self._ranks if each.collectives is not None]
        vendor = [each.vendor_collectives for each in self._ranks if each.vendor_collectives is not None]
        table = match_collectives(grouped_by_role(own, self._stages))
        timed = match_collectives(vendor) if vendor else table
        busy = {each.rank: each.computing for each in self._ranks if each.computing is not None}
        starts_ns = {
            each.rank: each.steps.start_ns for each in self._ranks if each.steps.source is not StepSource.WHOLE
        }
        self.in_collectives = group_waiting(timed, busy, starts_ns)
        self.groups = self._by_stage() or self.in_collectives
        self.totals = totals_of_table(table)
        hides = any(len(each.start_ns) for each in busy.values())
        self._ask(lambda: evaluate_waiting(self.groups, self._window_ns, hides=hides))
        self._ask(lambda: evaluate_transmission(timed, self._window_ns))
        self._ask(lambda: evaluate_bandwidth(table, self._window_ns))
        self._ask(lambda: find_contention(table, busy, self._window_ns))

    def _by_stage(self) -> list[GroupWaiting]:
        """Return the waiting of each pipeline stage, empty if there is one stage or steps are not marked."""
        times = {each.rank: each.step_times for each in self._ranks if each.step_times is not None}
        if not self._stages or len(times) < len(self._ranks):
            return []
        return stage_waiting(times, self._stages, max(each.metadata.world_size for each in self._ranks))

    def network(self, evidence: NetworkEvidence) -> None:
        """Evaluate the network's settings."""
        findings, refused, noted = evaluate_network(evidence, self._ranks)
        self.findings += findings
        self.refused += refused
        self.noted += noted

    def frequency(self) -> None:
        """Compare the clocks of the AI cores, if the device's profiler samples them."""
        for each in self._types:
            if each.ranks[0].metadata.vendor != _SAMPLES_CLOCK:
                continue
            windows_ns = {rank.rank: rank.window_ns for rank in each.ranks}
            found = {rank.rank: slowest_clock(rank.metadata.clocks, rank.window_ns) for rank in each.ranks}
            known = {rank: clock for rank, clock in found.items() if clock is not None}
            rated = rated_mhz(each.name)
            self._ask(partial(find_frequency_drop, known, windows_ns, rated_mhz=rated))

    def stragglers(self) -> None:
        """Find out why the others wait for ranks; requires `communication`."""
        is_slow = [each for each in self.findings if each.cause == SLOW_RANK and each.confidence != LOW]
        self.slow = {rank for each in is_slow for rank in each.ranks}
        peers = {
            rank: [each for each in of_type.numbers if each != rank and self._is_same_stage(each, rank)]
            for of_type in self._types
            for rank in of_type.numbers
        }
        ranks = {each.rank: each for each in self._ranks}
        self.findings = explain_stragglers(self.findings, ranks, peers)
        steady = find_steady_ranks(ranks, peers, self.groups, self.slow)
        self.findings += steady
        self.slow |= {rank for each in steady for rank in each.ranks}

    def own_findings(self) -> list[Finding]:
        """Return the ranks' own findings that cost the job time; the causes of slow ranks are listed with those."""
        explained = {(each.cause, rank) for each in self.findings for rank in each.ranks if rank in self.slow}
        own = [each for rank in self._ranks for each in rank.findings if (each.cause, rank.rank) not in explained]
        groups = evaluated_groups(self.groups)
        slow = unexplained_ns(self.findings, groups, self.slow)
        kept, left_out = costing(own, groups, slow, len(self._ranks))
        self.noted += left_out
        return kept

    def _is_same_stage(self, one: int, other: int) -> bool:
        return self._stages.get(one) == self._stages.get(other)

    def localise(self) -> dict[str, Localisation]:
        """Compare the patterns of ranks with devices of one type; requires `stragglers`."""
        self.noted += refusals_between(self._types)
        found = {}
        for each in self._types:
            localised = self._localise(each.ranks)
            if localised is not None:
                found[each.name] = localised
        return found

    def _localise(self, ranks: Sequence[RankAnalysis]) -> Localisation | None:
        summaries = {each.rank: each.patterns for each in ranks if each.patterns is not None}
        try:
            matrix = gather(summaries)
            roles = [self._stages.get(rank, 0) for rank in matrix.rank_W.tolist()]
            found = localise(matrix, roles=np.array(roles, np.int64), groups=families(ranks, matrix.rank_W.tolist()))
        except LockstepError as error:
            self.refused.append(NotEvaluated(rule=LOCALISATION, reason=str(error)))
            return None
        if not found.has_peers:
            reason = "one rank alone is compared with nothing: what is usual depends on the job"
            self.noted.append(Refusal(rule=LOCALISATION, reason=reason, ranks=tuple(summaries)))
            return found
        answer = findings_of(found)
        if isinstance(answer, NotEvaluated):
            self.refused.append(answer)
            return found
        kept, refused = new_differences(
            answer,
            self.groups,
            collectives=self.in_collectives,
            slow=self.slow,
            ranks={each.rank: each for each in ranks},
            explained=self.findings,
        )
        self.findings += kept
        self.refused += refused
        return found

    def _ask(self, evaluate: Callable[[], list[Finding] | NotEvaluated]) -> None:
        answer = evaluate()
        if isinstance(answer, NotEvaluated):
            self.refused.append(answer)
        else:
            self.findings += answer


def families(ranks: Sequence[RankAnalysis], workers: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Return each worker's process group by kind of group: groups of one size that share no rank are a kind.

    Traces name groups and list their ranks, but seldom state their purpose.
    """
    known = {tuple(sorted(group)) for each in ranks for group in each.metadata.groups.values()}
    place = {rank: at for at, rank in enumerate(workers)}
    found: dict[str, NDArray[np.int64]] = {}
    for group in sorted(known, key=lambda each: (len(each), each)):
        at = [place[rank] for rank in group if rank in place]
        if not GROUP_MEMBERS.value <= len(at) < len(workers):
            continue
        for family in range(_FAMILIES_MAX):
            codes = found.setdefault(f"size {len(group)}, {family + 1}", np.full(len(workers), NO_GROUP, np.int64))
            if (codes[at] == NO_GROUP).all():
                codes[at] = codes.max() + 1
                break
    return found
