# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Does an excess matter? What noise explains of it, and how far beyond that a candidate for an alarm must be.

Pure. Three figures are learnt in each pool, of single steps, of medians of three and of long means: where noise is
white the first gives the others, on shared cores it does not.

Shapes: F families of series, P pools of series that share their noise figures, C candidates.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.error_budget import attempt_chance, cusum_limit, level_sigmas, steps_between
from coordinator.detect.keeping import joined
from coordinator.detect.ranks.groups import has_nan, median_of_three
from coordinator.detect.ranks.noise import FAR_SIGMAS, PooledNoise, PresentScatter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.pools import Pools
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.float64]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]

SHORT_STEPS = 3  # `median_of_three` is written for it
LONG_STEPS = 16  # reference: window of the long mean; an average of memory 8 scatters just as much
FULL_FLOORS = 2.0  # smallest effects, that a single step counts for in a mean: a stall must not make one by itself
_SIGMA_MIN = 1e-6  # a noiseless generated series must not divide by zero; real clocks are 1,000 times coarser
_ABSORBED_SIGMAS = 4.0  # of static differences: so many a series' own level takes
_SAFE_SHARE = 1 - 1e-6  # of a bound that rounding must not make a gate of


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Series that may alarm, arrays of shape (C,): sum, steps since it left zero and their excess; what they show now.

    `median` and `least` are of the last three steps, `mean` is the long one.
    """

    pool: "Places"
    sum: "Floats"
    run: "Floats"
    excess: "Floats"
    median: "Floats"
    least: "Floats"
    mean: "Floats"

    @classmethod
    def of(
        cls, pool_C: "Places", sums_4C: "Floats", *, last: "tuple[Floats, Floats, Floats]", mean_C: "Floats"
    ) -> "Candidates":
        """Return them, given what `Sums.of` returns of them, their last three values and long means."""
        sum_C, run_C, excess_C, _ = sums_4C
        return cls(
            pool=pool_C,
            sum=sum_C,
            run=run_C,
            excess=excess_C,
            median=median_of_three(*last),
            least=np.minimum(np.minimum(last[0], last[1]), last[2]),
            mean=mean_C,
        )

    @property
    def lasting(self) -> "Floats":
        """What is not over at once: the long mean, which counts no more of a step than makes it an alarm, or more."""
        lasting_C: Floats = np.maximum(self.mean, self.least)
        return lasting_C


class Gates:
    """Noise of series in pools and what it explains; `family_P` is the family of each pool's series.

    `series_F` is the size of each family: the more series, the further out the largest of them lies by chance. `test`
    names the share of the error budget that all of them spend.
    """

    def __init__(self, pools: "Pools", family_P: "Places", series_F: "Sequence[int]", *, test: str = "units") -> None:
        self._test = test
        self._series = max(sum(series_F), 1)
        self._family_P = family_P
        self._first_F = np.searchsorted(family_P, range(len(series_F)))
        self._explained: list[tuple[float, float]] = []
        self._explained_step = 0
        self.single = PooledNoise(pools)
        # Of each pool and, last, of the first family, whose row is in units of what has been learnt of each pool.
        rows = [*(_listed(pools.members(pool)) for pool in range(pools.count)), np.arange(series_F[0])]
        self._now = PresentScatter(rows)
        self._pool_M = pools.of(self._now.chosen_KM[-1])
        self.present_P = np.full(pools.count, np.nan)
        self.sigma_P: Figures = np.full(pools.count, np.inf)
        """The standard deviation of single steps to judge this step by, array of shape (P,); infinite while unknown."""
        self.most_P: Figures = self.sigma_P
        """How much of one step's excess counts towards a mean, array of shape (P,)."""
        self.short = PooledNoise(pools)
        self.long = PooledNoise(pools)

    def adopt(
        self, policy: "ExcessPolicy", floor_ratio: float, alarm_sigmas: "Sequence[tuple[slice, float]]" = ()
    ) -> None:
        """Judge by these thresholds from now on; `floor_ratio` is the smallest effect.

        `alarm_sigmas` are those of pools that have their own.
        """
        self.policy = policy
        self.floor_ratio = floor_ratio
        self._alarm_sigmas_P = np.full(len(self._family_P), policy.alarm_sigmas)
        for pools, sigmas in alarm_sigmas:
            self._alarm_sigmas_P[pools] = sigmas
        steps = self._series * steps_between(self._test, policy.false_page_steps)
        np.maximum(self._alarm_sigmas_P, cusum_limit(policy.slack_sigmas, steps), out=self._alarm_sigmas_P)
        self.least_alarm_sigmas = float(self._alarm_sigmas_P.min())
        """What a sum must exceed in any pool to alarm."""
        self.least_wide = float(np.float32(FULL_FLOORS * floor_ratio))
        """How far a single step may reach in any pool to count in full in a long mean."""
        # Sums have dealt with white noise. What is left is slow, and another one only after a window of the long mean.
        self._sigmas = level_sigmas(steps / LONG_STEPS)

    def follow(self, difference_N: "Floats") -> None:
        """Take how far series are from their last step, and see by how much more they scatter now than has been learnt.

        Pools of few series, as replicas and stages are, do not show it soon: what the scatter of the first family as a
        whole has grown by holds for all of them. A replica is as noisy as its ranks.
        """
        now = self._now
        learnt_P = np.maximum(self.single.sigma_P, _SIGMA_MIN)
        difference_KM = difference_N[now.chosen_KM]
        difference_KM[-1] /= learnt_P[self._pool_M]
        family_sigma = now.sigma_K[-1]
        now.learn(difference_KM)
        if has_nan(learnt_P):
            now.sigma_K[-1] = family_sigma
        self.present_P = np.fmax(now.sigma_K[:-1], learnt_P * now.sigma_K[-1])

    @property
    def common_P(self) -> "Figures | None":
        """By how much all series of each pool have moved in the last step, None where that is within their noise."""
        common_P = self._now.common_K[:-1]
        return common_P if np.count_nonzero(np.abs(common_P) > FAR_SIGMAS * self.scale_P) else None

    @property
    def scale_P(self) -> "Figures":
        """The standard deviation of single steps: as learnt or, where that is more, as it is now; shape (P,)."""
        scale_P: Figures = np.maximum(self.single.sigma_P, self.present_P)
        return scale_P

    @property
    def cautious_P(self) -> "Figures":
        """The same with a margin for what few samples leave open, array of shape (P,)."""
        cautious_P: Figures = np.maximum(self.single.cautious_P, self.present_P)
        return cautious_P

    def settle(self) -> None:
        """Work out what a step is judged by, once its noise has been learnt."""
        sigma_P = np.maximum(self.cautious_P, _SIGMA_MIN)
        if has_nan(sigma_P):
            sigma_P[np.isnan(sigma_P)] = np.inf
        self.sigma_P = sigma_P
        self.most_P = np.maximum(FAR_SIGMAS * sigma_P, FULL_FLOORS * self.floor_ratio)

    def widest_P(self) -> "Figures":
        """Return how far a single step may reach to count in full in a long mean, array of shape (P,)."""
        widest_F = FAR_SIGMAS * np.fmax.reduceat(self.scale_P, self._first_F)
        widest_P: Figures = np.fmax(widest_F, FULL_FLOORS * self.floor_ratio)[self._family_P]
        return widest_P

    def alarm_P(self) -> "Figures":
        """Return the sum that alarms, array of shape (P,): more where noise comes in bursts that last."""
        often_P = np.maximum(self.single.beyond_P - self.policy.burst_share, 0)
        alarm_P: Figures = self._alarm_sigmas_P * (1 + self.policy.burst_caution * often_P)
        return alarm_P

    def gate(self, pool_C: "Places", run_C: "Figures", floor_C: "Figures | None" = None) -> "Figures":
        """Return the mean of `run_C` steps that noise explains: its white part shrinks with them, its walk does not."""
        spread_C = self._mean_sigma(pool_C, run_C)
        floor_C = np.full(len(run_C), self.floor_ratio) if floor_C is None else floor_C
        gate_C: Figures = np.maximum(self._sigmas * spread_C, floor_C)
        return gate_C

    def _mean_sigma(self, pool_C: "Places", run_C: "Figures") -> "Figures":
        """Return the standard deviation of means of `run_C` steps."""
        variance_P = (self.sigma_P * self._skew_P()) ** 2
        walk_P = np.maximum(self.long.cautious_P**2 - variance_P / LONG_STEPS, 0)
        walk_P = np.where(np.isnan(self.long.sigma_P), self.policy.walk_prior_ratio**2, walk_P)
        sigma_C: Figures = np.sqrt(walk_P[pool_C] + variance_P[pool_C] / run_C)
        return sigma_C

    def _skew_P(self) -> "Figures":
        """Return how much more a series scatters while it is above its reference than all do, array of shape (P,).

        A series that is the reference itself, one of two in a replica of two, is always 0: its half of the scatter is
        missing then, and a series that is above for long shows all of it.
        """
        policy = self.policy
        skew_P: Figures = 1 + policy.still_caution * np.maximum(self.single.still_P - policy.still_share, 0)
        return skew_P

    def short_gate(self, pool_C: "Places", floor_C: "Figures | None" = None) -> "Figures":
        """Return the mean of three steps that noise explains."""
        return self.gate(pool_C, np.full(len(pool_C), float(SHORT_STEPS)), floor_C)

    def explained(self, judged: int) -> list[tuple[float, float]]:
        """Return of each pool, after so many steps, the deviation of one step, and the mean of three that it explains.

        Worked out once a step: of many series in alarm, each asks for the same few figures.
        """
        if self._explained_step != judged:
            sigma_P = self.scale_P
            gate_P = self.short_gate(np.arange(len(sigma_P)))
            self._explained = list(zip(sigma_P.tolist(), gate_P.tolist(), strict=True))
            self._explained_step = judged
        return self._explained

    def _noisy_gate(self, noise: PooledNoise) -> "Figures":
        """Return what noise as learnt explains, array of shape (P,); infinite while unknown."""
        gate_P = np.maximum(self.policy.tail_factor * self._sigmas * noise.cautious_P, self.floor_ratio)
        return np.where(np.isnan(gate_P), np.inf, gate_P)

    def passed(self, those: Candidates) -> "Marks":
        """Return which candidates have an effect that noise does not explain, array of shape (C,).

        No gate is below the floor: `least_median` spares most of them this.
        """
        policy, floor, pool_C = self.policy, self.floor_ratio, those.pool
        gate_C = self.gate(pool_C, np.clip(those.run, 1, LONG_STEPS).astype(np.float64))
        mean_C = those.excess / np.maximum(those.run, 1)
        # A drift's mean since its onset lags behind it: the long mean and the last steps may speak for it too.
        long_C = those.mean > self.gate(pool_C, np.full(len(pool_C), float(LONG_STEPS)))
        # What has grown clear over many steps may be a little smaller: so a drift is reported before it is large.
        clear_C = those.sum > policy.clear_factor * self._alarm_sigmas_P[pool_C]
        least_C = np.where(clear_C, policy.clear_floor_share, 1.0) * floor
        last_C = those.median > self.short_gate(pool_C, least_C)
        last_C &= mean_C > policy.run_share * gate_C
        summed_C = (
            ((mean_C > gate_C) & (those.median > policy.median_share * gate_C))
            | (long_C & (those.median > floor))
            | last_C
        )
        least_C = np.maximum(np.minimum(gate_C, self._noisy_gate(self.short)[pool_C]), those.median)
        summed_C &= those.least > policy.least_share * least_C
        noisy_C = self.scale_P[pool_C] > policy.noisy_sigma
        return np.where(noisy_C, self._passed_in_noise(those), summed_C) if noisy_C.any() else summed_C

    def has_changed(self, those: Candidates, past_C: "Floats", changes_2C: "Floats") -> "Marks":
        """Return which candidates are above their own past by an effect that noise does not explain, shape (C,).

        `changes_2C` are the sum over that past, which must be an alarm's as well, and the steps since it left zero.
        """
        change_C, since_C = changes_2C
        now_C = np.maximum(those.lasting, those.median)
        changed_C: Marks = now_C - past_C > self.gate(those.pool, np.clip(since_C, 1, LONG_STEPS).astype(np.float64))
        changed_C &= change_C > self.alarm_P()[those.pool]
        return changed_C

    def level_sigma_P(self) -> "Figures":
        """Return the standard deviation of lasting levels, array of shape (P,)."""
        every_P = np.arange(len(self._family_P))
        return self._mean_sigma(every_P, np.full(len(every_P), float(LONG_STEPS)))

    def static_share(self, level_N: "Floats", pools: "Pools") -> "Floats":
        """Return how much of what lasting levels differ by is no noise of them, array of shape (P,), 0 to 1.

        By the components of their variance, as in empirical Bayes estimates (James and Stein 1961).
        """
        noise_P = self.level_sigma_P()
        square_P = pools.sums(level_N**2) / pools.sizes_P
        whole_P = np.maximum(square_P, noise_P**2)
        is_known_P = np.isfinite(whole_P) & (whole_P > 0)  # noise is without bound until it is learnt
        of_noise_P = np.divide(noise_P**2, whole_P, out=np.ones_like(whole_P), where=is_known_P)
        share_P: Floats = (1 - of_noise_P).astype(np.float32)
        return share_P

    @property
    def static_sigma(self) -> float:
        """The spread of static differences that is expected of a fleet before it has been seen, ratio."""
        return self.policy.baseline_max_ratio / _ABSORBED_SIGMAS

    @property
    def static_rate(self) -> float:
        """The chance of a false outlier among them: they are looked at once an attempt."""
        return attempt_chance("static", self.policy.false_page_steps)

    def least_median(self) -> float:
        """Return what a candidate's median of three steps must exceed whatever the noise, to pass."""
        return _SAFE_SHARE * min(self.policy.median_share, self.policy.clear_floor_share, 1.0) * self.floor_ratio

    def _passed_in_noise(self, those: Candidates) -> "Marks":
        """Return the same for pools that are very noisy."""
        policy, pool_C = self.policy, those.pool
        sigma_C = self.scale_P[pool_C]
        short_C = np.maximum(self._noisy_gate(self.short)[pool_C], policy.gross_ratio)
        short_C = np.maximum(short_C, policy.noisy_short_sigmas * sigma_C)
        long_C = policy.noisy_long_factor * self._noisy_gate(self.long)[pool_C]
        long_C = np.maximum(long_C, policy.noisy_long_sigmas * sigma_C)
        large_C = (those.median > short_C) & (those.least > policy.least_share * short_C)
        lasting_C = (those.mean > long_C) & (those.median > self.floor_ratio)
        lasting_C &= those.sum > self._alarm_sigmas_P[pool_C]
        passed_C: Marks = large_C | lasting_C
        return passed_C

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt."""
        noises = {"noise": self.single, "short": self.short, "long": self.long}
        now = {"now.pools": self._now.sigma_K[:-1], "now.family": self._now.sigma_K[-1:], "now": self.present_P}
        return joined({name: noise.memory() for name, noise in noises.items()}) | now


def _listed(members: "Places | slice") -> "Places":
    """Return the series of a pool, one after the other."""
    return np.arange(members.start, members.stop) if isinstance(members, slice) else members
