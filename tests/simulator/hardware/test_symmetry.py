from itertools import pairwise

import numpy as np
import pytest

from lockstep.simulator.hardware.cluster import IN, OUT, Cluster
from lockstep.simulator.hardware.clusters import dgx_a100, hc2
from lockstep.simulator.hardware.symmetry import collapse
from lockstep.simulator.lowering.group_topology import GroupTopology
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import Transfer


def partition(cluster: Cluster, sizes: dict[str, int], *axes: str):
    """Return the classes of a pipeline with collectives along `axes` and sends both ways."""
    mesh = Mesh.grid(sizes)
    stages = [mesh.at("pp", stage) for stage in range(sizes["pp"])]
    group_topology = GroupTopology(cluster, {}, stages)
    for axis in axes:
        group_topology.phases(Transfer("all_reduce", frozenset([axis]), 1.0), stages[0])
    pairs = list(pairwise(stages))
    group_topology.sends(pairs)
    group_topology.sends([(there, here) for here, there in pairs])
    kinds = np.repeat(np.arange(sizes["pp"]), len(stages[0]))
    return collapse(kinds, group_topology.group_sets, group_topology.capacity)


@pytest.mark.parametrize("sizes", [{"tp": 8, "dp": 4, "pp": 2}, {"tp": 8, "dp": 192, "pp": 8}])
def test_a_healthy_job_has_a_class_for_each_stage(sizes):
    """However many ranks, those of a stage are one class."""
    ranks = sizes["tp"] * sizes["dp"] * sizes["pp"]
    classes = partition(dgx_a100(ranks // 8), sizes, "tp", "dp").ranks
    assert classes.tolist() == np.repeat(np.arange(sizes["pp"]), ranks // sizes["pp"]).tolist()


def test_a_sick_network_card_splits_its_pipeline_off():
    """One bad card of 16 nodes: its node, and the nodes that talk to it, stage by stage, are classes of their own."""
    sizes = {"tp": 8, "dp": 4, "pp": 4}
    sick = partition(dgx_a100(16).with_link(1, 6, 0.5), sizes, "tp", "dp").ranks.reshape(16, 8)
    assert (sick == sick[:, :1]).all()
    assert len(np.unique(sick)) == 2 * 4
    # Nodes 2, 6, 10, 14 hold the same data-parallel position in the four stages.
    assert [node for node in range(16) if (sick == sick[node, 0]).all(axis=1).sum() == 1] == [2, 6, 10, 14]


def test_ranks_apart_only_by_where_they_sit():
    """A stage that spans a node and a half has other links for the half: its ranks are not alike."""
    even = partition(hc2(4), {"dp": 8, "pp": 2}, "dp").ranks
    uneven = partition(hc2(4), {"dp": 12, "pp": 2}, "dp").ranks
    assert len(np.unique(even)) == 2
    assert len(np.unique(uneven)) > 2


def test_no_groups_no_ties():
    """Without any group set only programs distinguish ranks."""
    found = collapse(np.array([0, 0, 1, 1]), [], np.array([1.0, 2.0, 1.0]))
    assert found.ranks.tolist() == [0, 0, 1, 1]
    assert found.links.tolist() == [0, 1, 0]


def test_the_way_back_passes_the_links_the_other_way():
    """A rank that sends back to the stage before passes the links that brought the message, outwards where it came in."""
    stages = [Mesh.grid({"tp": 2, "dp": 4, "pp": 2}).at("pp", stage) for stage in range(2)]
    group_topology = GroupTopology(hc2(2), {}, stages)
    there, back = (group_topology.group_sets[group_topology.sends([pair])[0]] for pair in (stages, stages[::-1]))
    assert back.groups.tolist() == there.groups[:, ::-1].tolist()
    links = hc2(2).links()
    for group_set in (there, back):
        for group, link, way in zip(group_set.usage.group, group_set.usage.link, group_set.usage.way, strict=True):
            below = link - links.offsets[1]  # only cards are passed: NVLink does not lead out of a node
            assert way == (OUT if group_set.groups[group, 0] // 8 == below else IN)
        assert len(group_set.usage.link) == 2 * len(group_set.groups)
