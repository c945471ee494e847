# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""When a deviation becomes an alarm: one test for ranks, replicas, stages and links.

Pure: numbers in, numbers out; no clock, no I/O, no knowledge of what a series stands for.

A series is the relative deviation of one rank (replica, stage, domain) from its reference, one value per step, 0 when
healthy. A clipped one-sided sum shows that a deviation lasts: a step adds at most 4, so one or two stalled steps never
reach the alarm's 11, and the third one does. A detection limit shows that the deviation matters: the mean since the sum
left zero must exceed both a floor and what noise explains of a mean of so many steps in so many series. Very noisy
groups (ranks that share cores) have heavier tails than any such estimate covers: there only large effects count.

Healthy series cost a few passes over arrays, and 32 bytes each: sums are stored only while they are above zero
(`cusum_state.py`), alarms only while they last (`alarms.py`), and the limit (`detection_limits.py`) is computed only
for the few series whose sum is high. The cost of a step depends on the number of calls rather than of series, so series
of several kinds are evaluated together in series groups (`series_groups.py`).

Shapes: N series, P noise groups, F series groups, C chosen series.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.detection_limits import LONG_STEPS, SHORT_STEPS, DetectionLimits
from coordinator.detect.ranks.deviation import Deviation, deviation
from coordinator.detect.ranks.groups import median_of_three
from coordinator.detect.ranks.mirrored import MirroredTest
from coordinator.detect.ranks.noise import FAR_SIGMAS
from coordinator.detect.ranks.noise_groups import NoiseGroups
from coordinator.detect.ranks.one_sided_sums import OneSidedSums
from coordinator.detect.ranks.series_groups import SeriesGroup, side_by_side
from coordinator.detect.ranks.static_differences import StaticDifferences, views_of_series_groups
from coordinator.detect.state_dict import nested, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.noise import PooledNoise
    from coordinator.detect.ranks.one_sided_sums import LastSteps
    from coordinator.detect.ranks.static_differences import FleetViews
    from coordinator.settings.policy import ExcessPolicy

    Floats = NDArray[np.float32]
    Figures = NDArray[np.float64]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]

_LONG_RATE_STEPS = 8
_PAST_UNKNOWN = np.float32(1e6)  # ratio, above any deviation
_STEPS_KEPT = 1024  # indices of the last steps, to look up an onset


