"""What an operator and a block cost beyond their FLOPs: the host's part, copies, and gathers that are waited for."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.simulator.hardware.clusters import A100, H100, dgx_a100
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.costs import OperatorCost, operator_seconds, pace_ratio
from lockstep.simulator.lowering.segments import Work
from lockstep.simulator.models.attention import AttentionHeads, attention
from lockstep.simulator.models.experts import mixture
from lockstep.simulator.models.primitives import linear, norm, residual
from lockstep.simulator.models.transformers import gpt, llama
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

TOKENS, HIDDEN, HEADS = 2048.0, 1024.0, 16


def forward_s(device, *, layers=2, hidden=1024):
    """Return the seconds that the forward pass of a small GPT computes on one device."""
    tree = preset(gpt(layers=layers, hidden=hidden, heads=HEADS, sequence=1024), Degrees(), Schedule())
    (chunk,) = compile_chunks(tree, device, samples=1)
    return sum(segment.seconds for segment in chunk.part.forward if isinstance(segment, Work))


def test_the_slower_of_host_and_device_sets_the_pace_of_a_block():
    """A host that is ahead costs nothing, one that is behind all its time, and a blocking one always."""
    assert pace_ratio(1.0, 0.1, blocking=False) == pytest.approx(1.0, abs=1e-4)
    assert pace_ratio(1.0, 10.0, blocking=False) == pytest.approx(10.0, rel=1e-4)
    assert pace_ratio(1.0, 0.25, blocking=True) == pytest.approx(1.25)
    assert pace_ratio(0.0, 0.25, blocking=False) == 1.0


def test_a_small_model_waits_for_the_host_and_a_large_one_does_not():
    """Launches of twice the time double a narrow layer's pass, and leave a wide one's as it was."""
    slow = replace(A100, launch_s=2 * A100.launch_s)
    assert forward_s(slow) > 1.5 * forward_s(A100)
    assert forward_s(slow, hidden=16384) < 1.02 * forward_s(A100, hidden=16384)


def test_blocking_launches_come_on_top():
    """With CUDA_LAUNCH_BLOCKING=1 each operator's launch adds to the device's time: 13 a layer, as attention has 4."""
    plain, blocked = (replace(A100, launch_s=0.0), replace(A100, launch_blocking=True))
    one, two = ((forward_s(blocked, layers=n) - forward_s(plain, layers=n)) for n in (1, 2))
    assert two - one == pytest.approx(13 * A100.launch_s)


def test_fp8_products_reach_less_of_their_peak():
    """An H100 has its FP8 peak at the measured share of bf16's efficiency; a device without FP8 stays as it is."""
    fp8 = H100.as_fp8()
    assert fp8.flops_per_second == H100.fp8_flops_per_second
    assert fp8.matrix_efficiency == pytest.approx(H100.matrix_efficiency * H100.fp8_share)
    assert 0.60 < fp8.matrix_efficiency < 0.67
    assert A100.as_fp8() is A100
    assert 1.1 <= fp8.matrix_efficiency / H100.as_fp8(backward=True).matrix_efficiency <= 1.2


def test_current_scaling_reads_each_factor_once_more():
    """A linear layer reads its input for its largest element in forward, the gradient of its output in backward."""
    op = linear("fc1", TOKENS, HIDDEN, 4 * HIDDEN, width=2)

    def passes_s(*, is_fp8, current_scaling):
        work = OperatorCost(
            flops=op.flops,
            moved_bytes=2 * op.moved_elements,
            weight_bytes=2 * op.weights,
            is_fp8=is_fp8,
            current_scaling=current_scaling,
            input_elements=TOKENS * HIDDEN,
            output_elements=TOKENS * 4 * HIDDEN,
        )
        return np.array(operator_seconds(op, work, H100))

    more_s = passes_s(is_fp8=True, current_scaling=True) - passes_s(is_fp8=True, current_scaling=False)
    read_bytes = [2 * TOKENS * HIDDEN, 2 * TOKENS * 4 * HIDDEN]
    assert more_s == pytest.approx([H100.memory_seconds(each) for each in read_bytes])
    halves = [passes_s(is_fp8=False, current_scaling=current) for current in (False, True)]
    assert (halves[0] == halves[1]).all()


