"""FLOPs and necessary bytes of an operator from the shapes of its inputs.

A multiplication and an addition are two FLOPs. Bytes are those that must pass memory once: every input read, every
output written. Caches can only reduce them, so the memory of a device that moves them faster is not below its peak.
What the trace does not determine is None, never a guess: an operator without a formula, a convolution without its
stride.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from lockstep.diagnosis.roofline.formats import item_bytes
from lockstep.diagnosis.roofline.operands import Operands, Tensor

MATRIX, CONVOLUTION, ATTENTION, ELEMENTWISE = ("matrix", "convolution", "attention", "elementwise")


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """What one call does: `number_format` is that of its products, `kind` the family of its formula."""

    flops: int
    moved_bytes: int
    number_format: str
    kind: str


Formula = Callable[[Operands], OperatorWork | None]


def work_of(operator: str, operands: Operands) -> OperatorWork | None:
    """Return the work of one call of `operator`, None if it has no formula or its shapes do not fit it."""
    formula = _FORMULAS.get(operator)
    work = formula(operands) if formula is not None else None
    return work if work is not None and work.moved_bytes > 0 else None


def convolves(operator: str) -> bool:
    """Return whether the operator is a forward convolution, whose output shape does not follow from its inputs."""
    return operator in _CONVOLUTIONS


def has_formula(operator: str) -> bool:
    """Return whether the operator's work follows from its shapes."""
    return operator in _FORMULAS


def _matrix(m: int, k: int, n: int, batch: int, number: str) -> OperatorWork | None:
    each = item_bytes(number)
    if each is None:
        return None
    return OperatorWork(2 * batch * m * k * n, batch * (m * k + k * n + m * n) * each, number, MATRIX)


def _product(at: int, axes: int) -> Formula:
    """Return the formula of a product of the operands `at` and `at + 1`, both of `axes` axes."""

    def formula(operands: Operands) -> OperatorWork | None:
        left, right = operands.tensor(at), operands.tensor(at + 1)
        if left is None or right is None or len(left.shape) != axes or len(right.shape) != axes:
            return None
        *batch, m, k = left.shape
        *other, inner, n = right.shape
        if k != inner or batch != other:
            return None
        return _matrix(m, k, n, prod(batch), left.number_format)

    return formula


def _linear(operands: Operands) -> OperatorWork | None:
    """Rows of the input by a weight of (outputs, inputs)."""
    rows, weight = operands.tensor(0), operands.tensor(1)
    if rows is None or weight is None or not rows.shape or len(weight.shape) != 2:  # noqa: PLR2004  (a matrix)
        return None
    outputs, inputs = weight.shape
    if rows.shape[-1] != inputs:
        return None
    return _matrix(prod(rows.shape[:-1]), inputs, outputs, 1, rows.number_format)


def _matmul(operands: Operands) -> OperatorWork | None:
    """Broadcast batches of products; vectors are matrices with one row or column."""
    left, right = operands.tensor(0), operands.tensor(1)
    if left is None or right is None or not left.shape or not right.shape:
        return None
    one = left.shape if len(left.shape) > 1 else (1, *left.shape)
    two = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    batch = _broadcast((one[:-2], two[:-2]))
    each = item_bytes(left.number_format)
    if batch is None or one[-1] != two[-2] or each is None:
        return None
    m, k, n, count = one[-2], one[-1], two[-1], prod(batch)
    moved = (left.elements + right.elements + count * m * n) * each
    return OperatorWork(2 * count * m * k * n, moved, left.number_format, MATRIX)


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> Formula:
    """Return the formula of a forward convolution, given the positions of its scalars."""

    def formula(operands: Operands) -> OperatorWork | None:
        image, weight = operands.tensor(0), operands.tensor(1)
        if image is None or weight is None or len(image.shape) != len(weight.shape):
            return None
        if operands.output is not None:
            return _convolved(image, weight, operands.output, passes=1)
        scalars = [operands.integers(at) for at in (stride, padding, dilation)]
        if None in scalars or (transposed is not None and operands.flag(transposed) is not False):
            return None
        pixels = _output_pixels(image.shape[2:], weight.shape[2:], [each or () for each in scalars])
        return (
            None
            if pixels is None
            else _convolved(image, weight, (*image.shape[:1], weight.shape[0], *pixels), passes=1)
        )

    return formula


