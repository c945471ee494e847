"""All communication rules over traces."""

from lockstep.diagnosis.communication_causes.judge import judge_communication
from lockstep.trace.columns import KERNEL, CollectiveArguments, TraceAbout, WorkKind
from tests.diagnosis.communication_causes.made import MS
from tests.trace.made import columns_of, made


def trace(rank, late_ms):
    """Return a rank with one all-reduce in each of five steps, at which it arrives late."""
    events = []
    for step in range(5):
        start, end = step * 100 * MS + (50 + late_ms) * MS, step * 100 * MS + 95 * MS
        arguments = CollectiveArguments(
            name="allreduce",
            group="0",
            ranks=(0, 1),
            group_size=2,
            in_elements=MS,
            out_elements=MS,
            dtype="Float",
            sequence=step,
        )
        events += [
            made("gemm", KERNEL, (0, 7), step * 100 * MS, start - step * 100 * MS, stream=7),
            made("ncclAllReduce", KERNEL, (0, 8), start, end - start, WorkKind.COMMUNICATION, 8, collective=arguments),
        ]
    return columns_of(events, about=TraceAbout(vendor="nvidia", rank=rank, host="n", clock_is_shared=True))


def test_the_late_rank_is_found_and_refusals_give_the_reason():
    """Rank 1 is 30 ms late: one finding. Rules without evidence refuse, each once."""
    causes = judge_communication({0: trace(0, 0), 1: trace(1, 30)}, 500 * MS, steps=5)
    assert [(each.cause, each.ranks, each.lost_ns) for each in causes.findings] == [
        ("waiting_for_straggler", (1,), 150 * MS)
    ]
    assert {each.rule for each in causes.not_judged} == {
        "waiting for transmission",
        "bandwidth of collectives",
        "communication_contention",
        "network_configuration",
        "unaligned",
    }
    assert len(causes.table) == 5


def test_a_healthy_pair_has_no_finding():
    """Equal ranks: nothing."""
    assert judge_communication({0: trace(0, 0), 1: trace(1, 0)}, 500 * MS, steps=5).findings == ()
