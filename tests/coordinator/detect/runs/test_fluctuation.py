"""The run against its own history."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from coordinator.detect.error_budget import steps_between
from coordinator.detect.runs.fluctuation import FluctuationTest, RunSample
from coordinator.settings.policy import FluctuationPolicy

DATA = Path(__file__).parents[2] / "data"
POLICY = FluctuationPolicy()
TOKENS = 8192.0


def steps(count=200, *, noise=0.007, correlation=0.5, seed=0, hiccups=0.0):
    """Return step times around half a second with noise of standard deviation `noise`."""
    rng = np.random.default_rng(seed)
    shock = rng.normal(0, noise * np.sqrt(1 - correlation**2), count)
    values = np.zeros(count)
    for step in range(1, count):
        values[step] = correlation * values[step - 1] + shock[step]
    return 0.5 * np.exp(values) * (1 + (rng.random(count) < hiccups) * rng.uniform(0.2, 1.0, count))


def feed(values, *, work=None, imbalance=None, test=None):
    """Return the test and (step, onset, level, sure) of each alarm as it was raised."""
    test = test or FluctuationTest(POLICY)
    alarms, before = [], test.fluctuating
    for step, value in enumerate(values):
        more = {} if work is None else {"work": float(work[step])}
        more |= {} if imbalance is None else {"imbalance_seconds": float(imbalance[step])}
        test.step(RunSample(step_seconds=float(value), **more), step)
        if test.fluctuating and not before:
            alarms.append((step, test.onset_step, test.level_ratio, test.is_sure))
        before = test.fluctuating
    return test, alarms


def sure_steps(values):
    """Return the test and the steps after which its verdict was sure."""
    test, sure = FluctuationTest(POLICY), []
    for step, value in enumerate(values):
        test.step(RunSample(step_seconds=float(value)), step)
        sure += [step] * test.is_sure
    return test, sure


@pytest.mark.parametrize(("ratio", "latest_p50", "latest_p95"), [(0.05, 3, 5), (0.08, 3, 4), (0.2, 3, 4), (1.0, 3, 4)])
def test_a_slower_run_is_told_at_its_third_step(ratio, latest_p50, latest_p95):
    """From +5 % up the verdict comes at the third step, mostly, with the step where it began and its size.

    A run in which a step was far out lately needs a fourth one.
    """
    latencies, onsets = [], []
    for seed in range(20):
        values = steps(seed=seed)
        values[100:] *= 1 + ratio
        test, alarms = feed(values)
        ((first, onset, _, _),) = alarms
        latencies.append(first - 99)
        onsets.append(onset)
        assert test.level_ratio == pytest.approx(ratio, rel=0.3)
        assert test.baseline_seconds == pytest.approx(0.5, rel=0.02)
    assert np.percentile(latencies, 50) <= latest_p50
    assert np.percentile(latencies, 95) <= latest_p95
    assert np.abs(np.array(onsets) - 100).max() <= 1


def test_nothing_is_told_of_healthy_runs():
    """Warm-up, hiccups of the whole job and its noise raise nothing in 20 runs."""
    for seed in range(20):
        values = steps(400, seed=1000 + seed, hiccups=1 / 400) * (1 + 0.8 * np.exp(-np.arange(400) / 3))
        assert feed(values)[1] == [], seed


@pytest.mark.parametrize(("noise", "correlation"), [(0.015, 0.5), (0.03, 0.0), (0.03, 0.8)])
def test_a_noisier_run_reports_nothing_at_once_and_more_later(noise, correlation):
    """Noise that is larger or remembers longer: healthy, nothing is sure nor lasts; slower by 12 sigma, it is found."""
    for seed in range(8):
        values = steps(300, noise=noise, correlation=correlation, seed=seed)
        test, lasts, longest = FluctuationTest(POLICY), 0, 0
        for step, value in enumerate(values):
            test.step(RunSample(step_seconds=float(value)), step)
            lasts = lasts + 1 if test.fluctuating else 0
            longest = max(longest, lasts)
            assert not test.is_sure, seed
        assert longest < 40
        values[150:] *= 1 + 12 * noise
        assert feed(values[:175])[0].fluctuating


@pytest.mark.parametrize(
    ("ratio", "correlation", "noise"), [(0.2, 0.0, 0.07), (0.2, 0.5, 0.07), (0.45, 0.5, 0.07), (0.2, 0.5, 0.045)]
)
def test_a_slower_job_in_noise_is_sure_within_forty_steps(ratio, correlation, noise):
    """Three steps show nothing there; what each adds to the last does, and the level does not follow the slowdown."""
    found = []
    for seed in range(6):
        values = steps(350, noise=noise, correlation=correlation, seed=seed)
        values[150:] *= 1 + ratio
        test, sure = sure_steps(values)
        found.append(150 <= sure[0] < 190)
        assert test.baseline_seconds == pytest.approx(0.5, rel=0.15)
    assert sum(found) >= 5


def test_noise_that_may_be_that_of_a_noisy_job_hides_no_shift():
    """A job at the border counts as noisy before enough steps show on which side it is: +18 % is found in time."""
    found = []
    for seed in range(24):
        values = steps(200, noise=0.047, correlation=0.5, seed=seed)
        values[150:] *= 1.18
        sure = sure_steps(values)[1]
        found.append(bool(sure) and 150 <= sure[0] < 190)
    assert np.mean(found) > 0.85


@pytest.mark.parametrize("correlation", [0.2, 0.5])
@pytest.mark.parametrize(("noise", "ratio"), [(0.02, 0.05), (0.03, 0.08), (0.045, 0.12)])
def test_a_small_slowdown_is_sure_once_the_noise_is_known_to_be_fast(noise, ratio, correlation):
    """2.5 sigma are found within 40 steps in a job that has run for 480, however similar healthy noise of 0.8 looks."""
    found = 0
    for seed in range(20):
        values = steps(600, noise=noise, correlation=correlation, seed=seed)
        values[480:] *= 1 + ratio
        sure = sure_steps(values)[1]
        found += bool(sure) and 480 <= sure[0] < 520
    assert found >= 18


@pytest.mark.parametrize("correlation", [0.6, 0.7, 0.8])
def test_noise_with_a_long_memory_is_no_slowdown(correlation):
    """Healthy noise up to 4.5 % that is slow enough to look like shifts: nothing is sure in 36,000 steps."""
    for noise in (0.02, 0.03, 0.045):
        for seed in range(4):
            assert sure_steps(steps(3000, noise=noise, correlation=correlation, seed=seed))[1] == []


def test_an_alarm_in_noise_lasts_as_long_as_the_slowdown():
    """Steps of a job that is slower by 2.7 sigma are often within the noise of three; their sum is not."""
    ended = []
    for seed in range(12):
        values = steps(300, noise=0.045, correlation=0.5, seed=seed)
        values[100:] *= 1.13
        test, states = FluctuationTest(POLICY), []
        for step, value in enumerate(values):
            test.step(RunSample(step_seconds=float(value)), step)
            states.append(test.fluctuating)
        ended.append(any(before and not now for before, now in itertools.pairwise(states[100:])))
    assert sum(ended) <= 2


def test_healthy_noise_of_seven_percent_is_never_sure():
    """In 6,000 steps of a job whose steps are alike, no slowdown is sure."""
    for seed in range(3):
        test = FluctuationTest(POLICY)
        for step, value in enumerate(steps(2000, noise=0.07, seed=50 + seed)):
            test.step(RunSample(step_seconds=float(value)), step)
            assert not test.is_sure, seed


@pytest.mark.parametrize("path", sorted(DATA.glob("healthy-*.csv")), ids=lambda path: path.stem)
def test_recordings_of_shared_cores_are_never_sure(path):
    """Four processes on two cores stumble for seconds: never reported at once, and nothing lasts for half a minute."""
    values = np.genfromtxt(path, delimiter=",", skip_header=1)[:, 0] / 1e6
    test, longest, since = FluctuationTest(POLICY), 0.0, 0.0
    for step, value in enumerate(values):
        test.step(RunSample(step_seconds=float(value)), step)
        assert not test.is_sure
        since = since + value if test.fluctuating else 0.0
        longest = max(longest, since)
    assert longest < 15


@pytest.mark.parametrize("length", [1, 2])
def test_a_short_pause_is_no_fluctuation(length):
    """A checkpoint of one or two steps that no one flagged is not reported, nor learnt."""
    values = steps(400)
    for begin in range(40, 390, 30):
        values[begin : begin + length] += 3.0
    test, alarms = feed(values)
    assert alarms == []
    assert test.baseline_seconds == pytest.approx(0.5, rel=0.02)


def test_where_long_steps_are_common_more_of_them_are_needed():
    """One step in ten stalls, as where one of thousands of ranks always does: three in a row are chance there."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        values = steps(600, seed=seed) + 0.3 * (rng.random(600) < 0.1)
        values[400:403] = 0.8
        assert feed(values)[1] == [], seed
        values[500:] += 0.3
        assert 503 <= feed(values)[1][0][0] <= 510


