"""The test for one series: what raises an alarm, what never does."""

import numpy as np
import pytest

from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()


def run(values, *, noise_groups=None):
    """Feed rows of shape (steps, series); return the test and the first alarmed step of each series."""
    values = np.asarray(values, dtype=float)
    test = CusumTest(
        [np.zeros(values.shape[1], dtype=np.intp) if noise_groups is None else np.asarray(noise_groups)], POLICY
    )
    first = [None] * values.shape[1]
    for step, row in enumerate(values):
        test.step(row, step)
        for series in test.alarms.series_A.tolist():
            first[series] = step if first[series] is None else first[series]
    return test, first


def noise(steps=120, series=8, sigma=0.004, seed=0):
    return np.random.default_rng(seed).normal(0, sigma, (steps, series))


def test_a_lasting_excess_alarms_on_its_third_step():
    """Five percent above twelve sigma of noise is reported at the third step, with its onset and size."""
    values = noise()
    values[60:, 3] += 0.05
    test, first = run(values)
    assert first == [None, None, None, 62, None, None, None, None]
    assert test.alarms.of(3) == (pytest.approx(0.05, abs=0.005), 60)


@pytest.mark.parametrize("length", [1, 2])
def test_a_stall_of_one_or_two_steps_never_alarms(length):
    """However long a rank stalls in one or two steps, it is no fault."""
    values = noise()
    values[60 : 60 + length, 3] += 50.0
    assert run(values)[1] == [None] * 8


def test_a_family_may_have_a_threshold_of_its_own():
    """It counts for that series group's series alone, until others are adopted; the least of all states who is looked at."""
    test = CusumTest([np.zeros(8, dtype=np.intp), np.zeros(8, dtype=np.intp)], POLICY)
    test.set_policy(POLICY, alarm_sigmas=[(test.series_groups[1], 15.0)])
    values = noise(series=16)
    values[60:, [3, 11]] += 0.05
    alarmed = []
    for step, row in enumerate(values[:64]):
        test.step(row, step)
        alarmed.append(test.alarms.series_A.tolist())
    assert alarmed[61:] == [[], [3], [3, 11]]
    for sigmas, least in ((15.0, POLICY.alarm_sigmas), (5.0, 5.0)):
        test.set_policy(POLICY, alarm_sigmas=[(test.series_groups[1], sigmas)])
        assert test.limits.least_alarm_sigmas == least


def test_half_of_the_series_may_be_slow():
    """Noise learnt from differences holds when half the series are faulty."""
    values = noise()
    values[60:, :4] += 0.05
    assert run(values)[1] == [62, 62, 62, 62, None, None, None, None]


def test_a_static_spread_of_silicon_is_absorbed_and_more_is_not():
    """One percent from the first step is static device variation, five percent from the first step is a fault."""
    values = noise()
    values[:, 1] += 0.01
    values[:, 2] += 0.05
    _, first = run(values)
    assert first[1] is None
    assert first[2] <= 5


def test_an_alarm_ends_after_quiet_steps_and_not_before():
    """Five quiet steps clear an alarm; a missing value is not a quiet step."""
    values = noise()
    values[60:80, 0] += 0.05
    values[80:84, 0] = np.nan
    test, _ = run(values[:88])
    assert 0 in test.alarms
    test, _ = run(values[:90])
    assert 0 not in test.alarms
    assert test.alarms.of(0)[1] == -1


def test_missing_values_change_nothing():
    """A series without values keeps its memory and alarms when its values are back and high."""
    values = noise()
    values[60:, 0] += 0.05
    values[61:64, 0] = np.nan
    assert run(values)[1][0] == 65


@pytest.mark.parametrize("lost", [[61], [61, 62], [59, 61], [60]])
def test_a_missing_value_is_no_evidence(lost):
    """Among missing values, a stall of one or two steps and a step a little high are what they are."""
    for stalled in (1, 2):
        values = noise()
        values[60 : 60 + stalled, 0] += 0.75
        values[lost, 0] = np.nan
        values[60 + stalled + len(lost), 0] += 0.013
        assert run(values)[1] == [None] * 8


