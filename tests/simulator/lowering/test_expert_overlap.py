"""Tokens of experts that are exchanged while another micro-batch computes (Megatron-LM's combined 1F1B)."""

from dataclasses import replace

import pytest

from lockstep.simulator.hardware.clusters import H100, dgx_h100
from lockstep.simulator.hardware.collectives import ALL_TO_ALL
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.segments import Feature, work_seconds
from lockstep.simulator.models.transformers import gpt, moe
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

LAYERS, RANKS, MICRO_BATCHES = 4, 16, 8
SIZES = {"layers": LAYERS, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 32000}
EXPERTS = moe(**SIZES, ffn=1024, experts=32, chosen=4)
DEGREES = Degrees(dp=RANKS, ep=RANKS)
PLAIN, OVERLAP = Options(), Options(overlap_experts=True)


def forecast(*, options=PLAIN, model=EXPERTS, degrees=DEGREES, micro_batches=MICRO_BATCHES, network=1.0):
    """Return the forecast on two nodes whose network is so many times as fast."""
    cluster = dgx_h100(2)
    node, rails = cluster.levels
    cluster = replace(cluster, levels=(node, rails.scaled(bandwidth=network, latency=1 / network)))
    tree = preset(model, degrees, Schedule(micro_batches=micro_batches))
    return simulate(tree, cluster, batch=degrees.dp * micro_batches, options=options)


def passes(*, overlap, accumulates=True):
    """Return the forward and the backward pass of a micro-batch."""
    (chunk,) = compile_chunks(
        preset(EXPERTS, DEGREES), H100, samples=RANKS, accumulates=accumulates, overlap_experts=overlap
    )
    return chunk.part.forward, chunk.part.backward


def exchanges(segments):
    return [each for each in segments if isinstance(each, Feature) and each.transfer.kind == ALL_TO_ALL]


def test_every_exchange_of_a_layer_hides_an_even_share_of_both_passes():
    """Each layer exchanges tokens twice in a pass; embedding and head exchange nothing and stay as they are."""
    (forward, backward), alone = passes(overlap=True), passes(overlap=False)
    hidden = [each.hides_s for way in (forward, backward) for each in exchanges(way)]
    assert len(hidden) == LAYERS * 4
    assert hidden == pytest.approx([hidden[0]] * len(hidden))
    left_s = work_seconds(forward) + work_seconds(backward)
    assert left_s > 0
    assert left_s + sum(hidden) == pytest.approx(sum(map(work_seconds, alone)))


@pytest.mark.parametrize("degrees", [DEGREES, Degrees(dp=8, ep=8, pp=2, virtual=2)], ids=["plain", "pipeline"])
def test_exchanges_are_hidden_where_there_is_enough_to_compute(degrees):
    fast = {"degrees": degrees, "network": 1e6}
    assert forecast(options=OVERLAP, **fast).step_seconds <= forecast(**fast).step_seconds
    plain, overlapped = forecast(degrees=degrees), forecast(degrees=degrees, options=OVERLAP)
    assert overlapped.communication_seconds.exposed < 0.7 * plain.communication_seconds.exposed
    assert overlapped.step_seconds < plain.step_seconds
    events = forecast(degrees=degrees, options=replace(OVERLAP, events_only=True))
    assert events.step_seconds == pytest.approx(overlapped.step_seconds)


def test_a_slow_network_is_hidden_by_no_more_than_the_work_next_to_it():
    """Gradients are summed at the end here, so that they do not share the network with tokens."""
    plain, overlapped = (
        forecast(options=Options(bucket_bytes=None, overlap_experts=choice), network=0.05) for choice in (False, True)
    )
    hidden_s = sum(each.hides_s for way in passes(overlap=True) for each in exchanges(way)) * MICRO_BATCHES
    assert plain.step_seconds - overlapped.step_seconds == pytest.approx(hidden_s, rel=0.02)


def test_nothing_changes_without_another_micro_batch_or_without_experts():
    assert passes(overlap=True, accumulates=False) == passes(overlap=False, accumulates=False)
    assert forecast(options=OVERLAP, micro_batches=1) == forecast(micro_batches=1)
    dense = {"model": gpt(**SIZES), "degrees": Degrees(dp=RANKS)}
    assert forecast(options=OVERLAP, **dense) == forecast(**dense)
