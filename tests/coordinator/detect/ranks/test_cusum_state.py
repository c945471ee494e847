"""Sums that are kept only where they are above zero."""

import numpy as np
import pytest

from coordinator.detect.ranks.cusum_state import CusumState
from coordinator.detect.ranks.noise_groups import NoiseGroups
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()
FLOOR = 0.025
STALL = 0.05
SIGMA_P = np.array([0.004, 0.02])
MOST_P = np.maximum(POLICY.clip_sigmas * SIGMA_P, 4 * FLOOR)


def dense(rows, noise_groups, seen):
    """Return what the figures of every series come to, step by step over all of them."""
    count = rows.shape[1]
    total, run, deviation, whole, stalled = np.zeros((5, count), dtype=np.float32)
    sigma = SIGMA_P.astype(np.float32)[noise_groups]
    most = MOST_P.astype(np.float32)[noise_groups]
    for raw, here in zip(rows, seen, strict=True):
        score = np.minimum(raw / sigma, np.float32(POLICY.clip_sigmas)) - np.float32(POLICY.slack_sigmas)
        total = np.maximum(total + score * here, 0)
        above = total > 0
        deviation = (deviation + np.minimum(raw, most) * here) * above
        run = (run + here) * above
        whole = (whole + raw * here) * above
        is_stall = (raw > sigma * np.float32(POLICY.clip_sigmas)) & (raw > STALL)
        stalled = (stalled + is_stall * here) * above
        yield np.stack([total, run, deviation, whole, stalled])


@pytest.mark.parametrize("noise_groups", [[0] * 6 + [1] * 6, [0, 1] * 6], ids=["side by side", "interleaved"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_they_are_what_sums_of_all_series_would_be(noise_groups, missing):
    """Bit for bit, over hundreds of steps in which sums leave zero, grow and return; also where values are missing."""
    rng = np.random.default_rng(2)
    noise_groups = np.array(noise_groups)
    rows = (rng.normal(0.5, 1.5, (400, 12)) * SIGMA_P[noise_groups]).astype(np.float32)
    rows[rng.random(rows.shape) < 0.05] += 0.2
    seen = rng.random(rows.shape) >= missing
    cusums = CusumState(NoiseGroups(noise_groups))
    lengths = set()
    for raw, here, expected in zip(rows, seen, dense(rows, noise_groups, seen), strict=True):
        cusums.move(raw, here if missing else None, SIGMA_P, None, most_P=MOST_P, stall_ratio=STALL, policy=POLICY)
        assert np.array_equal(cusums.of(np.arange(12)), expected)
        assert sorted(cusums.series.tolist()) == np.flatnonzero(expected[0]).tolist()
        lengths.add(len(cusums.series))
    assert min(lengths) < 3 < max(lengths)


def test_a_pool_that_is_not_warm_adds_no_score():
    """Its series stay at zero however high they are; the others' do not."""
    cusums = CusumState(NoiseGroups(np.array([0, 0, 1, 1])))
    high = np.full(4, 0.5, dtype=np.float32)
    cusums.move(high, None, SIGMA_P, np.array([False, True]), most_P=MOST_P, stall_ratio=STALL, policy=POLICY)
    assert sorted(cusums.series.tolist()) == [2, 3]


@pytest.mark.parametrize("uncounted", [{"seen_N": np.array([False])}, {"warm_P": np.array([False])}])
def test_a_past_that_noise_leaves_open_spoils_no_change(uncounted):
    """A step that does not count, while nothing of the past is known, adds nothing to a change that is found later."""
    cusums = CusumState(NoiseGroups(np.zeros(1, dtype=np.intp)))
    step = {"seen_N": None, "sigma_P": SIGMA_P[:1], "warm_P": None, "most_P": MOST_P[:1]}
    step |= {"stall_ratio": STALL, "policy": POLICY}
    high = np.full(1, 0.5, dtype=np.float32)
    for more in ({}, uncounted):
        cusums.move(high, **step | more, static_of=lambda series: np.full(len(series), np.inf, dtype=np.float32))
    for _ in range(8):
        cusums.move(high, **step, static_of=lambda series: np.zeros(len(series), dtype=np.float32))
    assert cusums.changed(1.0).tolist() == [0]


def test_a_dropped_sum_begins_at_zero():
    """Its sum is zero, the others' are what they were."""
    cusums = CusumState(NoiseGroups(np.zeros(4, dtype=np.intp)))
    high = np.full(4, 0.5, dtype=np.float32)
    cusums.move(high, None, SIGMA_P[:1], None, most_P=MOST_P[:1], stall_ratio=STALL, policy=POLICY)
    cusums.drop(np.array([1, 3]))
    assert cusums.of(np.arange(4))[0].tolist() == [4, 0, 4, 0]


@pytest.mark.parametrize("lie", [{"series": np.array([9])}, {"figures": np.zeros((2, 2))}, {"series": np.array([-1])}])
def test_a_memory_that_does_not_fit_is_left_alone(lie):
    """Series that are not there, or figures that are not theirs, change nothing."""
    cusums = CusumState(NoiseGroups(np.zeros(4, dtype=np.intp)))
    cusums.move(
        np.full(4, 0.5, dtype=np.float32), None, SIGMA_P[:1], None, most_P=MOST_P[:1], stall_ratio=STALL, policy=POLICY
    )
    state = {"series": np.array([0]), "figures": np.ones((1, 7), dtype=np.float32)} | lie
    cusums.load_state_dict(state, 4)
    assert cusums.of(np.arange(4))[0].tolist() == [4, 4, 4, 4]
