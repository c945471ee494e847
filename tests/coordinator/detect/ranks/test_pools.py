"""Series in pools."""

import numpy as np
import pytest

from coordinator.detect.ranks.pools import Pools

LAYOUTS = [[0] * 24, [0] * 8 + [1] * 16, [0, 1] * 12, [k for k in range(12) for _ in range(2)]]


@pytest.mark.parametrize("pools", LAYOUTS, ids=["one", "two", "interleaved", "many"])
def test_pools_are_read_alike_however_they_lie(pools):
    """Sums, bounds, who is above and what is clipped: as a look at each series would have it."""
    pool_of = np.array(pools)
    rng = np.random.default_rng(0)
    pools, count = Pools(pool_of), pool_of.max() + 1
    for _ in range(50):
        values = rng.standard_t(2, 24).astype(np.float32)
        limit = rng.uniform(0.5, 4, count).astype(np.float32)
        highest = pools.highest(values)
        reach = pools.reach(values, highest)
        limit_of_each = limit[pool_of]
        assert (values <= highest[pool_of]).all()
        assert (np.abs(values) <= reach[pool_of]).all()
        assert pools.above(values, limit, highest).tolist() == np.flatnonzero(values > limit_of_each).tolist()
        clipped = pools.clip(values, limit, reach)
        assert clipped.tolist() == np.clip(values, -limit_of_each, limit_of_each).tolist()
        those = rng.choice(24, 3, replace=False)
        others = np.setdiff1d(np.flatnonzero(values > limit_of_each), those)
        assert pools.above_but(values, limit, those).tolist() == others.tolist()
        assert pools.sums(values) == pytest.approx([values[pool_of == k].sum() for k in range(count)], abs=1e-5)
        assert pools.of(those).tolist() == pool_of[those].tolist()
        assert pools.counts(those).tolist() == np.bincount(pool_of[those], minlength=count).tolist()
    assert [np.arange(24)[pools.members(k)].tolist() for k in range(count)] == [
        np.flatnonzero(pool_of == k).tolist() for k in range(count)
    ]


def test_values_within_all_limits_are_handed_back_as_they_are():
    """A healthy step copies nothing."""
    pools, values = Pools(np.array([0, 0, 1])), np.array([0.1, -0.1, 0.2], dtype=np.float32)
    assert pools.clip(values, np.ones(2), pools.reach(values, pools.highest(values))) is values
