"""Software that a specification names: kernels of attention, a fused loss, dropout, and PyTorch without compilation."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.simulator.hardware.clusters import A100, B200, H100, H200, MI300X, V100
from lockstep.simulator.lowering.costs import OperatorCost, operator_seconds
from lockstep.simulator.models.transformers import gpt, llama
from lockstep.simulator.spec import load_spec

JOB = """\
model: {{type: {model}, layers: 8, hidden: 4096, heads: 32, sequence: {sequence}, vocabulary: 128256{more}}}
batch: 16
strategy: {{dp: 8, zero: 3, recompute: {recompute}}}
cluster: {{preset: DGX H100, device: {{{device}}}}}
"""


def job(*, model="llama", sequence=8192, device="name: H100", recompute="none", **more):
    """Return the forecast of a job; `more` are fields of the model."""
    fields = {"ffn": 14336} if model == "llama" else {"fused_attention": "true"}
    text = "".join(f", {name}: {str(value).lower()}" for name, value in (fields | more).items())
    names = {"model": model, "sequence": sequence, "device": device, "recompute": recompute}
    return load_spec(JOB.format(more=text, **names), "x").forecast()


def test_kernels_of_attention_are_ordered_as_measured():
    """At 8,192 tokens version 1 of FlashAttention is slowest, then 2, the default, cuDNN 9 and version 3 on H100."""
    names = ("flash_attention_1", "flash_attention_2", "cudnn", "flash_attention_3")
    steps_s = [job(device=f"attention_kernel: {name}").step_seconds for name in names]
    assert steps_s == sorted(steps_s, reverse=True)
    assert job().step_seconds == steps_s[1]


@pytest.mark.parametrize(
    ("device", "kernel", "forward", "backward"),
    [
        (A100, None, 156, 156),
        (H100, None, 284, 287),
        (H100, "cudnn", 451, 467),
        (H200, "flash_attention_3", 513, 505),
        (B200, None, 1418, 1209),
        (B200, "flash_attention_2", 362, 347),
        (MI300X, None, 551, 433),
    ],
)
def test_fused_attention_reaches_what_was_measured(device, kernel, forward, backward):
    """TFLOP/s with a causal mask, 128 features a head and 8,192 tokens, by kernel, the device's usual one if None."""
    speed = replace(device, attention_kernel=kernel).attention_speed
    reached = [device.reached_flops_per_second * share / 1e12 for share in (speed.forward, speed.backward)]
    assert reached == pytest.approx([forward, backward], rel=2e-3)


def test_inputs_of_fp8_products_are_kept_as_cast():
    """Transformer Engine keeps one byte instead of two, and one more of what attention keeps as well; torchao neither.

    In 8 layers on 2 samples of 8,192 tokens: the inputs of qkv (4,096 features), fc1 and fc2 (14,336) less, proj more.
    """
    kept = [
        job(precision=f"{{product: {product}, stored_product: {stored}}}").stage_memory_bytes[0].activations
        for product, stored in ((1, "null"), (1, 1), (2, 1), (2, "null"))
    ]
    assert kept[0] - kept[1] == 8 * 2 * 8192 * (2 * 4096 + 14336 - 4096)
    assert kept[0] == kept[2] == kept[3]


def test_a_kernel_without_a_measurement_on_the_device_is_refused():
    """Version 3 of FlashAttention does not run on B200: line and kernels that are known; V100 has none at all."""
    with pytest.raises(MalformedError, match=r"line 4.*flash_attention_3.*cudnn, flash_attention_4, flash_attention_2"):
        job(device="name: B200, attention_kernel: flash_attention_3")
    with pytest.raises(ConfigError, match=r"B200.*expected one of cudnn"):
        _ = replace(B200, attention_kernel="flash_attention_3").attention_speed
    assert replace(V100, attention_kernel="cudnn").attention_speed is None


