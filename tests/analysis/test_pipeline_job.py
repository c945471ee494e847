"""Two pipeline stages of two ranks each, over a backend that does not name the group of a collective."""

from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.rank import analyse_rank
from lockstep.trace.columns import ANNOTATION, OPERATOR, PYTHON, WorkKind
from tests.analysis.job import BASE_NS, MS, RANKS, metadata
from tests.trace.made import columns_of, made

STEPS, STEP_MS = 4, 400
STAGE_OF = {0: 0, 1: 0, 2: 1, 3: 1}
READY_MS = {0: 200, 1: 150}
"""When the backward of each stage is through: the last stage begins it, and the first waits for what it sends."""
LOSS, FORWARD = "train.py(30): loss", "train.py(20): forward"


def described(rank):
    """Return a trace's metadata: it lists several groups, so an event without a name may be of any."""
    stage = STAGE_OF[rank]
    groups = {"0": RANKS, "1": (rank % 2, rank % 2 + 2), "3": (2 * stage, 2 * stage + 1)}
    return replace(
        metadata(rank), backend="gloo", groups=groups, group_descriptions={"1": "mesh_pp", "3": "mesh_dp"}, vendor="cpu"
    )


def columns(rank, culprit, fault_ms):
    """Return the trace of a rank; the culprit's loss takes longer, and what waits for its stage comes later."""
    stage, events = STAGE_OF[rank], []
    delayed_ms = {each: fault_ms if culprit is not None and STAGE_OF[culprit] >= each else 0 for each in (0, 1)}
    for step in range(STEPS):
        begin_ns = BASE_NS + step * (STEP_MS + fault_ms) * MS
        loss_ms = 20 + (fault_ms if rank == culprit else 0)
        end_ns = begin_ns + (READY_MS[stage] + delayed_ms[stage] + 2) * MS
        waits = stage == 0 and culprit is not None and STAGE_OF[culprit] == 1
        arrived_ns = begin_ns + (READY_MS[stage] + (fault_ms if rank == culprit or waits else 0) + rank % 2) * MS
        events += [
            made(f"ProfilerStep#{step}", ANNOTATION, 1, begin_ns, (STEP_MS + fault_ms) * MS),
            made(FORWARD, PYTHON, 1, begin_ns, 40 * MS),
            *received(begin_ns + 40 * MS, arrived_ns - loss_ms * MS),
            made(LOSS, PYTHON, 1, arrived_ns - loss_ms * MS, loss_ms * MS),
            made("c10d::allreduce_", OPERATOR, 1, arrived_ns, 1000),
            made("<built-in method wait of Work>", PYTHON, 1, arrived_ns + 1000, end_ns - arrived_ns - 2000),
            made(
                "gloo:all_reduce", ANNOTATION, 9, arrived_ns + 500, end_ns - arrived_ns - 600,
                work=WorkKind.COMMUNICATION,
            ),
        ]  # fmt: skip
        if stage == 1:  # has to wait for the first stage before the next step
            events += received(end_ns + MS, begin_ns + (READY_MS[0] + delayed_ms[0] + 2) * MS)
    return columns_of(events, metadata=described(rank))


def received(begin_ns, end_ns):
    """Return the events of a wait for what the other stage sends."""
    return [
        made("c10d::recv_", OPERATOR, 1, begin_ns, 1000),
        made("<built-in method wait of Work>", PYTHON, 1, begin_ns + 1000, end_ns - begin_ns - 2000),
        made("gloo:recv", ANNOTATION, 8, begin_ns + 500, end_ns - begin_ns - 600, work=WorkKind.COMMUNICATION),
    ]


def analysed(culprit=None, fault_ms=0):
    return analyse_cluster([analyse_rank(columns(rank, culprit, fault_ms), rank=rank) for rank in RANKS])


@pytest.mark.parametrize("culprit", RANKS)
def test_a_slow_rank_of_a_stage_is_named(culprit):
    """Its data-parallel peer waits for it in every step, though the other stage is always earlier or later."""
    found = [each for each in analysed(culprit, 60).findings if len(each.ranks) < len(RANKS)]
    assert [(each.cause, each.ranks, each.subject) for each in found] == [("slow_function", (culprit,), LOSS)]


def test_stages_do_not_wait_for_each_other_in_collectives():
    """The first stage ends its backward 50 ms later by design: none is named, and groups are those of stages."""
    analysis = analysed()
    assert [each for each in analysis.findings if len(each.ranks) < len(RANKS)] == []
    assert sorted(each.ranks for each in analysis.groups) == [(0, 1), (2, 3)]