class CusumTest:
    """The test's state for N series; steps must be given in ascending order.

    `series_groups` holds, for each series group in turn, the noise group of each of its series, numbered from 0 within
    the series group. `series_groups[k]` is the view of one series group. `test` names the test's share of the error
    budget. With `learns_tail`, limits follow from the peaks of sums that returned to zero.
    """

    def __init__(
        self,
        series_groups: "Sequence[NDArray[np.integer]]",
        policy: "ExcessPolicy",
        *,
        floor_ratio: float | None = None,
        fleet_views: "FleetViews | None" = None,
        test: str = "units",
        learns_tail: bool = False,
    ) -> None:
        series_F, counts_F = [len(own) for own in series_groups], [int(own.max(initial=0)) + 1 for own in series_groups]
        spans_F, groups_F = side_by_side(series_F), side_by_side(counts_F)
        numbered = [own.astype(np.intp) + its.start for own, its in zip(series_groups, groups_F, strict=True)]
        noise_groups = NoiseGroups(np.concatenate(numbered))
        self.count = sum(series_F)
        self._noise_groups = noise_groups
        group_P = np.repeat(range(len(series_groups)), counts_F)
        self.limits = DetectionLimits(noise_groups, group_P, series_F, test=test, learns_tail=learns_tail)
        self.series_groups = tuple(SeriesGroup(self, span, its) for span, its in zip(spans_F, groups_F, strict=True))
        self._may_be_early_P = np.ones(noise_groups.count, dtype=bool)
        self._recent = [np.zeros(self.count, dtype=np.float32) for _ in range(SHORT_STEPS - 1)]
        self._median_N = np.zeros(self.count, dtype=np.float32)  # some steps ago
        self._mean_N = np.zeros(self.count, dtype=np.float32)
        self._mean_before_N = np.zeros(self.count, dtype=np.float32)  # a window ago
        self._baseline_N = np.zeros(self.count, dtype=np.float32)
        self._pace_P = np.ones(noise_groups.count, dtype=np.float32)
        views = fleet_views or (lambda level_N: views_of_series_groups(level_N, self.series_groups))
        self._static = StaticDifferences(noise_groups, self.count, views, self.limits)
        self._sums = OneSidedSums(noise_groups, self.limits, sign=1)
        self.cusums, self.alarms = self._sums.cusums, self._sums.alarms
        self.mirrored = MirroredTest(noise_groups, self.limits)
        self.set_policy(policy, floor_ratio=floor_ratio)
        self._steps: deque[int] = deque(maxlen=_STEPS_KEPT)
        self._last: Deviation | None = None
        self._noise_factor_N: Floats | None = None
        self.evaluated_steps = 0

    def set_policy(
        self,
        policy: "ExcessPolicy",
        *,
        floor_ratio: float | None = None,
        alarm_sigmas: "Sequence[tuple[SeriesGroup, float]]" = (),
    ) -> None:
        """Apply other thresholds from the next step on; `alarm_sigmas` override them for some series groups."""
        self.policy = policy
        own = [(series_group.noise_groups, sigmas) for series_group, sigmas in alarm_sigmas]
        self.limits.set_policy(policy, policy.floor_ratio if floor_ratio is None else floor_ratio, own)
        self._find_high()

    def forbid_early(self, series_groups: "Sequence[SeriesGroup]") -> None:
        """Evaluate these series groups, and no others, only after `warm_up_steps`, however quiet the job.

        A series group that is compared with its own past needs this: a job's warm-up is no past.
        """
        self._may_be_early_P[:] = True
        for series_group in series_groups:
            self._may_be_early_P[series_group.noise_groups] = False

    @property
    def noise(self) -> "PooledNoise":
        """Noise of single steps."""
        return self.limits.single

    @property
    def suspicious(self) -> "Places":
        """Series, some of them twice, with more than one bad step: their references and baselines must not learn."""
        return np.concatenate((self.alarms.series_A, self._high)) if len(self.alarms) else self._high

    def suspected(self) -> "tuple[Places, Floats]":
        """Return the series not in alarm that had more than one bad step, and their mean deviation of two steps."""
        series = self.alarms.without(self._high)
        before_N, now_N = self._recent
        return series, np.minimum(before_N[series], now_N[series])

    def far_of(self, series_group: SeriesGroup, least: float) -> dict[int, float]:
        """Return how far a series group's series were above their own past in the last step, by series.

        Only series beyond all noise and `least`, and not in alarm, are included; none before their past is known.
        """
        now = self._last
        if now is None or now.highest <= least or self.evaluated_steps < LONG_STEPS:
            return {}
        far = now.raw_N[series_group.span] > least
        if now.seen_N is not None:
            far &= now.seen_N[series_group.span]
        series = self.alarms.without(far.nonzero()[0] + series_group.span.start)
        above = now.raw_N[series] - np.maximum(self._static.past_of(series) - self._baseline_N[series], 0)
        sigma_C = self.limits.sigma_P[self._noise_groups.of(series)] * self._noise_factor_of(series)
        is_far = above > np.maximum(FAR_SIGMAS * sigma_C, least)
        return dict(zip((series[is_far] - series_group.span.start).tolist(), above[is_far].tolist(), strict=True))

    def mean_of(self, series_group: SeriesGroup) -> "Floats":
        """Return the long means of a series group's series, ratio, including their learnt levels."""
        mean_N: Floats = self._mean_N[series_group.span] + self._baseline_N[series_group.span]
        return mean_N

    def static_of(self, series_group: SeriesGroup) -> "Floats":
        """Return the static differences of a series group's series, ratio, shrunk by what noise explains."""
        return self._static.static_of(np.arange(series_group.span.start, series_group.span.stop))

    def changed(self, series_group: SeriesGroup) -> "Places":
        """Return a series group's series that have been above their static difference for more than one bad step."""
        series = self.cusums.changed(self._bad_step)
        own: Places = (
            series[(series >= series_group.span.start) & (series < series_group.span.stop)] - series_group.span.start
        )
        return own

    @property
    def _bad_step(self) -> float:
        """The most that one bad step adds to a sum."""
        return self.policy.clip_sigmas - self.policy.slack_sigmas

    def _find_high(self) -> None:
        """Update the series whose sum is higher than one bad step makes it."""
        self._high = self.cusums.above(self._bad_step)

    def warm_P(self) -> "Marks | None":
        """Return the noise groups whose noise is known well enough to evaluate them, None if all are.

        Quiet groups, in which no series is noisy either, get there early, others after `warm_up_steps`.
        """
        policy = self.policy
        if self.evaluated_steps > policy.warm_up_steps:
            return None
        sigma_P = self.limits.cautious_P
        if self._noise_factor_N is not None:
            sigma_P = sigma_P * self._noise_groups.highest(self._noise_factor_N)
        warm_P: Marks = self._may_be_early_P & (sigma_P < policy.early_sigma)
        warm_P &= self.noise.samples_P >= policy.early_samples
        return warm_P

    def step(
        self,
        deviation_N: "NDArray[np.floating]",
        step: int,
        *,
        unit_P: "NDArray[np.floating] | None" = None,
        noise_factor_N: "Floats | None" = None,
    ) -> None:
        """Evaluate one step.

        Parameters
        ----------
        deviation_N
            Array of shape (N,), ratio; NaN if the series has no value in this step, which leaves its state unchanged.
        step
            Index of the step.
        unit_P
            What a ratio of 1 stands for in this step, array of shape (P,), seconds; None if that never changes.
        noise_factor_N
            Noise of each series relative to its noise group, array of shape (N,); None if all are alike.
        """
        self.evaluated_steps += 1
        self._noise_factor_N = noise_factor_N
        self._steps.append(step)
        values = deviation(deviation_N, self._baseline_N, self._recent[-1], self._noise_groups)
        self._learn(values, unit_P)
        self.limits.settle()
        sigma_P = self.limits.sigma_P
        warm_P = self.warm_P()
        if warm_P is None or warm_P.any():
            self._add(values, warm_P)
        self._decide(values)
        self._find_high()
        self.mirrored.step(values, self._last_three(values), self._mean_N, warm_P, is_disturbed=len(self.alarms) > 0)
        if self.evaluated_steps > 1:
            self._follow(values, sigma_P)
        self._recent = self._shifted(values)
        self._last = values

    def _shifted(self, values: Deviation) -> "list[Floats]":
        """Return the last values of each series, the oldest first; steps without a value are skipped per series."""
        older_N, old_N = self._recent
        if values.seen_N is not None:  # there `raw_N` repeats the last one
            np.copyto(old_N, older_N, where=~values.seen_N)
        return [old_N, values.raw_N]

    def _learn(self, values: Deviation, unit_P: "NDArray[np.floating] | None") -> None:
        """Learn the noise of single steps, of medians of three and of long means."""
        policy, raw_N = self.policy, values.raw_N
        scratch_N = np.empty_like(raw_N)
        if self.evaluated_steps > 1:
            np.subtract(
                *values.without_wild(self._recent[-1], (each.span for each in self.series_groups)), out=scratch_N
            )
            self.limits.follow(scratch_N)
            common_P = self.limits.common_P
            if common_P is not None:  # a common movement is not noise
                scratch_N -= self._noise_groups.per_series(common_P.astype(np.float32))
            # Series in alarm are left out: they must not make their peers look noisy.
            np.abs(scratch_N, out=scratch_N)
            self._to_noise_group(scratch_N)
            left_out, present_P = self._unsteady(values), self.limits.present_P
            self.noise.learn(scratch_N, left_out, policy, suspicious=self.suspicious, present_P=present_P)
        if self.evaluated_steps % SHORT_STEPS == 0:
            median_N = median_of_three(self._recent[0], self._recent[1], raw_N)
            if self.evaluated_steps >= policy.settle_steps + 2 * SHORT_STEPS:
                np.subtract(median_N, self._median_N, out=scratch_N)
                unseen = None if values.seen_N is None else (~values.seen_N).nonzero()[0]
                np.abs(scratch_N, out=scratch_N)
                self._to_noise_group(scratch_N)
                self.limits.short.learn(scratch_N, unseen, policy)
            self._median_N = median_N
        if self.evaluated_steps > 1:
            if unit_P is not None:
                self._follow_pace(np.reciprocal(unit_P, dtype=np.float32))
            self._learn_mean(values, scratch_N)

    def _to_noise_group(self, difference_N: "Floats") -> None:
        """Divide differences by the noise of their series relative to their noise group."""
        if self._noise_factor_N is not None:
            difference_N /= self._noise_factor_N

    def _noise_factor_of(self, series: "Places | int") -> "Floats | float":
        """Return the noise of some series relative to their noise group."""
        return 1.0 if self._noise_factor_N is None else self._noise_factor_N[series]

    def _unsteady(self, values: Deviation) -> "Places | None":
        """Return the series without a value or in alarm; None if there are none."""
        if values.seen_N is None:
            return self.alarms.series_A if len(self.alarms) else None
        left_out_N = ~values.seen_N
        left_out_N[self.alarms.series_A] = True
        return left_out_N.nonzero()[0]

    def _learn_mean(self, values: Deviation, scratch_N: "Floats") -> None:
        change_N = np.subtract(values.raw_N, self._mean_N, out=scratch_N)
        if values.seen_N is not None:  # without a value there is nothing that earlier steps agree with
            change_N *= values.seen_N
        self._clip_change(values, change_N)
        change_N *= self._long_rate
        self._mean_N += change_N
        if self.evaluated_steps % LONG_STEPS == 0:
            if self.evaluated_steps > LONG_STEPS:
                # A fault's onset is no random walk: in a noise group of two it would be half of all samples.
                change_N = np.abs(self._mean_N - self._mean_before_N)
                self._to_noise_group(change_N)
                self.limits.long.learn(change_N, np.unique(self.suspicious), self.policy)
            self._static.learn(self._level_N, self._pace_P, self.evaluated_steps, self.alarms.series_A)
            self._mean_before_N = self._mean_N.copy()

    def _follow_pace(self, pace_P: "Floats") -> None:
        """Update the means of pace, as those of deviations; NaN where a noise group has no value in this step."""
        np.copyto(pace_P, self._pace_P, where=np.isnan(pace_P))
        self._pace_P += self._long_rate * (pace_P - self._pace_P)
        self._static.follow(pace_P)

    @property
    def _long_rate(self) -> np.float32:
        """Weight of a step in long means."""
        return np.float32(1 / min(self.evaluated_steps - 1, _LONG_RATE_STEPS))

    def _clip_change(self, values: Deviation, change_N: "Floats") -> None:
        """Clip what one step changes in long means, modifying `change_N`, so that no single stall moves one far.

        What the last three steps agree on moves a mean at once to within the clip of them.
        """
        wide_P = self.limits.widest_P()
        noise_groups = self._noise_groups
        if not np.count_nonzero(noise_groups.reach(change_N, noise_groups.highest(change_N)) > wide_P):
            return
        wide_N = np.broadcast_to(noise_groups.per_series(wide_P.astype(np.float32)), change_N.shape)
        far = (np.abs(change_N) > wide_N).nonzero()[0]
        wide_C = wide_N[far]
        last_3C = np.array([each_N[far] for each_N in self._last_three(values)])
        self._mean_N[far] = np.clip(self._mean_N[far], last_3C.min(axis=0) - wide_C, last_3C.max(axis=0) + wide_C)
        change_N[far] = np.clip(values.raw_N[far] - self._mean_N[far], -wide_C, wide_C)

    @property
    def _level_N(self) -> "Floats":
        """The lasting deviation of each series, array of shape (N,), including its learnt level."""
        level_N: Floats = self._mean_N + self._baseline_N
        return level_N

    def _add(self, values: Deviation, warm_P: "Marks | None") -> None:
        """Update the sum of each series, and count the steps since it left zero."""
        self.cusums.move(
            values.raw_N,
            values.seen_N,
            self.limits.summed_P,
            warm_P,
            most_P=self.limits.most_P,
            stall_ratio=self.limits.stall_ratio,
            policy=self.policy,
            static_of=self._static_above_baseline,
            noise_factor_N=self._noise_factor_N,
        )
        cusums = self.cusums
        self.limits.follow_sums(cusums.ended_group_E, cusums.ended_peak_E, cusums.ended_stalled_E, warm_P)
        if self.evaluated_steps % _STEPS_KEPT == 0:  # no need to count beyond this
            self.cusums.bound_runs(_STEPS_KEPT)

    def _static_above_baseline(self, series: "Places") -> "Floats":
        """Return the upper bound of some series' static differences, less the learnt level of each, ratio.

        Before anything is known of a series, the bound is above any deviation.
        """
        if self.evaluated_steps < LONG_STEPS:
            return np.full(len(series), _PAST_UNKNOWN, dtype=np.float32)
        above_C: Floats = self._static.most_of(series) - self._baseline_N[series]
        return above_C

    def _decide(self, values: Deviation) -> None:
        """Raise, update and clear alarms."""
        last_N = self._last_three(values)
        due = self._sums.due(values.seen_N)
        if len(due):
            due = due[median_of_three(*(each_N[due] for each_N in last_N)) > self.limits.least_median()]
        if len(due):
            those = self._sums.candidates(due, last_N, self._mean_N, noise_factor=self._noise_factor_of(due))
            passed_C = self.limits.passed(those)
            if passed_C.any():
                change_C = self.cusums.changes_of(due)
                passed_C &= self._static.passed(
                    due, those, self._level_N, self._baseline_N[due], change_C, evaluated_steps=self.evaluated_steps
                )
                self._raise(due[passed_C], those.median[passed_C])
        if len(self.alarms):
            self._sums.update(last_N, values.seen_N)

    def _last_three(self, values: Deviation) -> "LastSteps":
        """Return the last three values of each series, the oldest first, arrays of shape (N,)."""
        before_N, last_N = self._recent
        return before_N, last_N, values.raw_N

    def noise_of(self, series: int) -> tuple[float, float]:
        """Return the standard deviation of one step of a series, and the mean of three steps that noise explains."""
        return self.limits.explained(self.evaluated_steps)[int(self._noise_groups.of(np.array([series]))[0])]

    def rule_of(self, series: int) -> dict[str, float]:
        """Return what alarms a series: the smallest effect, the limit of its sum, and what a step adds to that."""
        policy, noise_group = self.policy, int(self._noise_groups.of(np.array([series]))[0])
        return {
            "floor_ratio": self.limits.floor_ratio,
            "clip_sigmas": policy.clip_sigmas,
            "slack_sigmas": policy.slack_sigmas,
            "alarm_sigmas": float(self.limits.alarm_sigmas_P[noise_group]),
        }

    def _raise(self, raised: "Places", median_C: "Floats") -> None:
        known = len(self._steps)
        last = [min(steps, known) for steps in self.cusums.lasted(raised, median_C)]
        self.alarms.add(raised, median_C, np.array([self._steps[-steps] for steps in last], dtype=np.int64))

    def _follow(self, values: Deviation, sigma_P: "Figures") -> None:
        """Update baselines by healthy noise and static device variation, which stays below every reported effect."""
        policy = self.policy
        limit_P = np.minimum(FAR_SIGMAS * sigma_P, 1.0)
        drift_N = self._noise_groups.clip(values.raw_N, limit_P, values.reach_P) * np.float32(policy.baseline_rate)
        drift_N[self._rising(values, sigma_P)] = 0
        if values.seen_N is not None:
            drift_N *= values.seen_N
        self._baseline_N += drift_N
        bound = np.float32(policy.baseline_max_ratio)
        if np.maximum.reduce(self._baseline_N) > bound or np.minimum.reduce(self._baseline_N) < -bound:
            np.clip(self._baseline_N, -bound, bound, out=self._baseline_N)

    def _rising(self, values: Deviation, sigma_P: "Figures") -> "Places":
        """Return the series whose deviation may be a fault, so that their baselines must not learn."""
        policy, high = self.policy, self._high
        floor = policy.static_share * self.limits.floor_ratio
        rising = high[:0]
        if not np.maximum.reduce(self._mean_N) <= np.float32(min(floor, 1.0)):
            most_P = np.minimum(floor + sigma_P * policy.static_sigmas, 1.0)
            rising = self._noise_groups.above(self._mean_N, most_P, self._noise_groups.highest(self._mean_N))
        if not len(high) and not len(self.alarms):
            return rising
        return np.concatenate((self.alarms.series_A, high[values.raw_N[high] >= np.float32(floor)], rising))

    def forget(self, series: "Places") -> None:
        """Reset the sums of some series, whose reference begins again."""
        self.cusums.drop(series)
        self._find_high()

    def rescale(self, ratio_N: "NDArray[np.floating]") -> None:
        """Rescale the levels of alarms to another unit by multiplying them."""
        self.alarms.level_A *= ratio_N[self.alarms.series_A].astype(np.float32)

    def _arrays(self) -> "dict[str, NDArray[np.generic]]":
        own: dict[str, NDArray[np.generic]] = {name: getattr(self, name) for name in _KEPT}
        recent = {f"recent.{place}": values_N for place, values_N in enumerate(self._recent)}
        static = {f"static.{name}": getattr(self._static, f"{name}_{shape}") for name, shape in _STATIC_KEPT}
        return own | recent | static | self.limits.state_dict()

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state and the alarms, arrays by name."""
        tables = nested({"cusums": self.cusums.state_dict(), "alarms": self.alarms.state_dict()})
        steps = {"evaluated_steps": np.array([self.evaluated_steps]), "steps": np.array(self._steps, dtype=np.int64)}
        return self._arrays() | tables | steps

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> bool:
        """Restore the result of `state_dict`; return False and change nothing if its shapes differ."""
        present = self._arrays() | {"evaluated_steps": np.zeros(1, dtype=np.int64)}
        if any(name not in state or state[name].shape != value.shape for name, value in present.items()):
            return False
        for name, value in present.items():
            np.copyto(value, state[name].astype(value.dtype))
        self.limits.settle()
        self.cusums.load_state_dict(part_of(state, "cusums"), self.count)
        self._find_high()
        self.alarms.load_state_dict(part_of(state, "alarms"), self.count)
        self.evaluated_steps = int(state["evaluated_steps"][0])
        self._steps.clear()
        self._steps.extend(state.get("steps", np.zeros(0)).astype(np.int64).tolist())
        return True


_KEPT = ("_median_N", "_mean_N", "_mean_before_N", "_baseline_N", "_pace_P")
_STATIC_KEPT = (
    ("past", "N"),
    ("before", "N"),
    ("past_pace", "P"),
    ("before_pace", "P"),
    ("share", "P"),
    ("margin", "P"),
)
