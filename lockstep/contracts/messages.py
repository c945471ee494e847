"""What travels on the bus: plain frozen dataclasses. `codec.py` turns them into bytes and back.

Every message carries `version`. Names of a run and a node come from the topic (`topics.py`) as well: a message that
says otherwise than its topic is refused. Wall-clock times are `_unix_ns`.
"""

import re
from dataclasses import dataclass, field

from lockstep.contracts.facts import RankFacts

MESSAGE_VERSION = 1
"""Of all messages; it counts from the first release on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The step records that one node gathered in one interval, one after the other.

    `layout` names the values of a record, joined by commas: `rank` first, then fields of the step record, those left
    out that are missing throughout. `records` holds `count` records of so many little-endian int64 (`rows.py` joins
    and splits them). `start_ns` and `end_ns` are wall clock here. Values named by a field that the receiver does not
    know are ignored, which is how two versions talk. `lost` counts, by reason (`LOSS_REASONS`), records of the run that
    this exporter could not read from the rings since the batch before; a batch without records may carry it.
    """

    run: str
    node: str
    sent_unix_ns: int
    count: int
    layout: str
    records: bytes
    lost: dict[str, int] = field(default_factory=dict)
    version: int = MESSAGE_VERSION


LAPPED, TORN = "lapped", "torn"
LOSS_REASONS = (LAPPED, TORN)
"""Why a record in a ring could not be read: overwritten before it was, or damaged by a writer that was killed."""


