# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Whether a deviation matters: how much of it noise explains, and how far beyond that a candidate for an alarm must be.

Pure. Three noise figures are learnt for each noise group, of single steps, of medians of three and of long means: if
noise is white the first gives the others, but on shared cores it does not.

Shapes: F series groups, P noise groups, C candidates.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.error_budget import ATTEMPT_STEPS, attempt_chance, cusum_limit, level_sigmas, steps_between
from coordinator.detect.ranks.groups import has_nan, median_of_three
from coordinator.detect.ranks.noise import FAR_SIGMAS, PooledNoise, PresentScatter
from coordinator.detect.ranks.stalls import Stalls
from coordinator.detect.ranks.sum_tail import THRESHOLD_SHARE, SumTail
from coordinator.detect.state_dict import nested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.noise_groups import NoiseGroups
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.float64]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]

SHORT_STEPS = 3  # as `median_of_three` requires
LONG_STEPS = 16  # window of the long mean; an exponential average of memory 8 has the same variance
FULL_FLOORS = 2.0  # smallest effects; clip of a single step in a mean, so that one stall alone does not alarm
_SIGMA_MIN = 1e-6  # avoids division by zero for a noiseless generated series; real clocks are 1,000 times coarser
_SAFE_SHARE = 1 - 1e-6  # of a bound, so that rounding does not turn it into the limit
_EFFECT_SHARE = 0.5  # of the smallest effect: slack of a sum designed for it
_STALL_FLOORS = 4.0  # smallest effects, 10 % of a step: steps with less are no stalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Series that may alarm, arrays of shape (C,): sum, steps since it left zero, their deviation, how many stalled.

    `median` and `least` are of the last three steps, `mean` is the long mean; `noise_factor` is the noise of a series
    relative to its noise group.
    """

    noise_group: "Places"
    sum: "Floats"
    run: "Floats"
    deviation: "Floats"
    stalled: "Floats"
    median: "Floats"
    least: "Floats"
    mean: "Floats"
    noise_factor: "Floats | float" = 1.0

    @classmethod
    def of(
        cls,
        group_C: "Places",
        cusums_5C: "Floats",
        *,
        last: "tuple[Floats, Floats, Floats]",
        mean_C: "Floats",
        noise_factor: "Floats | float" = 1.0,
    ) -> "Candidates":
        """Build them from the result of `CusumState.of`, the last three values and the long means."""
        sum_C, run_C, deviation_C, _, stalled_C = cusums_5C
        return cls(
            noise_group=group_C,
            sum=sum_C,
            run=run_C,
            deviation=deviation_C,
            stalled=stalled_C,
            median=median_of_three(*last),
            least=np.minimum(np.minimum(last[0], last[1]), last[2]),
            mean=mean_C,
            noise_factor=noise_factor,
        )


class DetectionLimits:
    """Noise of each noise group and the limits that follow from it; `series_group_P` gives the series group of each.

    `series_F` is the size of each series group: the more series, the further out the largest of them is by chance.
    `test` names the share of the error budget that all of them use together. With `learns_tail`, limits follow from the
    peaks of sums that returned to zero, because noise is not white.
    """

    def __init__(
        self,
        noise_groups: "NoiseGroups",
        series_group_P: "Places",
        series_F: "Sequence[int]",
        *,
        test: str = "units",
        learns_tail: bool = False,
    ) -> None:
        self._test = test
        self._sizes_P = noise_groups.sizes_P
        self.tail = SumTail(noise_groups.count) if learns_tail else None
        self._stalls = None if learns_tail else Stalls(noise_groups.sizes_P)  # they are in the tail
        self.attempt_steps = ATTEMPT_STEPS
        """Expected steps of the run's attempts, for tests that look once per attempt."""
        self._series = max(sum(series_F), 1)
        self._series_group_P = series_group_P
        self._first_F = np.searchsorted(series_group_P, range(len(series_F)))
        self._explained: list[tuple[float, float]] = []
        self._explained_step = 0
        self.single = PooledNoise(noise_groups)
        # One row per noise group, and one for the first series group in units of each noise group's learnt noise.
        rows = [
            *(_listed(noise_groups.members(noise_group)) for noise_group in range(noise_groups.count)),
            np.arange(series_F[0]),
        ]
        self._now = PresentScatter(rows)
        self._group_M = noise_groups.of(self._now.chosen_KM[-1].astype(np.intp))
        self.present_P = np.full(noise_groups.count, np.nan)
        self.sigma_P: Figures = np.full(noise_groups.count, np.inf)
        """Standard deviation of single steps as of now, array of shape (P,); infinite while unknown."""
        self.most_P: Figures = self.sigma_P
        """Clip of one step's deviation in a mean, array of shape (P,)."""
        self.short = PooledNoise(noise_groups)
        self.long = PooledNoise(noise_groups)

    def set_policy(
        self, policy: "ExcessPolicy", floor_ratio: float, alarm_sigmas: "Sequence[tuple[slice, float]]" = ()
    ) -> None:
        """Apply these thresholds from now on; `floor_ratio` is the smallest effect.

        `alarm_sigmas` override the threshold of some noise groups.
        """
        self.policy = policy
        self.floor_ratio = floor_ratio
        self.alarm_sigmas_P: Figures = np.full(len(self._series_group_P), policy.alarm_sigmas)
        """The sum above which a series alarms, array of shape (P,)."""
        for noise_groups, sigmas in alarm_sigmas:
            self.alarm_sigmas_P[noise_groups] = sigmas
        steps = self._series * steps_between(self._test, policy.false_page_steps)
        np.maximum(self.alarm_sigmas_P, cusum_limit(policy.slack_sigmas, steps), out=self.alarm_sigmas_P)
        self._white_P = self.alarm_sigmas_P
        self._steps = steps
        self._group_steps_P: Figures = steps / np.maximum(
            self._sizes_P, 1.0
        )  # a job may have no groups, whose test has no series
        self._widen()
        self.stall_ratio = _STALL_FLOORS * floor_ratio
        """The smallest deviation of a stalled step."""
        self.least_wide = float(np.float32(FULL_FLOORS * floor_ratio))
        """The largest deviation of a single step that counts in full in a long mean in every noise group."""
        # Sums handle white noise. The rest is slow, so independent values are one window of the long mean apart.
        self._sigmas = level_sigmas(steps / LONG_STEPS)

    def _widen(self) -> None:
        """Compute the limits of sums from those of healthy series."""
        if self.tail is not None:
            limit_P = self.tail.limit_P(THRESHOLD_SHARE * self._white_P, self.policy.slack_sigmas, self._group_steps_P)
            self.alarm_sigmas_P = np.maximum(self._white_P, limit_P)
        self.least_alarm_sigmas = float(self.alarm_sigmas_P.min())
        """The smallest sum that alarms in any noise group."""

    def follow_sums(self, group_E: "Places", peak_E: "Floats", stalled_E: "Floats", warm_P: "Marks | None") -> None:
        """Update the limits by the sums that returned to zero in this step.

        Parameters are their noise groups, their peaks, and how many of their steps stalled. Noise groups that `warm_P`
        (None: all) does not mark have no sums, so this step shows nothing of them.
        """
        counts: Marks | int = 1 if warm_P is None else warm_P
        if self._stalls is not None:
            self._stalls.learn(group_E, stalled_E, counts)
        if self.tail is not None:
            self.tail.learn(group_E, peak_E, THRESHOLD_SHARE * self._white_P, counts)
            self._widen()

    @property
    def summed_P(self) -> "Figures":
        """Unit of the scores of sums, array of shape (P,): sigma.

        With `learns_tail` at least so much that the slack is half of the smallest effect (Page 1954). Sums of smaller
        deviations are no measure of those that alarm.
        """
        if self.tail is None:
            return self.sigma_P
        summed_P: Figures = np.maximum(self.sigma_P, _EFFECT_SHARE * self.floor_ratio / self.policy.slack_sigmas)
        return summed_P

    def follow(self, difference_N: "Floats") -> None:
        """Update the present scatter of noise groups relative to the learnt one, given differences between steps.

        Noise groups of few series, such as replicas and stages, show a change slowly: they follow the growth of the
        scatter of the first series group as a whole, since a replica is as noisy as its ranks.
        """
        now = self._now
        learnt_P = np.maximum(self.single.sigma_P, _SIGMA_MIN)
        difference_KM = difference_N[now.chosen_KM]
        is_learnt = not has_nan(learnt_P)
        if is_learnt:
            difference_KM[-1] /= learnt_P[self._group_M]
        else:
            difference_KM[-1] = np.inf
        now.learn(difference_KM)
        self.present_P = np.fmax(now.sigma_K[:-1], learnt_P * now.sigma_K[-1])

    @property
    def common_P(self) -> "Figures | None":
        """Common movement of each noise group in the last step, None if it is within the noise."""
        common_P = self._now.common_K[:-1]
        return common_P if np.count_nonzero(np.abs(common_P) > FAR_SIGMAS * self.scale_P) else None

    @property
    def scale_P(self) -> "Figures":
        """Standard deviation of single steps, learnt or present, whichever is larger; shape (P,)."""
        scale_P: Figures = np.maximum(self.single.sigma_P, self.present_P)
        return scale_P

    @property
    def cautious_P(self) -> "Figures":
        """The same with a margin for the uncertainty of few samples, array of shape (P,)."""
        cautious_P: Figures = np.maximum(self.single.cautious_P, self.present_P)
        return cautious_P

    def settle(self) -> None:
        """Compute the figures that evaluate a step, once its noise has been learnt."""
        sigma_P = np.maximum(self.cautious_P, _SIGMA_MIN)
        if has_nan(sigma_P):
            sigma_P[np.isnan(sigma_P)] = np.inf
        self.sigma_P = sigma_P
        self.most_P = np.maximum(FAR_SIGMAS * sigma_P, FULL_FLOORS * self.floor_ratio)

    def widest_P(self) -> "Figures":
        """Return the largest deviation of a single step that counts in full in a long mean, array of shape (P,)."""
        widest_F = FAR_SIGMAS * np.fmax.reduceat(self.scale_P, self._first_F)
        widest_P: Figures = np.fmax(widest_F, FULL_FLOORS * self.floor_ratio)[self._series_group_P]
        return widest_P

    def limit(
        self,
        group_C: "Places",
        run_C: "Figures",
        floor_C: "Figures | None" = None,
        *,
        noise_factor: "Floats | float" = 1.0,
    ) -> "Figures":
        """Return the mean of `run_C` steps that noise explains: white noise averages out with them, drift does not."""
        spread_C = self._mean_sigma(group_C, run_C) * noise_factor
        floor_C = np.full(len(run_C), self.floor_ratio) if floor_C is None else floor_C
        limit_C: Figures = np.maximum(self._sigmas * spread_C, floor_C)
        return limit_C

    def _mean_sigma(self, group_C: "Places", run_C: "Figures") -> "Figures":
        """Return the standard deviation of means of `run_C` steps, array of shape (C,)."""
        variance_P = (self.sigma_P * self._skew_P()) ** 2
        walk_P = np.maximum(self.long.cautious_P**2 - variance_P / LONG_STEPS, 0)
        walk_P = np.where(np.isnan(self.long.sigma_P), self.policy.walk_prior_ratio**2, walk_P)
        sigma_C: Figures = np.sqrt(walk_P[group_C] + variance_P[group_C] / run_C)
        return sigma_C

    def _skew_P(self) -> "Figures":
        """Return the scatter of series above their reference relative to that of all series, array of shape (P,).

        A series that is the reference itself, such as one of two in a replica of two, is always 0. Its half of the
        scatter is missing then, and a series that stays above for long shows all of it.
        """
        policy = self.policy
        skew_P: Figures = 1 + policy.zero_share_caution * np.maximum(
            self.single.zero_share_P - policy.zero_share_usual, 0
        )
        return skew_P

    def short_limit(
        self, group_C: "Places", floor_C: "Figures | None" = None, *, noise_factor: "Floats | float" = 1.0
    ) -> "Figures":
        """Return the mean of three steps that noise explains."""
        return self.limit(group_C, np.full(len(group_C), float(SHORT_STEPS)), floor_C, noise_factor=noise_factor)

    def explained(self, evaluated_steps: int) -> list[tuple[float, float]]:
        """Return the sigma of one step of each noise group, and the mean of three steps that it explains.

        Cached per step, because every series in alarm needs the same few figures.
        """
        if self._explained_step != evaluated_steps:
            sigma_P = self.scale_P
            limit_P = self.short_limit(np.arange(len(sigma_P)))
            self._explained = list(zip(sigma_P.tolist(), limit_P.tolist(), strict=True))
            self._explained_step = evaluated_steps
        return self._explained

    def _noisy_limit(self, noise: PooledNoise) -> "Figures":
        """Return what the learnt noise explains, array of shape (P,); infinite while unknown."""
        limit_P = np.maximum(self.policy.tail_factor * self._sigmas * noise.cautious_P, self.floor_ratio)
        return np.where(np.isnan(limit_P), np.inf, limit_P)

    def passed(self, those: Candidates) -> "Marks":
        """Return which candidates have an effect that noise does not explain, array of shape (C,).

        No limit is below the floor, so most candidates are rejected by `least_median` beforehand.
        """
        policy, floor, group_C = self.policy, self.floor_ratio, those.noise_group
        if self.tail is not None:
            return self._matters(those)
        factor = those.noise_factor
        limit_C = self.limit(group_C, np.clip(those.run, 1, LONG_STEPS).astype(np.float64), noise_factor=factor)
        mean_C = those.deviation / np.maximum(those.run, 1)
        # A drift's mean since its onset lags behind it, so the long mean and the last steps also count.
        long_C = those.mean > self.limit(group_C, np.full(len(group_C), float(LONG_STEPS)), noise_factor=factor)
        # An effect that became clear over many steps may be a little smaller, so that a drift is reported early.
        clear_C = those.sum > policy.clear_factor * self.alarm_sigmas_P[group_C]
        least_C = np.where(clear_C, policy.clear_floor_share, 1.0) * floor
        last_C = those.median > self.short_limit(group_C, least_C, noise_factor=factor)
        summed_C = (
            ((mean_C > limit_C) & (those.median > policy.median_share * limit_C))
            | (long_C & (those.median > floor))
            | last_C
        )
        least_C = np.maximum(np.minimum(limit_C, self._noisy_limit(self.short)[group_C]), those.median)
        summed_C &= those.least > policy.least_share * least_C
        summed_C &= self._exceeds_stalls(those)
        noisy_C = self.scale_P[group_C] > policy.noisy_sigma
        return np.where(noisy_C, self._passed_in_noise(those), summed_C) if noisy_C.any() else summed_C

    def _matters(self, those: Candidates) -> "Marks":
        """Return which candidates have an effect that is reported, where limits of sums are learnt from sums.

        Their sums have passed what chance reaches. A limit for means as well would count chance twice.
        """
        floor = self.floor_ratio
        matters_C: Marks = (those.deviation > floor * those.run) & (those.median > floor)
        matters_C &= those.least > self.policy.least_share * floor
        return matters_C

    def _exceeds_stalls(self, those: Candidates) -> "Marks":
        """Return which candidates' sums are those of an alarm without the stalls that chance explains, shape (C,).

        Two stalls never alarm, so only those beyond two are taken off.
        """
        usual = SHORT_STEPS - 1
        if self._stalls is None or not (those.stalled > usual).any():
            return np.ones(len(those.stalled), dtype=bool)
        chance_P = self._stalls.row_P(self._steps, SHORT_STEPS) - SHORT_STEPS
        chance_C = np.clip(those.stalled - usual, 0, chance_P[those.noise_group])
        exceeds_C: Marks = those.sum - self.policy.sum_of(1) * chance_C > self.policy.alarm_sigmas
        return exceeds_C

    def has_changed(self, those: Candidates, past_C: "Floats", change_C: "Floats") -> "Marks":
        """Return which candidates exceed their own past by an effect that noise does not explain, shape (C,).

        `change_C` is the sum over that past, which must also reach an alarm's. The present level is the median of three
        steps or the long mean, each with the limit of as many steps.
        """
        if self.tail is None:
            group_C, factor = those.noise_group, those.noise_factor
            long_C = self.limit(group_C, np.full(len(group_C), float(LONG_STEPS)), noise_factor=factor)
            changed_C: Marks = those.median - past_C > self.short_limit(group_C, noise_factor=factor)
            changed_C |= those.mean - past_C > long_C
        else:
            changed_C = np.maximum(those.mean, those.median) - past_C > self.floor_ratio
        changed_C &= change_C > self.alarm_sigmas_P[those.noise_group]
        return changed_C

    def level_sigma_P(self) -> "Figures":
        """Return the standard deviation of lasting levels, array of shape (P,)."""
        every_P = np.arange(len(self._series_group_P))
        return self._mean_sigma(every_P, np.full(len(every_P), float(LONG_STEPS)))

    def static_share(self, level_N: "Floats", noise_groups: "NoiseGroups") -> "Floats":
        """Return the share of the variance of lasting levels that is not noise, array of shape (P,), 0 to 1.

        Estimated by components of variance, as in empirical Bayes estimates (James and Stein 1961).
        """
        noise_P = self.level_sigma_P()
        square_P = noise_groups.sums(level_N**2) / noise_groups.sizes_P
        whole_P = np.maximum(square_P, noise_P**2)
        is_known_P = np.isfinite(whole_P) & (whole_P > 0)  # noise is infinite until it is learnt
        of_noise_P = np.divide(noise_P**2, whole_P, out=np.ones_like(whole_P), where=is_known_P)
        share_P: Floats = (1 - of_noise_P).astype(np.float32)
        return share_P

    @property
    def static_rate(self) -> float:
        """Allowed probability of a false outlier among static differences, which are tested once per attempt."""
        return attempt_chance("static", self.policy.false_page_steps, self.attempt_steps)

    def least_median(self) -> float:
        """Return the smallest median of three steps with which a candidate can pass at all, whatever the noise."""
        return _SAFE_SHARE * min(self.policy.median_share, self.policy.clear_floor_share, 1.0) * self.floor_ratio

    def _passed_in_noise(self, those: Candidates) -> "Marks":
        """Return which candidates pass in very noisy groups."""
        policy, group_C = self.policy, those.noise_group
        sigma_C = self.scale_P[group_C]
        short_C = np.maximum(self._noisy_limit(self.short)[group_C], policy.gross_ratio)
        short_C = np.maximum(short_C, policy.noisy_short_sigmas * sigma_C)
        long_C = policy.noisy_long_factor * self._noisy_limit(self.long)[group_C]
        long_C = np.maximum(long_C, policy.noisy_long_sigmas * sigma_C)
        large_C = (those.median > short_C) & (those.least > policy.least_share * short_C)
        lasting_C = (those.mean > long_C) & (those.median > self.floor_ratio)
        lasting_C &= those.sum > self.alarm_sigmas_P[group_C]
        passed_C: Marks = large_C | lasting_C
        return passed_C

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name."""
        noises = {"noise": self.single, "short": self.short, "long": self.long}
        now = {
            "now.noise_groups": self._now.sigma_K[:-1],
            "now.series_group": self._now.sigma_K[-1:],
            "now.last": self._now.last_TSM,
            "now": self.present_P,
        }
        sums = {"tail": self.tail, "stalls": self._stalls}
        peaks = {name: own.figures_3P for name, own in sums.items() if own is not None}
        return nested({name: noise.state_dict() for name, noise in noises.items()}) | now | peaks


def _listed(members: "Places | slice") -> "Places":
    """Return the series of a noise group as an array of indices."""
    return np.arange(members.start, members.stop) if isinstance(members, slice) else members
