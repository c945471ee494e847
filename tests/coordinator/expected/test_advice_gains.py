"""Advice promises no more than the incident costs, one by one and all together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.expected.advice_gains import within_loss
from lockstep.contracts.finding import Advice


def advice(*gains):
    return [Advice(suggestion=f"s{i}", how="h", predicted_gain_ratio=g, source="x") for i, g in enumerate(gains)]


@pytest.mark.parametrize(
    ("gains", "excess_s", "kept"),
    [
        ((0.4,), 0.1, [0.1]),  # a cause of the rank that is larger than what the step lost
        ((0.1, 0.1), 0.1, [0.1, None]),  # two remedies of the same excess
        ((0.06, 0.03, 0.03, None), 0.1, [0.06, 0.03, 0.01, None]),
        ((0.05, None), 0.1, [0.05, None]),
        ((0.0999999, 0.05), 0.1, [0.0999999, None]),  # what rounding leaves reads as 0 %
        ((0.3,), 0.0, [None]),  # nothing is lost
        ((0.9,), 5.0, [0.9]),  # an excess beyond the step is the step
    ],
)
def test_gains_stay_within_the_loss(gains, excess_s, kept):
    """Of a step of a second."""
    found = within_loss(advice(*gains), excess_seconds=excess_s, step_seconds=1.0)
    assert [item.predicted_gain_ratio for item in found] == [
        None if gain is None else pytest.approx(gain) for gain in kept
    ]
    assert [item.suggestion for item in found] == [item.suggestion for item in advice(*gains)]


@given(st.lists(st.none() | st.floats(0, 1), max_size=9), st.floats(0, 10), st.floats(0, 10))
def test_their_sum_is_never_more_than_the_loss(gains, excess_s, step_s):
    """Whatever was measured, and for steps of no length as well."""
    found = within_loss(advice(*gains), excess_seconds=excess_s, step_seconds=step_s)
    promised = [item.predicted_gain_ratio for item in found if item.predicted_gain_ratio is not None]
    assert all(gain > 0 for gain in promised)
    assert sum(promised) * step_s <= min(excess_s, step_s) * (1 + 1e-9)
