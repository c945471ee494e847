"""One number, the steps between false pages of a whole run, and the limits that follow from it."""

import numpy as np
import pytest

from coordinator.detect.error_budget import (
    ATTEMPT_STEPS,
    SHARES,
    AttemptLength,
    attempt_chance,
    average_run_length,
    cusum_limit,
    level_sigmas,
    steps_between,
)
from coordinator.detect.ranks.intermittent import IntermittentTest
from coordinator.detect.ranks.part_tests import as_policy
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.runs.long_steps import LongSteps
from coordinator.detect.runs.run_noise import SeriesNoise
from coordinator.detect.runs.run_outliers import Outliers
from coordinator.detect.runs.run_residuals import RunResiduals
from coordinator.settings.policy import BudgetPolicy, ExcessPolicy, Policy


def test_the_tests_spend_no_more_than_the_budget():
    """Bonferroni: their false pages add up to those of the run."""
    steps = 500_000.0
    assert sum(1 / steps_between(test, steps) for test in SHARES) <= 1 / steps


@pytest.mark.parametrize(("slack", "steps"), [(0.5, 200.0), (1.0, 500.0)])
def test_a_cusum_of_white_noise_alarms_as_often_as_its_limit_is_made_for(slack, steps):
    """The mean of the first alarms of many healthy series is the average run length, to a tenth."""
    rng = np.random.default_rng(7)
    bound = cusum_limit(slack, steps)
    sums, first = np.zeros(4000), np.zeros(4000)
    for step in range(1, int(10 * steps)):
        sums = np.maximum(sums + rng.standard_normal(4000) - slack, 0.0)
        first[(first == 0) & (sums > bound)] = step
    assert first.all() or np.count_nonzero(first == 0) < 10
    assert np.mean(first) == pytest.approx(steps, rel=0.1)
    assert average_run_length(slack, bound) == pytest.approx(steps, rel=0.1)


def test_short_attempts_have_a_smaller_chance_each():
    """A run that restarts every 300 steps spends in a thousand attempts what one of 10,000 steps would, and no more."""
    length, spent = AttemptLength(), 0.0
    length.end()  # nothing has begun
    assert length.expected_steps == ATTEMPT_STEPS
    for _ in range(1000):
        spent += attempt_chance("static", 500_000.0, length.expected_steps)
        for _ in range(300):
            length.count_step()
        length.end()
    assert length.expected_steps == pytest.approx(300, rel=0.05)
    assert spent < 1.3 * 300_000 / steps_between("static", 500_000.0)


def test_a_level_is_passed_once_in_so_many_looks():
    """By the normal tail."""
    assert level_sigmas(740.8) == pytest.approx(3.0, abs=1e-3)
    assert level_sigmas(1e9) > level_sigmas(1e6)


def _limits(steps):
    """Return every limit that depends on chance, each the larger the harder an alarm is."""
    policy = Policy(budget=BudgetPolicy(false_page_steps=steps))
    test, rng = CusumTest([np.zeros(64, dtype=np.intp)], policy.excess), np.random.default_rng(3)
    for step in range(30):
        test.step(0.02 * rng.standard_normal(64), step)
    intermittent, seen = IntermittentTest(8, policy.excess), 0
    while not intermittent.alarms:
        seen += 1
        for step in range(7):
            intermittent.step({3: 0.5} if step == seen % 5 else {}, 7 * seen + step)
    long_steps, long = LongSteps(), 0
    for step in range(500):
        long_steps.step(0.0, 0.01, step, policy.fluctuation)
    while not long_steps.is_alarm:
        long += 1
        for step in range(7):
            long_steps.step(0.5 * (step == long % 5), 0.01, 500 + 7 * long + step, policy.fluctuation)
    noise, residuals = SeriesNoise(), RunResiduals()
    for value in 0.02 * rng.standard_normal(100):
        noise.learn(value, policy.fluctuation)
    residuals.add_deviation(0.0, noise, policy.fluctuation, 1.0)
    return {
        "parts": as_policy(policy.excess, 64).alarm_sigmas,
        "units": test.limits.limit(np.zeros(1, dtype=np.intp), np.array([3.0]))[0],
        "static": 1 / test.limits.static_rate,
        "run_residuals": residuals.limit,
        "run_counts": float(long),
        "run_rows": float(Outliers().row_steps(policy.fluctuation)),
        "hang": 1 / attempt_chance("hang", policy.run.false_page_steps, ATTEMPT_STEPS),
        "intermittent": float(seen),
    }


def test_every_limit_follows_from_the_budget():
    """Fewer false pages ask for more evidence, in each of the tests."""
    often, seldom = _limits(1e3), _limits(1e9)
    assert all(seldom[name] > often[name] for name in often), (often, seldom)


def test_stalls_rather_than_white_noise_set_the_limit_of_a_ranks_sum():
    """Two stalls and a third step of five sigma make 11; white noise in 100,000 ranks asks for half of that."""
    policy = ExcessPolicy()
    assert policy.alarm_sigmas == 11.0
    assert cusum_limit(policy.slack_sigmas, 100_000 * steps_between("units", policy.false_page_steps)) < 6.5