COLLECTIVE, SEND, RECEIVE = "collective", "send", "receive"
OPERATIONS = (COLLECTIVE, SEND, RECEIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCount:
    """How often a rank has issued one operation in one group since its attempt began, and when it last did.

    `group` is the place of the group in the announcement's list; `peer` the other rank of a send or receive, -1 for
    collectives.
    """

    group: int
    operation: str
    peer: int
    issued: int
    last_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Where a rank stands that has written no record for long: what its step records cannot tell yet.

    `last_step` is the last step that it has recorded, None for none. `flags` (`records.Flag`) are what is known of the
    running step. `is_alive` says whether its process exists, None where that cannot be told. Clocks are the node's:
    times of ranks on different nodes are comparable to its accuracy only.
    """

    last_step: int | None
    flags: int
    issues: list[IssueCount]
    is_alive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One rank of a node. `attempt` tells incarnations apart; `state` is running, finished or failed (the agent's).

    `facts` is None until the rank has told them, after its first step; `progress` is None unless no rank of the run on
    this node makes steps.
    """

    rank: int
    local_rank: int
    world_size: int
    hostname: str
    attempt: int
    state: str
    heartbeat_unix_ns: int
    facts: RankFacts | None = None
    progress: RankProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A process group that training created. `ranks` in range form (`domains.pack_ranks`)."""

    kind: str
    name: str
    ranks: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnnouncement:
    """Retained: the ranks and groups of a run on one node, published when they change.

    `revision` grows with every change and names this list of ranks in heartbeats. An unchanged one goes out again after
    `limits.ANNOUNCE_REFRESH_SECONDS`.
    """

    run: str
    node: str
    ranks: list[RankInfo]
    groups: list[GroupInfo]
    revision: int = 0
    version: int = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeartbeat:
    """When each rank of a run on one node was last known to live, in the order of the announcement `revision`.

    That is now where the rank's process exists, else the last sign of life that its agent gave.
    """

    run: str
    revision: int
    alive_unix_ns: list[int]


ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
"""Host and port as Prometheus takes a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlive:
    """Retained heartbeat of an exporter; the broker sends it with `alive` false as its last will.

    `address` is host and port at which Prometheus reaches it. `stream_id` names the stream of its spool
    (`delivery.py`): each coordinator answers with an `Acknowledgement` of where it stands in it. `runs` holds the
    heartbeats of its ranks; a run without one has none to report in this message.
    """

    node: str
    alive: bool
    unix_ns: int
    stream_id: int
    address: str = ""
    scheme: str = "http"
    runs: list[RunHeartbeat] = field(default_factory=list)
    version: int = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Where a coordinator stands in a node's stream: the last sequence received, and the last one committed.

    `coordinator` is its name and `incarnation` when it was started (unix ns): after a restart it may have received less
    than it once said. `resend` asks for what follows `received` again, because a frame is missing. 0 is the sequence
    before the first.
    """

    node: str
    coordinator: str
    incarnation: int
    stream_id: int
    received: int
    committed: int
    resend: bool = False
    version: int = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAlive:
    """Retained heartbeat of a coordinator; the broker sends it with `alive` false as its last will.

    Of the coordinators that are alive the one that leads orders captures: `term` grows with each change of leader, and
    nodes refuse orders of a term below the highest that they have seen (a fencing number).
    """

    coordinator: str
    alive: bool
    incarnation: int
    unix_ns: int
    term: int = 0
    version: int = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """The coordinator asks one node to capture some of its ranks; field by field a `control.ProfileOrder`."""

    run: str
    node: str
    request_id: int
    ranks: list[int]
    first_step: int
    steps: int
    term: int = 0
    """The fencing number of the coordinator that asks (`CoordinatorAlive`)."""
    stacks: bool = True
    shapes: bool = False  # triples the time that stopping the profiler takes; stacks name the function without them
    memory: bool = False
    trace_max_bytes: int = 256 << 20
    device: bool = True
    version: int = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileAnswer:
    """What one rank says of a request; field by field a `control.OrderAnswer`, plus whose it is."""

    run: str
    node: str
    rank: int
    request_id: int
    state: str
    reason: str = ""
    first_step: int = -1
    steps: int = 0
    start_ns: int = 0
    end_ns: int = 0
    trace_bytes: int = 0
    cost_ns: int = 0
    version: int = MESSAGE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNode:
    """One node of a rank's call tree over the captured steps.

    `parent` is the index of the caller in the list, -1 for a root; a parent stands before its children. `kind` is
    python, operator, data, communication or gc. Times are of the training thread: `total_ns` with, `self_ns` without
    the children (those that the summary leaves out included).
    """

    parent: int
    name: str
    kind: str
    total_ns: int
    self_ns: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinding:
    """A cause that a rank's trace tells by itself, as judged on its node (`lockstep.diagnosis.finding.Finding`)."""

    bottleneck: str
    cause: str
    subject: str
    evidence: list[str]
    confidence: str
    lost_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpan:
    """What a node counted about one rank's process while it was captured; None is not known, 0 a measured zero.

    `span_ns` is the time between the counts. `on_cpu_ns` and `run_queue_wait_ns` are the training thread's,
    `throttled_ns` its control group's; `cores` may be used by the process, `others_cores` of them other processes kept
    busy; `busiest` are those, command and cores.
    """

    span_ns: int
    on_cpu_ns: int | None = None
    run_queue_wait_ns: int | None = None
    throttled_ns: int | None = None
    cores: int | None = None
    others_cores: float | None = None
    busiest: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """What is left of one rank's trace: its call tree, kilobytes instead of megabytes.

    Nodes below the summary's share of the window are left out and counted in `omitted_nodes`; their time stays in
    their parents' `self_ns`.
    """

    run: str
    node: str
    rank: int
    request_id: int
    window_ns: int
    steps: int
    trace_bytes: int
    event_count: int
    tree: list[CallNode]
    omitted_nodes: int = 0
    error: str = ""
    """Why the trace could not be read; the tree is empty then."""
    collectives: dict[str, list[int]] = field(default_factory=dict)
    """Per collective name: count, total ns on the backend's own thread, shortest ns."""
    breakdown: dict[str, int] = field(default_factory=dict)
    """Classes of the window, ns (`trace.step_breakdown`)."""
    path: list[tuple[str, str, int]] = field(default_factory=list)
    """What lies longest on the critical path: name, class, ns."""
    patterns: bytes = b""
    """Behaviour patterns (`trace.patterns.wire`)."""
    findings: list[RankFinding] = field(default_factory=list)
    not_judged: dict[str, str] = field(default_factory=dict)
    """Rules that could not answer, and why."""
    omitted: dict[str, int] = field(default_factory=dict)
    """How many of a list were left out, by the list's name: the least important ones."""
    host: HostSpan | None = None
    version: int = MESSAGE_VERSION
