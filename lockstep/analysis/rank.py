"""Analyses one rank's trace by itself, each part by its own rules (`rule_runner.py`)."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep.analysis.evidence import NOTHING, Evidence
from lockstep.analysis.exposed import bounded, exposed_ns
from lockstep.analysis.rule_runner import RuleRunner
from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.communication_causes.collectives import RankCollectives, collectives_of
from lockstep.diagnosis.communication_causes.contention import computing
from lockstep.diagnosis.communication_causes.links import (
    LinkTransfers,
    evaluate_links,
    find_link_contention,
    find_misaligned_packets,
    find_retransmission,
    find_small_packets,
    link_transfers_of,
)
from lockstep.diagnosis.communication_causes.messages import find_misaligned, find_small_messages
from lockstep.diagnosis.communication_causes.step_waiting import StepTimes
from lockstep.diagnosis.communication_causes.vendor_collectives import collectives_of_communication
from lockstep.diagnosis.context import context_of, with_context
from lockstep.diagnosis.host_causes import evaluate_host, view_host
from lockstep.diagnosis.roofline.classic import Rooflines, by_operator
from lockstep.diagnosis.roofline.component_rules import shares
from lockstep.diagnosis.roofline.components import classify
from lockstep.diagnosis.roofline.kernel_counters import KernelCounters, component_table_of, kernel_counters_of
from lockstep.diagnosis.roofline.operator_rules import evaluate_operators
from lockstep.diagnosis.roofline.roll_up import roll_up
from lockstep.trace.ascend.communication import AscendCommunication
from lockstep.trace.columns import ANNOTATION, OPERATOR, PYTHON, TraceColumns, TraceMetadata, WorkKind
from lockstep.trace.critical_path.path import PathShare, ranked
from lockstep.trace.critical_path.walk import PathFinder
from lockstep.trace.intervals import Intervals, common, merged, without
from lockstep.trace.patterns import PatternSummary, summarise_patterns
from lockstep.trace.patterns.exposure import CoveredTime
from lockstep.trace.prepared import PreparedTrace, prepare
from lockstep.trace.step_breakdown import Breakdown, break_down_steps
from lockstep.trace.steps import Steps, StepSource
from lockstep.trace.summarise import summarise_columns
from lockstep.trace.waiting import waits

POINTS_MAX = 256
"""Operators on a roofline; real traces have up to 60."""
_SHAPES_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPath:
    """The entries of a critical path, most time first; their ns sum to the window.

    `guessed_ns` is the part reached by time alone, without a record (`DependencyKind.is_guess`).
    """

    shares: tuple[PathShare, ...]
    guessed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnalysis:
    """Result of one rank's trace, small and picklable; a part is None if it could not be evaluated (`not_evaluated`).

    `window_ns` is from the beginning of the first step's window to the end of the last's; `breakdown` and `path` sum to
    its length. `computing` is when the device computed during one of the `collectives`; `step_times` is each whole
    step's time outside communication, None if steps are not marked. `vendor_collectives` have the vendor's transmission
    times. `component_shares` is the kernels' time by what limits them (`Bound`), as shares. `calls` is the call tree as
    in a capture's summary, None for a trace that is compared with no other. `findings` have no advice before
    `analyse_cluster`.
    """

    rank: int
    metadata: TraceMetadata
    event_count: int
    dropped_count: int
    trace_bytes: int
    steps: Steps
    window_ns: tuple[int, int]
    breakdown: Breakdown
    steps_breakdown: tuple[Breakdown, ...]
    path: RankPath | None = None
    collectives: RankCollectives | None = None
    vendor_collectives: RankCollectives | None = None
    computing: Intervals | None = None
    step_times: StepTimes | None = None
    patterns: PatternSummary | None = None
    rooflines: Rooflines | None = None
    component_shares: dict[str, float] | None = None
    calls: TraceSummary | None = None
    findings: tuple[Finding, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()

    @property
    def length_ns(self) -> int:
        """Return the length of the window."""
        return self.window_ns[1] - self.window_ns[0]


def analyse_rank(
    columns: TraceColumns, *, rank: int, evidence: Evidence = NOTHING, has_peers: bool = True
) -> RankAnalysis:
    """Return the analysis of one rank's columns; `rank` overrides the trace's own number.

    Without `has_peers` results that only serve the comparison with other ranks are left out. Raises nothing for a trace
    that a loader accepted: missing data is reported in `not_evaluated`.
    """
    trace = prepare(columns)
    account = break_down_steps(trace)
    window_ns = int(account.windows.start_ns[0]), int(account.windows.end_ns[-1])
    found = RankAnalysis(
        rank=rank,
        metadata=_metadata(columns),
        event_count=columns.event_count,
        dropped_count=columns.dropped_count,
        trace_bytes=columns.trace_bytes,
        steps=trace.steps,
        window_ns=window_ns,
        breakdown=account.whole,
        steps_breakdown=tuple(account.per_step),
    )
    if window_ns[1] <= window_ns[0]:
        return replace(found, not_evaluated=(NotEvaluated(rule="all rules", reason="no work in the trace's steps"),))
    parts = _Parts(trace, window_ns, rank, evidence, computing_ns=account.whole.compute_active_ns)
    collectives = parts.collectives()
    rooflines, component_shares = parts.operators()
    found = replace(
        found,
        path=parts.path(),
        collectives=collectives,
        computing=None if collectives is None else _next_to(columns, collectives),
        patterns=parts.patterns(),
        rooflines=rooflines,
        component_shares=component_shares,
    )
    if has_peers:
        found = replace(_with_calls(found, columns, evidence), step_times=step_times(trace))
    parts.host()
    context = context_of(columns)
    parts.rule_runner.findings = [with_context(each, context) for each in parts.rule_runner.findings]
    found = _with_findings_of(found, parts.rule_runner)
    return found if evidence.communication is None else with_communication(found, evidence.communication)


def _metadata(columns: TraceColumns) -> TraceMetadata:
    """Return the trace's metadata, with the purposes of groups recorded in its collectives."""
    described = {
        each.group: each.description for each in set(columns.collectives.values()) if each.group and each.description
    }
    return replace(columns.metadata, group_descriptions={**described, **columns.metadata.group_descriptions})