def stalling(share, again, seed, count=600):
    """Return step times of which a share stalls, the next one with a probability as well, by 12 % and more."""
    rng = np.random.default_rng(seed)
    stalls = rng.random(count) < share
    stalls[1:] |= stalls[:-1] & (rng.random(count - 1) < again)
    return steps(count, seed=seed) * (1 + stalls * np.minimum(0.12 * (rng.pareto(1.5, count) + 1), 1.5))


@pytest.mark.parametrize(("share", "again"), [(0.1, 0.3), (0.2, 0.0), (0.3, 0.0)])
def test_long_steps_that_are_common_are_no_slowdown(share, again):
    """Once a job of hundreds of ranks that stall is known, no mean of 50 steps, nor any sum, calls it slower."""
    alarms = [alarm for seed in range(4) for alarm in feed(stalling(share, again, seed))[1]]
    assert [(step, onset) for step, onset, _, is_sure in alarms if is_sure and step >= 100] == []


def test_a_slower_run_is_found_where_long_steps_are_common():
    """It takes as many steps as chance does not bring in a row."""
    for seed in range(4):
        values = stalling(0.1, 0.0, seed)
        values[300:] *= 1.2
        assert 303 <= feed(values)[1][-1][0] <= 312, seed


def test_two_stalls_and_a_step_that_is_a_little_longer_are_chance_where_stalls_are_common():
    """In a job of thousands of ranks, one of which stalls in every sixth step, from before it could be evaluated."""
    for seed in range(10):
        values = steps(90, noise=0.004, seed=seed)
        values[64:] *= 1.014
        values[[25, 33, 35, 43, 52, 56, 59, 61, 63, 71, 72, 74, 79]] *= 1.15
        assert feed(values)[1] == [], seed


