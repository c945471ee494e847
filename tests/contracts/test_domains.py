"""Communication domains and peers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.domains import (
    DEFAULT_ORDER,
    Domain,
    domains_of_rank,
    from_degrees,
    from_groups,
    pack_ranks,
    parse_degrees,
    unpack_ranks,
)
from lockstep.contracts.errors import ConfigError, MalformedError
from tests.strategies import ascending_ranks


@given(ranks=ascending_ranks)
def test_range_form_round_trips(ranks):
    """Any ascending list of ranks survives the range form."""
    assert unpack_ranks(pack_ranks(ranks), where="t") == tuple(ranks)


def test_a_strided_group_is_one_range():
    """A data-parallel group of 10,240 ranks costs three integers."""
    assert pack_ranks(range(3, 10_240 * 8, 8)) == [[3, 10_239 * 8 + 4, 8]]


@pytest.mark.parametrize(
    "spans",
    [
        [[0]],
        [[0, 1, 0]],
        [[3, 2, 1]],
        [[-1, 2, 1]],
        [[0, 10**9, 1]],
        [[0, 4, 1], [2, 5, 1]],
        [["0", 1, 1]],
        [[0, 1, 1 << 53]],
    ],
)
def test_hostile_ranges_are_refused(spans):
    """Ranges are checked before they are expanded."""
    with pytest.raises(MalformedError, match="rank range"):
        unpack_ranks(spans, where="t")


def test_megatron_order():
    """TP neighbours are adjacent, stages are blocks, as Megatron-LM lays them out."""
    topology = from_degrees({"tp": 2, "dp": 2, "pp": 2}, 8)
    groups = {kind: [d.ranks for d in topology.domains if d.kind == kind] for kind in ("tp", "dp", "pp")}
    assert groups["tp"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups["dp"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert groups["pp"] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert topology.stages == (0, 0, 0, 0, 1, 1, 1, 1)
    assert topology.peers(5) == [4, 7, 6]


@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]),
)
def test_groups_of_a_kind_cover_every_rank_once(tp, cp, ep, dp, pp):
    """Every rank is in exactly one group of each kind of degree above one."""
    world = tp * cp * dp * ep * pp
    topology = from_degrees({"tp": tp, "cp": cp, "ep": ep, "dp": dp * ep, "pp": pp}, world)
    for kind, degree in (("tp", tp), ("cp", cp), ("ep", ep), ("dp", dp * ep), ("pp", pp)):
        members = sorted(rank for d in topology.domains if d.kind == kind for rank in d.ranks)
        assert members == (list(range(world)) if degree > 1 else [])


@given(
    st.permutations(DEFAULT_ORDER.split("-")),
    st.fixed_dictionaries({kind: st.sampled_from([1, 2, 3]) for kind in ("tp", "cp", "ep", "dp", "pp")}),
)
def test_domains_of_a_rank_are_those_of_the_whole_topology(order, degrees):
    """One rank's domains, found without walking the world, are the ones that the whole topology has for it."""
    degrees["dp"] *= degrees["ep"]
    world = degrees["tp"] * degrees["cp"] * degrees["dp"] * degrees["pp"]
    topology = from_degrees(degrees, world, order="-".join(order))
    for rank in {0, world // 2, world - 1}:
        expected = [(domain.kind, domain.ranks) for domain in topology.of_rank(rank)]
        found = domains_of_rank(degrees, rank, world, order="-".join(order))
        assert [(domain.kind, domain.ranks) for domain in found] == expected


@pytest.mark.parametrize("text", ["tp=0", "tp=x", "xx=2", "tp=2,tp=2", "tp", "world=3"])
def test_bad_degrees_are_named(text):
    """A degree that is none is refused with its text."""
    with pytest.raises(ConfigError, match=text.split(",")[-1]):
        parse_degrees(text, where="--domains")


def test_degrees_must_fill_the_world():
    """A product that does not match the world size is refused."""
    with pytest.raises(ConfigError, match="world size 8"):
        from_degrees(parse_degrees("tp=2,dp=3", where="t"), 8)
    with pytest.raises(ConfigError, match="divisor"):
        from_degrees({"dp": 3, "ep": 2}, 3)
    with pytest.raises(ConfigError, match="order"):
        from_degrees({"dp": 2}, 2, order="dp-tp")


def test_a_lone_world_group_is_data_parallel():
    """A job whose only group holds every rank is data parallel; among other groups it is the world."""
    world = Domain("world", "default", (0, 1, 2, 3))
    assert [d.kind for d in from_groups([world, world], 4).domains] == ["dp"]
    tp = [Domain("tp", "a", (0, 1)), Domain("tp", "b", (2, 3))]
    assert [d.kind for d in from_groups([world, *tp], 4).domains] == ["tp", "tp", "world"]


def test_announced_pipeline_groups_give_stages():
    """The position in a pipeline group is the stage, so that stages are never compared."""
    topology = from_groups([Domain("pp", "p0", (0, 2)), Domain("pp", "p1", (1, 3)), Domain("dp", "d", (0, 1))], 4)
    assert topology.stages == (0, 0, 1, 1)
    assert topology.peers(0) == [1]
