"""Weights kept in parts: what their gathers and the copies around them cost, one unit ahead or when they are needed."""

import pytest

from lockstep.simulator.hardware.clusters import A100, dgx_a100
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.segments import GradientReduction, WeightGather
from lockstep.simulator.models.model import FSDP
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

MODEL = gpt(layers=4, hidden=4096, heads=32, sequence=512, vocabulary=4096, fused_attention=True, precision=FSDP)
SHARDED = Degrees(dp=8, zero=3)


def part(degrees, **more):
    (chunk,) = compile_chunks(preset(MODEL, degrees), A100, samples=8, **more)
    return chunk.part


def copies_s(segments, kind):
    return sum(segment.copy_s for segment in segments if isinstance(segment, kind))


def test_gathered_weights_and_their_gradients_are_copied_once_each():
    """A copy reads and writes weights in each pass, and reads gradients as they come and writes them as they are sent."""
    found, parameters = part(SHARDED), MODEL.parameters
    assert copies_s(found.forward, WeightGather) == pytest.approx(A100.memory_seconds(2 * 2 * parameters), rel=0.1)
    assert copies_s(found.backward, WeightGather) == pytest.approx(A100.memory_seconds(2 * 2 * parameters), rel=0.1)
    assert copies_s(found.backward, GradientReduction) == pytest.approx(
        A100.memory_seconds((2 + 4) * parameters), rel=0.1
    )


def test_zero_copy_moves_as_many_bytes_over_links_and_copies_none():
    """Megatron-FSDP gathers into the buffers that products read, and scatters gradients from those they write."""
    copied, found = part(SHARDED), part(SHARDED, zero_copy=True)
    for way in ("forward", "backward"):
        assert copies_s(getattr(found, way), (WeightGather, GradientReduction)) == 0
        sent = [
            [each.transfer for each in getattr(made, way) if isinstance(each, WeightGather)] for made in (copied, found)
        ]
        assert sent[0] == sent[1]
    sums = [
        [each.total_bytes for each in made.backward if isinstance(each, GradientReduction)] for made in (copied, found)
    ]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_whole_weights_are_not_copied(zero):
    """Without weights in parts nothing is gathered in a pass, and no buffer of FSDP's is filled."""
    found = part(Degrees(dp=8, zero=zero))
    assert not any(isinstance(segment, WeightGather) for segment in (*found.forward, *found.backward))
    assert copies_s(found.backward, GradientReduction) == 0


def test_gathers_that_wait_for_their_unit_are_exposed_in_backward_only():
    """Without prefetching in backward each unit waits for its weights there: about half of all gathers' time."""
    cluster = dgx_a100(1)
    tree = preset(MODEL, SHARDED, Schedule())

    def step_s(**options):
        return simulate(tree, cluster, batch=64, options=Options(**options)).step_seconds

    ahead_s, late_s = step_s(), step_s(backward_prefetch=False)
    link = cluster.levels[0].measured[8][0]
    gathers_s = 2 * MODEL.parameters * 7 / 8 / link.bytes_per_second
    assert gathers_s * 0.5 < late_s - ahead_s < gathers_s * 1.5


def test_a_rank_adds_only_the_gradients_that_it_keeps():
    """With gradients in parts a micro-batch adds an eighth of them, with whole gradients all; the host adds a little."""

    def added_s(zero):
        passes = [part(Degrees(dp=8, zero=zero), accumulates=accumulates).backward for accumulates in (True, False)]
        with_sums, without = (sum(getattr(segment, "seconds", 0.0) for segment in segments) for segments in passes)
        return with_sums - without

    assert added_s(3) == pytest.approx(added_s(0) / 8, rel=0.05)
