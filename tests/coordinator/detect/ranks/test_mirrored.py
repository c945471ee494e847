"""The other side of the test: series that are too fast are counted, and nothing is reported of them."""

import numpy as np
import pytest

from coordinator.detect.detector import Detector
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.settings.policy import ExcessPolicy, Policy
from tests.coordinator.scenarios import Scenario, generate

SIGMA = 0.01


def deviations(steps=160, series=32, *, seed=0):
    """Return symmetrical noise, array of shape (n_steps, n_series)."""
    return np.random.default_rng(seed).normal(0.0, SIGMA, (steps, series)).astype(np.float32)


def alarms(values):
    """Return the slow series in alarm at any step, and every (step, series) that alarmed for being too fast."""
    test = CusumTest([np.zeros(values.shape[1], dtype=np.intp)], ExcessPolicy())
    slow, fast = set(), []
    for step, row in enumerate(values):
        test.step(row, step)
        slow |= set(test.alarms.series_A.tolist())
        fast += [(step, series) for series in test.mirrored.raised.tolist()]
    return slow, fast


@pytest.mark.parametrize("ratio", [0.06, 0.1, 0.5])
def test_what_is_too_fast_alarms_as_what_is_too_slow_does(ratio):
    """A deviation and its mirror image alarm at the same step, each on its own side, and once."""
    slower, faster = deviations(), -deviations()
    slower[100:, 3] += ratio
    faster[100:, 3] -= ratio
    assert alarms(slower) == ({3}, [])
    slow, ((step, series),) = alarms(faster)
    assert (slow, series) == (set(), 3)
    test = CusumTest([np.zeros(32, dtype=np.intp)], ExcessPolicy())
    for at, row in enumerate(slower[: step + 1]):
        assert len(test.alarms) == 0, at
        test.step(row, at)
    assert test.alarms.series_A.tolist() == [3]


def test_one_that_comes_again_is_counted_again():
    """After enough quiet steps the next episode is another alarm."""
    values = deviations(260)
    values[100:130, 3] -= 0.1
    values[180:210, 3] -= 0.1
    _, fast = alarms(values)
    assert [series for _, series in fast] == [3, 3]


def test_nothing_is_counted_while_a_culprit_is_in_alarm():
    """A slow series may move the reference of the others; they are not too fast for it."""
    values = deviations()
    values[100:, 3] += 0.3
    values[104:, 4:8] -= 0.1
    assert alarms(values) == ({3}, [])


def test_a_rank_that_becomes_faster_is_counted_and_opens_nothing():
    """The step_result holds the count of the step, by unit, and no anomaly."""
    recording = generate(Scenario(degrees="dp=8", steps=140).with_fault("compute", 3, seconds=-0.06, begin=80))
    detector = Detector(np.arange(8), recording.topology, Policy())
    evaluated = [detector.evaluate(row) for row in recording.rows()]
    assert [each.mirrored_alarms for each in evaluated if each.mirrored_alarms] == [{"rank": 1}]
    assert not any(each.anomalies for each in evaluated)
