"""Runs of which single steps become long, here and there."""

import numpy as np
import pytest

from coordinator.detect.runs.fluctuation import FluctuationTest, RunSample
from coordinator.settings.policy import FluctuationPolicy
from tests.coordinator.detect.runs.test_fluctuation import feed, steps

POLICY = FluctuationPolicy()
BEGIN = 1000


def long_here_and_there(share, ratio, *, seed, begin=BEGIN, end=None, count=400, noise=0.007):
    """Return step times of which a share becomes longer by `ratio` from `begin` to `end`."""
    values = steps(begin + count, noise=noise, seed=seed)
    hit = np.random.default_rng(seed + 99).random(len(values)) < share
    hit[:begin] = False
    hit[end or len(values) :] = False
    return values * np.where(hit, 1 + ratio, 1.0)


@pytest.mark.parametrize(
    ("share", "ratio", "noise", "latest_p50"),
    [(0.1, 0.7, 0.007, 200), (0.3, 0.7, 0.03, 60), (0.5, 0.7, 0.007, 60), (0.3, 0.3, 0.007, 60), (0.7, 0.7, 0.03, 60)],
)
def test_a_run_of_which_single_steps_become_long_is_reported_once(share, ratio, noise, latest_p50):
    """With what they add to the mean step, and for as long as they come."""
    latencies, ratios, alarms = [], [], []
    for seed in range(6):
        values = long_here_and_there(share, ratio, seed=seed, noise=noise)
        test, _ = feed(values[:BEGIN])
        assert not test.fluctuating
        raised = []
        for step, value in enumerate(values[BEGIN:]):
            test.step(RunSample(step_seconds=float(value)), BEGIN + step)
            raised.append(test.long_steps.is_alarm)
        assert any(raised), seed
        latencies.append(raised.index(True))
        ratios.append(test.level_ratio if test.is_intermittent else share * ratio)
        alarms.append(int(np.count_nonzero(np.diff(raised) == 1)))
    assert np.median(latencies) < latest_p50
    assert np.median(ratios) == pytest.approx(share * ratio, rel=0.25)
    assert np.median(alarms) == 1


def test_it_ends_when_no_step_is_long_any_more_and_is_found_again():
    """The usual rate has not learnt the fault."""
    values = long_here_and_there(0.3, 0.7, seed=1, end=BEGIN + 150)
    again = long_here_and_there(0.3, 0.7, seed=2, begin=100)
    test, _ = feed(values)
    assert not test.fluctuating
    before = test.long_steps._usual_rate
    _, alarms = feed(again[100:], test=test)
    assert before < 0.01
    assert alarms


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.03, 0.1, 0.3])
def test_long_steps_as_common_as_ever_are_no_slower_run(rate):
    """Some rank of many stalls now and then; how often is learnt."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values = steps(4000, seed=seed) * np.where(rng.random(4000) < rate, 1 + rng.uniform(0.1, 1.0, 4000), 1.0)
        test = FluctuationTest(POLICY)
        for step, value in enumerate(values):
            test.step(RunSample(step_seconds=float(value)), step)
            assert not test.long_steps.is_alarm, (seed, step)


@pytest.mark.parametrize(("period", "jitter", "length"), [(10, 0, 1), (25, 0, 2), (50, 2, 1), (100, 0, 2)])
def test_checkpoints_that_begin_late_are_no_slower_run(period, jitter, length):
    """A run that takes twice as long in one or two steps of a period that no step of its first thousand had."""
    values, rng = steps(3000, seed=4), np.random.default_rng(5)
    for begin in range(BEGIN, len(values) - 10, period):
        at = begin + int(rng.integers(-jitter, jitter + 1))
        values[at : at + length] *= 2
    _, alarms = feed(values)
    assert alarms == []


def test_long_steps_that_add_little_to_the_mean_are_usual():
    """One in ten that takes 15 % longer: 1.5 %."""
    _, alarms = feed(long_here_and_there(0.1, 0.15, seed=3, count=2000))
    assert alarms == []


def test_what_a_known_fault_explains_is_not_counted():
    """A rank that is slow in a third of the steps and named for it."""
    test = FluctuationTest(POLICY)
    for step, value in enumerate(long_here_and_there(0.3, 0.7, seed=1)):
        test.step(RunSample(step_seconds=float(value), is_explained=step >= BEGIN), step)
        assert not test.long_steps.is_alarm
    assert test.long_steps._usual_rate < 0.01


def test_a_restart_of_the_coordinator_forgets_no_long_step():
    """The state before and during an alarm."""
    values = long_here_and_there(0.3, 0.7, seed=6)
    whole, _ = feed(values)
    for at in (BEGIN + 15, BEGIN + 150):
        first, _ = feed(values[:at])
        other = FluctuationTest(POLICY)
        other.load_state_dict(first.state_dict())
        for step in range(at, len(values)):
            other.step(RunSample(step_seconds=float(values[step])), step)
        assert other.long_steps.is_alarm
        assert other.long_steps.onset_step == whole.long_steps.onset_step
        assert other.level_ratio == pytest.approx(whole.level_ratio)


def test_checkpoints_that_begin_late_in_a_job_that_stalls_are_no_slower_run():
    """A step in 33 stalls, which is no schedule, and each 25th begins to take twice as long."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values = steps(3000, seed=seed) * np.where(rng.random(3000) < 0.03, 1.5, 1.0)
        values[BEGIN::25] *= 2
        _, alarms = feed(values)
        assert alarms == []


def test_checkpoints_do_not_hide_long_steps_between_them():
    """Each 50th step takes twice as long from the first one on."""
    for seed in range(3):
        values = long_here_and_there(0.3, 0.7, seed=seed, begin=1500)
        values[::50] *= 2
        _, alarms = feed(values)
        assert alarms
        assert alarms[0][0] >= 1500
