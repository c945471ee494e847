"""The run against its own history."""

import numpy as np
import pytest

from coordinator.detect.fluctuation import FluctuationTest
from coordinator.policy import ExcessPolicy, FluctuationPolicy


def feed(values):
    test = FluctuationTest(FluctuationPolicy(), ExcessPolicy())
    first = None
    for step, value in enumerate(values):
        test.step(float(value), step)
        first = step if test.fluctuating and first is None else first
    return test, first


def steps(count=200, *, noise=0.007, memory=0.5, seed=0):
    rng = np.random.default_rng(seed)
    values = np.zeros(count)
    for step in range(1, count):
        values[step] = memory * values[step - 1] + rng.normal(0, noise)
    return 0.5 * np.exp(values)


def test_a_slower_run_is_told_on_the_third_or_fourth_step():
    """A run that turns 10 % slower fluctuates within four steps, from the step where it began."""
    values = steps()
    values[100:] *= 1.1
    test, first = feed(values)
    assert 102 <= first <= 104
    assert test.onset_step == 100
    assert test.level_ratio == pytest.approx(0.1, abs=0.03)
    assert test.baseline_seconds == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("length", [1, 2])
def test_a_short_pause_is_no_fluctuation(length):
    """A checkpoint of one or two steps that nobody flagged is not told, nor learnt."""
    values = steps()
    for begin in range(40, 190, 30):
        values[begin : begin + length] += 3.0
    test, first = feed(values)
    assert first is None
    assert test.baseline_seconds == pytest.approx(0.5, rel=0.02)


def test_a_slow_drift_of_the_data_is_followed():
    """Five percent over 1,000 steps is a longer sequence, not a fault."""
    values = steps(1200) * np.linspace(1.0, 1.05, 1200)
    assert feed(values)[1] is None


def test_it_ends_when_the_run_is_fast_again():
    """Quiet steps end a fluctuation, and the baseline is the one from before."""
    values = steps()
    values[100:130] *= 1.2
    test, first = feed(values)
    assert first == 102
    assert not test.fluctuating
    assert test.onset_step == -1


def test_the_published_trigger_is_reported_only_beyond_noise():
    """Mean of 50 over the shortest exceeds 5 % on any noisy job; only what noise cannot explain is a figure."""
    noisy = steps(noise=0.15, memory=0.0)
    assert np.mean(noisy[-50:]) > 1.05 * noisy[-50:].min()
    assert feed(noisy)[0].mean_over_best_ratio is None
    grown = steps()
    grown[-40:] *= 1.3
    assert feed(grown)[0].mean_over_best_ratio == pytest.approx(0.25, abs=0.06)