@pytest.mark.parametrize("lost", [[62], [62, 63], [61, 62], [60, 62]])
@pytest.mark.parametrize("after", [[0.023, 0.017], [0.0, 0.02, 0.02], [0.017, 0.023, 0.02]])
@pytest.mark.parametrize("stall", [0.3, 1.0, 20.0])
def test_a_missing_value_confirms_no_stall(stall, after, lost):
    """The mean of a series that has no value stays as it is, however far its last value was from it."""
    values = noise(seed=3)
    values[60:62, 0] += stall
    values[lost, 0] = np.nan
    values[max(lost) + 1 : max(lost) + 1 + len(after), 0] = after
    test, _ = run(values[: max(lost) + 1])
    assert test.mean_of(test.series_groups[0])[0] < POLICY.floor_ratio
    assert run(values)[1] == [None] * 8


@pytest.mark.parametrize("series", [8, 32, 256])
@pytest.mark.parametrize("sigma", [0.02, 0.03, 0.3])
def test_noise_that_grows_names_nobody(series, sigma):
    """From one step to the next all series scatter five times as much, or seventy times: none of them is slow."""
    values = noise(series=series, steps=160, seed=series)
    values[60:] *= sigma / 0.004
    assert run(values)[1] == [None] * series


def test_a_fault_in_noise_that_has_grown_is_found():
    """Noise of 2 % since a moment ago hides 5 %, and not 30 %."""
    values = noise(series=32)
    values[60:] *= 5
    values[64:, 3] += 0.30
    assert run(values)[1][3] in (66, 67)


def test_pools_keep_their_own_noise():
    """A noisy noise group does not hide a fault in a quiet one, nor does the quiet one make the noisy one alarm."""
    values = np.hstack([noise(series=4), noise(series=4, sigma=0.03, seed=1)])
    values[60:, 0] += 0.05
    _, first = run(values, noise_groups=[0] * 4 + [1] * 4)
    assert first == [62] + [None] * 7


def test_nothing_is_said_before_noise_is_known():
    """In a noisy job, where few differences show little, there is no alarm inside the warm-up, whatever happens."""
    values = noise(steps=POLICY.warm_up_steps, sigma=0.1)
    values[:, 0] += 5.0
    assert run(values)[1] == [None] * 8


def test_a_quiet_job_is_evaluated_from_its_first_steps():
    """Five percent from the very first step is reported in five steps, as soon as differences show how quiet the job is."""
    values = noise(seed=4)
    values[:, 3] += 0.05
    _, first = run(values)
    assert first[:3] + first[4:] == [None] * 7
    assert first[3] <= 5


@pytest.mark.parametrize("seed", range(5))
def test_healthy_noise_never_alarms(seed):
    """Gaussian noise of any size raises nothing in 1,000 steps of 32 series."""
    for sigma in (0.001, 0.004, 0.02, 0.2):
        assert run(noise(steps=1000, series=32, sigma=sigma, seed=seed))[1] == [None] * 32


@pytest.mark.parametrize("at", [5, 30, 59, 61, 70])
def test_a_memory_taken_back_goes_on_as_if_nothing_had_been(at):
    """Before, inside and after a fault's first steps: the test that recalls gives the same verdicts as the one before."""
    values = noise(steps=110, series=12)
    values[60:90, 3] += 0.05
    noise_groups = np.repeat(range(2), 6)
    whole, first = CusumTest([noise_groups], POLICY), CusumTest([noise_groups], POLICY)
    for step, row in enumerate(values[:at]):
        whole.step(row, step)
        first.step(row, step)
    second = CusumTest([noise_groups], POLICY)
    assert second.load_state_dict({name: value.copy() for name, value in first.state_dict().items()})
    for step, row in enumerate(values[at:], start=at):
        whole.step(row, step)
        second.step(row, step)
        assert second.alarms.series_A.tolist() == whole.alarms.series_A.tolist()
        assert second.alarms.onset_A.tolist() == whole.alarms.onset_A.tolist()
    assert second.alarms.level_A == pytest.approx(whole.alarms.level_A)


def test_a_memory_of_another_shape_is_refused_whole():
    """Nothing of it is taken."""
    small, large = CusumTest([np.zeros(4, dtype=np.intp)], POLICY), CusumTest([np.zeros(8, dtype=np.intp)], POLICY)
    for step, row in enumerate(noise(series=4)):
        small.step(row, step)
    assert not large.load_state_dict(small.state_dict())
    assert large.evaluated_steps == 0


def test_a_threshold_can_be_changed_while_the_test_runs():
    """What was learnt stays: a higher floor ends nothing that is learnt, and silences what lies below it."""
    values = noise()
    values[60:, 3] += 0.05
    strict = CusumTest([np.zeros(8, dtype=np.intp)], POLICY)
    for step, row in enumerate(values):
        if step == 50:
            strict.set_policy(ExcessPolicy(floor_ratio=0.08))
        strict.step(row, step)
        assert not len(strict.alarms)
    strict.set_policy(POLICY)
    strict.step(values[-1], len(values))
    assert strict.alarms.series_A.tolist() == [3]


