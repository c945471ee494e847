"""What groups are for: by description, by degrees, by a group of the same ranks; else nothing, and why."""

from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.group_kinds import GroupKind, ParallelDegrees, group_kinds
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.summary import summary_of
from lockstep.contracts.domains import from_degrees
from tests.analysis.job import RANKS, rank_columns


@pytest.fixture(scope="module")
def analysis():
    return analyse_rank(rank_columns(0), rank=0)


def with_metadata(analysis, *, groups=None, descriptions=None, world_size=8):
    metadata = replace(
        analysis.metadata, groups=groups or {}, group_descriptions=descriptions or {}, world_size=world_size
    )
    return [replace(analysis, metadata=metadata)]


PAIR, EVERYBODY = (0, 1), tuple(range(8))


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("mesh_dp", "dp"),
        ("mesh_pp", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("dp_cp", "dp"),
        ("default_pg", None),
        ("undefined", None),
        ("", None),
    ],
)
def test_what_the_framework_calls_it(analysis, description, kind):
    """Megatron's names, DeviceMesh's, MindSpeed's; torch's own name nothing."""
    found = group_kinds(with_metadata(analysis, descriptions={"7": description}), [("7", PAIR)])[("7", PAIR)]
    assert found.kind == kind
    assert (description in found.source) if kind else ("do not record" in found.source)


def test_a_model_parallel_group_without_tensor_parallelism(analysis):
    """Megatron's tensor x pipeline group is the pipeline's where the tensor-parallel size is 1."""
    names = {"1": "TENSOR_MODEL_PARALLEL_GROUP", "2": "PIPELINE_MODEL_PARALLEL_GROUP", "3": "MODEL_PARALLEL_GROUP"}
    ranks = with_metadata(analysis, groups={"1": (0,), "2": PAIR, "3": PAIR}, descriptions=names)
    assert group_kinds(ranks, [("3", PAIR)])["3", PAIR].kind == "pp"


def test_degrees_give_the_rest(analysis):
    """Every domain of a grid of 16 ranks is found by its ranks."""
    degrees = ParallelDegrees(by_kind={"tp": 2, "dp": 4, "pp": 2})
    ranks = with_metadata(analysis, world_size=16)
    for domain in from_degrees(degrees.by_kind, 16).domains:
        assert group_kinds(ranks, [("x", domain.ranks)], degrees)["x", domain.ranks].kind == domain.kind
    assert group_kinds(ranks, [("x", (0, 3))], degrees)["x", (0, 3)].kind is None


def test_the_order_of_degrees_counts(analysis):
    """Neighbours are tensor parallel in Megatron's order, data parallel in another."""
    ranks = with_metadata(analysis)
    for order, kind in (("tp-cp-ep-dp-pp", "tp"), ("dp-ep-cp-tp-pp", "dp")):
        degrees = ParallelDegrees(by_kind={"tp": 2, "dp": 4}, order=order)
        neighbours = (0, 1) if kind == "tp" else (0, 1, 2, 3)
        assert group_kinds(ranks, [("x", neighbours)], degrees)["x", neighbours].kind == kind


def test_degrees_of_another_job_are_reported(analysis):
    """They are no source, and a description still wins."""
    degrees = ParallelDegrees(by_kind={"tp": 2, "dp": 8})
    found = group_kinds(with_metadata(analysis), [("x", PAIR)], degrees)["x", PAIR]
    assert found == GroupKind(None, "the degrees tp=2,dp=8 make 16 ranks, the job has 8")
    described = with_metadata(analysis, descriptions={"x": "mesh_cp"})
    assert group_kinds(described, [("x", PAIR)], degrees)["x", PAIR].kind == "cp"


def test_a_group_made_twice_has_one_kind(analysis):
    """The second, for overlap or another backend, has no description."""
    ranks = with_metadata(analysis, groups={"3": (1, 0), "4": PAIR}, descriptions={"3": "mesh_tp"})
    assert group_kinds(ranks, [("4", PAIR)])["4", PAIR].kind == "tp"


def test_everybody(analysis):
    """The only group of a job is data parallel; among others the group of everybody is the world."""
    alone = with_metadata(analysis, groups={"0": EVERYBODY})
    assert group_kinds(alone, [("0", EVERYBODY)])["0", EVERYBODY].kind == "dp"
    with_others = with_metadata(analysis, groups={"0": EVERYBODY, "1": PAIR})
    found = group_kinds(with_others, [("0", EVERYBODY), ("1", PAIR)])
    assert (found["0", EVERYBODY].kind, found["1", PAIR].kind) == ("world", None)


def test_a_group_without_ranks_has_none(analysis):
    """Nothing is guessed from a name."""
    assert group_kinds(with_metadata(analysis), [("7", ())])["7", ()] == GroupKind(
        None, "the traces do not list its ranks"
    )


def test_the_summary_has_it():
    """`groups[].kind` of a job of four, whose group shows nothing, and what its collectives may show."""
    found = [analyse_rank(rank_columns(rank), rank=rank) for rank in RANKS]
    (group,) = summary_of(analyse_cluster(found), {}, [])["groups"]
    assert (group["kind"], group["kind_source"]) == ("dp", "the only group, and every rank is in it")
    columns = [rank_columns(rank) for rank in RANKS]
    traces = [
        replace(each, collectives={at: replace(one, description="mesh_tp") for at, one in each.collectives.items()})
        for each in columns
    ]
    found = [analyse_rank(each, rank=rank) for rank, each in enumerate(traces)]
    (group,) = summary_of(analyse_cluster(found), {}, [])["groups"]
    assert group["kind"] == "tp"
    tensor = ParallelDegrees(by_kind={"tp": 4})
    found = [analyse_rank(each, rank=rank) for rank, each in enumerate(columns)]
    assert summary_of(analyse_cluster(found, degrees=tensor), {}, [])["groups"][0]["kind"] == "tp"
