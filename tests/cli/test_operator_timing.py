"""Which products are measured on a device: every shape in the half that is fitted and in the half that is held out."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from lockstep.cli import operator_timing


class Matrix(SimpleNamespace):
    """A matrix of this shape, without content."""

    @property
    def T(self):  # noqa: N802  (as PyTorch calls it)
        """The transposed matrix."""
        return self


TORCH = SimpleNamespace(randn=lambda *shape, **_: Matrix(shape=shape), matmul=lambda *_: None)
TIMER = SimpleNamespace(kind="cpu", seconds=lambda call: call() or 1.0)


@pytest.mark.parametrize("limit_s", [0.0, 60.0], ids=["as few as possible", "all"])
def test_every_shape_is_fitted_and_held_out(limit_s):
    """Every second product is held out; none of the shapes is always among them."""
    products = list(operator_timing._products(TORCH, TIMER, None, limit_s))
    halves = [{(each.rows / each.columns, each.inner / each.columns) for each in products[half::2]} for half in (0, 1)]
    assert halves[0] == halves[1]
    assert len(halves[0]) == 3


def test_products_grow():
    """The time of one bounds the time of the next."""
    flops = [each.flops for each in operator_timing._products(TORCH, TIMER, None, 60.0)]
    assert flops == sorted(flops)
    assert max(after / before for before, after in pairwise(flops)) <= 4
