"""Shapes and formats as profilers write them."""

import json

import pytest

from lockstep.diagnosis.roofline.formats import item_bytes, number_format
from lockstep.diagnosis.roofline.operands import Tensor, ascend_operands, parse_operands


@pytest.mark.parametrize(
    ("text", "number", "size"),
    [
        ("c10::BFloat16", "bf16", 2),
        ("float", "fp32", 4),
        ("Float", "fp32", 4),
        ("DT_FLOAT16", "fp16", 2),
        ("BFP16", "bf16", 2),
        ("long int", "int64", 8),
        ("c10::Float8_e4m3fn", "fp8", 1),
        ("c10::complex<float>", "complex64", 8),
        ("FP8E4M3", "fp8", 1),
        ("Scalar", "", None),
        ("", "", None),
    ],
)
def test_formats_of_every_writer(text, number, size):
    """Names of torch, NCCL, HCCL and CANN mean one format; others mean none."""
    assert (number_format(text), item_bytes(text)) == (number, size)


def test_operands_keep_their_positions():
    """A scalar stays between tensors, and a list of tensors, whose format no one writes, is none."""
    text = json.dumps(
        [[[192], [], [512, 64], [[3]]], ["float", "Scalar", "c10::Half", "TensorList"], ["", "1", "", ""]]
    )
    operands = parse_operands(text)
    assert operands.tensors == (Tensor((192,), "fp32"), None, Tensor((512, 64), "fp16"), None)
    assert operands.tensor(2).bytes == 512 * 64 * 2
    assert operands.tensor(9) is None


def test_scalars_are_read_where_the_trace_has_them():
    """Strides and flags are values; what is missing or another type is None."""
    operands = parse_operands('[[[],[],[]],["","",""],["[2, 1]","True","[1.5]"]]')
    assert operands.integers(0) == (2, 1)
    assert operands.flag(1) is True
    assert operands.integers(2) is None
    assert operands.flag(2) is None
    assert operands.integers(7) is None


@pytest.mark.parametrize(
    "text",
    ["", "x", "{}", "[1,2]", "[[]]", "[" * 5000, "[" * 70_000, '[[[1]],["float"]' + " " * 70_000 + "]"],
)
def test_what_is_no_shape_text_is_none(text):
    """Hostile text costs nothing and raises nothing."""
    assert parse_operands(text) is None


@pytest.mark.parametrize("axis", [-1, 1 << 41, "4", 2.5, None, True])
def test_an_impossible_axis_is_no_tensor(axis):
    """A size that no tensor has does not enter a product."""
    assert parse_operands(json.dumps([[[4, axis]], ["float"]])).tensors == (None,)


def test_an_impossible_tensor_is_none():
    """Axes that are possible one by one make no tensor of 2^80 elements, whose product with others fits no float."""
    assert parse_operands(json.dumps([[[1 << 40, 1 << 40], [1 << 30, 1 << 30]], ["float", "float"]])).tensors == (
        None,
        Tensor((1 << 30, 1 << 30), "fp32"),
    )


def test_ascend_columns():
    """Shapes of kernel_details.csv are read with their types; empty and odd ones stay in place as none."""
    operands = ascend_operands('"4096,12288;;x,2;8"', "DT_BF16;;FLOAT;INT64")
    assert operands.tensors == (Tensor((4096, 12288), "bf16"), None, None, Tensor((8,), "int64"))
