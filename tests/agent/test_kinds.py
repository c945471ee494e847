"""What the descriptions of process groups mean, and what the ranks of those that have none show."""

from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lockstep.agent.kinds import (
    DEGREES_VARIABLE,
    ORDER_VARIABLE,
    announced_name,
    configured_domains,
    group_kind,
    unnamed_kind,
)
from lockstep.contracts.domains import Domain
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.kinds import PRECEDENCE, covered_kind, described_kinds, first_kind, spanned_kind
from lockstep.contracts.paths import is_name

# Megatron-LM's descriptions (megatron/core/parallel_state.py): the axes that each group spans, in the dense grid of
# tp, cp, dp, pp or in the experts' grid of tp, ep, edp, pp; and the kind it is.
DENSE = {
    "TENSOR_MODEL_PARALLEL_GROUP": ("tp", "tp"),
    "CONTEXT_PARALLEL_GROUP": ("cp", "cp"),
    "DATA_PARALLEL_GROUP": ("dp", "dp"),
    "DATA_PARALLEL_GROUP_WITH_CP": ("dp cp", "dp"),
    "DATA_PARALLEL_GROUP_WITH_CP_AG": ("dp cp", "dp"),
    "PIPELINE_MODEL_PARALLEL_GROUP": ("pp", "pp"),
    "MODEL_PARALLEL_GROUP": ("tp pp", "tp"),
    "TENSOR_AND_DATA_PARALLEL_GROUP": ("tp dp", "dp"),
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": ("tp dp cp", "dp"),
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": ("tp cp", "tp"),
}
EXPERT = {
    "EXPERT_MODEL_PARALLEL_GROUP": ("ep", "ep"),
    "EXPERT_TENSOR_PARALLEL_GROUP": ("tp", "tp"),
    "EXPERT_DATA_PARALLEL_GROUP": ("edp", "dp"),
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": ("tp ep", "ep"),
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": ("tp ep pp", "ep"),
}


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        *((name, kind) for name, (_, kind) in {**DENSE, **EXPERT}.items()),
        ("DATA_PARALLEL_GROUP_GLOO", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("HYBRID_DP_CP_GROUP", "cp"),
        ("HYBRID_DP_CP_GROUP_4", "cp"),
        ("EMBEDDING_GROUP", "pp"),
        ("POSITION_EMBEDDING_GROUP", "pp"),
        ("mesh_tp", "tp"),
        ("mesh_etp", "tp"),
        ("mesh_cp", "cp"),
        ("mesh_sp", "cp"),
        ("mesh_pp", "pp"),
        ("mesh_ep", "ep"),
        ("mesh_dp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("mesh_dp_shard", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_dp_cp", "dp"),
        ("mesh_dp_shard_mod_ep", "dp"),
        ("mesh_dp_shard_in_ep", "dp"),
        ("mesh_fsdp", "dp"),
        ("mesh_efsdp", "dp"),
        ("mesh_batch", "dp"),
        ("mesh_loss", "dp"),
        ("mesh_data_parallel", "dp"),
        ("mesh_sequence_parallel", "cp"),
        ("mesh_tensor_parallel", "tp"),
        ("mesh_data", "dp"),
        ("mesh_model", "tp"),
        ("fsdp_reduce_scatter", "dp"),
        ("mesh_tp:split:0", "tp"),
    ],
)
def test_kind_of_a_description(description, kind):
    """Megatron's names, mesh dimensions, flattened ones too, and whole words decide."""
    assert first_kind(described_kinds(description)) == kind


@pytest.mark.parametrize(
    "description",
    [
        "",
        "undefined",
        "default_pg",
        "mesh_default",
        "mesh_dim_0",
        "default_pg:split:3",
        "0:shrunk",
        "stepwise",
        "world",
    ],
)
def test_description_without_information(description):
    """What torch itself writes, and words that only contain a known one, decide nothing."""
    assert described_kinds(description) == ()