def test_backward_moves_what_kernels_next_to_products_move():
    """Elements that move, by token and feature: norms 2 and 7, dropout with addition 3.5 and 5.5, a bias once more."""
    one = TOKENS * HIDDEN

    def moved(op):
        return op.moved_elements / one, op.moved_elements * (op.backward_moves_ratio or op.backward_ratio) / one

    assert moved(norm("n", TOKENS, HIDDEN, weights=1, width=2)) == pytest.approx((2, 7))
    assert moved(residual("r", TOKENS, HIDDEN, dropout=True)) == pytest.approx((3.5, 5.5))
    assert moved(residual("r", TOKENS, HIDDEN, dropout=False)) == pytest.approx((3, 3))
    assert moved(linear("l", TOKENS, HIDDEN, 3 * HIDDEN, width=2)) == pytest.approx((4, 11))
    assert moved(linear("l", TOKENS, HIDDEN, 3 * HIDDEN, width=2, bias=False)) == pytest.approx((4, 8))


def test_attention_copies_what_it_rearranges():
    """Unfused, the context is copied and so is its gradient; gradients of queries, keys and values are concatenated."""
    one = TOKENS * HIDDEN
    scores = HEADS * TOKENS * TOKENS / one
    fused, rotated, unfused = (
        attention(TOKENS, AttentionHeads.of(HIDDEN, HEADS), width=2, fused=fused, rotation_moves=2.0 * rotated)
        for fused, rotated in ((True, False), (True, True), (False, False))
    )
    assert fused.moved_elements / one == pytest.approx(4)
    assert rotated.moved_elements / one == pytest.approx(4 + 4)
    assert unfused.moved_elements / one == pytest.approx(4 + 2 + 6.5 * scores)
    moved = [op.moved_elements * op.backward_moves_ratio / one for op in (fused, rotated, unfused)]
    assert moved == pytest.approx([8 + 6, 8 + 6 + 4, 8 + 6 + 2 + 9.5 * scores])
    assert fused.separate_share == 0.0
    assert unfused.separate_backward_share == pytest.approx((6 + 2 + 5.5 * scores) / moved[2])


def test_tokens_are_sorted_by_expert_and_back():
    """Each token that an expert gets is read and written before the first product and after the second, both ways."""
    ffn, chosen = 512.0, 4
    found = {op.name: op for op in mixture(TOKENS, HIDDEN, ffn, experts=16, chosen=chosen, shared_ffn=0, width=2)}
    one = TOKENS * chosen
    for op, features in ((found["expert1"], HIDDEN + 2 * ffn), (found["expert2"], ffn + HIDDEN)):
        assert op.moved_elements / one == pytest.approx(features + 2 * HIDDEN)
        assert op.moved_elements * op.separate_share / one == pytest.approx(2 * HIDDEN)
        backward = op.moved_elements * op.backward_moves_ratio
        assert backward / one == pytest.approx(2 * features + 2 * HIDDEN)
        assert backward * op.separate_backward_share / one == pytest.approx(2 * HIDDEN)


def test_a_gather_that_is_waited_for_and_copied_is_not_hidden():
    """ZeRO 3 that copies at 10 GB/s adds that time for every parameter in forward and in backward, and hides none."""
    model = llama(layers=8, hidden=4096, heads=32, ffn=11008, sequence=4096)
    tree = preset(model, Degrees(dp=16, zero=3), Schedule())
    ahead, slow, slower = (
        simulate(tree, dgx_a100(2), batch=16, options=Options(copied_gather_bytes_per_second=rate)).step_seconds
        for rate in (None, 20e9, 10e9)
    )
    copied_s = 2 * model.parameters * model.precision.weight / 20e9
    assert slower - slow == pytest.approx(copied_s, rel=1e-6)
    assert slow - ahead > copied_s
