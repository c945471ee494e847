# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""How much do healthy series scatter? Learnt from differences over time, per pool of series that scatter alike.

Pure. Differences, and never the spread between series: a lasting fault cancels in a difference, so the figure holds
when half the ranks are slow and in domains of two, where a median absolute deviation breaks down.

Shapes: N series, P pools.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.detect.ranks.pools import Pools
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.float64]
    Places = NDArray[np.intp]


_MEDIAN_TO_SIGMA = 1.048  # Gaussian: the median of |a - b| is 0.954 sigma
_STILL_SIGMAS = 0.1  # a series that moves by less from one step to the next stands still
_STILL_EVERY = 4  # updates; how many stand still is no matter of single steps
_SIGMA_MIN = 1e-6  # ratio; below, figures are equal but for rounding


class PooledNoise:
    """Standard deviation per pool; `sigma_P` is NaN until a pool has been seen.

    Differences beyond a few sigma are stalls and onsets and count as little more than that, unless they are many:
    `beyond_P`, their share, widens the limit, so that noise which comes in bursts is learnt for what it is.
    `still_P` is the share of series that do not move from step to step: those that are the reference themselves.
    """

    def __init__(self, pools: "Pools") -> None:
        self._pools = pools
        self.updates_P = np.zeros(pools.count)
        self.samples_P = np.zeros(pools.count)
        self.sigma_P = np.full(pools.count, np.nan)
        self.beyond_P = np.zeros(pools.count)
        self.still_P = np.zeros(pools.count)

    @property
    def cautious_P(self) -> "Figures":
        """Sigma with a margin for what few samples leave open, array of shape (P,)."""
        margin_P: Figures = np.maximum(self.samples_P, 1)
        np.sqrt(margin_P, out=margin_P)
        np.divide(2, margin_P, out=margin_P)
        margin_P += 1
        margin_P *= self.sigma_P
        return margin_P

    def learn(self, difference_N: "Floats", left_out: "Places | None", policy: "ExcessPolicy") -> None:
        """Take absolute differences; the series `left_out` (each once) do not count. Changes `difference_N`."""
        pools = self._pools
        count_P = pools.sizes_P
        if left_out is not None and len(left_out):
            difference_N[left_out] = 0
            count_P = count_P - pools.counts(left_out)
        count_P, rate_P = self._count(count_P, policy)
        if int(np.maximum.reduce(self.updates_P)) % _STILL_EVERY == 0:
            self._count_still(difference_N, left_out, rate_P, count_P)
        least = float(np.minimum.reduce(self.sigma_P))
        self._clip(difference_N, rate_P, count_P, policy, has_limits=least > _SIGMA_MIN)
        mean_P = pools.sums(difference_N)
        mean_P *= policy.difference_to_sigma
        mean_P /= count_P
        change_P = mean_P - self.sigma_P
        change_P *= rate_P
        if math.isnan(least):
            self._begin(difference_N, left_out, np.where(rate_P > 0, mean_P, np.nan))
            change_P[np.isnan(change_P)] = 0
        self.sigma_P += change_P

    def _count(self, count_P: "Figures", policy: "ExcessPolicy") -> "tuple[Figures, Figures]":
        """Count so many samples of each pool; return 1 instead of none, and how fast a pool learns from them."""
        self.samples_P += count_P
        if np.count_nonzero(count_P) == len(count_P):  # nearly always
            self.updates_P += 1
            return count_P, np.maximum(1 / self.updates_P, policy.noise_rate)
        seen_P = count_P > 0
        self.updates_P += seen_P
        rate_P = np.maximum(1 / np.maximum(self.updates_P, 1), policy.noise_rate)
        return np.maximum(count_P, 1), rate_P * seen_P

    def _count_still(
        self, difference_N: "Floats", left_out: "Places | None", rate_P: "Figures", count_P: "Figures"
    ) -> None:
        """Learn how many series do not move; what was left out has a difference of 0 and does not count."""
        still_P = self._pools.counts_below(difference_N, _STILL_SIGMAS * self.sigma_P)
        if left_out is not None and len(left_out):
            still_P -= self._pools.counts(left_out)
        share_P = np.maximum(still_P, 0) / count_P
        self.still_P += np.minimum(_STILL_EVERY * rate_P, 1) * (share_P - self.still_P)

    def _clip(
        self, difference_N: "Floats", rate_P: "Figures", count_P: "Figures", policy: "ExcessPolicy", *, has_limits: bool
    ) -> None:
        """Cut what is far beyond its pool's noise, and learn how common that is; `has_limits` where all have noise."""
        pools = self._pools
        limit_P = policy.clip_sigmas * self.sigma_P
        if not has_limits:
            # Not known, or nothing seen yet but equal figures: a limit of 0 would never let go of 0.
            limit_P[~(self.sigma_P > _SIGMA_MIN)] = np.inf
        beyond = pools.above(difference_N, limit_P, pools.highest(difference_N))
        if not len(beyond):
            self.beyond_P *= 1 - rate_P
            return
        pool_C = pools.of(beyond)
        share_P = np.bincount(pool_C, minlength=pools.count) / count_P
        self.beyond_P += rate_P * (share_P - self.beyond_P)
        limit_P = limit_P * (1 + policy.burst_factor * self.beyond_P)
        difference_N[beyond] = np.minimum(difference_N[beyond], limit_P.astype(np.float32)[pool_C])

    def _begin(self, difference_N: "Floats", left_out: "Places | None", mean_P: "Figures") -> None:
        """Set the first figure of pools, from their middle difference: one that is wild must not set it."""
        is_known_N = np.ones(len(difference_N), dtype=bool)
        if left_out is not None:
            is_known_N[left_out] = False
        for pool in np.isnan(self.sigma_P).nonzero()[0].tolist():
            members = self._pools.members(pool)
            own = difference_N[members][is_known_N[members]]
            first = _MEDIAN_TO_SIGMA * float(np.median(own)) if len(own) else np.nan
            self.sigma_P[pool] = first if first > _SIGMA_MIN else mean_P[pool]

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt."""
        return {
            "updates": self.updates_P,
            "samples": self.samples_P,
            "sigma": self.sigma_P,
            "beyond": self.beyond_P,
            "still": self.still_P,
        }
