"""Valid input from the real encoders, every field in use: what the fuzzer mutates, and what tests of bounds change."""

from collections.abc import Sequence
from dataclasses import replace

from lockstep.contracts import messages, topics
from lockstep.contracts.capture import (
    OPTIMIZER,
    CaptureRequest,
    CaptureResult,
    StepBoundary,
    request_to_json,
    result_to_json,
)
from lockstep.contracts.codec import Message
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.finding import Advice, Finding
from lockstep.contracts.memory_report import HOST, RankMemory, RetainedAllocation
from lockstep.contracts.peaks import peak_flops_per_second
from lockstep.contracts.records import RECORD_FIELDS
from lockstep.contracts.rows import RANK, join_columns

RUN, NODE, COORDINATOR = "run-1", "node-1", "coordinator-1"
UNIX_NS = 1_700_000_000 * 10**9
WORLD_SIZE = 2

_STEP_NS, _LATE_NS = 250_000_000, 100_000_000
RECORD = dict.fromkeys(RECORD_FIELDS, 0) | {
    "data_ns": 10_000_000,
    "compute_ns": 200_000_000,
    "host_ns": 20_000_000,
    "gc_ns": 0,
    "dp_wait_ns": 20_000_000,
    "tokens": 4096,
}


def step_batch(
    first_step: int, steps: int, *, run: str = RUN, node: str = NODE, ranks: Sequence[int] = (0, 1), slow_rank: int = -1
) -> messages.StepBatch:
    """Return a batch of some steps of a node's ranks, whose parts sum exactly; for `slow_rank` all others wait."""
    late_ns = _LATE_NS if slow_rank >= 0 else 0
    rows = []
    for step in range(first_step, first_step + steps):
        end_ns = UNIX_NS + (step + 1) * (_STEP_NS + _LATE_NS)
        for rank in ranks:
            is_late = rank == slow_rank
            own = {
                RANK: rank,
                "step": step,
                "start_ns": end_ns - _STEP_NS - late_ns,
                "end_ns": end_ns,
                "compute_ns": RECORD["compute_ns"] + (late_ns if is_late else 0),
                "dp_wait_ns": RECORD["dp_wait_ns"] + (0 if is_late else late_ns),
            }
            rows.append(RECORD | own)
    columns = {
        name: b"".join(row[name].to_bytes(8, "little", signed=True) for row in rows) for name in (RANK, *RECORD_FIELDS)
    }
    layout, records = join_columns(columns)
    return messages.StepBatch(
        run=run,
        node=node,
        sent_unix_ns=UNIX_NS,
        count=len(rows),
        layout=layout,
        records=records,
        lost={messages.LAPPED: 3, messages.TORN: 1},
    )


FACTS = RankFacts(
    device="NVIDIA H100 80GB HBM3",
    device_kind="cuda",
    dtype="bf16",
    peak_flops_per_second=peak_flops_per_second("NVIDIA H200", "bf16"),
    parameters=7_000_000_000,
    flops_source="parameters",
    torch_version="2.13.0",
    backend="nccl",
    device_uuid="GPU-576ef18e-b48f-c787-e91d-f93658b27b8e",
    mark_writer="C extension",
    stacks="SIGURG",
    flight_recorder="/srv/rank_",
    flight_recorder_pipe="/srv/pipe_",
    collective_kernels="Python",
    collective_kernels_reason="none is built for torch 2.13.0",
)


def rank_info(
    rank: int, *, facts: RankFacts = FACTS, progress: messages.RankProgress | None = None
) -> messages.RankInfo:
    """Return one rank of a node."""
    return messages.RankInfo(
        rank=rank,
        local_rank=rank,
        world_size=WORLD_SIZE,
        hostname="host-1",
        attempt=UNIX_NS,
        state="running",
        heartbeat_unix_ns=UNIX_NS,
        facts=facts,
        progress=progress,
    )


