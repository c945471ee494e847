"""Fitted, broken, predicted, repaired: a repair of a real job gains what the model predicted."""

import sys

import pytest

from benchmarks.whatif_roundtrip import job, round_trip, table

pytestmark = [pytest.mark.alone, pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(600)]

GAIN_TOLERANCE = 0.2
"""Shares of a step. Four ranks on two cores that others use too: their healthy step alone moves by a quarter."""


def test_the_predicted_gain_is_what_mending_gives_back(tmp_path, capsys):
    """A rank that works 200 ms more: its incident's gain is by the model, large, and what was measured after the repair."""
    with job(tmp_path, fault_ms=200.0) as training:
        made = round_trip(training)
    with capsys.disabled():
        sys.stdout.write(f"\n{table(made)}\n")
    assert made.measured_gain_ratio > 0.25
    assert made.predicted_gain_ratio == pytest.approx(made.measured_gain_ratio, abs=GAIN_TOLERANCE)
    assert made.predicted_faulty_seconds == pytest.approx(made.faulty_step_seconds, rel=0.5)
    assert made.predicted_repaired_seconds == pytest.approx(made.expected_step_seconds)
