"""Seconds of an operator on a rank: its matrix products by shape, its memory traffic, and its separate kernels.

Fused attention has a speed of its own. If the scores are written to memory, softmax and dropout are separate kernels
between the products: their memory traffic takes time before or after the products and does not overlap them.
"""

from dataclasses import dataclass

from lockstep.simulator.hardware.cluster import Device, joined_seconds
from lockstep.simulator.hardware.products import Shape
from lockstep.simulator.models.model import Operator, Precision

_CAST_BYTES = 4.0
"""A cast to FP8 reads 2 bytes of each element and writes it twice, once transposed: forward casts a product's input,
backward the gradient of its output."""
_CURRENT_SCALING_BYTES = 2.0
"""Each tensor is read once more for its largest element, "two tensor reads per quantization" (Transformer Engine, FP8
delayed scaling); torchao models its tensorwise scaling in the same way (`float8/roofline_utils.py`)."""
_FUSED_BACKWARD_RATIO = 2.5
"""Fused attention recomputes the scores, so that backward has five products and forward two (Dao 2023)."""
_ATTENTION_TOKENS, _ATTENTION_FILL = 8192.0, 350.0
"""Fused attention reaches its speed at so many tokens, and s / (s + 350) of a limit at s: FlashAttention 2 with a
causal mask and 128 features a head on H100 reaches 191, 260, 298, 319, 333 and 335 TFLOP/s at 512 to 16,384 tokens
(Shah et al. 2024, arXiv 2407.08608, figure 5). The formula is within 8 % at 512 and within 2 % from 1,024 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """An operator's work on a rank in a forward pass, after splits: FLOPs, bytes, shapes and format of its products.

    The slowest rank of a context parallel group computes `causal_factor` times as much of fused attention, in
    `attention_kernels` kernels. `current_scaling` is that of FP8.
    """

    flops: float
    moved_bytes: float
    weight_bytes: float
    shapes: tuple[Shape, ...] = ()
    is_fp8: bool = False
    current_scaling: bool = False
    input_elements: float = 0.0
    output_elements: float = 0.0
    causal_factor: float = 1.0
    attention_kernels: float = 1.0


def operator_seconds(op: Operator, work: OperatorCost, device: Device) -> tuple[float, float]:
    """Return the seconds of the forward and of the backward pass on a device at full speed, without the host."""
    if op.fused_attention:
        return _fused_attention_seconds(op, work, device)
    ratio = op.backward_ratio
    moves_ratio = ratio if op.backward_moves_ratio is None else op.backward_moves_ratio
    products, backward_products = (device.as_fp8(), device.as_fp8(backward=True)) if work.is_fp8 else (device, device)
    backward_shapes = tuple(part for shape in work.shapes for part in shape.backward())
    forward_s = products.arithmetic_seconds(work.flops, 1.0, work.shapes)
    backward_s = backward_products.arithmetic_seconds(work.flops * ratio, ratio, backward_shapes)
    moved_bytes = work.moved_bytes * moves_ratio
    cast_bytes = (_CAST_BYTES + _CURRENT_SCALING_BYTES * work.current_scaling) * work.is_fp8
    cast_s = device.memory_seconds(cast_bytes * work.input_elements)
    cast_backward_s = device.memory_seconds(cast_bytes * work.output_elements)
    overlap_s = cast_s + device.memory_seconds(work.moved_bytes * op.separate_share)
    overlap_backward_s = cast_backward_s + device.memory_seconds(moved_bytes * op.separate_backward_share)
    with_products = work.moved_bytes * (1 - op.separate_share) + work.weight_bytes
    with_backward_products = moved_bytes * (1 - op.separate_backward_share) + work.weight_bytes * ratio
    return (
        overlap_s + device.bound_seconds(forward_s, with_products, 0.0),
        overlap_backward_s + device.bound_seconds(backward_s, with_backward_products, 0.0),
    )


def added_seconds(weights: float, precision: Precision, device: Device) -> float:
    """Return the seconds to add the gradients of `weights` parameters to those of the previous micro-batches."""
    return device.memory_seconds(2 * precision.gradient * weights)


def pace_ratio(device_s: float, host_s: float, *, blocking: bool) -> float:
    """Return the ratio of a block's time, with kernels issued by the host in `host_s`, to its time on the device."""
    paced_s = device_s + host_s if blocking else joined_seconds(device_s, host_s)
    return paced_s / device_s if device_s else 1.0


def _sequence_share(tokens: float) -> float:
    """Return the speed of fused attention for a sequence of `tokens`, relative to that of the presets."""
    return (1 + _ATTENTION_FILL / _ATTENTION_TOKENS) / (1 + _ATTENTION_FILL / tokens)


def attention_seconds(flops: float, tokens: float, device: Device) -> tuple[float, float]:
    """Return the seconds of forward and backward of fused attention that executes `flops` in forward.

    `tokens` is the length of the sequence that a kernel processes.
    """
    reached, speed = device.reached_flops_per_second * device.attention_ratio, device.attention_speed
    if speed is None:
        forward_s = flops * (1 + device.attention_fill / tokens) / reached
        return forward_s, forward_s * _FUSED_BACKWARD_RATIO
    reached *= _sequence_share(tokens)
    return flops / (reached * speed.forward), flops * _FUSED_BACKWARD_RATIO / (reached * speed.backward)


def _fused_attention_seconds(op: Operator, work: OperatorCost, device: Device) -> tuple[float, float]:
    flops = work.flops * op.executed_share * work.causal_factor
    forward_s, backward_s = attention_seconds(flops, op.dims["s"] / work.attention_kernels, device)
    moved_bytes = work.moved_bytes * (op.backward_ratio if op.backward_moves_ratio is None else op.backward_moves_ratio)
    return (
        device.memory_seconds(work.moved_bytes * op.separate_share)
        + device.bound_seconds(forward_s, work.moved_bytes * (1 - op.separate_share), 0.0),
        device.memory_seconds(moved_bytes * op.separate_backward_share)
        + device.bound_seconds(backward_s, moved_bytes * (1 - op.separate_backward_share), 0.0),
    )
