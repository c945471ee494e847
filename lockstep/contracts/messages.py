"""What travels on the bus: plain frozen dataclasses. `codec.py` turns them into bytes and back.

Every message carries `version`. Names of a run and a node come from the topic (`topics.py`) as well: a message that
says otherwise than its topic is refused. Wall-clock times are `_unix_ns`. Numbers, texts and lists declare their
bounds (`bounds.py`), which decoding enforces.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated

from lockstep.contracts.bounds import (
    CaptureSteps,
    Count,
    DurationNs,
    Flags,
    Length,
    MonotonicNs,
    Name,
    OneOf,
    Range,
    Rank,
    Reason,
    Sequence,
    StepIndex,
    StepIndexOrNone,
    StreamId,
    UnixNs,
    Version,
    WorldSize,
)
from lockstep.contracts.control import ANSWER_STATES
from lockstep.contracts.delivery import WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.limits import (
    BATCH_RECORDS_MAX,
    GROUPS_PER_NODE_MAX,
    HOST_COMMANDS_MAX,
    HOST_CORES_MAX,
    ISSUED_MAX,
    MESSAGE_MAX_BYTES,
    PROFILE_DEADLINE_SECONDS_MAX,
    PROFILE_RANKS_MAX,
    PROFILE_STEPS_MAX,
    RANKS_PER_NODE_MAX,
    RUNS_PER_NODE_MAX,
    SPANS_PER_GROUP_MAX,
    STACK_FILE_MAX_CHARS,
    STACK_FRAMES_MAX,
    STACK_FUNCTION_MAX_CHARS,
    STACK_THREADS_MAX,
    SUMMARY_MAX_BYTES,
    SUMMARY_NODES_MAX,
    TRACE_MAX_BYTES,
    WORLD_SIZE_MAX,
)
from lockstep.contracts.memory_report import KEPT_MAX, KeptAllocation, RankMemory
from lockstep.contracts.ring import ISSUE_SLOTS

MESSAGE_VERSION = 1
"""Of all messages; it counts from the first release on."""

RUNNING, FINISHED, FAILED, GONE, UNWATCHED = "running", "finished", "failed", "gone", "unwatched"
RANK_STATES = (RUNNING, FINISHED, FAILED, GONE, UNWATCHED)
"""Of a rank's process: it runs; it ended well; it ended by an exception or with an exit code; it ended by a signal, or
no one knows how; it runs, and the agent took itself out after a failure of its own."""

EXCEPTION, EXIT_CODE, SIGNAL, VANISHED = "exception", "exit_code", "signal", "vanished"
ENDINGS = (EXCEPTION, EXIT_CODE, SIGNAL, VANISHED)
"""What ended a process that did not end well; vanished: it is not there any more, and the kernel did not keep why."""

_LAYOUT_MAX_BYTES = 4096  # three times the names of all fields
_NODE_MAX_NS = 1 << 53  # 104 days; sums over all nodes of a tree stay within int64
_ENTRIES_MAX = 4096  # of a list in a summary, whose size in bytes is the narrower limit
_SCHEMES = ("http", "https")
_ADDRESS_MAX_CHARS = 253 + 6  # a host name, a colon and a port


LAPPED, TORN = "lapped", "torn"
LOSS_REASONS = (LAPPED, TORN)
"""Why a record in a ring could not be read: overwritten before it was, or damaged by a writer that was killed."""
LossReason = Annotated[str, OneOf(LOSS_REASONS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The step records that one node gathered in one interval, one after the other.

    `layout` names the values of a record, joined by commas: `rank` first, then fields of the step record, those left
    out that are missing throughout. `records` holds `count` records of so many little-endian int64 (`rows.py` joins
    and splits them). `start_ns` and `end_ns` are wall clock here. Values named by a field that the receiver does not
    know are ignored, which is how two versions talk. `lost` counts, by reason (`LOSS_REASONS`), records of the run that
    this exporter could not read from the rings since the batch before; a batch without records may carry it.
    """

    run: Name
    node: Name
    sent_unix_ns: UnixNs
    count: Annotated[int, Range(0, BATCH_RECORDS_MAX)]
    layout: Annotated[str, Length(_LAYOUT_MAX_BYTES, least=1)]
    records: Annotated[bytes, Length(MESSAGE_MAX_BYTES)]
    lost: Annotated[dict[LossReason, Count], Length(len(LOSS_REASONS))] = field(default_factory=dict)
    version: Version = MESSAGE_VERSION