@pytest.mark.parametrize(("stall", "between"), [(1.2, 1.022), (1.5, 1.03), (4.0, 1.03), (1.06, 1.01)])
def test_two_stalls_and_a_step_between_that_is_a_little_longer_are_no_slowdown(stall, between):
    """Three in a row must be alike: where one step in a hundred stalls, two of three come once in a day or two."""
    for seed in range(10):
        values = steps(170, seed=seed)
        values[150:153] = 0.5 * np.array([stall, between, stall])
        assert feed(values)[1] == [], seed


@pytest.mark.parametrize("share", [0.003, 0.01, 0.014, 0.03, 0.06])
def test_a_row_of_stalls_that_chance_brings_is_within_the_budget(share):
    """Whatever share of the steps stalls, as many in a row as make a slowdown come within the row's share of it."""
    rows = []
    for seed in range(10):
        test, _ = feed(stalling(share, 0.0, seed, count=1500))
        rows.append(test.outliers.row_steps(POLICY))
    assert share ** np.median(rows) * steps_between("run_rows", POLICY.false_page_steps) < 1.1


def test_another_attempt_knows_how_common_stalls_are():
    """Where long steps are common, an attempt that has just begun asks for as many of them as the one before."""
    found = 0
    for seed in range(4):
        before, _ = feed(steps(600, seed=seed) + 0.3 * (np.random.default_rng(seed).random(600) < 0.1))
        values = steps(90, seed=90 + seed)
        values[80:83] = 0.8
        found += len(feed(values)[1])
        again = FluctuationTest(POLICY, outliers=before.outliers)
        assert feed(values, test=again)[1] == [], seed
    assert found >= 3


def test_a_slow_drift_of_the_data_is_followed():
    """Five percent over 1,000 steps is a longer sequence, not a fault."""
    assert feed(steps(1200) * np.linspace(1.0, 1.05, 1200))[1] == []


def test_a_drift_is_told_before_it_is_large():
    """0 to 15 % within 120 steps: the level does not follow it, and it is named at about 3.5 %."""
    at = []
    for seed in range(10):
        values = steps(300, seed=seed) * (1 + 0.15 * np.clip((np.arange(300) - 99) / 120, 0, 1))
        test, alarms = feed(values)
        assert len(alarms) == 1
        assert test.level_ratio == pytest.approx(0.15, abs=0.025)
        at.append(0.15 * (alarms[0][0] - 99) / 120)
    assert np.median(at) < 0.035
    assert max(at) < 0.05