def _with_calls(analysis: RankAnalysis, columns: TraceColumns, evidence: Evidence) -> RankAnalysis:
    node, rank, steps = columns.metadata.host, analysis.rank, max(len(analysis.steps), 1)
    calls = summarise_columns(columns, run="", node=node, rank=rank, request_id=0, steps=steps)
    return replace(analysis, calls=replace(calls, host=evidence.host))


def with_communication(analysis: RankAnalysis, communication: AscendCommunication) -> RankAnalysis:
    """Return the analysis, including the rules on the vendor's report of the rank's links and collectives."""
    rule_runner = RuleRunner(analysis.rank)
    length_ns, rank, host = analysis.length_ns, analysis.rank, analysis.metadata.host
    computing = analysis.computing
    transfers = rule_runner.of("links", lambda: link_transfers_of(communication, rank, computing))
    if transfers is not None and len(transfers.operators):
        _evaluate_links(rule_runner, transfers, length_ns)
    vendor = rule_runner.of(
        "vendor's collectives", lambda: collectives_of_communication(communication, rank, host=host)
    )
    return _with_findings_of(
        replace(analysis, vendor_collectives=vendor if vendor is None or len(vendor) else None), rule_runner
    )


def renumbered(analysis: RankAnalysis, rank: int) -> RankAnalysis:
    """Return the analysis under another rank number: the trace does not name its rank, and the number was taken."""

    def moved(collectives: RankCollectives | None) -> RankCollectives | None:
        return None if collectives is None else replace(collectives, rank=rank)

    return replace(
        analysis,
        rank=rank,
        collectives=moved(analysis.collectives),
        vendor_collectives=moved(analysis.vendor_collectives),
        calls=None if analysis.calls is None else replace(analysis.calls, rank=rank),
        findings=tuple(replace(each, ranks=(rank,)) for each in analysis.findings),
    )


def _with_findings_of(analysis: RankAnalysis, rule_runner: RuleRunner) -> RankAnalysis:
    found = bounded(rule_runner.findings, {analysis.rank: exposed_ns(analysis.metadata, analysis.breakdown)})
    return replace(
        analysis,
        findings=tuple(sorted((*analysis.findings, *found), key=lambda each: -(each.lost_ns or 0))),
        not_evaluated=tuple(dict.fromkeys((*analysis.not_evaluated, *rule_runner.not_evaluated))),
    )


def _evaluate_links(rule_runner: RuleRunner, transfers: LinkTransfers, length_ns: int) -> None:
    rule_runner.ask("links", lambda: evaluate_links(transfers, length_ns))
    rule_runner.ask("small packets", lambda: find_small_packets(transfers, length_ns))
    rule_runner.ask("retransmission", lambda: find_retransmission(transfers))
    rule_runner.ask("link contention", lambda: find_link_contention(transfers, length_ns))
    rule_runner.ask("alignment of packets", lambda: find_misaligned_packets(transfers, length_ns))