def test_what_was_silicon_before_is_no_part_of_the_onset():
    """A series that has lain a percent high for long, and then turns slow, began when it turned slow."""
    values = noise(seed=2)
    values[:, 3] += 0.011
    values[80:, 3] += 0.05
    test, first = run(values)
    assert first[3] == 82
    assert 76 <= test.alarms.of(3)[1] <= 80


@pytest.mark.parametrize("lead_ratio", [0.35, 0.6])
def test_a_busy_host_before_a_fault_is_no_part_of_its_onset(lead_ratio):
    """A rank that others' processes slow for some steps, and that then takes ten times as long: the latter is the fault."""
    values = noise(seed=3, sigma=0.08)
    values[55:60, 3] += lead_ratio
    values[60:, 3] += 10.0
    test, first = run(values)
    assert first[3] is not None
    assert first[3] <= 63
    assert abs(test.alarms.of(3)[1] - 60) <= 1


@pytest.mark.parametrize(("series", "outlier"), [(8, 0.18), (128, 0.1)])
def test_series_that_always_differed_are_no_slow_ones(series, outlier):
    """Static differences of 1.4 percent bring some beyond the floor; those that stand out of them are reported."""
    wide = [np.random.default_rng(seed).normal(0.0, 0.014, series) for seed in range(6)]
    named = [run(noise(steps=60, series=series, seed=seed) + static)[1] for seed, static in enumerate(wide)]
    assert all(first is None for each in named for first in each)
    for static in wide:
        static[3] = outlier
    named = [run(noise(steps=60, series=series, seed=seed) + static)[1] for seed, static in enumerate(wide)]
    assert all(each[3] is not None for each in named)


def test_what_begins_later_need_not_stand_out_of_static_differences():
    """A series that turns slower than it was is reported however far apart the others always were."""
    static = np.random.default_rng(1).normal(0.0, 0.014, 32)
    static[5] = 0.0
    values = noise(steps=120, series=32) + static
    values[80:, 5] += 0.04
    assert run(values)[1][5] in range(82, 88)


def test_a_wide_static_difference_is_no_change_however_long_it_is_watched():
    """A series in a wide fleet passes the limit now and then, long after the first steps: it is what it always was."""
    static = np.random.default_rng(3).normal(0.0, 0.014, 32)
    static[5] = 0.0245
    values = noise(steps=400, series=32, seed=4) + static
    values[150:156, 5] -= 0.024  # its sum returns to zero: it is above it since late in the run
    assert run(values)[1] == [None] * 32


def test_single_slow_steps_are_counted_from_what_a_series_always_was():
    """A device that is 12 percent slower than others in a wide fleet is not slow again and again."""
    values = noise(steps=60, series=8, seed=1)
    values[:, 3] += 0.12
    values[:, 4] += 0.11
    values[40, 3] += 0.3
    test, far = CusumTest([np.zeros(8, dtype=np.intp)], ExcessPolicy(stalled_steps=1e6)), {}
    for step, row in enumerate(values):
        test.step(row, step)
        if found := test.far_of(test.series_groups[0], 0.1):
            far[step] = found
    assert list(far) == [40]
    assert list(far[40]) == [3]
    assert far[40][3] == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("level", [0.02, 0.04, 0.08])
def test_a_static_difference_is_known_as_well_as_a_mean_of_sixteen_steps_is(level):
    """Of large ones too: the limits of what is more than a static difference follow from such means."""
    errors = []
    for seed in range(40):
        values = noise(steps=16, sigma=0.008, seed=seed)
        values[:, 3] += level
        test, _ = run(values)
        errors.append(test.static_of(test.series_groups[0])[3] / test._static.share_P[0] - level)
    assert np.sqrt(np.mean(np.square(errors))) < 1.5 * 0.008 / np.sqrt(16)


@pytest.mark.parametrize(("usual", "last"), [(0.018, 0.032), (0.016, 0.03)])
def test_three_long_steps_are_no_lasting_difference(usual, last):
    """A device that was always a little slow has three slower steps: neither a change nor an outlier beyond the floor."""
    for seed in range(10):
        values = noise(steps=63, seed=seed)
        values[:, 3] += usual
        values[60:, 3] = last
        assert run(values)[1][3] is None