def test_what_comes_and_goes_is_told_each_time():
    """15 steps slow, 25 not, as under heat: five episodes, each reported and ended, from the level of before."""
    since = np.arange(300) - 100
    test, alarms = feed(steps(300) * (1 + 0.08 * ((since >= 0) & (since % 40 < 15))))
    assert [alarm[1] for alarm in alarms] == [100, 140, 180, 220, 260]
    assert all(alarm[0] - alarm[1] <= 3 for alarm in alarms)
    assert not test.fluctuating
    assert test.baseline_seconds == pytest.approx(0.5, rel=0.02)


def test_it_ends_when_the_run_is_fast_again():
    """Five quiet steps end a fluctuation, and the baseline is the one from before."""
    values = steps()
    values[100:130] *= 1.2
    test, alarms = feed(values[:134])
    assert [alarm[0] for alarm in alarms] == [102]
    assert test.fluctuating
    test.step(RunSample(step_seconds=float(values[134])), 134)
    assert not test.fluctuating
    assert (test.onset_step, test.level_ratio, test.excess_seconds) == (-1, 0.0, 0.0)


def test_an_improvement_becomes_the_level():
    """Ten percent faster from one step on is the new normal: what then is 8 % slower is reported, though it is no record."""
    values = steps(300)
    values[100:] *= 0.9
    values[200:] *= 1.08
    assert [alarm[1] for alarm in feed(values)[1]] == [200]


