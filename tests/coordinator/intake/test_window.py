"""A step's values are laid out rank by rank, however its records came."""

import numpy as np
import pytest

from coordinator.intake import window
from coordinator.intake.columns import Records
from coordinator.intake.seats import seats_of
from coordinator.intake.window import HeldStep

RANKS = 24


def records(columns, fields, *, seed):
    """Return records of these columns with values of their own."""
    column, count = np.array(columns), len(columns)
    return Records(
        seats=seats_of(column, RANKS),
        step=np.zeros(count, dtype=np.int64),
        end_ns=column + 100,
        duration_ns=np.ones(count, dtype=np.int64),
        flags=np.zeros(count, dtype=np.int64),
        fields=fields,
        values_VN=np.random.default_rng(seed).random((len(fields), count)).astype(np.float32),
    )


@pytest.mark.parametrize("at_once", [1, 2 * RANKS, 1 << 16])
@pytest.mark.parametrize(
    "columns",
    [
        [range(16, 24), range(8), range(8, 16)],  # whole nodes
        [range(16, 24), range(8), range(8, 15)],  # a rank is missing
        [[23, 0], [5], [1, 2, 3]],
    ],
)
def test_values_are_those_of_the_records(monkeypatch, columns, at_once):
    """Whether fields are laid out one by one or all together, and whether all senders have them or some do not."""
    monkeypatch.setattr(window, "_VALUES_AT_ONCE", at_once)
    fields = (("a", "b", "c", "d"), ("d", "b"), ("c", "e", "a"))
    parts = [records(own, names, seed=n) for n, (own, names) in enumerate(zip(columns, fields, strict=True))]
    held = HeldStep(0, RANKS)
    expected = {name: np.full(RANKS, np.nan, dtype=np.float32) for name in "abcde"}
    for part in parts:
        held.put(part, 0.0)
        for name, values in zip(part.fields, part.values_VN, strict=True):
            expected[name][part.column] = values
    laid_out = held.value_of()
    assert laid_out.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(laid_out[name], values)
