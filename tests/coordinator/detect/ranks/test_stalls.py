"""How many stalled steps in a row chance explains."""

import numpy as np
import pytest

from coordinator.detect.error_budget import steps_between
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.ranks.stalls import Stalls
from coordinator.settings.policy import ExcessPolicy

STEPS = steps_between("units", 500_000.0)


def stalls_of(series, steps, *, singles=0, pairs=0):
    """Return what is learnt of so many stalls, spread evenly."""
    own = Stalls(np.array([float(series)]))
    stalled = [1.0] * singles + [2.0] * pairs
    for step in range(steps):
        now = np.array(stalled[step * len(stalled) // steps : (step + 1) * len(stalled) // steps])
        own.learn(np.zeros(len(now), dtype=np.intp), now)
    return own


@pytest.mark.parametrize("series", [8, 128, 1024])
def test_without_stalls_three_in_a_row_are_no_chance(series):
    assert stalls_of(series, 60).row_P(series * STEPS, 3).tolist() == [3]


def test_the_more_stalls_and_the_longer_the_more_in_a_row_are_chance():
    few, many = stalls_of(1024, 50, singles=5), stalls_of(1024, 50, singles=50)
    lasting = stalls_of(1024, 50, singles=35, pairs=15)
    rows = [int(own.row_P(1024 * STEPS, 3)[0]) for own in (few, many, lasting)]
    assert rows[0] < rows[1] <= rows[2]
    assert rows[0] in (3, 4)
    assert rows[2] in (5, 6)


def test_each_noise_group_has_stalls_of_its_own():
    own = Stalls(np.array([64.0, 64.0]))
    for _ in range(100):
        own.learn(np.array([1]), np.array([2.0]))
    quiet, stalling = own.row_P(128 * STEPS, 3)
    assert quiet == 3
    assert stalling > 5


@pytest.mark.parametrize(("rate", "again"), [(1e-3, 0.3), (2e-3, 0.2), (5e-4, 0.5), (2e-3, 0.0)])
def test_stalls_that_follow_each_other_by_chance_never_alarm(rate, again):
    """Three in a row are common among many ranks where each stall may take two steps."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        values = rng.normal(0, 0.004, (150, 2048))
        step, series = np.nonzero(rng.random(values.shape) < rate)
        values[step, series] += rng.uniform(0.3, 1.0, len(step))
        lasts = (rng.random(len(step)) < again) & (step + 1 < len(values))
        values[step[lasts] + 1, series[lasts]] += 0.5
        values[60:63, 7] += 0.4  # so that one is certain
        test = CusumTest([np.zeros(2048, dtype=np.intp)], ExcessPolicy())
        for place, row in enumerate(values):
            test.step(row, place)
            assert not len(test.alarms), place


@pytest.mark.parametrize("after", [0.0, 0.04, 0.07])
def test_stalls_in_a_row_and_a_step_within_noise_never_alarm(after):
    """The step after the row is within noise, and so is no stall itself, but the sum is still that of the row."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values = rng.normal(0, 0.027, (100, 2048))
        values[rng.random(values.shape) < 3e-4] += 0.4
        values[60:64, 7] = 0.3, 0.19, 0.5, after
        values[80:84, 9] = 0.3, 0.19, after, 0.5
        test = CusumTest([np.zeros(2048, dtype=np.intp)], ExcessPolicy())
        for place, row in enumerate(values):
            test.step(row, place)
            assert not len(test.alarms), place


@pytest.mark.parametrize("row", [(0.4, 0.4, 0.02, 0.03, 0.4), (0.4, 0.4, 0.01, 0.4), (0.4, 0.03, 0.4, 0.4)])
def test_stalls_with_steps_within_noise_between_them_never_alarm(row):
    for seed in range(3):
        rng = np.random.default_rng(seed + 100)
        values = rng.normal(0, 0.01, (80, 1024))
        values[rng.random(values.shape) < 1e-3] += 0.4
        values[60 : 60 + len(row), 7] = row
        test = CusumTest([np.zeros(1024, dtype=np.intp)], ExcessPolicy())
        for place, deviations in enumerate(values):
            test.step(deviations, place)
            assert 7 not in test.alarms.series_A, place


def test_a_fault_among_stalls_is_found_once_it_has_lasted_longer_than_they_do():
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.004, (90, 1024))
    values[rng.random(values.shape) < 1e-3] += 0.4
    values[80:, 7] = 0.5
    values[80:, 9] = 0.05
    test, first = CusumTest([np.zeros(1024, dtype=np.intp)], ExcessPolicy()), {}
    for place, row in enumerate(values):
        test.step(row, place)
        first |= {series: place for series in test.alarms.series_A.tolist() if series not in first}
    assert set(first) == {7, 9}
    assert first[7] in range(83, 87)
    assert first[9] == 82
