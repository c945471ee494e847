"""Sums that are kept only where they are above zero."""

import numpy as np
import pytest

from coordinator.detect.ranks.pools import Pools
from coordinator.detect.ranks.sums import Sums
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()
FLOOR = 0.025
SIGMA_P = np.array([0.004, 0.02])
MOST_P = np.maximum(POLICY.clip_sigmas * SIGMA_P, 4 * FLOOR)


def dense(rows, pools, seen):
    """Return what the figures of every series come to, step by step over all of them."""
    count = rows.shape[1]
    total, run, excess, whole = np.zeros((4, count), dtype=np.float32)
    sigma = SIGMA_P.astype(np.float32)[pools]
    most = MOST_P.astype(np.float32)[pools]
    for raw, here in zip(rows, seen, strict=True):
        score = np.minimum(raw / sigma, np.float32(POLICY.clip_sigmas)) - np.float32(POLICY.slack_sigmas)
        total = np.maximum(total + score * here, 0)
        above = total > 0
        excess = (excess + np.minimum(raw, most) * here) * above
        run = (run + here) * above
        whole = (whole + raw * here) * above
        yield np.stack([total, run, excess, whole])


@pytest.mark.parametrize("pools", [[0] * 6 + [1] * 6, [0, 1] * 6], ids=["side by side", "interleaved"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_they_are_what_sums_of_all_series_would_be(pools, missing):
    """Bit for bit, over hundreds of steps in which sums leave zero, grow and return; also where values are missing."""
    rng = np.random.default_rng(2)
    pools = np.array(pools)
    rows = (rng.normal(0.5, 1.5, (400, 12)) * SIGMA_P[pools]).astype(np.float32)
    seen = rng.random(rows.shape) >= missing
    sums = Sums(Pools(pools))
    lengths = set()
    for raw, here, expected in zip(rows, seen, dense(rows, pools, seen), strict=True):
        sums.move(raw, here if missing else None, SIGMA_P, None, most_P=MOST_P, policy=POLICY)
        assert np.array_equal(sums.of(np.arange(12)), expected)
        assert sorted(sums.series.tolist()) == np.flatnonzero(expected[0]).tolist()
        lengths.add(len(sums.series))
    assert min(lengths) < 3 < max(lengths)


def test_a_pool_that_is_not_warm_adds_no_score():
    """Its series stay at zero however high they are; the others' do not."""
    sums = Sums(Pools(np.array([0, 0, 1, 1])))
    high = np.full(4, 0.5, dtype=np.float32)
    sums.move(high, None, SIGMA_P, np.array([False, True]), most_P=MOST_P, policy=POLICY)
    assert sorted(sums.series.tolist()) == [2, 3]


def test_a_dropped_sum_begins_at_zero():
    """Its sum is zero, the others' are what they were."""
    sums = Sums(Pools(np.zeros(4, dtype=np.intp)))
    high = np.full(4, 0.5, dtype=np.float32)
    sums.move(high, None, SIGMA_P[:1], None, most_P=MOST_P[:1], policy=POLICY)
    sums.drop(np.array([1, 3]))
    assert sums.of(np.arange(4))[0].tolist() == [4, 0, 4, 0]


@pytest.mark.parametrize("lie", [{"series": np.array([9])}, {"figures": np.zeros((2, 2))}, {"series": np.array([-1])}])
def test_a_memory_that_does_not_fit_is_left_alone(lie):
    """Series that are not there, or figures that are not theirs, change nothing."""
    sums = Sums(Pools(np.zeros(4, dtype=np.intp)))
    sums.move(np.full(4, 0.5, dtype=np.float32), None, SIGMA_P[:1], None, most_P=MOST_P[:1], policy=POLICY)
    memory = {"series": np.array([0]), "figures": np.ones((1, 4), dtype=np.float32)} | lie
    sums.recall(memory, 4)
    assert sums.of(np.arange(4))[0].tolist() == [4, 4, 4, 4]