COLLECTIVE, SEND, RECEIVE = "collective", "send", "receive"
OPERATIONS = (COLLECTIVE, SEND, RECEIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCount:
    """How often a rank has issued one operation in one group since its attempt began, and when it last did.

    `group` is the place of the group in the announcement's list; `peer` the other rank of a send or receive, -1 for
    collectives.
    """

    group: Annotated[int, Range(0, GROUPS_PER_NODE_MAX - 1)]
    operation: Annotated[str, OneOf(OPERATIONS)]
    peer: Annotated[int, Range(-1, WORLD_SIZE_MAX - 1)]
    issued: Count
    last_unix_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Where a rank stands that has written no record for long: what its step records do not show yet.

    `last_step` is the last step that it has recorded, None for none. `flags` (`records.Flag`) are what is known of the
    running step. `is_alive` says whether its process exists, None where that is unknown. Clocks are the node's:
    times of ranks on different nodes are comparable to its accuracy only.
    """

    last_step: StepIndex | None
    flags: Flags
    issues: Annotated[list[IssueCount], Length(ISSUE_SLOTS)]
    is_alive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnding:
    """How the process of a rank ended that did not end well.

    `code` is the exit code or the number of the signal, 0 for the other kinds. `exception` is the type of an exception
    and `frame` the innermost frame of the training's own code, "train.py(88): load"; no message, which may hold data.
    `is_out_of_memory`: the kernel killed a process of its cgroup for want of memory just then. `is_orderly`: the exit
    code is the program's own, since Python ran its exit functions, which `os._exit` and a framework's kill leave out.
    `unix_ns` is when the process itself noted its end, else when the exporter saw it. At `alive_unix_ns` (0: not known)
    it lived, long before that where the node has no processor time to spare.
    """

    unix_ns: UnixNs
    kind: Annotated[str, OneOf(ENDINGS)]
    code: Annotated[int, Range(0, 255)] = 0
    exception: Name = ""
    frame: Name = ""
    is_out_of_memory: bool = False
    is_orderly: bool = False
    alive_unix_ns: UnixNs = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One rank of a node. `attempt` distinguishes incarnations; `state` is one of RANK_STATES.

    `ending` is None unless the state is failed or gone. `facts` is None until the rank has written them, after its
    first step; `progress` is None unless no rank of the run on this node makes steps.
    """

    rank: Rank
    local_rank: Rank
    world_size: WorldSize
    hostname: Name
    attempt: UnixNs
    state: Annotated[str, OneOf(RANK_STATES)]
    heartbeat_unix_ns: UnixNs
    facts: RankFacts | None = None
    progress: RankProgress | None = None
    ending: RankEnding | None = None


RankSpan = Annotated[list[Annotated[int, Range(0, WORLD_SIZE_MAX)]], Length(3, least=3)]
"""[start, stop, step], as `domains.pack_ranks` makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A process group that training created. `ranks` in range form (`domains.pack_ranks`)."""

    kind: Name
    name: Name
    ranks: Annotated[list[RankSpan], Length(SPANS_PER_GROUP_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnnouncement:
    """Retained: the ranks and groups of a run on one node, published when they change.

    `revision` grows with every change and names this list of ranks in heartbeats. An unchanged one goes out again after
    `limits.ANNOUNCE_REFRESH_SECONDS`.
    """

    run: Name
    node: Name
    ranks: Annotated[list[RankInfo], Length(RANKS_PER_NODE_MAX)]
    groups: Annotated[list[GroupInfo], Length(GROUPS_PER_NODE_MAX)]
    revision: Sequence = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeartbeat:
    """When each rank of a run on one node was last known to live, in the order of the announcement `revision`.

    That is now where the rank's process exists, else the last sign of life that its agent gave. `memory` is of the
    ranks whose processes the node can read.
    """

    run: Name
    revision: Sequence
    alive_unix_ns: Annotated[list[UnixNs], Length(RANKS_PER_NODE_MAX)]
    memory: Annotated[list[RankMemory], Length(RANKS_PER_NODE_MAX)] = field(default_factory=list)


ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
"""Host and port as Prometheus takes a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlive:
    """Retained heartbeat of an exporter; the broker sends it with `alive` false as its last will.

    `address` is host and port at which Prometheus reaches it. `stream_id` names the stream of its spool
    (`delivery.py`): each coordinator answers with an `Acknowledgement` of where it stands in it. `runs` holds the
    heartbeats of its ranks; a run without one has none to report in this message. `term` is the highest that an order
    had here (`CoordinatorAlive`): a leader of a lower one takes another.
    """

    node: Name
    alive: bool
    unix_ns: UnixNs
    stream_id: StreamId
    address: Annotated[str, Length(_ADDRESS_MAX_CHARS)] = ""
    scheme: Annotated[str, OneOf(_SCHEMES)] = "http"
    runs: Annotated[list[RunHeartbeat], Length(RUNS_PER_NODE_MAX)] = field(default_factory=list)
    term: Count = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Where a coordinator stands in a node's stream: the last sequence received, and the last one committed.

    `coordinator` is its name and `incarnation` when it was started (unix ns): after a restart it may have received less
    than it once said. `resend` asks for what follows `received` again, because a frame is missing. While `hold` is set
    nothing is to be sent: what follows `received` has no room at the coordinator. 0 is the sequence before the first.
    The node may have `window_messages` and `window_bytes` under way beyond `received`, and always one message.
    """

    node: Name
    coordinator: Name
    incarnation: UnixNs
    stream_id: StreamId
    received: Sequence
    committed: Sequence
    resend: bool = False
    hold: bool = False
    window_messages: Count = WINDOW_MESSAGES_MAX
    window_bytes: Count = WINDOW_BYTES_MAX
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAlive:
    """Retained heartbeat of a coordinator; the broker sends it with `alive` false as its last will.

    Of the coordinators that are alive the one that leads orders captures: `term` grows with each change of leader, and
    nodes refuse orders of a term below the highest that they have seen (a fencing number). It is at least the unix time
    of the change in seconds, and at most `limits.TERM_AHEAD_SECONDS_MAX` more.
    """

    coordinator: Name
    alive: bool
    incarnation: UnixNs
    unix_ns: UnixNs
    term: Count = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """The coordinator asks one node to capture some of its ranks; a `control.ProfileOrder` but for its boundaries.

    Both give the capture up `deadline_seconds` after it was asked for. One that `is_withdrawn` ends the request of this
    number: its ranks that have not begun are not to capture.
    """

    run: Name
    node: Name
    request_id: Count
    ranks: Annotated[list[Rank], Length(PROFILE_RANKS_MAX)]
    first_step: StepIndexOrNone
    steps: Annotated[int, Range(1, PROFILE_STEPS_MAX)]
    term: Count = 0
    """The fencing number of the coordinator that asks (`CoordinatorAlive`)."""
    stacks: bool = True
    shapes: bool = False  # triples the time that stopping the profiler takes; stacks name the function without them
    memory: bool = False
    trace_max_bytes: Annotated[int, Range(0, TRACE_MAX_BYTES)] = 256 << 20
    device: bool = True
    deadline_seconds: Annotated[float, Range(0, PROFILE_DEADLINE_SECONDS_MAX)] = 120.0
    is_withdrawn: bool = False
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileAnswer:
    """What one rank says of a request; field by field a `control.OrderAnswer`, plus whose it is."""

    run: Name
    node: Name
    rank: Rank
    request_id: Count
    state: Annotated[str, OneOf(ANSWER_STATES)]
    reason: Reason = ""
    first_step: StepIndexOrNone = -1
    steps: CaptureSteps = 0
    start_ns: MonotonicNs = 0
    end_ns: MonotonicNs = 0
    trace_bytes: Count = 0
    cost_ns: DurationNs = 0
    version: Version = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRequest:
    """The coordinator asks one node for the stacks of some of its ranks, without stopping anything."""

    run: Name
    node: Name
    request_id: Count
    ranks: Annotated[list[Rank], Length(RANKS_PER_NODE_MAX)]
    term: Count = 0
    """The fencing number of the coordinator that asks (`CoordinatorAlive`)."""
    version: Version = MESSAGE_VERSION


StackFrame = tuple[
    Annotated[str, Length(STACK_FILE_MAX_CHARS)],
    Annotated[int, Range(0, (1 << 31) - 1)],
    Annotated[str, Length(STACK_FUNCTION_MAX_CHARS)],
]
"""The end of a source file's path, a line of it, 0 where it is not known, and the function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """What a thread is in: its Python frames, the innermost first. C and C++ beneath the innermost have none."""

    is_training: bool
    frames: Annotated[list[StackFrame], Length(STACK_FRAMES_MAX)]


_ShortText = Annotated[str, Length(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCollective:
    """A collective that a rank has issued, by its Flight Recorder (`lockstep/trace/flight_recorder.py`)."""

    group: _ShortText
    description: _ShortText
    sequence: Count
    operation: _ShortText
    tensors: _ShortText
    state: _ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks:
    """The stacks of one rank's process at one moment, that of the training thread first.

    `reason` says why there are none. `omitted_frames` of all threads did not fit into the message's limit.
    `collectives` are the last ones of each group by a dump of torch's Flight Recorder, none without a dump.
    """

    run: Name
    node: Name
    rank: Rank
    request_id: Count
    unix_ns: UnixNs
    threads: Annotated[list[ThreadStack], Length(STACK_THREADS_MAX)]
    omitted_frames: Count = 0
    reason: Reason = ""
    collectives: Annotated[list[RecordedCollective], Length(ISSUED_MAX)] = field(default_factory=list)
    version: Version = MESSAGE_VERSION


SummaryText = Annotated[str, Length(SUMMARY_MAX_BYTES)]
"""A text whose length the size of its summary bounds."""
CollectiveCounts = Annotated[list[Count], Length(3, least=3)]
PathShare = tuple[SummaryText, SummaryText, DurationNs]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNode:
    """One node of a rank's call tree over the captured steps.

    `parent` is the index of the caller in the list, -1 for a root; a parent stands before its children. `kind` is
    python, operator, data, communication or gc. Times are of the training thread: `total_ns` with, `self_ns` without
    the children (those that the summary leaves out included).
    """

    parent: Annotated[int, Range(-1, SUMMARY_NODES_MAX - 2)]
    name: SummaryText
    kind: Name
    total_ns: Annotated[int, Range(0, _NODE_MAX_NS)]
    self_ns: Annotated[int, Range(-_NODE_MAX_NS, _NODE_MAX_NS)]
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinding:
    """A cause that a rank's trace shows by itself, as judged on its node (`lockstep.diagnosis.finding.Finding`)."""

    bottleneck: Name
    cause: Name
    subject: SummaryText
    evidence: Annotated[list[SummaryText], Length(_ENTRIES_MAX)]
    confidence: Name
    lost_ns: DurationNs | None = None


Cores = Annotated[float, Range(0.0, float(HOST_CORES_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpan:
    """What a node counted about one rank's process while it was captured; None is not known, 0 a measured zero.

    `span_ns` is the time between the counts. `on_cpu_ns` and `run_queue_wait_ns` are the training thread's,
    `throttled_ns` its control group's; `cores` may be used by the process, `others_cores` of them other processes kept
    busy; `busiest` are those, command and cores.
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
    """What is left of one rank's trace: its call tree, kilobytes instead of megabytes.

    Nodes below the summary's share of the window are left out and counted in `omitted_nodes`; their time stays in
    their parents' `self_ns`.
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
    """Why the trace could not be read; the tree is empty then."""
    collectives: Annotated[dict[SummaryText, CollectiveCounts], Length(_ENTRIES_MAX)] = field(default_factory=dict)
    """Per collective name: count, total ns on the backend's own thread, shortest ns."""
    breakdown: Annotated[dict[SummaryText, DurationNs], Length(_ENTRIES_MAX)] = field(default_factory=dict)
    """Classes of the window, ns (`trace.step_breakdown`)."""
    path: Annotated[list[PathShare], Length(_ENTRIES_MAX)] = field(default_factory=list)
    """What lies longest on the critical path: name, class, ns."""
    patterns: Annotated[bytes, Length(SUMMARY_MAX_BYTES)] = b""
    """Behaviour patterns (`trace.patterns.wire`)."""
    findings: Annotated[list[RankFinding], Length(_ENTRIES_MAX)] = field(default_factory=list)
    not_judged: Annotated[dict[SummaryText, SummaryText], Length(_ENTRIES_MAX)] = field(default_factory=dict)
    """Rules that could not answer, and why."""
    omitted: Annotated[dict[Name, Count], Length(_ENTRIES_MAX)] = field(default_factory=dict)
    """How many of a list were left out, by the list's name: the least important ones."""
    host: HostSpan | None = None
    kept: Annotated[list[KeptAllocation], Length(KEPT_MAX)] = field(default_factory=list)
    """Of a memory capture: whose tensors outlived a step, the largest first."""
    version: Version = MESSAGE_VERSION
