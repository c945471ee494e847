"""Series of several kinds in one test."""

import numpy as np
import pytest

from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()
POOLS = (np.repeat([0, 1], 8), np.zeros(4, dtype=np.intp), np.zeros(3, dtype=np.intp))
SIGMAS = (0.004, 0.001, 0.02)


def rows(steps=120):
    """Noise of three kinds, a fault of each, a wild step, and values that are missing; arrays of shape (steps, N)."""
    rng = np.random.default_rng(6)
    parts = [rng.normal(0, sigma, (steps, len(own))) for own, sigma in zip(POOLS, SIGMAS, strict=True)]
    parts[0][60:90, 3] += 0.05
    parts[1][40:70, 2] += 0.04
    parts[0][50, 1] += 9.0  # a stall in the last kind would have more in a row explained, the more series there are
    parts[2][80:, 0] += 1.0
    parts[0][rng.random(parts[0].shape) < 0.02] = np.nan
    return parts


def test_families_are_evaluated_as_they_would_be_alone():
    """Alarms and onsets are those of a test of their own, and so are levels and noise as far as the first one's is."""
    together = CusumTest(POOLS, POLICY)
    alone = [CusumTest([own], POLICY) for own in POOLS]
    parts, seen = rows(), set()
    for step, row in enumerate(zip(*parts, strict=True)):
        together.step(np.concatenate(row), step)
        for series_group, test, own in zip(together.series_groups, alone, row, strict=True):
            test.step(own, step)
            assert series_group.alarm_N.nonzero()[0].tolist() == test.alarms.series_A.tolist()
            assert together.noise.sigma_P[series_group.noise_groups] == pytest.approx(
                test.noise.sigma_P, rel=0.05, nan_ok=True
            )
            assert series_group.is_alarmed == bool(len(test.alarms))
            for series in test.alarms.series_A.tolist():
                assert series in series_group
                level, onset = test.alarms.of(series)
                assert series_group.level_and_onset(series) == (pytest.approx(level, rel=0.01), onset)
                seen.add((series_group, series))
    assert len(seen) == 3


def test_a_family_may_have_a_threshold_of_its_own():
    """Three clear steps alarm in one, the other waits for a fourth."""
    test = CusumTest([np.zeros(8, dtype=np.intp)] * 2, POLICY)
    test.set_policy(POLICY, alarm_sigmas=[(test.series_groups[1], 15.0)])
    values = np.random.default_rng(0).normal(0, 0.004, (70, 16))
    values[60:, [3, 11]] += 0.1
    first = {}
    for step, row in enumerate(values):
        test.step(row, step)
        for series in test.alarms.series_A.tolist():
            first.setdefault(series, step)
    assert first == {3: 62, 11: 63}


def test_a_family_that_is_compared_with_its_past_is_not_evaluated_early():
    """In the first steps of a quiet job only the other one is."""
    test = CusumTest([np.zeros(8, dtype=np.intp)] * 2, POLICY)
    test.forbid_early([test.series_groups[1]])
    values = np.random.default_rng(4).normal(0, 0.004, (18, 16))
    values[:, [3, 11]] += 0.05
    for step, row in enumerate(values):
        test.step(row, step)
    assert test.alarms.series_A.tolist() == [3]
    assert (test.series_groups[0].is_warm, test.series_groups[1].is_warm) == (True, False)
