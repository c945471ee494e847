"""Communication of real recordings next to the checkout."""

from dataclasses import replace

import pytest

from lockstep.diagnosis.communication_causes.collectives import collectives_of
from lockstep.diagnosis.communication_causes.contention import computing
from lockstep.diagnosis.communication_causes.links import evaluate_links, link_transfers_of
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.messages import find_small_messages, misaligned
from lockstep.diagnosis.communication_causes.vendor_collectives import collectives_of_communication
from lockstep.diagnosis.communication_causes.waiting import group_waiting
from lockstep.trace.ascend.communication import load_communication
from lockstep.trace.kineto.load import load_trace
from tests.diagnosis.communication_causes.made import evaluated
from tests.trace.traces import SHARED

pytestmark = pytest.mark.shared

MS = 1_000_000
ASCEND = SHARED.parent / "ascend" / "msinsight"


def traces(folder):
    found = {rank: load_trace(SHARED / "torch_cpu" / folder / f"rank{rank}.json.gz") for rank in range(4)}
    return found, max(int(each.end_ns.max() - each.start_ns.min()) for each in found.values())


@pytest.mark.parametrize("shared", [True, False])
def test_the_slow_rank_has_the_shortest_collectives(shared):
    """Rank 2 sleeps 30 ms in each of two forwards: it is named with and without a common clock, at 55 to 65 ms."""
    found, window_ns = traces("slow_forward_rank2_with_stack")
    table = match_collectives([collectives_of(each) for each in found.values()])
    assert len(table) == 10
    table = replace(table, clock_is_shared=shared)
    (waiting,) = group_waiting(table)
    assert waiting.duration_ns.argmin() == 2
    (finding,) = evaluated(table, window_ns)
    assert finding.ranks == (2,)
    assert 50 * MS < finding.lost_ns < 70 * MS


def test_the_healthy_recording_has_no_finding():
    """The same job on two busy cores: R_wait is high, and no one is to blame; its buckets are few a step."""
    found, window_ns = traces("healthy")
    parts = {rank: collectives_of(columns, rank=rank) for rank, columns in found.items()}
    table = match_collectives(list(parts.values()))
    assert len(table) == 25
    assert evaluated(table, window_ns, {rank: computing(columns) for rank, columns in found.items()}) == []
    assert [find_small_messages(part, window_ns, steps=5) for part in parts.values()] == [[]] * len(parts)


def test_the_nccl_recording_has_sizes_that_do_not_align():
    """The all-reduces of 9.72 and 8.20 MB fail 512 bytes, the larger ones pass."""
    found = collectives_of(load_trace(SHARED / "hta" / "nccl_data.json.gz"))
    at = misaligned(found)
    large = {int(found.bytes[place]) for place in at if found.kinds[place] == "all_reduce"}
    assert large == {9_724_160, 8_196_000}
    assert {31_502_336, 26_550_272} <= set(found.bytes.tolist())


def test_generic_kernels_of_rocm_are_named_by_their_operators():
    """Of 17 collectives the 12 that were launched inside the window have a kind; the other 5 stay unnamed."""
    found = collectives_of(load_trace(SHARED / "tracelens" / "mi300_resnet_act_checkpoint.json.gz"))
    assert len(found) == 17
    assert (found.kinds.count("all_reduce"), found.kinds.count("broadcast"), found.kinds.count("other")) == (6, 6, 5)
    assert set(found.groups) == {("0", tuple(range(8)))}


def test_two_ranks_of_a_pipeline_on_ascend():
    """24 collectives match by group and number, links reach 18 GB/s, and no one is waited for."""
    parts, rates = [], []
    for rank in (0, 1):
        path = ASCEND / f"test_rank_{rank}" / "ASCEND_PROFILER_OUTPUT" / "communication.json"
        communication = load_communication(path)
        parts.append(collectives_of_communication(communication, rank))
        moved = link_transfers_of(communication, rank)
        rates.append(moved.gigabytes_per_second(moved.of("HCCS")))
        assert evaluate_links(moved, 200 * MS) == []
    table = match_collectives(parts)
    assert len(table) == 24
    assert rates == pytest.approx([18.83, 18.76], abs=0.01)
    assert evaluated(table, 200 * MS) == []
