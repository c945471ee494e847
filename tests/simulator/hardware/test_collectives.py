import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.collectives import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CSC,
    DIRECT,
    KINDS,
    REDUCE_SCATTER,
    RELAUNCHED_RING,
    RING,
    TREE,
    Link,
    algorithms,
    collective_cost,
    collective_seconds,
    hierarchical_seconds,
)

GIB = 2.0**30
sizes = st.integers(2, 4096)
volumes = st.floats(1.0, 1e12)
links = st.builds(
    Link,
    bytes_per_second=st.floats(1e6, 1e12),
    launch_s=st.floats(0, 1e-3),
    sync_s=st.floats(0, 1e-3),
    step_s=st.floats(0, 1e-3),
)


@pytest.mark.parametrize(
    ("n", "volume", "bandwidth", "milliseconds"),
    [
        (2, GIB, 100e9, 10.737418),
        (8, GIB, 100e9, 18.790482),
        (1024, GIB, 25e9, 85.815460),
        (8, 574_668_960, 132e9, 7.618717),
        (16, 574_668_960, 10e9, 107.750430),
        (32, 574_668_960, 10e9, 111.342111),
    ],
)
def test_t3_ring_all_reduce_moves_twice_the_volume_but_for_one_part(n, volume, bandwidth, milliseconds):
    """A ring all-reduce takes 2(n - 1)/n V/B: the published figures."""
    seconds = collective_seconds(ALL_REDUCE, RING, n, volume, Link(bytes_per_second=bandwidth))
    assert seconds * 1e3 == pytest.approx(milliseconds, abs=5e-7)


@given(sizes, volumes, links)
def test_t3_all_reduce_is_reduce_scatter_and_all_gather(n, volume, link):
    """A ring all-reduce costs what its two halves cost, but for one launch."""
    halves = sum(collective_seconds(kind, RING, n, volume, link) for kind in (REDUCE_SCATTER, ALL_GATHER))
    whole = collective_seconds(ALL_REDUCE, RING, n, volume, link)
    assert whole + link.launch_s + link.sync_s == pytest.approx(halves, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_t3_one_rank_costs_nothing(kind):
    """No one to talk to is nothing to pay, launch included."""
    link = Link(bytes_per_second=1.0, launch_s=1.0, sync_s=1.0, step_s=1.0)
    assert all(collective_seconds(kind, name, 1, 1e9, link) == 0 for name in algorithms(kind) if name in ALGORITHMS)


@given(sizes, volumes, links)
def test_algorithms_differ_in_rounds_and_not_in_bytes(n, volume, link):
    """Ring, CSC and direct move the same bytes; relaunching rounds never helps, one round never hurts."""
    for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        ratios = {collective_cost(kind, name, n).ratio for name in (RING, RELAUNCHED_RING, CSC, DIRECT)}
        assert ratios == {(n - 1) / n}
        ring = collective_seconds(kind, RING, n, volume, link)
        assert collective_seconds(kind, RELAUNCHED_RING, n, volume, link) >= ring
        assert collective_seconds(kind, DIRECT, n, volume, link) <= ring


def test_tree_wins_small_messages_and_loses_large_ones():
    """Among many ranks a tree's few rounds beat the ring's many, until bytes count."""
    link = Link(bytes_per_second=10e9, step_s=5e-6)
    few, many = (
        [collective_seconds(ALL_REDUCE, name, 1024, volume, link) for name in (TREE, RING)] for volume in (1e3, 1e12)
    )
    assert few[0] < few[1] / 50
    assert many[1] < many[0]


def test_hierarchical_all_reduce_is_the_sum_of_its_levels():
    """1 GiB over 4 nodes of 8: 8.205451 ms inside, 16.106127 ms on rails that share 100 GB/s of each node."""
    inner, rail = Link(bytes_per_second=229e9), Link(bytes_per_second=100e9 / 8)
    inside = hierarchical_seconds(8, 1, GIB, inner, rail)
    whole = hierarchical_seconds(8, 4, GIB, inner, rail)
    assert inside * 1e3 == pytest.approx(8.205451, abs=1e-6)
    assert (whole - inside) * 1e3 == pytest.approx(16.106127, abs=1e-6)


@pytest.mark.parametrize(("kind", "name"), [("all_mirror", RING), (ALL_REDUCE, "rong"), (ALL_GATHER, TREE)])
def test_unknown_names_are_refused_with_what_would_do(kind, name):
    """A kind or algorithm that does not exist, or does not go together, is an error that lists the choices."""
    with pytest.raises(ConfigError, match="expected one of"):
        collective_cost(kind, name, 4)