@pytest.mark.parametrize(
    ("tokens", "measured"),
    [(512, 191 / 333), (1024, 260 / 333), (2048, 298 / 333), (4096, 319 / 333), (16384, 335 / 333)],
)
def test_attention_is_slower_at_short_sequences_as_measured(tokens, measured):
    """FlashAttention 2 on H100 by sequence, over its speed at 8,192 tokens (Shah et al. 2024, figure 5)."""

    def flops_per_second(length):
        (attention,) = (
            op
            for op in gpt(layers=1, hidden=4096, heads=32, sequence=length, fused_attention=True).operators()
            if op.fused_attention
        )
        work = OperatorCost(flops=1e15, moved_bytes=0.0, weight_bytes=0.0)
        return 1 / operator_seconds(attention, work, H100)[0]

    tolerance = 0.09 if tokens == 512 else 0.02
    assert flops_per_second(tokens) / flops_per_second(8192) == pytest.approx(measured, rel=tolerance)


def test_pytorch_without_compilation_takes_as_much_longer_as_torchtitan_measured():
    """A Llama with FSDP and checkpointing per operator on H100 with 2.4 TB/s: 5,762 and 6,667 tokens a second."""
    slow_memory = "memory_bytes_per_second: 2.4e12"
    eager, compiled = (
        job(eager=each, recompute="per_operator", device=slow_memory).step_seconds for each in (True, False)
    )
    assert eager / compiled == pytest.approx(6667 / 5762, abs=0.05)


@pytest.mark.parametrize("kv_heads", [1, 8, 32])
def test_rotations_by_matrices_read_and_write_both_products_of_each_element(kv_heads):
    """16 bytes more than as complex numbers for each element of queries and keys, in both passes, if eager."""
    sizes = {"layers": 1, "hidden": 4096, "heads": 32, "sequence": 512, "ffn": 1024, "kv_heads": kv_heads}
    found = {}
    for choice in ({}, {"matrix_rotations": True}, {"eager": True}, {"eager": True, "matrix_rotations": True}):
        (attention,) = (op for op in llama(**sizes, **choice).operators() if op.fused_attention)
        found[tuple(choice)] = (attention.moved_elements, attention.moved_elements * attention.backward_moves_ratio)
    assert found[()] == found["matrix_rotations",]
    more = np.subtract(found["eager", "matrix_rotations"], found["eager",]) * 2 / 512 / (4096 + kv_heads * 128)
    assert more == pytest.approx([16, 16])


def test_a_fused_loss_keeps_the_logits_alone():
    """Its single-precision copies of the logits go: at least 8 bytes for each of them on a rank, and their traffic."""
    plain, fused = job(), job(fused_loss=True)
    logits = 2 * 8192 * 128256
    assert max(plain.peak_memory_bytes) - max(fused.peak_memory_bytes) > 4 * logits
    assert fused.step_seconds < plain.step_seconds


def test_metrics_of_the_loss_read_the_logits_once_more_each():
    """Two metrics move 14 bytes of a logit each at half precision, and keep nothing."""
    plain, two = (job(model="gpt", sequence=2048, loss_metrics=count) for count in (0, 2))
    moved_s = H100.memory_seconds(2 * 14 * 2 * 2048 * 128256)
    assert two.step_seconds - plain.step_seconds == pytest.approx(moved_s, rel=0.05)
    assert two.peak_memory_bytes == plain.peak_memory_bytes


def test_a_gpt_without_dropout_keeps_no_masks():
    """Two masks of a byte for each token and feature of a layer, and the kernels that read and write them."""
    with_masks, without = (job(model="gpt", sequence=2048, dropout=dropout) for dropout in (True, False))
    masks_bytes = 2 * 8 * 2048 * 4096 * 2
    saved = with_masks.stage_memory_bytes[0].activations - without.stage_memory_bytes[0].activations
    assert saved == pytest.approx(masks_bytes, rel=0.1)
    assert without.step_seconds < with_masks.step_seconds