def _convolution_backward(operands: Operands) -> OperatorWork | None:
    """`(grad_output, input, weight, ..., output_mask)`: a forward's FLOPs for each requested gradient."""
    gradient, image, weight = (operands.tensor(at) for at in range(3))
    if gradient is None or image is None or weight is None or len(gradient.shape) != len(weight.shape):
        return None
    mask = _mask(operands.scalars[-1] if operands.scalars else "")
    return _convolved(image, weight, gradient.shape, passes=sum(mask[:2]))


def _mask(text: str) -> tuple[bool, ...]:
    """Return which gradients are requested; both, the usual case, if the trace has no scalars."""
    parts = text.strip("[]").split(",")
    return tuple(part.strip() == "True" for part in parts) if len(parts) > 1 else (True, True)


def _convolved(image: Tensor, weight: Tensor, output: tuple[int, ...], *, passes: int) -> OperatorWork | None:
    each = item_bytes(image.number_format)
    if each is None or not passes or len(output) != len(image.shape) or output[1] != weight.shape[0]:
        return None  # a transposed convolution has its channels the other way round
    flops = 2 * prod(output) * prod(weight.shape[1:]) * passes
    moved = (image.elements + weight.elements + prod(output)) * each * passes
    return OperatorWork(flops, moved, image.number_format, CONVOLUTION)


