# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""When is an excess an alarm? One test for ranks, replicas and links.

Pure: numbers in, numbers out; no clock, no I/O, no knowledge of what a series stands for.

A series is the relative excess of one rank (replica, domain) over its reference, one value a step, 0 when healthy.
Noise is learnt from differences over time, never from the spread between series: a lasting fault cancels in a
difference, so the figure holds when half the ranks are slow and in domains of two. Two decisions share it: a clipped
one-sided sum for small effects in quiet jobs, and three clear steps for effects of half the work and more, which
noisy jobs need. Both must pass the gate: a median of three steps (or a mean of sixteen) beyond what such medians
(means) do in healthy times.

Shapes: N series, P pools of series that share their noise figures, K steps kept.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.groups import median_of_three

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.policy import ExcessPolicy

_STEPS_NONE = -1
_SHORT_STEPS = 3  # `median_of_three` is written for it
_LEVEL_RATE = 1 / 8  # smoothing of what is shown, in steps
_SIGMA_MIN = 1e-6  # a noiseless generated series must not divide by zero; real clocks are 1,000 times coarser


class _Pools:
    """Which pool each series belongs to; with one pool, figures stay scalars and cost nothing to spread."""

    def __init__(self, pools_N: "NDArray[np.intp]") -> None:
        self._pools_N = pools_N
        self.count = int(pools_N.max(initial=0)) + 1
        self._sizes_P = np.bincount(pools_N, minlength=self.count).astype(np.float64)

    def spread(self, values_P: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Return each series' figure, of shape (N,), or (1,) where there is one pool."""
        return values_P if self.count == 1 else values_P[self._pools_N]

    def sums(
        self, values_N: "NDArray[np.float64]", known_N: "NDArray[np.bool_]"
    ) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
        """Return per pool the sum of the known values and how many there are; unknown ones may hold NaN."""
        count_P = self._sizes_P
        if not known_N.all():
            values_N = np.where(known_N, values_N, 0.0)
            count_P = np.bincount(self._pools_N, known_N, self.count).astype(np.float64)
        if self.count == 1:
            return np.array([values_N.sum()]), count_P
        return np.bincount(self._pools_N, values_N, self.count).astype(np.float64), count_P


class PooledNoise:
    """Standard deviation per pool, learnt from absolute differences.

    `sigma_P` is NaN until a pool has been seen; `cautious_P` is wider while few samples were.
    """

    def __init__(self, pools: _Pools, policy: "ExcessPolicy") -> None:
        self._pools = pools
        self._policy = policy
        self._updates_P = np.zeros(pools.count)
        self._samples_P = np.zeros(pools.count)
        self.sigma_P = np.full(pools.count, np.nan)

    @property
    def cautious_P(self) -> "NDArray[np.float64]":
        """Sigma with a margin for what few samples leave open, array of shape (P,)."""
        wide_P: NDArray[np.float64] = self.sigma_P * (1 + 2 / np.sqrt(np.maximum(self._samples_P, 1)))
        return wide_P

    def learn(self, difference_N: "NDArray[np.float64]") -> None:
        """Take absolute differences, NaN where there is none."""
        policy = self._policy
        known_N = ~np.isnan(difference_N)
        clipped_N = np.fmin(difference_N, self._pools.spread(policy.clip_sigmas * self.sigma_P))
        sum_P, count_P = self._pools.sums(clipped_N, known_N)
        seen_P = count_P > 0
        self._updates_P += seen_P
        self._samples_P += count_P
        mean_P = policy.difference_to_sigma * sum_P / np.maximum(count_P, 1)
        rate_P = np.maximum(1 / np.maximum(self._updates_P, 1), policy.noise_rate)
        old_P = np.where(np.isnan(self.sigma_P), mean_P, self.sigma_P)
        self.sigma_P = np.where(seen_P, old_P + rate_P * (mean_P - old_P), self.sigma_P)


class ExcessTest:
    """The test's memory for N series, about 250 bytes each.

    `alarm_N` is the verdict, `level_N` the excess it rests on (ratio, smoothed), `onset_N` the step at which
    the present excess began (-1 where there is none). Steps must be given in ascending order.
    """

    def __init__(
        self, pools_N: "NDArray[np.intp]", policy: "ExcessPolicy", *, floor_ratio: float | None = None
    ) -> None:
        count = len(pools_N)
        self._policy = policy
        self._pools = _Pools(pools_N)
        self._floor_ratio = policy.floor_ratio if floor_ratio is None else floor_ratio
        self._gate_sigmas = policy.gate_factor * float(np.sqrt(2 * np.log(50 * max(count, 2))))
        self._noise = PooledNoise(self._pools, policy)
        self._short_noise = PooledNoise(self._pools, policy)
        self._long_noise = PooledNoise(self._pools, policy)
        self._recent = [np.full(count, np.nan) for _ in range(_SHORT_STEPS)]
        self._medians = [np.full(count, np.nan) for _ in range(_SHORT_STEPS)]
        self._long_KN = np.zeros((policy.long_steps, count))
        self._long_sum_N = np.zeros(count)
        self._block_mean_N = np.full(count, np.nan)
        self._baseline_N = np.zeros(count)
        self._sum_N = np.zeros(count)
        self._quiet_N = np.zeros(count, dtype=np.int32)
        self.judged = 0
        self.alarm_N = np.zeros(count, dtype=bool)
        self.level_N = np.zeros(count)
        self.onset_N = np.full(count, _STEPS_NONE, dtype=np.int64)

    @property
    def suspicious_N(self) -> "NDArray[np.bool_]":
        """Where a reference or a baseline must not learn now: more than one bad step, array of shape (N,)."""
        one_step = self._policy.clip_sigmas - self._policy.slack_sigmas
        suspicious: NDArray[np.bool_] = self.alarm_N | (self._sum_N > one_step)
        return suspicious

    def step(self, excess_N: "NDArray[np.float64]", step: int) -> None:
        """Judge one step.

        Parameters
        ----------
        excess_N
            Array of shape (N,), ratio; NaN where the series has no value in this step, which changes nothing there.
        step
            Its index.
        """
        policy = self._policy
        self.judged += 1
        seen_N = ~np.isnan(excess_N)
        raw_N = excess_N - self._baseline_N
        held_N = raw_N if seen_N.all() else np.where(seen_N, raw_N, np.nan_to_num(self._recent[-1]))
        self._learn(raw_N, held_N)
        sigma_P = self._noise.sigma_P
        sigma_N = self._pools.spread(np.where(np.isnan(sigma_P), np.inf, np.maximum(sigma_P, _SIGMA_MIN)))
        if self.judged > policy.warm_up_steps:
            score_N = np.minimum(held_N / sigma_N, policy.clip_sigmas) - policy.slack_sigmas
            score_N *= seen_N
            self._sum_N = np.maximum(self._sum_N + score_N, 0.0)
        self._decide(held_N, seen_N, step)
        limit_N = policy.clip_sigmas * sigma_N
        drift_N = np.minimum(np.maximum(raw_N, -limit_N), limit_N) * policy.baseline_rate
        drift_N = np.where(seen_N & ~self.suspicious_N, drift_N, 0.0)
        bound = policy.baseline_max_ratio
        self._baseline_N = np.minimum(np.maximum(self._baseline_N + drift_N, -bound), bound)

    def _learn(self, raw_N: "NDArray[np.float64]", held_N: "NDArray[np.float64]") -> None:
        """Move the windows on by one step and learn the noise of each."""
        policy = self._policy
        if self.judged > policy.settle_steps:
            self._noise.learn(np.abs(raw_N - self._recent[-1]))
        self._recent = [*self._recent[1:], held_N]
        median_N = median_of_three(*self._recent)
        if self.judged >= policy.settle_steps + 2 * _SHORT_STEPS:
            self._short_noise.learn(np.abs(median_N - self._medians[0]))
        self._medians = [*self._medians[1:], median_N]
        limit_N = self._pools.spread(np.fmax(policy.clip_sigmas * self._noise.sigma_P, 4 * self._floor_ratio))
        clipped_N = np.minimum(np.maximum(held_N, -limit_N), limit_N)
        slot = self.judged % policy.long_steps
        self._long_sum_N += clipped_N - self._long_KN[slot]
        self._long_KN[slot] = clipped_N
        if slot == 0:
            mean_N = self._long_sum_N / policy.long_steps
            if self.judged > policy.long_steps:
                self._long_noise.learn(np.abs(mean_N - self._block_mean_N))
            self._block_mean_N = mean_N

    def _decide(self, held_N: "NDArray[np.float64]", seen_N: "NDArray[np.bool_]", step: int) -> None:
        """Raise, keep and clear alarms."""
        policy, spread = self._policy, self._pools.spread
        short_P, long_P = self._gates()
        least_share_N = spread(policy.least_share * short_P)
        beyond_N = held_N > least_share_N
        begins_N = beyond_N & (self.onset_N == _STEPS_NONE)
        ends_N = ~beyond_N & ~self.alarm_N
        self.onset_N[begins_N & seen_N] = step
        self.onset_N[ends_N & seen_N] = _STEPS_NONE
        median_N = self._medians[-1]
        # A healthy job of 10,000 ranks ends here: nobody is in alarm, and no median reaches any gate.
        reaches = bool((median_N > self._floor_ratio).any()) and self.judged > policy.warm_up_steps
        if not reaches and not self.alarm_N.any():
            return
        short_N, long_N = spread(short_P), spread(long_P)
        if self.judged > policy.warm_up_steps:
            least_N = np.minimum(np.minimum(self._recent[0], self._recent[1]), self._recent[2])
            short_effect_N = (median_N > short_N) & (least_N > least_share_N)
            long_effect_N = (self._long_sum_N > policy.long_steps * long_N) & (median_N > self._floor_ratio)
            summed_N = (self._sum_N > policy.alarm_sigmas) & (short_effect_N | long_effect_N)
            gross_N = short_effect_N & (median_N > policy.gross_ratio)
            self._raise((summed_N | gross_N) & seen_N & ~self.alarm_N, step)
        self.level_N += (median_N - self.level_N) * _LEVEL_RATE * self.alarm_N
        quiet_N = held_N < policy.clear_share * np.minimum(short_N, long_N)
        self._quiet_N = np.where(seen_N, np.where(quiet_N, self._quiet_N + 1, 0), self._quiet_N)
        cleared_N = self.alarm_N & (self._quiet_N >= policy.clear_steps)
        self.alarm_N = self.alarm_N & ~cleared_N
        self._sum_N[cleared_N] = 0.0
        self.onset_N[cleared_N] = _STEPS_NONE
        self.level_N[cleared_N] = 0.0

    def _raise(self, raised_N: "NDArray[np.bool_]", step: int) -> None:
        self.alarm_N = self.alarm_N | raised_N
        self.level_N[raised_N] = self._medians[-1][raised_N]
        self.onset_N[raised_N & (self.onset_N == _STEPS_NONE)] = step
        self._quiet_N[raised_N] = 0

    def _gates(self) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
        """Return the effects that noise explains in three steps and in many, per pool; infinite while unknown."""
        policy = self._policy
        short_P = np.maximum(self._gate_sigmas * self._short_noise.cautious_P, self._floor_ratio)
        long_P = np.maximum(self._gate_sigmas * self._long_noise.cautious_P, self._floor_ratio)
        sigma_P = self._noise.sigma_P
        noisy_P = sigma_P > policy.noisy_sigma
        noisy_short_P = np.maximum(policy.gross_ratio, policy.noisy_short_sigmas * sigma_P)
        noisy_long_P = np.maximum(policy.noisy_long_factor * long_P, policy.noisy_long_sigmas * sigma_P)
        short_P = np.where(noisy_P, np.maximum(short_P, noisy_short_P), short_P)
        long_P = np.where(noisy_P, noisy_long_P, long_P)
        return np.where(np.isnan(short_P), np.inf, short_P), np.where(np.isnan(long_P), np.inf, long_P)
