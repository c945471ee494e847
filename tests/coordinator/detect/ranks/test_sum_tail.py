"""What sums of healthy series reach, where noise is white and where it is not."""

import numpy as np
import pytest

from coordinator.detect.error_budget import cusum_limit
from coordinator.detect.ranks.cusum_state import CusumState
from coordinator.detect.ranks.noise_groups import NoiseGroups
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.ranks.sum_tail import THRESHOLD_SHARE, SumTail
from coordinator.settings.policy import ExcessPolicy

SERIES, STEPS = 8, 100_000.0
POLICY = ExcessPolicy(slack_sigmas=1.0, clip_sigmas=3.4)
WHITE = cusum_limit(1.0, SERIES * STEPS)
"""What a sum in white noise exceeds in one of so many steps of all series."""


def learnt(rows):
    """Return the limit after some steps, and the peaks of all sums that came back to zero."""
    sums, tail, peaks = CusumState(NoiseGroups(np.zeros(SERIES, dtype=np.intp))), SumTail(1), []
    threshold = np.array([THRESHOLD_SHARE * WHITE])
    for row in rows.astype(np.float32):
        sums.move(row, None, np.ones(1), None, most_P=np.array([np.inf]), stall_ratio=np.inf, policy=POLICY)
        tail.learn(sums.ended_group_E, sums.ended_peak_E, threshold)
        peaks += sums.ended_peak_E.tolist()
    return float(tail.limit_P(threshold, POLICY.slack_sigmas, np.array([STEPS]))[0]), np.array(peaks)


def lasting(rng, steps):
    """Return noise in which a series is 3 sigma high for some steps in a row: a few at the mean, seldom many."""
    values = rng.standard_normal((steps, SERIES))
    for row, column in np.argwhere(rng.random(values.shape) < 0.003).tolist():
        values[row : row + rng.geometric(0.4), column] += 3.0
    return values


@pytest.mark.parametrize("seed", range(4))
def test_white_noise_leaves_its_own_limit(seed):
    """There the peaks that are seen give hardly more than the limit of the formula."""
    limit, _ = learnt(np.random.default_rng(seed).standard_normal((800, SERIES)))
    assert limit < 1.15 * WHITE


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_noise_that_lasts_seldom_pass_the_limit_of_their_tail(seed):
    """They pass that of white noise every hundred steps; one in ten of these, at most, passes what 1,000 steps show."""
    rng = np.random.default_rng(seed)
    limit, _ = learnt(lasting(rng, 1000))
    _, peaks = learnt(lasting(rng, 6000))
    assert (peaks > WHITE).sum() > 20
    assert 10 * (peaks > limit).sum() < (peaks > WHITE).sum()


def test_old_peaks_fade():
    """A host that is quiet again is evaluated as one: after 4,000 steps at nearly the white limit."""
    rng = np.random.default_rng(5)
    limit, _ = learnt(np.concatenate([lasting(rng, 600), rng.standard_normal((4000, SERIES))]))
    assert limit < 1.25 * WHITE


@pytest.mark.parametrize("learns_tail", [False, True])
def test_steps_in_which_a_noise_group_is_not_evaluated_show_nothing_of_its_sums(learns_tail):
    """A quiet group is evaluated from the first steps on, a noisy one after warm-up: it has no sums until then."""
    rng, sigmas = np.random.default_rng(0), np.repeat([0.004, 0.05], 64)
    test = CusumTest([np.repeat([0, 1], 64)], POLICY, learns_tail=learns_tail)
    for step in range(POLICY.warm_up_steps + 10):
        test.step(sigmas * rng.standard_normal(128), step)
    name, unit = ("tail", 1) if learns_tail else ("stalls", 64)
    quiet, noisy = test.state_dict()[name][0] / unit
    assert quiet > POLICY.warm_up_steps
    assert noisy == pytest.approx(10, rel=0.01)
