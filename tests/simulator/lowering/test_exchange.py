"""Context parallelism of PyTorch and of Transformer Engine by hand: what is sent, what its copies and merges move, what hides the transfers."""

from dataclasses import replace

import pytest

from lockstep.simulator.hardware.clusters import dgx_h100
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.context import GATHER, MERGE, RING, ContextParallelism
from lockstep.simulator.lowering.segments import Feature, Work, work_seconds
from lockstep.simulator.models.transformers import llama
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset

CLUSTER = dgx_h100(4)
DEVICE = replace(CLUSTER.device, launch_s=0.0, attention=())
"""A host that takes no time, and attention that takes as long in parts as whole."""
LAYERS = 2
LLAMA = llama(layers=LAYERS, hidden=1024, heads=16, kv_heads=8, sequence=4096, ffn=2816, vocabulary=32000)
RANKS = 4
OUTPUT = 4096 // RANKS * 1024
"""Elements that attention returns on a rank; the keys and values of its tokens are as many, repeated twice as many."""
COPY, SINGLE, MERGED, ADDED = 2 + 2, 2 + 4, (2 + 1 + 2 + 3) * 4, 2 + 4 + 4
"""Bytes of an element: a copy at half; a cast to single precision; three kernels that merge; a sum in place."""


def part(exchange, device=DEVICE, **more):
    """Return the one chunk of a sample on four ranks."""
    context = ContextParallelism(exchange=exchange)
    (chunk,) = compile_chunks(preset(LLAMA, Degrees(cp=RANKS, dp=2, **more)), device, samples=2, context=context)
    return chunk.part


def transfers(segments):
    return [each for each in segments if isinstance(each, Feature) and each.transfer.axes == {"cp"}]


def moved_bytes(way, exchange=MERGE):
    """Return what an exchange moves of a layer's attention beyond what gathering at once does, in a pass."""
    merged, gathered = (getattr(part(each), way) for each in (exchange, GATHER))
    hidden_s = sum(each.hides_s for each in merged if isinstance(each, Feature))
    more_s = work_seconds(merged) + hidden_s - work_seconds(gathered)
    return more_s / LAYERS * CLUSTER.device.memory_bytes_per_second * CLUSTER.device.memory_efficiency


def test_forward_moves_the_copies_and_the_merges():
    """Keys and values are repeated, made contiguous, put into one buffer thrice; 4 parts are cast, 3 merged."""
    repeated = 2 * (OUTPUT + 2 * OUTPUT)
    copied = (1 + 3) * COPY * 2 * OUTPUT
    merged = 4 * SINGLE * OUTPUT + 3 * MERGED * OUTPUT + SINGLE * OUTPUT
    assert moved_bytes("forward") == pytest.approx(repeated + copied + merged)


def test_backward_moves_the_sums():
    """Of another part's keys half count; gradients go round four times, and are summed over the heads at the end."""
    copied = (1 + 3) * COPY * 2 * OUTPUT
    zeros = 4 * 3 * OUTPUT
    sums = ADDED * 3 * OUTPUT + 3 * (ADDED * OUTPUT + ADDED * OUTPUT + 2 * 4 * 2 * OUTPUT)
    buffers = 4 * 2 * 4 * 2 * OUTPUT
    ends = SINGLE * 3 * OUTPUT + 2 * (2 * OUTPUT + OUTPUT)
    assert moved_bytes("backward") == pytest.approx(copied + zeros + sums + buffers + ends)


def test_what_is_sent_and_what_hides_it():
    """Keys and values of all heads are gathered during the first part; gradients take as many steps as there are ranks.

    All steps but the last go on during a part of the backward pass; each carries single precision.
    """
    made, plain = part(MERGE), part(GATHER)
    attention_s = [segment.seconds for segment in plain.forward if isinstance(segment, Work)]
    gathers = transfers(made.forward)
    assert [each.transfer.volume_bytes for each in gathers] == [RANKS * 2 * 2 * OUTPUT] * LAYERS
    assert all(0 < each.hides_s < max(attention_s) for each in gathers)
    again, steps, last = transfers(made.backward)[:3]
    assert again.transfer == gathers[0].transfer
    carried = [each.transfer.volume_bytes * (RANKS - 1) / RANKS for each in (steps, last)]
    assert carried == pytest.approx([3 * 4 * 2 * OUTPUT, 4 * 2 * OUTPUT])
    assert steps.hides_s == pytest.approx(3 * again.hides_s)
    assert last.hides_s == 0.0


def test_recomputation_gathers_and_merges_again():
    """Whole layers computed again exchange keys and values once more, and their gradients once."""
    kinds = [each.transfer.kind for each in transfers(part(MERGE, recompute="full").backward)]
    assert kinds == ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"] * LAYERS


def test_one_rank_exchanges_nothing():
    """Without context parallelism the exchange changes nothing."""
    tree = preset(LLAMA, Degrees(dp=8))
    steps = [
        simulate(tree, CLUSTER, batch=8, options=Options(context=context)).step_seconds
        for context in (ContextParallelism(exchange=MERGE), None)
    ]
    assert steps[0] == steps[1]


def test_a_rings_forward_pass_moves_a_copy_of_keys_and_values_and_a_correction_of_each_part():
    """The output is written from the first of 4 parts, then read, added to and written for 3."""
    copied = COPY * OUTPUT
    corrected = COPY * OUTPUT + 3 * (2 + 2 + 2) * OUTPUT
    assert moved_bytes("forward", RING) == pytest.approx(copied + corrected)


def test_a_rings_backward_pass_moves_the_sums_at_the_width_of_the_activations():
    """Gradients of queries: one copy, 3 sums; of keys and values: half a copy, 2 halves of a sum, one whole sum."""
    copied = COPY * OUTPUT
    queries = (COPY + 3 * 6) * OUTPUT
    keys = (COPY / 2 + 2 * 6 / 2 + 6) * OUTPUT
    assert moved_bytes("backward", RING) == pytest.approx(copied + queries + keys)


def test_each_part_of_attention_is_as_slow_as_a_sequence_of_its_length():
    """A sequence of 4,096 tokens in 4 parts runs at the speed of 1,024, all but the fourth part during the ring."""
    device = replace(DEVICE, attention=CLUSTER.device.attention, memory_bytes_per_second=1e18)
    (during_s,) = {each.hides_s for each in transfers(part(RING, device).forward)}
    flops = 2 * 4096 * 4096 * 2 * 1024 / RANKS * 0.5
    share = (1 + 350 / 8192) / (1 + 350 / 1024)
    reached = device.reached_flops_per_second * device.attention_speed.forward * share
    assert during_s == pytest.approx(0.75 * flops / reached, rel=1e-3)