@pytest.mark.parametrize("elasticity", [0.0, 0.5, 0.8, 1.05])
def test_a_batch_ramp_is_no_slowdown(elasticity):
    """A quarter more tokens at three steps, or 1 % more every few steps: the step may grow with the work, and less."""
    for seed in range(3):
        sudden = np.full(200, TOKENS)
        for begin in (50, 100, 150):
            sudden[begin:] *= 1.25
        gradual = TOKENS * 1.01 ** np.clip((np.arange(300) - 50) // 3, 0, 40)
        for work in (sudden, gradual):
            values = steps(len(work), seed=seed) * (work / TOKENS) ** elasticity
            assert feed(values, work=work)[1] == []


def test_what_a_ramp_does_not_explain_is_a_slowdown():
    """Beyond the band at the ramp's own step, and as ever some steps after it; without tokens a ramp is a slowdown."""
    work = np.full(200, TOKENS)
    work[80:] *= 1.25
    values = steps() * (work / TOKENS) ** 0.8
    assert [alarm[1] for alarm in feed(values)[1]] == [80]
    outliers = np.where(np.arange(200) >= 80, values * 1.18, values)
    assert [alarm[1] for alarm in feed(outliers, work=work)[1]] == [80]
    later = np.where(np.arange(200) >= 120, values * 1.08, values)
    assert [alarm[1] for alarm in feed(later, work=work)[1]] == [120]


def test_batches_that_differ_each_step_do_not_hide_a_slowdown():
    """Work with a spread of 15 % a step is taken off by the slope that the run showed: +8 % is reported as ever."""
    rng = np.random.default_rng(5)
    work = TOKENS * np.exp(0.15 * rng.normal(size=300))
    values = steps(300) * (work / TOKENS) ** 0.8
    values[200:] *= 1.08
    assert [alarm[1] for alarm in feed(values, work=work)[1]] == [200]
    assert not any(sure for *_, sure in feed(values)[1])


def test_what_the_longest_batch_adds_is_taken_off():
    """Sequence lengths that stretch each step by another tenth are no noise where they are known."""
    rng = np.random.default_rng(6)
    imbalance = 0.1 * np.abs(rng.normal(size=200))
    values = steps()
    values[100:] *= 1.06
    ((first, onset, _, sure),) = feed(values + imbalance, imbalance=imbalance)[1]
    assert (first <= 105, onset, sure) == (True, 100, True)


def test_the_published_trigger_is_reported_only_beyond_noise():
    """Mean of 50 over the shortest exceeds 5 % on any noisy job; only what noise cannot explain is a figure."""
    noisy = steps(noise=0.15, correlation=0.0)
    assert np.mean(noisy[-50:]) > 1.05 * noisy[-50:].min()
    assert feed(noisy)[0].mean_over_best_ratio is None
    grown = steps()
    grown[-40:] *= 1.3
    assert feed(grown)[0].mean_over_best_ratio == pytest.approx(0.25, abs=0.06)


def test_the_published_trigger_is_a_floor_that_is_always_on():
    """What the test itself would need more for, by a policy that allows nothing else, is found by the published rule."""
    values = steps()
    values[100:] *= 1.15
    deaf = FluctuationTest(FluctuationPolicy(least_share=100.0))
    ((step, *_),) = feed(values, test=deaf)[1]
    assert 105 <= step <= 140


@pytest.mark.parametrize("at", [10, 60, 99, 101, 104, 120])
def test_a_restart_of_the_coordinator_changes_nothing(at):
    """Taken down before, in and after a fault's first steps, it reports what it would have reported."""
    work = np.where(np.arange(160) >= 70, 1.2, 1.0) * TOKENS
    values = steps(160) * (work / TOKENS)
    values[100:] *= 1.08
    whole, alarms = feed(values, work=work)
    first, before = feed(values[:at], work=work)
    again = FluctuationTest(POLICY)
    again.load_state_dict(first.state_dict())
    for step in range(at, 160):
        again.step(RunSample(step_seconds=float(values[step]), work=float(work[step])), step)
    assert (again.fluctuating, again.onset_step, again.level_ratio) == (True, whole.onset_step, whole.level_ratio)
    assert len(alarms) == 1
    assert len(before) == (at > alarms[0][0])


def test_a_memory_that_does_not_fit_is_left_alone():
    """Wrong shapes and missing parts change nothing and raise nothing."""
    test, _ = feed(steps(60))
    level = test.baseline_seconds
    test.load_state_dict({})
    test.load_state_dict({"figures": np.zeros(3), "last": np.zeros(5), "noise.figures": np.zeros((2, 2))})
    assert test.baseline_seconds == level


def test_thresholds_may_change_while_it_runs():
    """A higher floor from the next step on; what was learnt stays."""
    values = steps()
    values[100:] *= 1.06
    test, alarms = feed(values[:90])
    test.policy = FluctuationPolicy(floor_ratio=0.1)
    for step in range(90, 200):
        test.step(RunSample(step_seconds=float(values[step])), step)
    assert (alarms, test.fluctuating) == ([], False)


def test_steps_of_no_length_are_left_out():
    """A record of nought, or one that is all imbalance, breaks nothing."""
    values = steps()
    values[60] = 0.0
    imbalance = np.zeros(200)
    imbalance[90] = 9.0
    assert feed(values, imbalance=imbalance)[1] == []


def test_a_run_that_starts_again_may_be_slower_for_a_while():
    """Ten steps after a restart show nothing, and a slowdown that outlives them is reported three steps later."""
    values = steps()
    values[100:108] *= 1.08
    test, _ = feed(values[:100])
    test.begin_attempt()
    assert feed(values[100:], test=test)[1] == []
    values[100:] *= 1.08
    test, _ = feed(values[:100])
    test.begin_attempt()
    ((first, _, _, _),) = feed(values[100:], test=test)[1]
    assert POLICY.young_steps < first + 1 <= POLICY.young_steps + 5


@pytest.mark.parametrize("begin", [22, 60])
def test_what_a_culprit_costs_does_not_become_usual(begin):
    """While a slow rank or link acts the level stands, however young the run is; an end of it is seen for what it is."""
    values = steps(300, seed=5)
    values[begin:250] *= 1.05
    healthy, held, followed = FluctuationTest(POLICY), FluctuationTest(POLICY), FluctuationTest(POLICY)
    for step, value in enumerate(values):
        slow = begin + 2 < step < 250
        held.step(RunSample(step_seconds=float(value), is_held_back=slow), step)
        followed.step(RunSample(step_seconds=float(value)), step)
        healthy.step(RunSample(step_seconds=float(steps(300, seed=5)[step])), step)
        if step == 249:
            assert held.baseline_seconds == pytest.approx(0.5, rel=0.015)
            assert begin > 22 or followed.baseline_seconds > 0.52
    assert held.baseline_seconds == pytest.approx(healthy.baseline_seconds, rel=0.01)
    assert not held.fluctuating


def test_a_run_that_gets_faster_next_to_a_culprit_is_followed():
    """What lasts and is better is no fault of anybody: a slow rank from the first step, cured by half."""
    values = steps(200, seed=6)
    values[:100] *= 1.2
    test = FluctuationTest(POLICY)
    for step, value in enumerate(values):
        test.step(RunSample(step_seconds=float(value), is_held_back=step > 8), step)
    assert test.baseline_seconds == pytest.approx(0.5, rel=0.015)


def test_a_run_whose_work_changes_often_is_evaluated_between_the_changes():
    """What was learnt of noise survives a change of work: a slowdown 20 steps after the second one is a slowdown."""
    for seed in range(10):
        values, work = steps(seed=seed), np.full(200, TOKENS)
        for begin in (30, 45):
            values[begin:] *= 1.08
            work[begin:] *= 1.08
        values[66:] *= 1.08
        _, alarms = feed(values, work=work)
        assert next(step for step, _, _, _ in alarms) in range(68, 80), seed


@pytest.mark.parametrize("evaluated", [4, 8, 10, 16, 30, 60])
def test_evaluations_step_by_step_are_no_slowdown_afterwards(evaluated):
    """Steps of a forward pass alone, a fifth as long, every 100 steps: the training that goes on is as it was."""
    for seed in range(6):
        values = steps(400, seed=seed)
        for begin in (80, 180, 280, 380):
            values[begin : begin + evaluated] *= 0.2
        assert feed(values)[1] == [], seed


@pytest.mark.parametrize(("gain", "steps_between"), [(0.03, 30), (0.03, 50), (0.1, 40), (0.02, 60)])
def test_an_evaluation_after_an_improvement_is_no_slowdown_afterwards(gain, steps_between):
    """The run returns to the level of before the evaluation, which is not that of before the improvement."""
    for seed in range(6):
        values = steps(300, seed=seed)
        values[100:] *= 1 - gain
        begin = 100 + steps_between
        values[begin : begin + 30] *= 0.4
        assert feed(values)[1] == [], seed


@pytest.mark.parametrize("evaluated", [4, 7, 10, 20])
def test_evaluations_step_by_step_are_no_noise(evaluated):
    """A slowdown between two of them is as certain at once as in a job that evaluates nothing."""
    for seed in range(6):
        values = steps(160, seed=seed)
        for begin in (50, 100):
            values[begin : begin + evaluated] *= 0.35
        values[130:] *= 1.08
        ((first, onset, ratio, is_sure),) = feed(values)[1]
        assert 131 <= first <= 136, seed
        assert abs(onset - 130) <= 1
        assert ratio == pytest.approx(0.08, abs=0.02)
        assert is_sure, seed


@pytest.mark.parametrize("short", [lambda step: step % 2, lambda step: step % 24 < 12])
def test_a_job_with_two_kinds_of_steps_is_found_slower(short):
    """Steps that generate and steps that train, one after the other or in blocks: both become slower."""
    for seed in range(6):
        values = steps(300, seed=seed) * [0.45 if step >= 50 and short(step) else 1.0 for step in range(300)]
        assert feed(values)[1] == [], seed
        values[200:] *= 1.15
        assert [200 <= first <= 210 for first, *_ in feed(values)[1]] == [True], seed


def test_an_alarm_outlasts_an_evaluation():
    """Steps of a forward pass alone do not show that the training is well again."""
    values = steps(200, seed=5)
    values[100:] *= 1.1
    values[140:147] *= 0.35
    test, alarms = feed(values)
    assert len(alarms) == 1
    assert test.fluctuating


def test_a_run_that_is_slower_than_before_an_evaluation_is_found():
    """Coming back is no fault; coming back slower is one, by what it is slower than before."""
    values = steps(200, seed=3)
    values[100:] *= 1.1
    values[90:110] *= 0.3
    test, ((first, _, ratio, _),) = feed(values)
    assert 102 <= first <= 120
    assert ratio == pytest.approx(0.1, abs=0.02)
    assert test.level_ratio == pytest.approx(0.1, abs=0.02)
    assert test.baseline_seconds == pytest.approx(0.5, rel=0.02)


def test_a_run_that_has_been_faster_for_long_is_slower_when_that_ends():
    """What was before is forgotten: a fault that was there from the start, went, and comes again."""
    values = steps(300, seed=4)
    values[:80] *= 1.2
    values[200:] *= 1.2
    ((first, _, _, _),) = feed(values)[1]
    assert 202 <= first <= 204
