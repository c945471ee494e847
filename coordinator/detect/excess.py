# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""When is an excess an alarm? One test for ranks, replicas, stages and links.

Pure: numbers in, numbers out; no clock, no I/O, no knowledge of what a series stands for.

A series is the relative excess of one rank (replica, stage, domain) over its reference, one value a step, 0 when
healthy. A clipped one-sided sum says that something lasts: a step adds at most 4, so one or two stalled steps never
reach the 11 of an alarm and the third one does. A gate says that it matters: the mean since the sum left zero must
exceed both a floor and what noise makes of a mean of so many steps in so many series. Pools that are very noisy (ranks
that share cores) have heavier tails than any such figure knows: there only large effects count.

Healthy series cost a few passes over arrays; the gate is computed for the few whose sum is high.

Shapes: N series, P pools of series that share their noise figures, C candidates.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.groups import median_of_three
from coordinator.detect.keeping import joined
from coordinator.detect.noise import PooledNoise, Pools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.policy import ExcessPolicy

    Floats = NDArray[np.float32]

_STEPS_NONE = -1
_SHORT_STEPS = 3  # `median_of_three` is written for it
_LONG_STEPS = 16  # reference: window of the long mean; an average of memory 8 scatters just as much
_LONG_RATE_STEPS = 8
_STEPS_KEPT = 1024  # indices of the last steps, from which an onset is read
_GROWN_SHARE = 0.5  # of its present size that an excess had in the mean since it began, drifts included
_LEVEL_RATE = 1 / 8  # smoothing of what is shown, in steps
_WILD_RATIO = np.float32(3.0)  # four times the peers' work is no noise: how it scatters says nothing of the others
_SIGMA_MIN = 1e-6  # a noiseless generated series must not divide by zero; real clocks are 1,000 times coarser