def _output_pixels(
    pixels: tuple[int, ...], window: tuple[int, ...], scalars: list[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Return the output's axes by torch's formula (torch.nn.Conv2d); a single scalar stands for all axes."""
    wide = [each * len(pixels) if len(each) == 1 else each for each in scalars]
    if not pixels or any(len(each) != len(pixels) for each in wide) or min(wide[0]) < 1:
        return None
    return tuple(
        max((size + 2 * padding - dilation * (reach - 1) - 1) // stride + 1, 0)
        for size, reach, stride, padding, dilation in zip(pixels, window, *wide, strict=True)
    )


def _attention(at: int, *, heads: int, causal: int, backward: bool = False) -> Formula:
    """Return the formula of attention whose query, key, value stand from `at` on, heads on the axis `heads`.

    2 B H Sq Sk (D + Dv) forward (msprof-analyze operator_flops), 5 products instead of 2 backward (torch's FLOP
    counter), half of it under a causal mask.
    """

    def formula(operands: Operands) -> OperatorWork | None:
        query, key, value = (operands.tensor(at + each) for each in range(3))
        if query is None or key is None or value is None or len(query.shape) != 4 or len(key.shape) != 4:  # noqa: PLR2004  (batch, sequence, heads, width)
            return None
        each = item_bytes(query.number_format)
        sequence = 3 - heads
        widths = query.shape[3] + value.shape[-1]
        products = 2 * query.shape[0] * query.shape[heads] * query.shape[sequence] * key.shape[sequence] * widths
        flops = products * 5 // 2 if backward else products
        if operands.flag(causal):
            flops //= 2
        elements = 2 * query.elements + key.elements + value.elements
        if each is None:
            return None
        return OperatorWork(flops, elements * each * (2 if backward else 1), query.number_format, ATTENTION)

    return formula


def _elementwise(inputs: int) -> Formula:
    """Read up to `inputs` tensors and write one of their common shape, one FLOP an element; what follows is an out."""

    def formula(operands: Operands) -> OperatorWork | None:
        tensors = [tensor for tensor in operands.tensors if tensor is not None][:inputs]
        shape = _broadcast([tensor.shape for tensor in tensors])
        if not tensors or shape is None:
            return None
        widest = max(tensors, key=lambda tensor: (bool(tensor.shape), item_bytes(tensor.number_format) or 0))
        read = sum(tensor.bytes or 0 for tensor in tensors)
        written = prod(shape) * (item_bytes(widest.number_format) or 0)
        return OperatorWork(prod(shape), read + written, widest.number_format, ELEMENTWISE)

    return formula


def _copy(operands: Operands) -> OperatorWork | None:
    """`copy_(destination, source)`: read one, write the other."""
    destination, source = operands.tensor(0), operands.tensor(1)
    if destination is None or source is None:
        return None
    read = source.elements * (item_bytes(source.number_format) or 0)
    return OperatorWork(0, read + (destination.bytes or 0), destination.number_format, ELEMENTWISE)


def _reduction(operands: Operands) -> OperatorWork | None:
    """Read the first tensor; what is left of it is small."""
    tensor = operands.tensor(0)
    return (
        None if tensor is None else OperatorWork(tensor.elements, tensor.bytes or 0, tensor.number_format, ELEMENTWISE)
    )


def _fill(operands: Operands) -> OperatorWork | None:
    """Write the first tensor."""
    tensor = operands.tensor(0)
    return None if tensor is None else OperatorWork(0, tensor.bytes or 0, tensor.number_format, ELEMENTWISE)


def _broadcast(shapes: list[tuple[int, ...]] | tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """Return the common shape by torch's rules, None if there is none."""
    axes = max(map(len, shapes), default=0)
    result = [1] * axes
    for shape in shapes:
        for at, size in enumerate(shape, axes - len(shape)):
            if size not in (1, result[at]) and result[at] != 1:
                return None
            result[at] = size if size != 1 else result[at]
    return tuple(result)


# By the number of tensors read: in-place ones read what they write.
_ELEMENTWISE_NAMES = {
    1: (
        "neg exp log abs reciprocal sqrt sqrt_ rsqrt sin cos tanh sigmoid sigmoid_ relu relu_ gelu silu silu_ "
        "clamp clamp_ clamp_min clamp_min_ square dropout native_dropout bitwise_not logical_not _softmax "
        "_log_softmax softmax log_softmax leaky_relu leaky_relu_ threshold native_batch_norm cudnn_batch_norm "
        "miopen_batch_norm native_layer_norm native_group_norm rms_norm _fused_rms_norm"
    ),
    2: (
        "add add_ sub sub_ rsub mul mul_ div div_ pow pow_ maximum minimum bitwise_and bitwise_or logical_and eq "
        "ne lt le gt ge masked_fill masked_fill_ threshold_backward gelu_backward silu_backward tanh_backward "
        "sigmoid_backward native_dropout_backward _softmax_backward_data _log_softmax_backward_data "
        "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward "
        "native_layer_norm_backward native_group_norm_backward"
    ),
    3: ("where addcmul addcmul_ addcdiv addcdiv_ lerp lerp_"),
}
_REDUCTION_NAMES = "sum mean max min amax amin argmax argmin all any norm linalg_vector_norm var var_mean std cumsum"
_FILL_NAMES = "fill_ zero_ normal_ uniform_ bernoulli_"

_CONVOLUTIONS: dict[str, Formula] = {
    "aten::convolution": _convolution(3, 4, 5, transposed=6),
    "aten::_convolution": _convolution(3, 4, 5, transposed=6),
    "aten::conv1d": _convolution(3, 4, 5),
    "aten::conv2d": _convolution(3, 4, 5),
    "aten::conv3d": _convolution(3, 4, 5),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::_conv_depthwise2d": _convolution(4, 5, 6),
}

_FORMULAS: dict[str, Formula] = {
    "aten::mm": _product(0, 2),
    "aten::addmm": _product(1, 2),
    "aten::addmm_": _product(1, 2),
    "aten::_addmm_activation": _product(1, 2),
    "aten::bmm": _product(0, 3),
    "aten::baddbmm": _product(1, 3),
    "aten::baddbmm_": _product(1, 3),
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    **_CONVOLUTIONS,
    "aten::convolution_backward": _convolution_backward,
    "aten::scaled_dot_product_attention": _attention(0, heads=1, causal=5),
    "aten::_scaled_dot_product_flash_attention": _attention(0, heads=1, causal=4),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, heads=1, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, heads=1, causal=6),
    "aten::_flash_attention_forward": _attention(0, heads=2, causal=8),
    "aten::_efficient_attention_forward": _attention(0, heads=2, causal=-1),
    "flash_attn::_flash_attn_forward": _attention(0, heads=2, causal=5),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, heads=1, causal=11, backward=True),
    "aten::_flash_attention_backward": _attention(1, heads=2, causal=11, backward=True),
    "flash_attn::_flash_attn_backward": _attention(1, heads=2, causal=11, backward=True),
    "aten::copy_": _copy,
    **{f"aten::{name}": _elementwise(inputs) for inputs, names in _ELEMENTWISE_NAMES.items() for name in names.split()},
    **{f"aten::{name}": _reduction for name in _REDUCTION_NAMES.split()},
    **{f"aten::{name}": _fill for name in _FILL_NAMES.split()},
}