_PROGRESS = messages.RankProgress(
    last_step=7,
    flags=1,
    issues=[
        messages.IssueCount(group=0, operation=messages.COLLECTIVE, peer=-1, issued=7, last_unix_ns=UNIX_NS),
        messages.IssueCount(group=1, operation=messages.SEND, peer=1, issued=3, last_unix_ns=UNIX_NS),
    ],
    is_alive=True,
)
_ENDING = messages.RankEnding(
    unix_ns=UNIX_NS, kind=messages.EXCEPTION, code=1, exception="ValueError", frame="train.py(88): load", last_step=7
)
_GROUPS = [
    messages.GroupInfo(kind="dp", name="dp0", ranks=[[0, 2, 1]]),
    messages.GroupInfo(kind="pp", name="pp0", ranks=[[0, 2, 1]]),
]
ANNOUNCEMENT = messages.NodeAnnouncement(
    run=RUN, node=NODE, ranks=[rank_info(rank) for rank in range(WORLD_SIZE)], groups=_GROUPS, revision=3
)
SILENT = messages.NodeAnnouncement(
    run=RUN,
    node=NODE,
    ranks=[replace(rank_info(rank, progress=_PROGRESS), ending=_ENDING) for rank in range(WORLD_SIZE)],
    groups=_GROUPS,
    revision=4,
)
REQUEST = messages.CaptureRequest(
    run=RUN,
    node=NODE,
    request_id=5,
    ranks=[0, 1],
    first_step=70,
    steps=3,
    term=2,
    trace_max_bytes=1 << 20,
    boundaries=[StepBoundary(OPTIMIZER, 1, 70, 70)] * 2,
)
ANSWER = messages.CaptureResult(
    run=RUN,
    node=NODE,
    rank=1,
    request_id=5,
    state="done",
    reason="ended after 2 steps",
    first_step=70,
    steps=2,
    start_ns=10**12,
    end_ns=10**12 + 10**9,
    trace_bytes=1 << 20,
    cost_ns=10**8,
)
STACK_REQUEST = messages.StackRequest(run=RUN, node=NODE, request_id=6, ranks=[0, 1], term=2)
STACKS = messages.RankStacks(
    run=RUN,
    node=NODE,
    rank=1,
    request_id=6,
    unix_ns=UNIX_NS,
    threads=[
        messages.ThreadStack(is_training=True, frames=[("/srv/train.py", 88, "load"), ("/srv/train.py", 120, "main")]),
        messages.ThreadStack(is_training=False, frames=[("/usr/lib/python3.11/threading.py", 320, "wait")]),
    ],
    omitted_frames=3,
    collectives=[
        messages.RecordedCollective(
            group="1", description="mesh_dp", sequence=7, operation="all_reduce", tensors="Float [100]", state="started"
        )
    ],
    reason="the process is stopped by a signal",
)
SUMMARY = messages.TraceSummary(
    run=RUN,
    node=NODE,
    rank=1,
    request_id=5,
    window_ns=500_000_000,
    steps=2,
    trace_bytes=1 << 20,
    event_count=1234,
    tree=[
        messages.CallNode(
            parent=-1, name="train", kind="python", total_ns=100, self_ns=30, count=1, by_step_ns=[60, 40]
        ),
        messages.CallNode(
            parent=0, name="forward", kind="python", total_ns=60, self_ns=60, count=2, by_step_ns=[35, 25]
        ),
        messages.CallNode(
            parent=0, name="all_reduce", kind="communication", total_ns=10, self_ns=9, count=2, by_step_ns=[5, 5]
        ),
    ],
    omitted_nodes=7,
    error="a step mark is missing",
    collectives={"gloo:all_reduce": [10, 120, 3]},
    breakdown={"compute_ns": 40, "host_ns": 60},
    path=[("train", "host", 60), ("gemm", "compute", 40)],
    patterns=messages.PatternTable(
        window_ns=500_000_000,
        callers=[messages.PatternCaller(parent=-1, name="train")],
        rows=[
            messages.PatternRow(
                function="gemm",
                kind="compute",
                beta_ppm=600_000,
                caller=0,
                mu_ppm=900_000,
                sigma_ppm=10_000,
                active_mu_ppm=950_000,
                gap_ppm=50_000,
            )
        ],
        omitted_count=3,
        omitted_beta_ppm=700,
    ),
    findings=[
        Finding(
            bottleneck="cpu",
            cause="gc",
            ranks=(0,),
            evidence=("5 ms",),
            subject="train",
            lost_ns=5,
            advice=(Advice(suggestion="Freeze it", how="gc.freeze()", predicted_gain_ratio=0.1, source="own"),),
            predicted_gain_ratio=0.1,
            fused_ns=1,
            context=("loop",),
            steps=(2, 2),
        )
    ],
    not_evaluated={"gc": "no samples"},
    omitted={"findings": 4},
    step_ns=[300_000_000, 200_000_000],
    kept=[RetainedAllocation(function="train.py(88): keep", bytes=15 << 20, count=3)],
    host=messages.HostSpan(
        span_ns=5,
        on_cpu_ns=3,
        run_queue_wait_ns=1,
        throttled_ns=0,
        cores=2,
        others_cores=0.5,
        busiest=[("tar", 0.5)],
    ),
)
RANK_MEMORY = RankMemory(
    rank=1,
    step=90,
    host_bytes=5 << 30,
    workers_bytes=1 << 30,
    available_bytes=40 << 30,
    limit_bytes=64 << 30,
    device_bytes=60 << 30,
    device_limit_bytes=80 << 30,
    trends=[(HOST, 1, 40, 90, 5e6, True)],
)
ALIVE = messages.NodeAlive(
    node=NODE,
    alive=True,
    unix_ns=UNIX_NS,
    stream_id=77,
    address="node-1:9855",
    scheme="https",
    runs=[messages.RunHeartbeat(run=RUN, revision=3, alive_unix_ns=[UNIX_NS, UNIX_NS], memory=[RANK_MEMORY])],
)
ACKNOWLEDGEMENT = messages.Acknowledgement(
    node=NODE, coordinator=COORDINATOR, incarnation=UNIX_NS, stream_id=77, received=40, committed=38, resend=True
)
COORDINATOR_ALIVE = messages.CoordinatorAlive(
    coordinator=COORDINATOR, alive=True, incarnation=UNIX_NS, unix_ns=UNIX_NS, term=3
)