class ExcessTest:
    """The test's memory for N series, about 50 bytes each; `policy` may be replaced while it runs.

    `alarm_N` is the verdict, `level_N` the excess it rests on (ratio, smoothed), `onset_N` the step at which
    it began (-1 where there is none). Steps must be given in ascending order. A series that is compared with its own
    past must not be judged early: how a job warms up is no past.
    """

    def __init__(
        self,
        pools_N: "NDArray[np.intp]",
        policy: "ExcessPolicy",
        *,
        floor_ratio: float | None = None,
        may_be_early: bool = True,
    ) -> None:
        count = len(pools_N)
        self.policy = policy
        self.own_floor_ratio = floor_ratio
        self.may_be_early = may_be_early
        self._pools = Pools(pools_N)
        self._chance_sigmas = float(np.sqrt(2 * np.log(50 * max(count, 1))))
        self.noise = PooledNoise(self._pools)
        self._short_noise = PooledNoise(self._pools)
        self._long_noise = PooledNoise(self._pools)
        self._recent = [np.zeros(count, dtype=np.float32) for _ in range(_SHORT_STEPS - 1)]
        self._median_N = np.zeros(count, dtype=np.float32)  # some steps ago
        self._mean_N = np.zeros(count, dtype=np.float32)
        self._mean_before_N = np.zeros(count, dtype=np.float32)  # a window ago
        self._baseline_N = np.zeros(count, dtype=np.float32)
        self._sum_N = np.zeros(count, dtype=np.float32)
        self._run_N = np.zeros(count, dtype=np.uint16)  # steps since the sum left zero, ...
        self._run_sum_N = np.zeros(count, dtype=np.float32)  # ... and their excess
        self._quiet_N = np.zeros(count, dtype=np.uint16)
        self._steps: deque[int] = deque(maxlen=_STEPS_KEPT)
        self.judged = 0
        self.alarm_N = np.zeros(count, dtype=bool)
        self.level_N = np.zeros(count, dtype=np.float32)
        self.onset_N = np.full(count, _STEPS_NONE, dtype=np.int64)

    @property
    def _spread_factor(self) -> float:
        """What the largest of all series reaches by chance, in sigmas."""
        return max(self._chance_sigmas, self.policy.chance_sigmas_min)

    @property
    def suspicious_N(self) -> "NDArray[np.bool_]":
        """Where a reference or a baseline must not learn now: more than one bad step, array of shape (N,)."""
        one_step = self.policy.clip_sigmas - self.policy.slack_sigmas
        suspicious: NDArray[np.bool_] = self.alarm_N | (self._sum_N > one_step)
        return suspicious

    def is_quiet(self, series: int) -> bool:
        """Whether a series in alarm had no excess in the last step."""
        return bool(self._quiet_N[series] > 0)

    @property
    def is_warm(self) -> bool:
        """Whether noise is known well enough to judge by: early in quiet pools, after `warm_up_steps` in others."""
        return self.judged > 0 and bool(self._warm_P().all())

    @property
    def floor_ratio(self) -> float:
        """Smallest effect that is reported."""
        return self.policy.floor_ratio if self.own_floor_ratio is None else self.own_floor_ratio

    def step(self, excess_N: "NDArray[np.floating]", step: int) -> None:
        """Judge one step.

        Parameters
        ----------
        excess_N
            Array of shape (N,), ratio; NaN where the series has no value in this step, which changes nothing there.
        step
            Its index.
        """
        self.judged += 1
        self._steps.append(step)
        raw_N = excess_N.astype(np.float32)
        raw_N -= self._baseline_N
        seen_N: NDArray[np.bool_] | None = None
        if np.isnan(raw_N.sum()):
            seen_N = ~np.isnan(raw_N)
            np.copyto(raw_N, self._recent[-1], where=~seen_N)
        median_N = median_of_three(self._recent[0], self._recent[1], raw_N)
        self._learn(raw_N, median_N, seen_N)
        sigma_P = self._usable_sigma_P()
        warm_P = self._warm_P()
        if warm_P.any():
            self._add(raw_N, sigma_P, seen_N, warm_P)
        self._decide(raw_N, median_N, seen_N)
        if np.isfinite(sigma_P).any():
            self._follow(raw_N, sigma_P, seen_N)
        self._recent = [*self._recent[1:], raw_N]

    def _usable_sigma_P(self) -> "NDArray[np.float64]":
        sigma_P = self.noise.cautious_P
        return np.where(np.isnan(sigma_P), np.inf, np.maximum(sigma_P, _SIGMA_MIN))

    def _warm_P(self) -> "NDArray[np.bool_]":
        policy = self.policy
        if self.judged > policy.warm_up_steps:
            return np.ones(self._pools.count, dtype=bool)
        if not self.may_be_early:
            return np.zeros(self._pools.count, dtype=bool)
        noise = self.noise
        quiet_P = noise.cautious_P < policy.early_sigma
        warm_P: NDArray[np.bool_] = quiet_P & (noise.samples_P >= policy.early_samples)
        return warm_P

    def _learn(self, raw_N: "Floats", median_N: "Floats", seen_N: "NDArray[np.bool_] | None") -> None:
        """Learn the noise of single steps, of medians of three and of long means."""
        policy = self.policy
        if self.judged > 1:
            now_N, before_N = raw_N, self._recent[-1]
            if now_N.max(initial=0) > _WILD_RATIO:
                now_N, before_N = np.minimum(now_N, _WILD_RATIO), np.minimum(before_N, _WILD_RATIO)
            difference_N = now_N - before_N
            # What is in alarm scatters as it likes: it must not make its peers look noisy.
            healthy_N = ~self.alarm_N if self.alarm_N.any() else None
            known_N = seen_N if healthy_N is None else healthy_N if seen_N is None else seen_N & healthy_N
            self.noise.learn(np.abs(difference_N, out=difference_N), known_N, policy)
        if self.judged % _SHORT_STEPS == 0:
            if self.judged >= policy.settle_steps + 2 * _SHORT_STEPS:
                self._short_noise.learn(np.abs(median_N - self._median_N), None, policy)
            self._median_N = median_N
        if self.judged == 1:
            return
        widest = policy.clip_sigmas * float(np.fmax.reduce(self.noise.sigma_P))
        limit = np.float32(max(widest, 4 * self.floor_ratio))
        clipped_N = np.clip(raw_N, -limit, limit)
        rate = np.float32(1 / min(self.judged - 1, _LONG_RATE_STEPS))
        clipped_N -= self._mean_N
        clipped_N *= rate
        self._mean_N += clipped_N
        if self.judged % _LONG_STEPS == 0:
            if self.judged > _LONG_STEPS:
                # A fault's onset is no walk: in a pool of two it would be half of all there is to learn from.
                steady_N = ~self.suspicious_N
                self._long_noise.learn(np.abs(self._mean_N - self._mean_before_N), steady_N, policy)
            self._mean_before_N = self._mean_N.copy()

    def _add(
        self,
        raw_N: "Floats",
        sigma_P: "NDArray[np.float64]",
        seen_N: "NDArray[np.bool_] | None",
        warm_P: "NDArray[np.bool_]",
    ) -> None:
        """Move the sum of each series on, and count how long it has been above zero."""
        policy, pools = self.policy, self._pools
        score_N = np.empty_like(raw_N)
        score = pools.rows(score_N)  # the same numbers, pool by pool
        np.divide(pools.rows(raw_N), pools.beside(sigma_P), out=score)
        np.minimum(score, np.float32(policy.clip_sigmas), out=score)
        score -= np.float32(policy.slack_sigmas)
        if not warm_P.all():
            score *= pools.beside(warm_P.astype(np.float64))
        if seen_N is not None:
            score_N *= seen_N
        self._sum_N += score_N
        np.maximum(self._sum_N, 0, out=self._sum_N)
        limit_P = np.maximum(policy.clip_sigmas * sigma_P, 4 * self.floor_ratio)
        np.minimum(pools.rows(raw_N), pools.beside(limit_P), out=score)
        if seen_N is not None:
            score_N *= seen_N
        self._run_sum_N += score_N
        running_N = self._sum_N > 0
        self._run_sum_N *= running_N
        self._run_N *= running_N
        self._run_N += running_N if seen_N is None else running_N & seen_N
        if self.judged % _STEPS_KEPT == 0:  # what lasts so long need not be counted further
            np.minimum(self._run_N, _STEPS_KEPT, out=self._run_N)

    def _decide(self, raw_N: "Floats", median_N: "Floats", seen_N: "NDArray[np.bool_] | None") -> None:
        """Raise, keep and clear alarms."""
        policy = self.policy
        alarm_P = self._alarm_P()
        is_gross = self.judged > policy.warm_up_steps and median_N.max(initial=0) > policy.gross_ratio
        if is_gross or self._pools.any_above(self._sum_N, alarm_P):
            candidate_N = (self._pools.rows(self._sum_N) > self._pools.beside(alarm_P)).reshape(-1)
            if is_gross:
                candidate_N |= median_N > policy.gross_ratio
            if seen_N is not None:
                candidate_N &= seen_N
            candidate_N &= ~self.alarm_N
            candidates = np.flatnonzero(candidate_N)
            if len(candidates):
                self._raise(candidates[self._matters(candidates, raw_N, median_N)], median_N)
        if self.alarm_N.any():
            self._keep(raw_N, median_N, seen_N)

    def _alarm_P(self) -> "NDArray[np.float64]":
        """Return the sum that alarms, array of shape (P,): more where noise comes in bursts that last."""
        often_P = np.maximum(self.noise.beyond_P - self.policy.burst_share, 0)
        alarm_P: NDArray[np.float64] = self.policy.alarm_sigmas * (1 + self.policy.burst_caution * often_P)
        return alarm_P

    def _matters(self, candidates: "NDArray[np.intp]", raw_N: "Floats", median_N: "Floats") -> "NDArray[np.bool_]":
        """Return which candidates have an effect that noise does not explain, array of shape (C,)."""
        policy, floor = self.policy, self.floor_ratio
        pool_C = self._pools.of(candidates)
        run_C = np.clip(self._run_N[candidates], 1, _LONG_STEPS).astype(np.float64)
        mean_C = self._run_sum_N[candidates] / np.maximum(self._run_N[candidates], 1)
        gate_C = self._gate(pool_C, run_C)
        median_C = median_N[candidates]
        least_C = np.minimum(np.minimum(self._recent[0][candidates], self._recent[1][candidates]), raw_N[candidates])
        # A drift's mean since its onset lags behind it: the long mean and the last steps may speak for it too.
        long_C = self._mean_N[candidates] > self._gate(pool_C, np.full(len(candidates), float(_LONG_STEPS)))
        # What has grown clear over many steps may be a little smaller: so a drift is told before it is large.
        clear_C = self._sum_N[candidates] > policy.clear_factor * policy.alarm_sigmas
        least = np.where(clear_C, policy.clear_floor_share, 1.0) * floor
        last_C = median_C > self._gate(pool_C, np.full(len(candidates), float(_SHORT_STEPS)), least)
        last_C &= mean_C > policy.run_share * gate_C
        summed_C = (
            ((mean_C > gate_C) & (median_C > policy.median_share * gate_C)) | (long_C & (median_C > floor)) | last_C
        )
        summed_C &= least_C > policy.least_share * np.minimum(gate_C, self.short_gate_P[pool_C])
        sigma_C = self.noise.sigma_P[pool_C]
        noisy_C = sigma_C > policy.noisy_sigma
        if not noisy_C.any():
            return summed_C
        short_C = np.maximum(
            np.maximum(self.short_gate_P[pool_C], policy.gross_ratio), policy.noisy_short_sigmas * sigma_C
        )
        long_C = np.maximum(policy.noisy_long_factor * self.long_gate_P[pool_C], policy.noisy_long_sigmas * sigma_C)
        steady_C = least_C > policy.least_share * short_C
        large_C = (median_C > short_C) & steady_C
        lasting_C = (self._mean_N[candidates] > long_C) & (median_C > floor)
        lasting_C &= self._sum_N[candidates] > policy.alarm_sigmas
        return np.where(noisy_C, large_C | lasting_C, summed_C)

    def noise_of(self, series: int) -> tuple[float, float]:
        """Return the standard deviation of one step of a series, and the mean of three that noise explains."""
        pool = self._pools.of(np.array([series]))
        gate = self._gate(pool, np.array([float(_SHORT_STEPS)]))
        return float(self.noise.sigma_P[pool[0]]), float(gate[0])

    def _gate(
        self,
        pool_C: "NDArray[np.intp]",
        run_C: "NDArray[np.float64]",
        floor_C: "NDArray[np.float64] | None" = None,
    ) -> "NDArray[np.float64]":
        """Return the mean of `run_C` steps that noise explains: its white part shrinks with them, its walk does not."""
        variance_P = self._usable_sigma_P() ** 2
        walk_P = np.maximum(np.nan_to_num(self._long_noise.cautious_P) ** 2 - variance_P / _LONG_STEPS, 0)
        walk_P = np.where(np.isnan(self._long_noise.sigma_P), self.policy.walk_prior_ratio**2, walk_P)
        spread_C = np.sqrt(walk_P[pool_C] + variance_P[pool_C] / run_C)
        floor_C = np.full(len(run_C), self.floor_ratio) if floor_C is None else floor_C
        return np.maximum(self.policy.gate_factor * self._spread_factor * spread_C, floor_C)

    @property
    def short_gate_P(self) -> "NDArray[np.float64]":
        """Excess that noise explains in a median of three steps, array of shape (P,); infinite while unknown."""
        return self._noisy_gate(self._short_noise)

    @property
    def long_gate_P(self) -> "NDArray[np.float64]":
        """Excess that noise explains in a long mean, array of shape (P,); infinite while unknown."""
        return self._noisy_gate(self._long_noise)

    def _noisy_gate(self, noise: PooledNoise) -> "NDArray[np.float64]":
        gate_P = np.maximum(self.policy.tail_factor * self._spread_factor * noise.cautious_P, self.floor_ratio)
        return np.where(np.isnan(gate_P), np.inf, gate_P)

    def _raise(self, raised: "NDArray[np.intp]", median_N: "Floats") -> None:
        self.alarm_N[raised] = True
        self.level_N[raised] = median_N[raised]
        self._quiet_N[raised] = 0
        for series in raised.tolist():
            self.onset_N[series] = self._steps[-self._length(series, float(median_N[series]))]

    def _length(self, series: int, level: float) -> int:
        """Return how many of the last steps an excess has lasted.

        The sum may have left zero long before, for what is silicon or chance: then its steps are counted by how many
        of the present size they make.
        """
        run = max(int(self._run_N[series]), 1)
        total = float(self._run_sum_N[series])
        if total < _GROWN_SHARE * level * run:
            run = max(math.ceil(total / level), _SHORT_STEPS)
        return min(run, len(self._steps))

    def _keep(self, raw_N: "Floats", median_N: "Floats", seen_N: "NDArray[np.bool_] | None") -> None:
        """Follow what is in alarm, and end an alarm after enough quiet steps."""
        policy = self.policy
        alarms = np.flatnonzero(self.alarm_N if seen_N is None else self.alarm_N & seen_N)
        gate_C = self._gate(self._pools.of(alarms), np.full(len(alarms), float(_SHORT_STEPS)))
        quiet_C = raw_N[alarms] < policy.clear_share * gate_C
        self._quiet_N[alarms] = np.where(quiet_C, self._quiet_N[alarms] + 1, 0)
        loud = alarms[~quiet_C]
        self.level_N[loud] += (median_N[loud] - self.level_N[loud]) * np.float32(_LEVEL_RATE)
        cleared = alarms[self._quiet_N[alarms] >= policy.clear_steps]
        self.alarm_N[cleared] = False
        self._sum_N[cleared] = 0
        self._run_N[cleared] = 0
        self._run_sum_N[cleared] = 0
        self.onset_N[cleared] = _STEPS_NONE
        self.level_N[cleared] = 0

    def _follow(self, raw_N: "Floats", sigma_P: "NDArray[np.float64]", seen_N: "NDArray[np.bool_] | None") -> None:
        """Let baselines follow what is healthy, and silicon: what stays below every effect that is reported."""
        policy, pools = self.policy, self._pools
        limit = pools.beside(np.minimum(policy.clip_sigmas * sigma_P, 1.0))
        drift_N = np.empty_like(raw_N)
        np.clip(pools.rows(raw_N), -limit, limit, out=pools.rows(drift_N))
        drift_N *= np.float32(policy.baseline_rate)
        suspicious_N = self._sum_N > policy.clip_sigmas - policy.slack_sigmas
        suspicious_N &= raw_N >= np.float32(policy.static_share * self.floor_ratio)
        rising = policy.static_share * self.floor_ratio + sigma_P * policy.static_sigmas
        suspicious_N |= (pools.rows(self._mean_N) > pools.beside(np.minimum(rising, 1.0))).reshape(-1)
        suspicious_N |= self.alarm_N
        drift_N *= ~suspicious_N
        if seen_N is not None:
            drift_N *= seen_N
        self._baseline_N += drift_N
        bound = np.float32(policy.baseline_max_ratio)
        np.clip(self._baseline_N, -bound, bound, out=self._baseline_N)

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt and what is in alarm, arrays by name."""
        own: dict[str, NDArray[np.generic]] = {name: getattr(self, name) for name in _KEPT}
        noises = {"noise": self.noise, "short": self._short_noise, "long": self._long_noise}
        learnt = joined({name: noise.memory() for name, noise in noises.items()})
        recent: dict[str, NDArray[np.generic]] = {
            f"recent.{place}": values for place, values in enumerate(self._recent)
        }
        return (
            own | learnt | recent | {"judged": np.array([self.judged]), "steps": np.array(self._steps, dtype=np.int64)}
        )

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> bool:
        """Take back what `memory` gave; return False, and take nothing, if it is another shape's."""
        present = self.memory()
        steps = present.pop("steps")
        if any(name not in memory or memory[name].shape != value.shape for name, value in present.items()):
            return False
        for name, value in present.items():
            np.copyto(value, memory[name].astype(value.dtype))
        self.judged = int(memory["judged"][0])
        self._steps.clear()
        self._steps.extend(memory.get("steps", steps).astype(np.int64).tolist())
        return True


_WINDOWS = ("_median_N", "_mean_N", "_mean_before_N", "_baseline_N")
_SUMS = ("_sum_N", "_run_N", "_run_sum_N", "_quiet_N")
_KEPT = (*_WINDOWS, *_SUMS, "alarm_N", "level_N", "onset_N")
