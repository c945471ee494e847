"""The summary of a captured rank's trace."""

from dataclasses import dataclass, field
from typing import Annotated

from lockstep.contracts.bounds import (
    MESSAGE_VERSION,
    CaptureSteps,
    Count,
    DurationNs,
    Length,
    Name,
    OneOf,
    Range,
    Rank,
    Version,
)
from lockstep.contracts.finding import Finding, SummaryText
from lockstep.contracts.limits import (
    HOST_COMMANDS_MAX,
    HOST_CORES_MAX,
    PROFILE_STEPS_MAX,
    SUMMARY_ENTRIES_MAX,
    SUMMARY_MAX_BYTES,
    SUMMARY_NODES_MAX,
    UNIX_NS_MAX,
)
from lockstep.contracts.memory_report import KEPT_MAX, RetainedAllocation

_NODE_MAX_NS = 1 << 53  # 104 days; sums over all nodes of a tree stay within int64
CollectiveCounts = Annotated[list[Count], Length(3, least=3)]
StepTimes = Annotated[list[Annotated[int, Range(0, _NODE_MAX_NS)]], Length(PROFILE_STEPS_MAX)]
FUNCTION_CLASSES = ("compute", "memory", "collective", "host")
PartsPerMillion = Annotated[int, Range(0, 1_000_000)]
PartsOfPeak = Annotated[int, Range(0, 2_000_000)]
"""A measured rate may exceed the peak that a vendor states."""
PathShare = tuple[SummaryText, SummaryText, DurationNs]
Cores = Annotated[float, Range(0.0, float(HOST_CORES_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNode:
    """One node of a rank's call tree over the captured steps.

    `parent` is the index of the caller in the list, -1 for a root; a parent precedes its children. `kind` is python,
    operator, data, communication or gc. Times are of the training thread: `total_ns` includes the children and
    `self_ns` excludes them (including children that the summary omits). `by_step_ns` includes them, for each step of
    `TraceSummary.step_ns`; it is empty if the steps are not known individually or did not fit.
    """

    parent: Annotated[int, Range(-1, SUMMARY_NODES_MAX - 2)]
    name: SummaryText
    kind: Name
    total_ns: Annotated[int, Range(0, _NODE_MAX_NS)]
    self_ns: Annotated[int, Range(-_NODE_MAX_NS, _NODE_MAX_NS)]
    count: Count
    by_step_ns: StepTimes = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternCaller:
    """A function that calls others: `parent` is the index of its own caller in the list, a smaller one, -1 for none."""

    parent: Annotated[int, Range(-1, SUMMARY_MAX_BYTES)]
    name: SummaryText


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRow:
    """A function's behaviour in parts per million (`lockstep.trace.patterns.pattern.Pattern`), None without samples.

    `caller` is the index of its innermost caller, -1 for none.
    """

    function: SummaryText
    kind: Annotated[str, OneOf(FUNCTION_CLASSES)]
    beta_ppm: PartsPerMillion
    caller: Annotated[int, Range(-1, SUMMARY_MAX_BYTES)] = -1
    mu_ppm: PartsOfPeak | None = None
    sigma_ppm: PartsOfPeak | None = None
    active_mu_ppm: PartsOfPeak | None = None
    gap_ppm: PartsOfPeak | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternTable:
    """Behaviour patterns, largest beta first; `omitted_count` functions, together `omitted_beta_ppm`, were left out."""

    window_ns: Annotated[int, Range(1, UNIX_NS_MAX)]
    callers: Annotated[list[PatternCaller], Length(SUMMARY_MAX_BYTES)]
    rows: Annotated[list[PatternRow], Length(SUMMARY_ENTRIES_MAX)]
    omitted_count: Count = 0
    omitted_beta_ppm: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpan:
    """What a node counted about one rank's process during its capture; None is unknown, 0 a measured zero.

    `span_ns` is the time between the counts. `on_cpu_ns` and `run_queue_wait_ns` are the training thread's,
    `throttled_ns` its control group's. The process may use `cores`; other processes kept `others_cores` of them busy,
    and `busiest` lists those processes, by command, with the cores that each used.
    """

    span_ns: DurationNs
    on_cpu_ns: DurationNs | None = None
    run_queue_wait_ns: DurationNs | None = None
    throttled_ns: DurationNs | None = None
    cores: Annotated[int, Range(0, HOST_CORES_MAX)] | None = None
    others_cores: Cores | None = None
    busiest: Annotated[list[tuple[Name, Cores]], Length(HOST_COMMANDS_MAX)] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The summary of one rank's trace with its call tree: kilobytes instead of megabytes.

    Nodes below a minimum share of the window are left out and counted in `omitted_nodes`; their time stays in their
    parents' `self_ns`.
    """

    run: Name
    node: Name
    rank: Rank
    request_id: Count
    window_ns: DurationNs
    steps: CaptureSteps
    trace_bytes: Count
    event_count: Count
    tree: Annotated[list[CallNode], Length(SUMMARY_NODES_MAX)]
    omitted_nodes: Count = 0
    error: SummaryText = ""
    """Why the trace could not be read; the tree is then empty."""
    collectives: Annotated[dict[SummaryText, CollectiveCounts], Length(SUMMARY_ENTRIES_MAX)] = field(
        default_factory=dict
    )
    """By collective name: count, total ns on the backend's own thread, shortest ns."""
    breakdown: Annotated[dict[SummaryText, DurationNs], Length(SUMMARY_ENTRIES_MAX)] = field(default_factory=dict)
    """Classes of time in the window, ns (`trace.step_breakdown`)."""
    path: Annotated[list[PathShare], Length(SUMMARY_ENTRIES_MAX)] = field(default_factory=list)
    """The largest entries of the critical path: name, class, ns."""
    patterns: PatternTable | None = None
    """Behaviour patterns, None without a trace (`trace.patterns.table`)."""
    findings: Annotated[list[Finding], Length(SUMMARY_ENTRIES_MAX)] = field(default_factory=list)
    """Findings from the rank's trace alone, without advice, which the coordinator adds."""
    not_evaluated: Annotated[dict[SummaryText, SummaryText], Length(SUMMARY_ENTRIES_MAX)] = field(default_factory=dict)
    """Rules that could not be evaluated, and why."""
    omitted: Annotated[dict[Name, Count], Length(SUMMARY_ENTRIES_MAX)] = field(default_factory=dict)
    """How many entries of a list were left out, by the list's name: the least important ones."""
    host: HostSpan | None = None
    step_ns: StepTimes = field(default_factory=list)
    """Lengths of the first steps, from each mark to the next; empty if steps are not marked."""
    kept: Annotated[list[RetainedAllocation], Length(KEPT_MAX)] = field(default_factory=list)
    """Of a memory capture: the functions whose tensors outlived a step, largest first."""
    version: Version = MESSAGE_VERSION