class _Parts:
    """The parts of one trace's analysis."""

    def __init__(
        self, trace: PreparedTrace, window_ns: tuple[int, int], rank: int, evidence: Evidence, *, computing_ns: int
    ) -> None:
        self.rule_runner = RuleRunner(rank)
        self._trace, self._columns, self._rank, self._evidence = trace, trace.columns, rank, evidence
        self._window_ns, self._length_ns = window_ns, window_ns[1] - window_ns[0]
        self._computing_ns = computing_ns

    def path(self) -> RankPath | None:
        def found() -> RankPath:
            path = PathFinder(self._trace).find(*self._window_ns)
            return RankPath(shares=tuple(ranked(path)), guessed_ns=path.guessed_ns())

        return self.rule_runner.of("critical path", found)

    def collectives(self) -> RankCollectives | None:
        found = self.rule_runner.of("collectives", lambda: collectives_of(self._columns, rank=self._rank))
        if found is not None and len(found):
            steps, vendor = len(self._trace.steps), self._columns.metadata.vendor
            self.rule_runner.ask("small messages", lambda: find_small_messages(found, self._length_ns, steps=steps))
            self.rule_runner.ask("alignment", lambda: find_misaligned(found, vendor=vendor))
        return found

    def operators(self) -> tuple[Rooflines | None, dict[str, float] | None]:
        kernels, device = self._evidence.kernels, self._evidence.device
        counters = None if kernels is None else self.rule_runner.of("kernels", lambda: kernel_counters_of(kernels))
        found = self.rule_runner.of(
            "operators", lambda: evaluate_operators(self._columns, self._rank, kernels=counters, device=device)
        )
        if found is None:
            return None, None
        self.rule_runner.extend((), found.not_evaluated)
        length_ns, busy_ns = self._length_ns, self._computing_ns
        self.rule_runner.ask("operators", lambda: roll_up(found.findings, window_ns=length_ns, computing_ns=busy_ns))
        held = None if not counters else self.rule_runner.of("component roofline", lambda: _shares(counters))
        return None if found.rooflines is None else _joined(found.rooflines), held

    def patterns(self) -> PatternSummary | None:
        return self.rule_runner.of(
            "patterns",
            lambda: summarise_patterns(
                self._columns,
                self._window_ns,
                thread=self._trace.steps.thread,
                samples=self._evidence.samples,
                ranks_per_node=self._evidence.ranks_per_node,
            ),
        )

    def host(self) -> None:
        evidence = self._evidence
        found = self.rule_runner.of(
            "host",
            lambda: evaluate_host(
                view_host(self._columns, self._window_ns, steps=self._trace.steps),
                noted=evidence.noted_collections,
                host=evidence.host,
                loader=evidence.loader,
            ),
        )
        if found is not None:
            self.rule_runner.extend(found.findings, found.not_evaluated)


def step_times(trace: PreparedTrace) -> StepTimes | None:
    """Return each whole step's time outside communication: of the device, or of the training thread without one."""
    columns, steps = trace.columns, trace.steps
    whole = ~steps.partial
    if steps.source is StepSource.WHOLE or not whole.any():
        return None
    start_ns, end_ns = steps.start_ns[whole], steps.end_ns[whole]
    communicates = columns.work == WorkKind.COMMUNICATION
    on_device = communicates & columns.on_device
    if on_device.any():
        stands = without(merged(columns.start_ns[on_device], columns.end_ns[on_device]), computing(columns))
    else:
        host = columns.of_categories(PYTHON, OPERATOR, ANNOTATION) & (columns.thread == steps.thread) & ~communicates
        stands = waits(columns, host & (columns.duration_ns > 0), communicates)
    own_ns = CoveredTime(stands).free(start_ns, end_ns).astype(np.float64)
    return StepTimes(steps.number[whole], own_ns, (end_ns - start_ns) - own_ns)


def _next_to(columns: TraceColumns, collectives: RankCollectives) -> Intervals:
    """Return when the device computes during a collective, which is what contention depends on."""
    busy = merged(collectives.start_ns, collectives.start_ns + collectives.duration_ns)
    return common(computing(columns), busy)


def _joined(rooflines: Rooflines) -> Rooflines:
    """Return one point for each operator, format and verdict; one for each set of shapes is too many to send."""
    points = by_operator(rooflines.points)[:POINTS_MAX]
    return replace(rooflines, points=tuple(replace(each, shapes=each.shapes[:_SHAPES_CHARS]) for each in points))


def _shares(counters: KernelCounters) -> dict[str, float]:
    found = shares(counters, classify(component_table_of(counters)))
    return {bound.name.lower(): share for bound, share in found.items()}
