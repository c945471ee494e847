"""Trainings in the manner of Megatron-LM, DeepSpeed and torchtitan, over real ranks: steps, kinds, who waits for whom."""

import statistics

import pytest

from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.agent.megatron.jobs import run_job
from tests.agent.rings import wait_ns

pytestmark = pytest.mark.torch

STEPS = 20
LEARNING = 12
"""Steps until iterations of two optimizer steps are learnt, and a margin."""
LATE_NS = 120_000_000  # several steps of a healthy rank: two jobs may share two cores
FLOAT_BYTES = 4


def run(script, world_size, slow, tmp_path_factory):
    root = tmp_path_factory.mktemp(script.removesuffix(".py"))
    return run_job(script, world_size, root, STEPS=str(STEPS), SLOW=str(slow))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """Two stages of two tensor-parallel ranks; rank 2, of the last stage, is late in each micro-batch."""
    return run("pipeline.py", 4, 2, tmp_path_factory)


@pytest.fixture(scope="module")
def distributed_optimizer(tmp_path_factory):
    return run("distributed_optimizer.py", 2, 1, tmp_path_factory)


@pytest.fixture(scope="module")
def zero(tmp_path_factory):
    return run("zero.py", 2, 1, tmp_path_factory)


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    return run("container.py", 2, 1, tmp_path_factory)


def steady(ring):
    return ring.records[LEARNING:]


def median(ring, name):
    return statistics.median(record[name] for record in steady(ring))


def median_wait(ring):
    return statistics.median(wait_ns(record) for record in steady(ring))


def used_kinds(ring):
    return [kind for kind in DOMAIN_KINDS if ring.records[-1][f"{kind}_count"] != MISSING]


def check_steps(rings):
    """Check that all ranks have one record for each iteration, and like any other once iterations are learnt."""
    for ring in rings:
        assert [record["step"] for record in ring.records] == list(range(STEPS))
        assert {record["flags"] for record in steady(ring)} == {0}
        assert all(record["backward_ns"] > 0 for record in ring.records)


def test_pipeline_steps_with_a_chained_optimizer(pipeline):
    """An iteration of three micro-batches and two chained optimizers is one step on all four ranks."""
    check_steps(pipeline)
    assert all(ring.records[0]["flags"] & Flag.WARM_UP for ring in pipeline)


def test_pipeline_kinds(pipeline):
    """Megatron's descriptions give the kinds, on the ranks of each group."""
    announced = [sorted((group["kind"], str(group["ranks"])) for group in ring.groups) for ring in pipeline]
    tensor = ["[[0, 2, 1]]", "[[0, 2, 1]]", "[[2, 4, 1]]", "[[2, 4, 1]]"]
    stages = ["[[0, 3, 2]]", "[[1, 4, 2]]", "[[0, 3, 2]]", "[[1, 4, 2]]"]
    for rank in range(4):
        expected = [("pp", stages[rank]), ("pp", stages[rank]), ("tp", "[[0, 4, 1]]"), ("tp", tensor[rank])]
        assert announced[rank] == sorted(expected)
        assert used_kinds(pipeline[rank]) == ["tp", "pp"]


def test_pipeline_data_is_on_the_first_tensor_rank(pipeline):
    """Ranks 0 and 2 load three batches of four a step; to ranks 1 and 3 they are broadcast, and no data is seen."""
    samples = [[record["samples"] for record in steady(ring)] for ring in pipeline]
    assert samples == [[12] * (STEPS - LEARNING), [MISSING] * (STEPS - LEARNING)] * 2
    assert [median(ring, "data_ns") > 0 for ring in pipeline] == [True, False, True, False]


def test_pipeline_traffic(pipeline):
    """A step's sends, receives and embedding all-reduce, and its tensor-parallel collectives, are all counted."""
    micro_batch, embedding = 4 * 32 * FLOAT_BYTES, 32 * 16 * FLOAT_BYTES
    for ring, tensor_count in zip(pipeline, (7, 7, 10, 10), strict=True):
        for record in steady(ring):
            assert (record["pp_count"], record["pp_bytes"]) == (3 + 3 + 1, 6 * micro_batch + embedding)
            assert record["pp_bus_bytes"] == record["pp_bytes"]  # for two ranks an all-reduce moves its size once
            assert record["tp_count"] == tensor_count
            assert record["tp_bus_bytes"] == (tensor_count - 1) * micro_batch + FLOAT_BYTES * 6 // 4


def test_pipeline_waits_for_the_late_rank(pipeline):
    """Its tensor-parallel peer waits for it there, the stage before in the pipeline; the late rank computes."""
    late_ns = 3 * 60_000_000
    assert median(pipeline[3], "tp_wait_ns") > late_ns // 2
    assert min(median(pipeline[rank], "pp_wait_ns") for rank in (0, 1)) > late_ns // 2
    # Four ranks share two cores: what the late one waits is theirs to take, but it waits least.
    assert median_wait(pipeline[2]) < min(median_wait(pipeline[rank]) for rank in (0, 1, 3))
    assert median(pipeline[2], "compute_ns") > late_ns * 9 // 10
    assert max(median(pipeline[rank], "compute_ns") for rank in (0, 1, 3)) < late_ns // 2


def test_distributed_optimizer(distributed_optimizer):
    """Reduce-scatters overlapped with backward and gathers with the next forward: bytes exact, waits where they are."""
    check_steps(distributed_optimizer)
    punctual, late = distributed_optimizer
    assert [used_kinds(ring) for ring in distributed_optimizer] == [["dp"], ["dp"]]
    layer = (64 * 64 + 64) * FLOAT_BYTES
    for ring in distributed_optimizer:
        assert [group["kind"] for group in ring.groups] == ["dp", "dp"]
        for record in steady(ring):
            assert (record["dp_count"], record["dp_bytes"], record["dp_bus_bytes"]) == (4, 4 * layer, 4 * layer // 2)
            assert record["dp_comm_ns"] >= record["dp_wait_ns"]
    check_lateness(punctual, late)


def test_optimizer_stepped_for_each_group(zero):
    """Three calls of one optimizer's step are one training step, and a group no one described is the world it holds."""
    check_steps(zero)
    layer = 64 * 64 * FLOAT_BYTES
    for ring in zero:
        assert [(group["kind"], group["ranks"]) for group in ring.groups] == [("world", [[0, 2, 1]])]
        for record in steady(ring):
            assert (record["world_count"], record["world_bytes"]) == (6, 6 * layer)
            assert record["world_bus_bytes"] == 6 * layer // 2
    check_lateness(*zero)


def test_optimizers_in_an_optimizer(container):
    """Optimizers inside an optimizer are one step from the first one on."""
    check_steps(container)
    for ring in container:
        assert [record["flags"] for record in ring.records] == [Flag.WARM_UP] + [0] * (STEPS - 1)
    check_lateness(*container)


def check_lateness(punctual, late):
    """Check that the punctual rank waits for the late one, which computes meanwhile."""
    assert median_wait(punctual) > LATE_NS // 2
    assert median_wait(late) < median_wait(punctual) // 2
    assert median(late, "compute_ns") > LATE_NS * 9 // 10
    assert median(punctual, "compute_ns") < LATE_NS // 2