MESSAGES: list[tuple[str, Message]] = [
    (topics.run_topic(RUN, topics.STEPS, NODE), step_batch(0, 2)),
    (topics.run_topic(RUN, topics.ANNOUNCE, NODE), SILENT),
    (topics.run_topic(RUN, topics.REQUEST, NODE), REQUEST),
    (topics.run_topic(RUN, topics.ANSWER, NODE), ANSWER),
    (topics.run_topic(RUN, topics.SUMMARY, NODE), SUMMARY),
    (topics.run_topic(RUN, topics.STACK_REQUEST, NODE), STACK_REQUEST),
    (topics.run_topic(RUN, topics.STACKS, NODE), STACKS),
    (topics.alive_topic(NODE), ALIVE),
    (topics.node_topic(NODE, topics.ACK), ACKNOWLEDGEMENT),
    (topics.coordinator_topic(COORDINATOR), COORDINATOR_ALIVE),
]
"""One of every form, with its topic."""

ANSWER_JSON = result_to_json(
    CaptureResult(
        request_id=5,
        state="done",
        reason="ended after 2 steps",
        first_step=70,
        steps=2,
        start_ns=10**12,
        end_ns=10**12 + 10**9,
        trace_bytes=1 << 20,
        cost_ns=10**8,
    )
)
ORDER_JSON = request_to_json(
    CaptureRequest(
        request_id=5,
        ranks=[0, 1],
        first_step=70,
        steps=3,
        stacks=True,
        shapes=False,
        memory=False,
        trace_max_bytes=1 << 20,
        device=False,
    )
)
FACTS_JSON = facts_to_json(FACTS)
GROUPS_JSON = [
    {"kind": "dp", "name": "dp0", "ranks": [[0, 2, 1]], "slot": 0},
    {"kind": "pp", "name": "pp0", "ranks": [[0, 2, 1]], "slot": 1, "sends": [[1, 3]], "receives": [[1, 4]]},
]
"""What ranks and exporters store in shared memory."""
