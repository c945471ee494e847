# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""How much do healthy series scatter? Learnt from differences over time, per pool of series that scatter alike.

Pure. Differences, and never the spread between series: a lasting fault cancels in a difference, so the figure holds
when half the ranks are slow and in domains of two, where a median absolute deviation breaks down.

Shapes: N series, P pools.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.policy import ExcessPolicy

    Floats = NDArray[np.float32]


_MEDIAN_TO_SIGMA = 1.048  # Gaussian: the median of |a - b| is 0.954 sigma
_SIGMA_MIN = 1e-6  # ratio; below, figures are equal but for rounding


class Pools:
    """Which pool each of N series belongs to; figures of one pool are spread over its series."""

    def __init__(self, pools_N: "NDArray[np.intp]") -> None:
        self._pools_N = pools_N
        self.count = int(pools_N.max(initial=0)) + 1
        sizes_P = np.bincount(pools_N, minlength=self.count)
        self.sizes_P = sizes_P.astype(np.float64)
        # Pools that lie side by side, as pipeline stages and kinds of domains do, need no index.
        is_sorted = bool((np.diff(pools_N) >= 0).all()) and bool((sizes_P > 0).all())
        self._is_even = is_sorted and len(set(sizes_P.tolist())) == 1
        self._runs_P = sizes_P if is_sorted else None
        self._starts_P = np.cumsum(sizes_P) - sizes_P

    def rows(self, values_N: "Floats") -> "Floats":
        """Return a view with one row a pool where pools lie side by side, else the series as they are."""
        return values_N.reshape(self.count, -1) if self._is_even else values_N

    def beside(self, figures_P: "NDArray[np.floating]") -> "Floats":
        """Return each pool's figure in a shape that broadcasts against `rows`."""
        figures = figures_P.astype(np.float32)
        if self._is_even:
            return figures[:, None]
        return figures[self._pools_N] if self._runs_P is None else np.repeat(figures, self._runs_P)

    def any_above(self, values_N: "Floats", limit_P: "NDArray[np.floating]") -> bool:
        """Whether any series is above the limit of its pool."""
        if self._runs_P is None:
            return bool((values_N > self.beside(limit_P)).any())
        return bool((np.maximum.reduceat(values_N, self._starts_P) > limit_P).any())

    def of(self, series: "NDArray[np.intp]") -> "NDArray[np.intp]":
        """Return the pools of some series."""
        return self._pools_N[series]

    def members(self, pool: int) -> "NDArray[np.bool_]":
        """Return which series a pool holds, array of shape (N,)."""
        own_N: NDArray[np.bool_] = self._pools_N == pool
        return own_N

    def sums(self, values_N: "Floats") -> "NDArray[np.float64]":
        """Return the sum of each pool's values, array of shape (P,)."""
        if self._runs_P is not None:
            sums: NDArray[np.float64] = np.add.reduceat(values_N, self._starts_P, dtype=np.float64)
            return sums
        return np.bincount(self._pools_N, values_N, self.count).astype(np.float64)


class PooledNoise:
    """Standard deviation per pool; `sigma_P` is NaN until a pool has been seen.

    Differences beyond a few sigma are stalls and onsets and count as little more than that, unless they are many:
    `beyond_P`, their share, widens the limit, so that noise which comes in bursts is learnt for what it is.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.updates_P = np.zeros(pools.count)
        self.samples_P = np.zeros(pools.count)
        self.sigma_P = np.full(pools.count, np.nan)
        self.beyond_P = np.zeros(pools.count)

    @property
    def cautious_P(self) -> "NDArray[np.float64]":
        """Sigma with a margin for what few samples leave open, array of shape (P,)."""
        wide_P: NDArray[np.float64] = self.sigma_P * (1 + 2 / np.sqrt(np.maximum(self.samples_P, 1)))
        return wide_P

    def learn(self, difference_N: "Floats", known_N: "NDArray[np.bool_] | None", policy: "ExcessPolicy") -> None:
        """Take absolute differences; `known_N` says which count, None stands for all. Changes `difference_N`."""
        count_P = self._pools.sizes_P
        if known_N is not None:
            difference_N *= known_N
            count_P = self._pools.sums(known_N.astype(np.float32))
        seen_P = count_P > 0
        self.updates_P += seen_P
        self.samples_P += count_P
        count_P = np.maximum(count_P, 1)
        rate_P = np.where(seen_P, np.maximum(1 / np.maximum(self.updates_P, 1), policy.noise_rate), 0.0)
        # Not known, or nothing seen yet but equal figures: a limit of 0 would never let go of 0.
        limit_P = np.where(self.sigma_P > _SIGMA_MIN, policy.clip_sigmas * self.sigma_P, np.inf)
        if self._pools.any_above(difference_N, limit_P):
            rows = self._pools.rows(difference_N)
            beyond_N = (rows > self._pools.beside(limit_P)).reshape(-1).astype(np.float32)
            self.beyond_P += rate_P * (self._pools.sums(beyond_N) / count_P - self.beyond_P)
            limit_P = limit_P * (1 + policy.burst_factor * self.beyond_P)
            np.minimum(rows, self._pools.beside(limit_P), out=rows)
        else:
            self.beyond_P *= 1 - rate_P
        mean_P = policy.difference_to_sigma * self._pools.sums(difference_N) / count_P
        if np.isnan(self.sigma_P).any():
            mean_P = np.where(np.isnan(self.sigma_P), self._first(difference_N, known_N, mean_P), mean_P)
        old_P = np.where(np.isnan(self.sigma_P), mean_P, self.sigma_P)
        self.sigma_P = np.where(seen_P, old_P + rate_P * (mean_P - old_P), self.sigma_P)

    def _first(
        self, difference_N: "Floats", known_N: "NDArray[np.bool_] | None", mean_P: "NDArray[np.float64]"
    ) -> "NDArray[np.float64]":
        """Return the first figure of each pool, from its middle difference: one that is wild must not set it."""
        first_P = np.full(self._pools.count, np.nan)
        for pool in np.flatnonzero(np.isnan(self.sigma_P)).tolist():
            own = self._pools.members(pool) if known_N is None else self._pools.members(pool) & known_N
            first_P[pool] = _MEDIAN_TO_SIGMA * float(np.median(difference_N[own])) if own.any() else np.nan
        return np.where(first_P > _SIGMA_MIN, first_P, mean_P)

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt."""
        return {"updates": self.updates_P, "samples": self.samples_P, "sigma": self.sigma_P, "beyond": self.beyond_P}
