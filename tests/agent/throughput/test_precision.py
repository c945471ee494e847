"""The number format of a model's matrix products, read off the real autograd graphs of losses."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from lockstep.agent.throughput.precision import NODES_MAX, allows_tf32, product_dtype

pytestmark = pytest.mark.torch


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def make_loss(model, *, autocast=None):
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        output = model(torch.randn(3, 8, dtype=next(model.parameters()).dtype))
    return cross_entropy(output.float(), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(
    ("model", "autocast", "dtype"),
    [
        (make_model(), None, "fp32"),
        (make_model(), torch.bfloat16, "bf16"),
        (make_model(), torch.float16, "fp16"),
        (make_model().bfloat16(), None, "bf16"),
        (torch.compile(make_model(), backend="aot_eager"), torch.bfloat16, "bf16"),
    ],
)
def test_format_of_products(model, autocast, dtype):
    """Autocast shows although parameters and loss are fp32; of a compiled graph the result's format counts."""
    assert product_dtype([make_loss(model, autocast=autocast)]) == dtype


def test_the_commonest_format_counts():
    """A head in fp32 does not make a half-precision body fp32; a checkpointed body leaves its visible part."""
    head = torch.nn.Linear(8, 4)
    body = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))).bfloat16()
    inputs = torch.randn(3, 8, dtype=torch.bfloat16, requires_grad=True)
    assert product_dtype([head(body(inputs).float()).sum()]) == "bf16"
    assert product_dtype([head(checkpoint(body, inputs, use_reentrant=True).float()).sum()]) == "fp32"


def test_what_has_no_products_has_no_format():
    """Losses without a graph, without products, and things that are no tensors show nothing."""
    assert product_dtype([torch.ones(1), torch.ones(1, requires_grad=True).exp(), None]) == ""


def test_a_deep_graph_is_looked_at_to_a_bound():
    """A graph of any depth costs a bounded look, and products behind it are not seen."""
    value = torch.nn.Linear(1, 1)(torch.ones(1, 1))
    for _ in range(NODES_MAX):
        value = value + 1
    assert product_dtype([value]) == ""


def test_tf32_is_nvidias():
    """A build without CUDA never computes in tf32, whatever precision was chosen."""
    assert not allows_tf32(torch)