def part(rank, sizes, order, axes):
    """Return the ranks that differ from `rank` in `axes` only; in `order` the fastest varying axis comes first."""
    strides = {axis: prod(sizes[before] for before in order[: order.index(axis)]) for axis in order}
    ranks = [rank - sum(rank // strides[axis] % sizes[axis] * strides[axis] for axis in axes)]
    for axis in axes:
        ranks = [base + index * strides[axis] for base in ranks for index in range(sizes[axis])]
    return tuple(sorted(ranks))


@st.composite
def layouts(draw):
    """Draw a rank of a Megatron job: its groups of more than one rank, {description: (ranks, kind)}, and degrees."""
    size = st.sampled_from((1, 2, 3, 4))
    tp, cp, dp, pp = (draw(size) for _ in range(4))
    order = draw(st.sampled_from((("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))))
    # With another axis than pp last, Megatron refuses experts whose data-parallel size is not that of the rest.
    experts = cp if order[-1] == "dp" else draw(st.sampled_from([n for n in (1, 2, 3, 4) if dp * cp % n == 0]))
    world_size = tp * cp * dp * pp
    rank = draw(st.integers(0, world_size - 1))
    dense = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    sparse = {"tp": tp, "ep": experts, "edp": dp * cp // experts, "pp": pp}
    sparse_order = tuple(part for axis in order for part in {"cp": ("ep",), "dp": ("edp",)}.get(axis, (axis,)))
    groups = {}
    for names, sizes, axes_order in ((DENSE, dense, order), (EXPERT, sparse, sparse_order)):
        for name, (axes, kind) in names.items():
            ranks = part(rank, sizes, axes_order, axes.split())
            if len(ranks) > 1:
                groups[name] = (ranks, kind)
    return rank, world_size, groups, {**dense, "ep": experts}, order


@settings(deadline=None)  # the machine may be busy
@given(layouts(), st.data())
def test_unnamed_group_next_to_named_ones(layout, data):
    """Where some groups are named and others not, an unnamed one gets a kind that groups of its ranks have, or dp."""
    _, world_size, groups, _, _ = layout
    named = data.draw(st.sets(st.sampled_from(sorted(groups)))) if groups else set()
    domains = [Domain(groups[name][1], name, groups[name][0]) for name in named]
    for name in groups.keys() - named:
        ranks = groups[name][0]
        kind_found = unnamed_kind(ranks, world_size, [], domains)
        if len(ranks) == world_size:
            assert kind_found == "world"
        else:
            assert kind_found in {"dp"} | {other for members, other in groups.values() if members == ranks}


@settings(deadline=None)
@given(layouts())
def test_unnamed_group_of_a_configured_job(layout):
    """With the degrees configured, the groups of single axes get their kinds and the others theirs or dp."""
    rank, world_size, groups, degrees, order = layout
    assume(degrees["dp"] % degrees["ep"] == 0)
    assume(degrees["cp"] == 1 or degrees["ep"] == 1)  # where both are, the configured grid lays experts out otherwise
    environ = {
        DEGREES_VARIABLE: ",".join(f"{kind}={degree}" for kind, degree in degrees.items()),
        ORDER_VARIABLE: "-".join(order).replace("dp", "ep-dp"),
    }
    configured = configured_domains(environ, rank, world_size)
    for name, (ranks, kind) in groups.items():
        kind_found = unnamed_kind(ranks, world_size, configured, [])
        if name in DENSE and DENSE[name][0] in degrees:
            assert kind_found == kind
        else:
            assert kind_found in {"dp", "world"} | {other for members, other in groups.values() if members == ranks}


@settings(deadline=None)
@given(layouts())
def test_an_axis_of_one_rank_is_not_spanned(layout):
    """Of the kinds that a name holds, the first whose axis is longer than 1 counts; dp moves gradients and stays."""
    _, world_size, groups, degrees, _ = layout
    sizes = {**degrees, "edp": 2}
    described = [(described_kinds(name), name, ranks) for name, (ranks, _) in groups.items()]
    for name, (ranks, kind) in groups.items():
        axes = {**DENSE, **EXPERT}[name][0].split()
        long = [each for each in PRECEDENCE if each in axes and sizes[each] > 1]
        expected = kind if kind == "dp" else first_kind(long)
        assert group_kind(described_kinds(name), ranks, world_size, [], described) == expected


def test_a_name_of_several_kinds_alone():
    """Where no group of one kind is described, or those that are do not make up the group, the name decides."""
    kinds = described_kinds("MODEL_PARALLEL_GROUP")
    assert kinds == ("tp", "pp")
    assert spanned_kind(kinds, (0, 1, 2, 3), []) == "tp"
    assert spanned_kind(kinds, (0, 1, 2, 3), [Domain("pp", "a", (0, 2))]) == "tp"
    assert spanned_kind(kinds, (0, 1, 2, 3), [Domain("pp", "a", (0, 1, 2, 3))]) == "pp"
    assert spanned_kind((), (0, 1), [Domain("pp", "a", (0, 1))]) is None


def test_a_copy_of_a_model_parallel_group():
    """An undescribed group of the same ranks is of the kind that the described one has, not of its name's first."""
    described = [(("tp",), "t", (0,)), (("pp",), "p", (0, 1)), (("tp", "pp"), "m", (0, 1))]
    assert group_kind((), (0, 1), 4, [], described) == "pp"


def test_shape_gives_no_kind():
    """Jobs whose groups have the same ranks and other kinds: without names all are dp, and none is taken for another."""
    order = ("tp", "cp", "dp", "pp")
    jobs = [{"tp": 2, "dp": 4}, {"cp": 2, "dp": 4}, {"tp": 2, "pp": 4}, {"cp": 2, "pp": 4}, {"dp": 2, "pp": 4}]
    for job in jobs:
        sizes = {**dict.fromkeys(order, 1), **job}
        shapes = [part(0, sizes, order, [axis]) for axis in job]
        assert shapes == [(0, 1), (0, 2, 4, 6)]
    assert [unnamed_kind(ranks, 8, [], []) for ranks in shapes] == ["dp", "dp"]


def test_everybody_is_world_unless_one_kind_is_configured():
    """A group of all ranks is world; where the job is configured to be one domain, that is what it is."""
    everybody = tuple(range(8))
    named = [Domain("tp", "a", everybody)]
    assert unnamed_kind(everybody, 8, [], named) == "world"
    assert unnamed_kind(everybody, 8, configured_domains({DEGREES_VARIABLE: "tp=8"}, 3, 8), []) == "tp"
    assert unnamed_kind(everybody, 8, configured_domains({DEGREES_VARIABLE: "tp=2,dp=4"}, 3, 8), []) == "world"


def test_copy_of_a_named_group_is_of_its_kind():
    """A second group of the same ranks, made for overlap or another backend; one of other ranks is dp."""
    named = [Domain("tp", "a", (0, 1)), Domain("pp", "b", (0, 4)), Domain("ep", "c", (0, 1))]
    assert [unnamed_kind(ranks, 8, [], named) for ranks in ((0, 4), (0, 1), (0, 1, 4, 5))] == ["pp", "ep", "dp"]


def test_product_of_configured_domains():
    """A group over several axes is of the kind that goes first; one that is no part of the grid is nothing."""
    domains = [Domain("tp", "a", (0, 1)), Domain("pp", "b", (0, 4))]
    assert covered_kind((0, 1, 4, 5), domains) == "tp"
    assert covered_kind((0, 1, 2, 3), domains) is None
    assert covered_kind((0, 3), domains) is None


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({DEGREES_VARIABLE: "tp=3"}, "expected tp\\*cp\\*dp\\*pp = world size 8"),
        ({DEGREES_VARIABLE: "tp=2,xp=4"}, "got 'xp=4'"),
        ({DEGREES_VARIABLE: "tp=8", ORDER_VARIABLE: "tp-dp"}, "order: got 'tp-dp'"),
    ],
)
def test_degrees_that_do_not_fit_are_named(environ, text):
    """The message names the variables and what is wrong."""
    with pytest.raises(ConfigError, match=f"LOCKSTEP_DEGREES=.*{text}"):
        configured_domains(environ, 0, 8)


def test_no_degrees_no_domains():
    """Nothing configured is no error."""
    assert configured_domains({}, 0, 8) == configured_domains({DEGREES_VARIABLE: ""}, 0, 8) == []


@pytest.mark.parametrize(
    ("description", "name", "announced"),
    [
        ("undefined", "3", "3"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "5", "TENSOR_MODEL_PARALLEL_GROUP-5"),
        ("a b/../c", "1", "a-b-..-c-1"),
        ("mesh_tp", "x" * 300, ("mesh_tp-" + "x" * 300)[:128]),
        ("", "__", "group"),
    ],
)
def test_announced_names_are_names(description, name, announced):
    """Whatever a framework calls its groups, what is announced may stand in a path and a label."""
    assert announced_name(description, name) == announced
    assert is_name(announced)
