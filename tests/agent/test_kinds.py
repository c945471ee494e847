"""What the descriptions of process groups mean."""

import pytest

from lockstep.agent.kinds import announced_name, kind_index
from lockstep.contracts.paths import is_name
from lockstep.contracts.records import DOMAIN_KINDS


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("default_pg", "world"),
        ("undefined", "world"),
        ("mesh_default", "world"),
        ("mesh_tp", "tp"),
        ("mesh_dp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("mesh_dp_shard_cp", "cp"),
        ("mesh_pp", "pp"),
        ("mesh_ep", "ep"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EMBEDDING_GROUP", "pp"),
        ("fsdp", "dp"),
        ("stepwise", "world"),
    ],
)
def test_kind_of_a_description(description, kind):
    """Known names, mesh dimensions and whole words decide; parts of words do not."""
    assert DOMAIN_KINDS[kind_index(description, 8, 8)] == kind


def test_unnamed_part_of_the_job_is_data_parallel():
    """A group without a telling name that is not everyone is taken for replicas."""
    assert DOMAIN_KINDS[kind_index("undefined", 4, 8)] == "dp"


@pytest.mark.parametrize(
    ("description", "name", "announced"),
    [
        ("undefined", "3", "3"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "5", "TENSOR_MODEL_PARALLEL_GROUP-5"),
        ("a b/../c", "1", "a_b_.._c-1"),
        ("mesh_tp", "x" * 300, ("mesh_tp-" + "x" * 300)[:128]),
        ("", "__", "group"),
    ],
)
def test_announced_names_are_names(description, name, announced):
    """Whatever a framework calls its groups, what is announced may stand in a path and a label."""
    assert announced_name(description, name) == announced
    assert is_name(announced)
