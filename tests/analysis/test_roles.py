"""Pipeline stages, and that ranks of different stages are no peers."""

from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.group_kinds import ParallelDegrees
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.roles import pipeline_stages
from lockstep.trace.columns import TraceMetadata
from tests.analysis.job import MS, RANKS, rank_columns


class Traced:
    """A rank as its trace describes it."""

    def __init__(self, rank, **metadata):
        self.rank = rank
        self.metadata = TraceMetadata(rank=rank, world_size=4, **metadata)


def traced(**metadata):
    return [Traced(rank, **metadata) for rank in RANKS]


@pytest.mark.parametrize(
    ("degrees", "stages"),
    [
        ({"pp": 2, "dp": 2}, {0: 0, 1: 0, 2: 1, 3: 1}),
        ({"pp": 4}, {0: 0, 1: 1, 2: 2, 3: 3}),
        ({"dp": 4}, {}),
        ({"pp": 2}, {}),  # two ranks, the job has four
    ],
)
def test_stages_by_degrees(degrees, stages):
    """Where somebody gives the degrees and they make the job's size."""
    assert pipeline_stages(traced(), ParallelDegrees(by_kind=degrees)) == stages


def test_stages_by_described_groups():
    """A framework's pipeline groups in order of rank; where a rank is in none, nothing is known."""
    groups = {"a": (0, 2), "b": (1, 3)}
    descriptions = dict.fromkeys(groups, "PIPELINE_MODEL_PARALLEL_GROUP")
    assert pipeline_stages(traced(groups=groups, group_descriptions=descriptions)) == {0: 0, 2: 1, 1: 0, 3: 1}
    assert pipeline_stages(traced(groups={"a": (0, 2)}, group_descriptions=descriptions)) == {}
    assert pipeline_stages(traced(groups=groups)) == {}


def staged(rank):
    """Return a rank whose stage, the upper half, computes twice as long."""
    columns = rank_columns(rank)
    longer = columns.duration_ns + columns.named(lambda name: name == "gemm") * 18 * MS
    return replace(columns, duration_ns=longer) if rank > 1 else columns


def abnormal_ranks(found, function):
    return [
        each.ranks.tolist()
        for local in found.localisations.values()
        for each in local.abnormal
        if each.function.name == function
    ]


def test_a_stage_that_computes_more_is_no_slow_device():
    """Compared with all ranks its kernel is abnormal; with the degrees it is compared with its own stage alone."""
    ranks = [analyse_rank(staged(rank), rank=rank) for rank in RANKS]
    (without,) = abnormal_ranks(analyse_cluster(ranks), "gemm")
    assert sorted(without) == [2, 3]
    found = analyse_cluster(ranks, degrees=ParallelDegrees(by_kind={"pp": 2, "dp": 2}))
    assert abnormal_ranks(found, "gemm") == []
    assert "slow_device" not in {each.cause for each in found.findings}


def test_one_rank_alone_is_compared_with_nothing():
    """What takes long on one rank may be the training itself: no function of it is called slow."""
    found = analyse_cluster([analyse_rank(rank_columns(0, slept_ms={0: 40}), rank=0)])
    assert not {each.cause for each in found.findings} & {"slow_function", "slow_device", "slow_collective"}
    assert any("compared with nothing" in each.reason for each in found.not_evaluated)
