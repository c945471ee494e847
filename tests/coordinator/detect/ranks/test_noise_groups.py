"""Series in noise groups."""

import numpy as np
import pytest

from coordinator.detect.ranks.noise_groups import NoiseGroups

LAYOUTS = {
    "one": [0] * 24,
    "two": [0] * 8 + [1] * 16,
    "interleaved": [0, 1] * 12,
    "many": [k for k in range(12) for _ in range(2)],
    "stages, replicas and stages": [0, 0, 1, 1] * 5 + [2] * 2 + [3] * 2,
    "parts in stages": [0, 1, 2] * 4 + [3, 4, 5] * 4,
    "irregular": [0, 1, 1, 0] * 5 + [2] * 4,
}


@pytest.mark.parametrize("noise_groups", LAYOUTS.values(), ids=LAYOUTS)
def test_pools_are_read_alike_however_they_lie(noise_groups):
    """Sums, bounds, who is above and what is clipped: as a look at each series would have it."""
    pool_of = np.array(noise_groups)
    rng = np.random.default_rng(0)
    noise_groups, count = NoiseGroups(pool_of), pool_of.max() + 1
    for _ in range(50):
        values = rng.standard_t(2, 24).astype(np.float32)
        limit = rng.uniform(0.5, 4, count).astype(np.float32)
        highest = noise_groups.highest(values)
        reach = noise_groups.reach(values, highest)
        limit_of_each = limit[pool_of]
        assert (values <= highest[pool_of]).all()
        assert (np.abs(values) <= reach[pool_of]).all()
        assert noise_groups.above(values, limit, highest).tolist() == np.flatnonzero(values > limit_of_each).tolist()
        clipped = noise_groups.clip(values, limit, reach)
        assert clipped.tolist() == np.clip(values, -limit_of_each, limit_of_each).tolist()
        those = rng.choice(24, 3, replace=False)
        others = np.setdiff1d(np.flatnonzero(values > limit_of_each), those)
        assert noise_groups.above_but(values, limit, those).tolist() == others.tolist()
        assert noise_groups.sums(values) == pytest.approx([values[pool_of == k].sum() for k in range(count)], abs=1e-5)
        below = [np.count_nonzero(values[pool_of == k] < limit[k]) for k in range(count)]
        assert noise_groups.counts_below(values, limit).tolist() == below
        assert np.broadcast_to(noise_groups.per_series(limit), 24).tolist() == limit_of_each.tolist()
        assert noise_groups.of(those).tolist() == pool_of[those].tolist()
        assert noise_groups.counts(those).tolist() == np.bincount(pool_of[those], minlength=count).tolist()
    assert [np.arange(24)[noise_groups.members(k)].tolist() for k in range(count)] == [
        np.flatnonzero(pool_of == k).tolist() for k in range(count)
    ]


def test_values_within_all_limits_are_handed_back_as_they_are():
    """A healthy step copies nothing."""
    noise_groups, values = NoiseGroups(np.array([0, 0, 1])), np.array([0.1, -0.1, 0.2], dtype=np.float32)
    assert noise_groups.clip(values, np.ones(2), noise_groups.reach(values, noise_groups.highest(values))) is values
