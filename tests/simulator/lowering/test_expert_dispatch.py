"""Tokens that cross the network once for each node, however many of its experts they chose (DeepEP)."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.simulator.hardware.clusters import dgx_h100
from lockstep.simulator.hardware.collectives import ALL_TO_ALL, DEEPEP, DIRECT
from lockstep.simulator.models.model import Routing
from lockstep.simulator.models.transformers import gpt, moe
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

SIZES = {"layers": 2, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 32000}
NODES, RANKS = 4, 32
PLAIN, ONCE = (Options(bucket_bytes=None, algorithms={ALL_TO_ALL: name}) for name in (DIRECT, DEEPEP))


def exchange_s(options, *, experts=64, chosen=8, ep=RANKS, network=0.01):
    """Return what the exchanges of tokens take on four nodes whose network is so many times as fast."""
    cluster = dgx_h100(NODES)
    node, rails = cluster.levels
    cluster = replace(cluster, levels=(node, rails.scaled(bandwidth=network, latency=1.0)))
    model = moe(**SIZES, ffn=1024, experts=experts, chosen=chosen)
    tree = preset(model, Degrees(dp=RANKS, ep=ep), Schedule(micro_batches=1))
    return simulate(tree, cluster, batch=RANKS, options=options).communication_seconds.by_kind[ALL_TO_ALL]


@pytest.mark.parametrize(("experts", "chosen", "parts"), [(128, 8, 2), (64, 8, 4), (256, 8, 8), (8, 2, 4), (32, 1, 4)])
def test_the_share_is_that_of_random_choices(experts, chosen, parts):
    """40,000 tokens choose experts without repetition; those of one part of the ranks are sent to the other parts."""
    generator = np.random.default_rng(7)
    draws = np.argsort(generator.random((40_000, experts)), axis=1)[:, :chosen]
    parts_of_draws = draws * parts // experts
    copies = (parts_of_draws > 0).sum()
    once = sum(len(set(row) - {0}) for row in parts_of_draws.tolist())
    share = Routing(experts=experts, chosen=chosen).share_once_per_part(parts)
    assert share == pytest.approx(once / copies, rel=0.01)


def test_a_slow_network_carries_each_token_once_for_each_node():
    """Eight experts of 64 on four nodes: 6 copies go to other nodes without DeepEP, and 2.74 with it."""
    share = Routing(experts=64, chosen=8).share_once_per_part(NODES)
    assert share == pytest.approx(2.74 / 6, abs=0.005)
    assert exchange_s(ONCE) == pytest.approx(share * exchange_s(PLAIN), rel=0.01)


def test_nothing_is_gained_where_a_node_has_one_expert_of_a_token_or_the_network_is_not_used():
    assert exchange_s(ONCE, chosen=1) == pytest.approx(exchange_s(PLAIN, chosen=1), rel=0.01)
    assert exchange_s(ONCE, ep=8) == pytest.approx(exchange_s(PLAIN, ep=8), rel=0.01)


def test_a_fast_network_leaves_what_passes_between_the_devices_of_a_node():
    """A device receives as many copies as before: those from other nodes are forwarded within the node."""
    assert exchange_s(ONCE, network=1e6) == pytest.approx(exchange_s(PLAIN, network=1e6), rel=0.01)


def test_other_models_do_not_change():
    tree = preset(gpt(**SIZES), Degrees(dp=RANKS), Schedule(micro_batches=1))
    cluster = dgx_h100(NODES)
    assert simulate(tree, cluster, batch=RANKS, options=ONCE) == simulate(tree, cluster, batch=RANKS, options=PLAIN)
