from dataclasses import replace

import numpy as np
import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.cluster import Cluster, Device, Level, link_usage
from lockstep.simulator.hardware.clusters import CLUSTERS, NCCL_CHANNELS, dgx_a100, dgx_h100, hc1, hc2, mi300x
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, compile_job, simulate
from lockstep.simulator.strategy.preset import Degrees, preset

DEVICE = Device(
    name="d", flops_per_second=100.0, memory_bytes_per_second=10.0, memory_bytes=1.0, launch_s=0.5, half_flops=50.0
)


def used(cluster, *groups):
    """Return (group, level, child, members, beyond) of each use."""
    links = cluster.links()
    usage = link_usage(cluster, links, np.array(groups))
    children = usage.link - links.offsets[usage.level]
    columns = (usage.group, usage.level, children, usage.members, usage.beyond)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_group_inside_a_node_stays_there():
    """Ranks 8 to 11 use their own NVLink ports and no network card."""
    assert used(hc2(2), [8, 9, 10, 11]) == [(0, 0, rank, 1, 3) for rank in range(8, 12)]


def test_a_group_of_one_rank_a_node_uses_the_network_only():
    """NVLink does not lead to the network; the cards of both nodes do."""
    assert used(hc2(2), [3, 11]) == [(0, 1, 0, 1, 1), (0, 1, 1, 1, 1)]


def test_pcie_leads_through_to_the_other_socket():
    """On PCIe every member's own link carries what crosses the sockets too."""
    assert used(hc1(), [0, 1, 4]) == [
        *[(0, 0, rank, 1, 2) for rank in (0, 1, 4)],
        (0, 1, 0, 2, 1),
        (0, 1, 1, 1, 2),
    ]


def test_mixed_groups_count_members_below_and_beyond():
    """Two ranks of one node and one of another: NVLink for the two, the network for all."""
    assert used(hc2(2), [0, 1, 8], [2, 3, 4]) == [
        (0, 0, 0, 1, 1),
        (0, 0, 1, 1, 1),
        (0, 1, 0, 2, 1),
        (0, 1, 1, 1, 2),
        *[(1, 0, rank, 1, 2) for rank in (2, 3, 4)],
    ]


def test_sick_links_lose_capacity_and_heal():
    """Health scales one uplink; health 1 is as if nothing had been set."""
    whole = hc2(2)
    sick = whole.with_link(1, 1, 0.25)
    assert (sick.links().capacity / whole.links().capacity).tolist() == [1.0] * 16 + [1.0, 0.25]
    assert (sick.with_link(1, 1, 1.0).links().capacity == whole.links().capacity).all()


def test_an_operator_takes_about_its_longest_bound():
    """Arithmetic, memory and launch join as a 5-norm; small products run at half efficiency."""
    assert DEVICE.seconds(0.0, 0.0) == pytest.approx(0.5)
    assert DEVICE.seconds(50.0, 0.0) == pytest.approx((1.0 + 0.5**5) ** (1 / 5))
    assert DEVICE.seconds(950.0, 100.0) == pytest.approx((2 * 10**5 + 0.5**5) ** (1 / 5))
    assert DEVICE.seconds(1e6, 10.0) == pytest.approx(10_000.5)


@pytest.mark.parametrize("name", CLUSTERS)
def test_presets_are_whole(name):
    """Every preset has devices, and links that carry something."""
    cluster = CLUSTERS[name]()
    assert cluster.size >= 4
    assert (cluster.links().capacity > 0).all()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda c: c.with_link(5, 0, 0.5),
        lambda c: c.with_link(0, 999, 0.5),
        lambda c: c.with_link(0, 0, 0.0),
        lambda c: c.with_link(0, 0, 1.5),
        lambda c: c.with_rank(99, 0.5),
        lambda c: c.with_rank(0, -1.0),
    ],
)
def test_what_cannot_be_sick_is_named(break_it):
    """A link or rank that does not exist, and a share that is none, are errors."""
    with pytest.raises(ConfigError, match=r"health of link|speed of rank"):
        break_it(dgx_a100())


def test_levels_multiply():
    """Four devices, two switches, three leaves: 24 devices, 24 + 6 + 3 uplinks."""
    link = Link(bytes_per_second=1.0)
    levels = tuple(Level(name=str(n), fanout=n, link=link) for n in (4, 2, 3))
    cluster = Cluster(name="c", device=DEVICE, levels=levels)
    assert cluster.size == 24
    assert len(cluster.links().capacity) == 24 + 6 + 3
    assert cluster.child_size(2) == 8


