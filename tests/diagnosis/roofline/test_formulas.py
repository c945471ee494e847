"""FLOPs and bytes from shapes, against counts by hand and torch's own counter."""

import json

import pytest

from lockstep.diagnosis.roofline.formulas import work_of
from lockstep.diagnosis.roofline.operands import Operands, parse_operands


def operands(*shapes, kind="c10::BFloat16", scalars=None) -> Operands:
    types = [kind if shape is not None else "Scalar" for shape in shapes]
    parts = [[shape or [] for shape in shapes], types]
    return parse_operands(json.dumps(parts if scalars is None else [*parts, scalars]))


@pytest.mark.parametrize(
    ("name", "shapes", "flops", "moved_bytes"),
    [
        ("aten::mm", ([512, 64], [64, 192]), 2 * 512 * 64 * 192, 2 * (512 * 64 + 64 * 192 + 512 * 192)),
        ("aten::addmm", ([192], [512, 64], [64, 192]), 2 * 512 * 64 * 192, 2 * (512 * 64 + 64 * 192 + 512 * 192)),
        ("aten::bmm", ([8, 16, 32], [8, 32, 4]), 2 * 8 * 16 * 32 * 4, 2 * 8 * (16 * 32 + 32 * 4 + 16 * 4)),
        ("aten::baddbmm", ([8, 16, 4], [8, 16, 32], [8, 32, 4]), 2 * 8 * 16 * 32 * 4, 2 * 8 * (512 + 128 + 64)),
        ("aten::linear", ([2, 3, 64], [10, 64]), 2 * 6 * 64 * 10, 2 * (6 * 64 + 640 + 60)),
        ("aten::matmul", ([5, 1, 4, 8], [3, 8, 2]), 2 * 15 * 4 * 8 * 2, 2 * (160 + 48 + 120)),
        ("aten::matmul", ([8], [8]), 16, 2 * (8 + 8 + 1)),
        ("aten::add", ([4, 1], [1, 6]), 24, 2 * (4 + 6 + 24)),
        ("aten::clamp_min", ([100], None, [100]), 100, 2 * 200),
        ("aten::copy_", ([7], [7]), 0, 28),
        ("aten::sum", ([10, 10],), 100, 200),
        ("aten::fill_", ([10],), 0, 20),
    ],
)
def test_products_and_elementwise(name, shapes, flops, moved_bytes):
    """Two FLOPs a multiplication and addition; inputs are read and outputs written once; an `out` is no input."""
    work = work_of(name, operands(*shapes))
    assert (work.flops, work.moved_bytes, work.number_format) == (flops, moved_bytes, "bf16")


def test_convolution_with_scalars():
    """A strided grouped convolution: 2 N K H' W' (C / groups) R S."""
    shapes = ([10, 256, 14, 14], [512, 64, 3, 3], None, None, None, None, None, None, None)
    scalars = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4"]
    work = work_of("aten::convolution", operands(*shapes, scalars=scalars))
    assert work.flops == 2 * 10 * 512 * 7 * 7 * 64 * 9
    assert work.moved_bytes == 2 * (10 * 256 * 196 + 512 * 64 * 9 + 10 * 512 * 49)


def test_convolution_knows_its_output_from_elsewhere():
    """Without scalars a forward convolution is unknown, unless the output's shape is given."""
    known = operands([10, 256, 14, 14], [512, 256, 3, 3])
    assert work_of("aten::miopen_convolution", known) is None
    work = work_of("aten::miopen_convolution", Operands(known.tensors, output=(10, 512, 7, 7)))
    assert work.flops == 2 * 10 * 512 * 49 * 256 * 9
    assert work_of("aten::miopen_convolution", Operands(known.tensors, output=(10, 256, 7, 7))) is None


@pytest.mark.parametrize(("mask", "passes"), [(None, 2), ("[False, True, False]", 1), ("[True, True, True]", 2)])
def test_convolution_backward_counts_the_gradients_asked_for(mask, passes):
    """Each gradient costs what the forward did; the first layer needs one only."""
    scalars = None if mask is None else ["", "", "", mask]
    shapes = ([10, 512, 7, 7], [10, 256, 14, 14], [512, 256, 3, 3], None)
    work = work_of("aten::convolution_backward", operands(*shapes, scalars=scalars))
    assert work.flops == passes * 2 * 10 * 512 * 49 * 256 * 9


def test_attention_by_layout_and_mask():
    """4 B H Sq Sk D forward, half of it under a mask, five products instead of two backward; layouts differ."""
    by_head, by_sequence = [2, 8, 128, 64], [2, 128, 8, 64]
    whole = 4 * 2 * 8 * 128 * 128 * 64
    assert work_of("aten::_scaled_dot_product_flash_attention", operands(by_head, by_head, by_head)).flops == whole
    forward = operands(by_sequence, by_sequence, by_sequence)
    assert work_of("aten::_flash_attention_forward", forward).flops == whole
    masked = operands(*[by_sequence] * 3, *[None] * 6, scalars=[""] * 8 + ["True"])
    assert work_of("aten::_flash_attention_forward", masked).flops == whole // 2
    backward = operands(by_sequence, by_sequence, by_sequence, by_sequence)
    assert work_of("aten::_flash_attention_backward", backward).flops == whole * 5 // 2


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::mm", ([4, 5], [6, 7])),
        ("aten::mm", ([4, 5],)),
        ("aten::bmm", ([2, 4, 5], [3, 5, 6])),
        ("aten::linear", ([4, 5], [5, 6])),
        ("aten::matmul", ([2, 3, 4], [5, 4, 3])),
        ("aten::add", ([3], [4])),
        ("aten::add", (None, None)),
        ("aten::_flash_attention_forward", ([100, 8, 64],) * 3),
        ("aten::nothing_we_know", ([4, 5], [5, 6])),
        ("aten::mm", ([0, 5], [5, 0])),
    ],
)
def test_what_does_not_fit_has_no_work(name, shapes):
    """Shapes that the formula does not fit, packed sequences and unknown operators are None, never a guess."""
    assert work_of(name, operands(*shapes)) is None


@pytest.mark.torch
def test_flops_are_those_of_torch():
    """Torch's own counter counts the same for products, convolutions and their backward (groups it counts double)."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    image = torch.randn(2, 6, 9, 8, requires_grad=True)
    weight = torch.randn(4, 6, 3, 3, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = torch.nn.functional.conv2d(image, weight, stride=2, padding=1)
        out.sum().backward()
        torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    shape = list(out.shape)
    scalars = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    forward = work_of(
        "aten::convolution",
        operands([2, 6, 9, 8], [4, 6, 3, 3], None, None, None, None, None, None, None, kind="float", scalars=scalars),
    )
    backward = work_of("aten::convolution_backward", operands(shape, [2, 6, 9, 8], [4, 6, 3, 3], kind="float"))
    product = work_of("aten::bmm", operands([2, 3, 4], [2, 4, 5], kind="float"))
    assert forward.flops + backward.flops + product.flops == counter.get_total_flops()
