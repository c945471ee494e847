"""How much healthy series scatter."""

import itertools

import numpy as np
import pytest

from coordinator.detect.ranks.noise import PooledNoise, PresentScatter
from coordinator.detect.ranks.noise_groups import NoiseGroups
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()


def learnt(values, noise_groups=None, left_out=None):
    """Feed differences of rows of shape (steps, series); return the noise."""
    count = values.shape[1]
    noise = PooledNoise(
        NoiseGroups(np.zeros(count, dtype=np.intp) if noise_groups is None else np.asarray(noise_groups))
    )
    for before, after in itertools.pairwise(values):
        noise.learn(np.abs(after - before).astype(np.float32), left_out, POLICY)
    return noise


def gaussian(sigma=0.004, steps=300, series=16, seed=0):
    return np.random.default_rng(seed).normal(0, sigma, (steps, series))


@pytest.mark.parametrize("sigma", [1e-4, 0.004, 0.2])
def test_gaussian_noise_is_measured(sigma):
    """Whatever its size, the standard deviation is right to a few percent after a few hundred steps."""
    assert learnt(gaussian(sigma)).sigma_P[0] == pytest.approx(sigma, rel=0.06)


def test_a_lasting_fault_of_half_the_series_changes_nothing():
    """Differences know nothing of what lasts: here a median absolute deviation would be ten times too large."""
    values = gaussian()
    values[150:, :8] += 0.05
    assert learnt(values).sigma_P[0] == pytest.approx(0.004, rel=0.1)


def test_rare_stalls_hardly_count():
    """One stall of 100 % in a thousand differences moves the figure by no more than a tenth."""
    values = gaussian(steps=500)
    values[100::125, 3] += 1.0
    assert learnt(values).sigma_P[0] < 0.0044


def test_bursts_that_are_common_are_learnt_for_what_they_are():
    """Where a tenth of the steps are bursts, they are this noise group's noise, not its outliers."""
    rng = np.random.default_rng(1)
    values = gaussian(steps=400) + (rng.random((400, 16)) < 0.1) * rng.uniform(0.1, 0.9, (400, 16))
    assert learnt(values).sigma_P[0] > 0.05


@pytest.mark.parametrize(("suspicious", "share"), [((), 0.5), ((1,), 0.0)], ids=["a burst", "a suspect's"])
def test_an_onset_is_no_burst(suspicious, share):
    """Of two series one jumps: a burst by the share of the noise group, unless it has become a suspect a few steps later."""
    values = gaussian(steps=60, series=2)
    values[40:, 1] += 0.5
    noise = PooledNoise(NoiseGroups(np.zeros(2, dtype=np.intp)))
    for step in range(1, 44):
        own = np.array(suspicious if step > 40 else (), dtype=np.intp)
        noise.learn(np.abs(values[step] - values[step - 1]).astype(np.float32), None, POLICY, suspicious=own)
    assert noise.outlier_share_P[0] == pytest.approx(share / noise.updates_P[0], abs=1e-3)


@pytest.mark.parametrize("noise_groups", [[0] * 8 + [1] * 8, [0, 1] * 8, [0] * 5 + [1] * 11])
def test_pools_do_not_mix(noise_groups):
    """Side by side, interleaved or of different sizes: each noise group has the noise of its own series."""
    quiet, loud = gaussian(0.004), gaussian(0.1, seed=1)
    values = np.where(np.array(noise_groups) == 0, quiet, loud)
    assert learnt(values, noise_groups).sigma_P == pytest.approx([0.004, 0.1], rel=0.1)


def test_what_was_not_seen_does_not_count():
    """A noise group without a value in a step keeps its figure, and its samples are those that were seen."""
    noise = learnt(gaussian(), [0] * 8 + [1] * 8, np.arange(8, 16))
    assert noise.sigma_P[0] == pytest.approx(0.004, rel=0.1)
    assert np.isnan(noise.sigma_P[1])
    assert noise.samples_P.tolist() == [299 * 8, 0]


