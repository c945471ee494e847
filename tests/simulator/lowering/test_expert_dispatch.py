"""Tokens that are sent to each node and each rank once, however many of its experts they chose (DeepEP, HybridEP)."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.simulator.hardware.clusters import H100, dgx_b200, dgx_h100
from lockstep.simulator.hardware.collectives import ALL_TO_ALL, DEEPEP, DIRECT, HYBRIDEP
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.segments import work_seconds
from lockstep.simulator.models.model import Precision, Routing
from lockstep.simulator.models.transformers import gpt, moe
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

SIZES = {"layers": 2, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 32000}
NODES, RANKS, NODE_RANKS = 4, 32, 8
PLAIN, ONCE, HYBRID = (Options(bucket_bytes=None, algorithms={ALL_TO_ALL: name}) for name in (DIRECT, DEEPEP, HYBRIDEP))
EXCHANGES = Path(__file__).resolve().parents[1] / "data" / "exchanges.csv"
EXCHANGES_OF_A_LAYER = 4


def exchange_s(options, *, experts=64, chosen=8, ep=RANKS, network=0.01, inside=1.0):
    """Return what the exchanges of tokens take on four nodes whose links are so many times as fast."""
    cluster = dgx_h100(NODES)
    node, rails = cluster.levels
    cluster = replace(cluster, levels=(node.scaled(bandwidth=inside), rails.scaled(bandwidth=network)))
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


def test_nothing_is_gained_on_the_network_where_a_node_has_one_expert_of_a_token():
    assert exchange_s(ONCE, chosen=1) == pytest.approx(exchange_s(PLAIN, chosen=1), rel=0.01)


@pytest.mark.parametrize("experts", [16, 64, 256])
def test_within_a_node_each_rank_receives_a_token_once(experts):
    """With eight of 16 experts on eight ranks, a token has an expert on 6.15 of them."""
    share = Routing(experts=experts, chosen=8).share_once_per_part(NODE_RANKS)
    plain_s, once_s = (exchange_s(options, experts=experts, ep=NODE_RANKS, inside=0.001) for options in (PLAIN, ONCE))
    assert once_s == pytest.approx(share * plain_s, rel=0.01)


@pytest.mark.parametrize("chosen", [1, 2, 8])
def test_tokens_from_other_nodes_are_forwarded_within_the_node(chosen):
    """With a fast network, all tokens of a rank but an eighth come from others of its node; without, from this node."""
    share = Routing(experts=64, chosen=chosen).share_once_per_part(RANKS)
    plain_s, once_s = (exchange_s(options, chosen=chosen, network=1e6, inside=0.001) for options in (PLAIN, ONCE))
    received = share * (NODE_RANKS - 1) / NODE_RANKS
    assert once_s == pytest.approx(received / ((NODE_RANKS - 1) / RANKS) * plain_s, rel=0.01)


def measured_exchanges():
    with EXCHANGES.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def forecast_over_measured(row):
    """Return the ratio of the forecast time of an exchange to the measured one, whose bytes include the own node."""
    nodes, ranks, experts = (int(row[name]) for name in ("nodes", "ranks", "experts"))
    tokens, features, chosen = (int(row[name]) for name in ("tokens", "features", "chosen"))
    width = float(row["element_bytes"])
    routing = Routing(experts=experts, chosen=chosen)
    parts = nodes if nodes > 1 else ranks
    sent = chosen * routing.share_once_per_part(parts) * tokens * features * width
    model = moe(
        layers=1, hidden=features, heads=56, sequence=tokens, ffn=64, experts=experts, chosen=chosen, vocabulary=64,
        precision=Precision(activation=width),
    )  # fmt: skip
    cluster = dgx_h100(nodes) if row["device"] == "H100" else dgx_b200(nodes)
    tree = preset(model, Degrees(dp=ranks, ep=ranks), Schedule(micro_batches=1))
    found = simulate(tree, cluster, batch=ranks, options=HYBRID).communication_seconds.by_kind[ALL_TO_ALL]
    return found / EXCHANGES_OF_A_LAYER / (sent / float(row["gigabytes_per_second"]) / 1e9)


@pytest.mark.parametrize(("device", "least"), [("H100", 18), ("B200", 3)])
def test_exchanges_of_hybridep_take_as_long_as_its_kernels(device, least):
    """The time of the kernels alone: 4 % off on average with 8 and 16 multiprocessors, at most 16 %."""
    rows = [row for row in measured_exchanges() if row["device"] == device and int(row["multiprocessors"]) > 4]
    errors = np.array([forecast_over_measured(row) - 1 for row in rows])
    assert len(rows) >= least
    assert np.abs(errors).mean() <= 0.045
    assert np.abs(errors).max() <= 0.16


def test_tokens_that_are_sent_once_are_not_copied_for_each_expert_before():
    """Nine elements of 2,048 features a token in the router and as many in the sum, in forward and in backward."""
    tree = preset(moe(**SIZES, ffn=1024, experts=64, chosen=8), Degrees(dp=RANKS, ep=RANKS), Schedule(micro_batches=1))
    device = replace(H100, launch_s=0.0)
    plain, once = (
        sum(
            work_seconds(way)
            for chunk in compile_chunks(tree, device, samples=RANKS, sends_once=sends_once)
            for way in (chunk.part.forward, chunk.part.backward)
        )
        for sends_once in (False, True)
    )
    copies = SIZES["layers"] * 2 * 2 * 9 * SIZES["sequence"] * SIZES["hidden"]
    assert plain - once == pytest.approx(device.memory_seconds(2.0 * copies), rel=0.03)


def test_other_models_do_not_change():
    tree = preset(gpt(**SIZES), Degrees(dp=RANKS), Schedule(micro_batches=1))
    cluster = dgx_h100(NODES)
    assert simulate(tree, cluster, batch=RANKS, options=ONCE) == simulate(tree, cluster, batch=RANKS, options=PLAIN)