@pytest.mark.parametrize(("members", "links"), [(2, 1), (4, 3), (8, 7)])
def test_a_group_of_mi300x_has_the_links_between_its_members(members, links):
    """A mesh of xGMI: of a device's 7 links of 48 GB/s a group uses those to its other members."""
    tree = preset(gpt(layers=2, hidden=4096, heads=32, sequence=2048), Degrees(dp=members))
    job = compile_job(tree, mi300x(), batch=members, options=Options(bucket_bytes=None))
    (flow,) = {each for each in job.graph.flows if each.kind == "all_reduce"}
    assert flow.alone == pytest.approx(links * 48e9)


def cpu_host(cores):
    """Return two hosts of four places each, whose ranks share `cores`."""
    inside = Level(name="loopback", fanout=4, link=Link(bytes_per_second=2e9), cores=cores)
    return Cluster(
        name="hosts", device=DEVICE, levels=(inside, Level(name="network", fanout=2, link=Link(bytes_per_second=1e9)))
    )


def test_more_ranks_than_cores_share_them():
    """Three ranks on two cores compute and send at two thirds, the two of the next host at full speed."""
    host = cpu_host(2)
    shared = host.shared_by(3)
    assert shared.speed == dict.fromkeys(range(3), pytest.approx(2 / 3))
    assert shared.health == {(0, rank): pytest.approx(2 / 3) for rank in range(3)}
    slow = host.with_rank(1, 0.5).shared_by(6)
    assert slow.speed == {0: 0.5, 1: 0.25, 2: 0.5, 3: 0.5}
    pair = host.shared_by(2)
    assert (pair.speed, pair.health) == ({}, {})
    assert host.shared_by(1) is host
    assert cpu_host(None).shared_by(8).speed == {}


@pytest.mark.parametrize(
    ("cores", "ranks", "factor"), [(None, 8, 0.3), (8, 4, 0.3), (4, 1, 0.3), (3, 2, 1 / 3), (2, 2, 1.0), (2, 4, 1.0)]
)
def test_transfers_take_cores_from_computation(cores, ranks, factor):
    """One core a rank leaves half of it while a transfer runs, two leave all: the device's own factor then holds."""
    host = cpu_host(cores).with_device(overlap_factor=0.3)
    assert host.shared_by(ranks).device.overlap_factor == pytest.approx(factor)


@pytest.mark.parametrize(("cores", "ranks", "share"), [(None, 8, 1), (4, 4, 1), (2, 3, 2 / 3), (2, 8, 0.5), (1, 1, 1)])
def test_the_least_share_of_a_core_is_that_of_the_fullest_host(cores, ranks, share):
    """A second host does not make the first one emptier."""
    assert cpu_host(cores).core_share(ranks) == pytest.approx(share)


def test_twice_as_many_ranks_on_the_same_cores_halve_the_throughput_of_each():
    """Two ranks on two cores and four on them: what is bound by arithmetic takes twice as long."""
    model = gpt(layers=2, hidden=64, heads=4, sequence=64)

    def seconds(ranks, cores):
        tree = preset(model, Degrees(dp=ranks))
        cluster = replace(cpu_host(cores), device=replace(DEVICE, launch_s=0.0, half_flops=0.0))
        return simulate(tree, cluster, batch=8 * ranks).step_seconds

    assert seconds(4, 2) / seconds(4, 4) == pytest.approx(2, rel=0.01)
    assert seconds(2, 2) == seconds(2, None)


@pytest.mark.parametrize("preset_of", [dgx_a100, dgx_h100])
def test_collectives_take_the_multiprocessors_of_their_channels(preset_of):
    """The measured slowdown lies between that of 16 channels and that of all, and a job of sharded weights has it."""
    cluster = preset_of()
    least, most = (
        cluster.device.tiling.multiprocessors / (cluster.device.tiling.multiprocessors - channels) - 1
        for channels in (16, NCCL_CHANNELS)
    )
    assert least < cluster.device.overlap_factor < most
    tree = preset(gpt(layers=4, hidden=4096, heads=32, sequence=2048), Degrees(dp=8, zero=3))
    alone = simulate(tree, cluster.with_device(overlap_factor=0.0), batch=8).step_seconds
    assert alone < simulate(tree, cluster, batch=8).step_seconds < alone * (1 + cluster.device.overlap_factor)