def test_few_samples_are_taken_with_caution():
    """The margin is wide at first and gone after a thousand samples."""
    assert learnt(gaussian(steps=2)).cautious_P[0] > 1.3 * learnt(gaussian(steps=2)).sigma_P[0]
    noise = learnt(gaussian(steps=300))
    assert noise.cautious_P[0] == pytest.approx(noise.sigma_P[0], rel=0.05)


def test_equal_figures_at_first_do_not_stick():
    """A clock too coarse for the first steps leaves no noise of zero behind, to which everything would be a burst."""
    values = gaussian(steps=200)
    values[:3] = 0.0
    assert learnt(values).sigma_P[0] == pytest.approx(0.004, rel=0.1)


def test_one_wild_series_does_not_set_the_first_figure():
    """The middle difference does: the others are not taken for as wild as it is."""
    values = gaussian(steps=3)
    values[:, 5] *= 1e5
    assert learnt(values).sigma_P[0] < 0.1


def test_series_that_are_the_reference_stand_still():
    """Of two ranks the lower one is the reference: a quarter of all steps show no move, and noise reads as half."""
    pairs = gaussian(series=16)
    deviation = np.maximum(pairs, 0)
    assert learnt(pairs).zero_share_P[0] == pytest.approx(0.056, abs=0.03)
    halved = learnt(deviation)
    assert halved.zero_share_P[0] > 0.25
    assert halved.sigma_P[0] < 0.6 * 0.004
    assert learnt(deviation, left_out=np.arange(8)).zero_share_P[0] == pytest.approx(halved.zero_share_P[0], abs=0.06)


def present(values):
    """Feed rows of shape (steps, series) of one noise group; return its scatter after each step."""
    scatter = PresentScatter([np.arange(values.shape[1])])
    figures = []
    for before, after in itertools.pairwise(values):
        scatter.learn((after - before).astype(np.float32)[scatter.chosen_KM])
        figures.append(float(scatter.sigma_K[0]))
    return np.array(figures)


@pytest.mark.parametrize(("series", "error"), [(8, 0.35), (32, 0.35), (1024, 0.1)])
def test_present_scatter_is_that_of_the_last_steps(series, error):
    """Right in the mean, a third too small of few series, and three steps after noise has grown twice the old one."""
    values = gaussian(series=series)
    values[150:] *= 7
    figures = present(values)
    assert figures[:149].mean() == pytest.approx(0.004, rel=error)
    assert figures[151:].mean() == pytest.approx(0.028, rel=error)
    assert figures[152] > 0.009


@pytest.mark.parametrize("series", [2, 3, 4])
def test_present_scatter_of_few_series_takes_several_steps(series):
    """The smallest of two movements is no scatter: of few series, those of the last steps are one sample."""
    values = gaussian(series=series)
    values[150:] *= 7
    figures = present(values)
    assert figures[20:149].mean() == pytest.approx(0.004, rel=0.35)
    assert figures[160:].mean() == pytest.approx(0.028, rel=0.35)


def test_present_scatter_of_two_of_which_one_is_the_reference():
    """Of two stages the lower one is always 0. Each shows half of their difference, as what is learnt of them does."""
    difference = gaussian(series=1)
    values = np.hstack([np.maximum(difference, 0), np.maximum(-difference, 0)])
    assert present(values)[20:].mean() == pytest.approx(learnt(values).sigma_P[0], rel=0.35)


@pytest.mark.parametrize("series", [2, 3, 4])
def test_present_scatter_of_few_series_holds_while_one_turns_slow(series):
    """An onset is one of many movements in the last steps, and no noise."""
    values = gaussian(series=series)
    values[150:, 0] += 0.05
    assert present(values)[147:165].max() < 0.012


@pytest.mark.parametrize("slow", [1, 4, 8])
def test_present_scatter_holds_while_series_turn_slow(slow):
    """One, half, or all of eight at once: the step in which they do is no noise."""
    values = gaussian(series=8)
    values[150:, :slow] += 0.05
    assert present(values)[147:155].max() < 0.012


def test_present_scatter_holds_where_half_of_the_series_stand_still():
    """Of two ranks of a replica the lower one is the reference: it counts as one that does not scatter."""
    values = np.maximum(gaussian(series=64), 0)
    assert present(values).mean() == pytest.approx(learnt(values).sigma_P[0], rel=0.35)
