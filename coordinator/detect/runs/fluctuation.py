"""Detects whether a run is slower than its own history explains.

Pure, with a few additions per step whatever the number of ranks. Only undisturbed steps may be given: the duration of
flagged checkpoints, evaluations, warm-up and captures shows nothing. The evaluated quantity is the logarithm of the
step time, without what the step's longest batch adds to it (`imbalance_seconds`) and without what the run's work
explains (`run_work.py`), relative to a level that follows improvements at once and slowdowns hardly.

A clipped sum shows that a slowdown lasts, the mean of its steps that it matters; the noise of a mean depends on the
autocorrelation of the series (`run_noise.py`). One or two very long steps are a pause (an unflagged checkpoint) and are
dropped. If long steps are common, more of them in a row are needed (`run_outliers.py`). Single long steps, here and
there, are counted (`long_steps.py`).
"""

import math
from collections import deque
from copy import copy
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.cusum import Cusum
from coordinator.detect.pace import RETURN_STEPS, SETTLED_STEPS
from coordinator.detect.ranks.alarms import Alarms
from coordinator.detect.runs.long_steps import LongSteps
from coordinator.detect.runs.mean_over_best import PUBLISHED_STEPS, mean_over_best
from coordinator.detect.runs.run_noise import FAR_STEPS, SeriesNoise
from coordinator.detect.runs.run_outliers import Outliers
from coordinator.detect.runs.run_residuals import RunResiduals
from coordinator.detect.runs.run_window import WINDOWS, RunWindow, mean_sigmas
from coordinator.detect.runs.run_work import CHANGE_STEPS, RunWork
from coordinator.detect.state_dict import Learner, nested, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.detect.state_dict import StateDict
    from coordinator.settings.policy import FluctuationPolicy

_THE_RUN = np.zeros(1, dtype=np.intp)  # the only series
_SHORT, _LONG = 3, 16
_FIRST_STEPS_MIN = 3  # whose median is the first level
_NET_SHARE_MIN = 0.1  # of a step: an imbalance that leaves less than this is implausible and ignored
_LEVEL_SIGMAS = 4.0  # times the level's own uncertainty that a shift must exceed
_SURE_STEPS, _SURE_SECONDS = 20, 15.0  # of a shift in a noisy job: shared hosts are busy for seconds
_OTHER_LOG = math.log(1.35)  # by which steps of another pace differ
_SUM_MAX_FACTOR = 3.0  # times the alarm's: an unbounded sum would not return to zero


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """One step of a run: its seconds, those that only the longest batch explains (0 if unknown), and its mean work.

    `work` is the mean over ranks of the record's work figure or tokens, NaN if no rank reports one. `is_held_back`: a
    known slow rank or link makes the step longer. `is_explained`: one, or collections that are not synchronised, makes
    steps longer, this one or others.
    """

    step_seconds: float
    imbalance_seconds: float = 0.0
    work: float = math.nan
    is_held_back: bool = False
    is_explained: bool = False


class FluctuationTest(Learner):
    """State of one attempt's step time; `policy` may be replaced at any time. Steps must come in ascending order.

    `outliers` are the long steps learnt in earlier attempts of the run.
    """

    LEARNT = (
        *("_level", "_imbalance_seconds", "_evaluated_steps", "_settled", "_young_steps", "_raw", "_first"),
        *("_last", "_noise", "_work", "outliers", "_sum", "_sum_before", "_residuals"),
        *("_slower_level", "_slower_pace", "_faster_steps", "_other", "pace", "long_steps"),
    )

    def __init__(self, policy: "FluctuationPolicy", *, outliers: Outliers | None = None) -> None:
        self.policy = policy
        self._raw: deque[float] = deque(maxlen=PUBLISHED_STEPS)
        self._first: deque[float] = deque(maxlen=FAR_STEPS)
        self._last = RunWindow(WINDOWS[-1])
        self._noise = SeriesNoise()
        self._work = RunWork()
        self.outliers = outliers or Outliers()
        self.outliers.begin_attempt()
        self._residuals = RunResiduals()
        self.long_steps = LongSteps()
        self._level = math.nan
        self.pace = 0
        """Steps evaluated when the run took on its present pace; those of the former one once it goes back to that."""
        self._slower_pace = 0
        self._slower_level = math.nan  # level before the run last became faster
        self._faster_steps = 0  # since it has done so
        self._other: deque[float] = deque(maxlen=RETURN_STEPS)  # deviations in a row of steps that are much shorter
        self._imbalance_seconds = 0.0
        self._evaluated_steps = 0
        self._settled = 0  # steps from which the level was learnt
        self._sum = Cusum()
        self._sum_before = Cusum()  # from before a pause
        self._alarms = Alarms()  # of one series
        self._is_held_back = self._is_explained = False
        self._young_steps = 0  # to come, in which the run is still warming up

    def step(self, sample: RunSample, step: int) -> None:
        """Add one undisturbed step."""
        self._raw.append(sample.step_seconds)
        self._evaluated_steps += 1
        self._is_held_back, self._is_explained = sample.is_held_back, sample.is_explained
        imbalance = min(max(sample.imbalance_seconds, 0.0), (1 - _NET_SHARE_MIN) * sample.step_seconds)
        self._imbalance_seconds += (imbalance - self._imbalance_seconds) / min(self._evaluated_steps, _LONG)
        if not sample.step_seconds - imbalance > 0:
            return
        value = math.log(sample.step_seconds - imbalance)
        value -= self._work.add(sample.work, value, self.policy)
        if math.isnan(self._level):
            self._begin(value)
        else:
            self._evaluate(value, step)

    def begin_attempt(self) -> None:
        """Note that the run starts again: its steps are longer for a while, even after its flagged warm-up."""
        if not math.isnan(self._level):
            self._young_steps = self.policy.young_steps

    def _begin(self, value: float) -> None:
        """Collect the first steps; the median of the last of them is the run's first level."""
        policy = self.policy
        if self._evaluated_steps > min(policy.settle_steps, policy.warm_up_steps - _FIRST_STEPS_MIN):
            self._first.append(value)
        if self._evaluated_steps >= policy.warm_up_steps and self._first:
            self._level = median(self._first)
            self._settled = len(self._first)
            for first in self._first:
                self._noise.learn(first - self._level, policy)

    def _evaluate(self, value: float, step: int) -> None:
        """Evaluate the logarithm of one step's time."""
        policy, work, outliers = self.policy, self._work, self.outliers
        allowed = work.rise + work.passing
        if self._young_steps:
            self._young_steps -= 1
            if not self._is_slower:
                return
        if not self._is_of_pace(value - allowed):
            return
        deviation = value - self._level - allowed
        self._count(deviation, step)
        outliers.add(deviation - self._deviation, self._noise.sigma_of_mean(1), policy, learns=not self._is_slower)
        if outliers.ended_pause:
            self._last.drop(outliers.ended_pause)
            self._sum = copy(self._sum_before)
        self._last.append(step, deviation, allowed)
        if outliers.pause_steps == 1:
            self._sum_before = copy(self._sum)
        row_steps = outliers.row_steps(policy)
        self._add(deviation, row_steps)
        if work.has_changed:
            self._noise.drop(CHANGE_STEPS)
        if not 0 < outliers.pause_steps < row_steps:
            weight = policy.row_min_steps / row_steps  # of a long step, 1 if they are rare
            self._residuals.add_deviation(deviation, self._noise, policy, weight)
            self._decide(deviation, allowed)

    def _is_of_pace(self, value: float) -> bool:
        """Whether a step is of the run's pace, which becomes another one by it if it is the last of several."""
        deviation = value - self._level
        other = max(_OTHER_LOG, self.policy.clip_sigmas * self._noise.sigma)
        if deviation < -other:
            self._other.append(deviation)
            if len(self._other) < (RETURN_STEPS if self._is_slower else SETTLED_STEPS):
                return False  # they do not end an alarm of the others
            self._become_faster(median(self._other))
        elif deviation > other > value - self._slower_level:  # the former pace
            self._go_back(of_its_pace=0)
        self._other.clear()
        return True

    def _count(self, deviation: float, step: int) -> None:
        """Count a step if it is long, as far as nothing else explains that."""
        if self._is_explained:
            self.long_steps.clear()
        elif self.is_warm and not self._work.is_changing:
            self.long_steps.step(deviation, self._noise.sigma, step, self.policy)

    def _add(self, deviation: float, row_steps: int) -> None:
        """Update the sum; so many long steps in a row reach an alarm's."""
        policy = self.policy
        most = (policy.alarm_sum + 1) / row_steps
        score = min(deviation / self._noise.sigma - policy.slack_sigmas, most)
        self._sum.add(score, deviation, _SUM_MAX_FACTOR * policy.alarm_sum)

    def _decide(self, deviation: float, allowed: float) -> None:
        """Raise, keep or end an alarm, and learn."""
        if not self._work.is_changing:
            self._noise.learn(deviation + allowed, self.policy)
        if self._is_slower:
            self._keep(deviation)
        elif self._matters() or self._is_shifted or self._is_published():
            if self._is_back:
                self._go_back(of_its_pace=_SHORT)
            else:
                self._raise()
        if self._work.is_changing:
            if self._work.settle():
                self._settle()
        elif not self._is_slower:
            self._follow(deviation)

    def _limit(self, steps: int) -> float:
        """Return the mean deviation of `steps` steps that noise explains, including the level's own uncertainty."""
        policy, noise = self.policy, self._noise
        factor = mean_sigmas(policy.false_page_steps) * (policy.tail_factor if self._is_noisy else 1.0)
        learnt = min(self._settled, round(2 / policy.baseline_rate))
        scatter = math.hypot(noise.sigma_of_mean(steps), noise.sigma_of_mean(learnt))
        floor = policy.floor_ratio * (policy.short_floor_factor if steps == _SHORT else 1.0)
        return max(math.log1p(floor), factor * scatter)

    @property
    def _is_noisy(self) -> bool:
        return self._noise.sigma > self.policy.noisy_sigma

    @property
    def _is_quiet_job(self) -> bool:
        return self._noise.sigma <= self.policy.quiet_sigma

    def _clipped(self, steps: int) -> list[float]:
        """Return the last deviations, each clipped at what one of several steps may contribute."""
        return self._last.values(steps, max(self.policy.clip_sigmas * self._noise.sigma, 2 * self._limit(_SHORT)))

    def _matters(self) -> bool:
        """Whether the sum reaches an alarm's and the mean of some window is beyond what noise explains."""
        policy = self.policy
        if self._sum.sum <= policy.alarm_sum or not self.is_warm:
            return False
        last = self._clipped(WINDOWS[-1])
        # Where long steps are common, two of three are not rare, so the third must matter by itself.
        is_common = self.outliers.row_steps(policy) > policy.row_min_steps
        least = (1.0 if is_common else policy.least_share) * self._limit(_SHORT)
        least = max(least, policy.least_share * self._last.median(_SHORT))  # nor are two with a noisy step between them
        if min(self._last.values(_SHORT, math.inf)) <= least:
            return False
        longest = min(self._sum.run, len(last), self._settled / policy.windows_min)
        return any(self._exceeds(last[-steps:]) for steps in WINDOWS if steps <= longest)

    @property
    def _is_shifted(self) -> bool:
        """Whether, except in quiet jobs, the sum of residuals reaches an alarm's with an effect that still lasts."""
        residuals = self._residuals
        if self._is_quiet_job or not self.is_warm or residuals.sum <= residuals.limit:
            return False
        level = min(self._settled, round(2 / self.policy.baseline_rate))
        floor = math.log1p(self.policy.floor_ratio)
        least = max(floor, _LEVEL_SIGMAS * self._noise.sigma_of_mean(level))
        return residuals.mean > least and self._last.median(_SHORT) > floor

    def _exceeds(self, window: list[float]) -> bool:
        """Whether the mean of some steps is beyond what noise explains, and not because of a few of them."""
        limit = self._limit(len(window))
        return fmean(window) > limit and median(window) > self.policy.median_share * limit

    def _is_published(self) -> bool:
        """Whether PerfTracker's trigger holds now, and not because of steps that are over."""
        if self.mean_over_best_ratio is None:
            return False
        floor = math.log1p(self.policy.floor_ratio)
        in_a_row = self._last.values(self.outliers.row_steps(self.policy), math.inf)
        return min(in_a_row) > floor and fmean(self._clipped(_LONG)) > floor

    def _raise(self) -> None:
        deviation = self._last.median(_SHORT)
        onset, steps = self._last.onset(deviation)
        self._alarms.add(_THE_RUN, np.array([deviation], dtype=np.float32), np.array([onset]))
        self.outliers.forget_row()
        self._noise.begin_era(self.policy, steps)

    def _keep(self, deviation: float) -> None:
        """Update an alarm, and end it after enough quiet steps."""
        policy = self.policy
        least = self._limit(_SHORT)
        if self._is_shifted:  # an effect below the noise of three steps
            least = min(least, self._residuals.mean)
        is_quiet = np.array([deviation < policy.clear_share * least])
        self._alarms.update(slice(None), is_quiet, np.array([self._last.median(_SHORT)], dtype=np.float32))
        if len(self._alarms.clear(policy.clear_steps)):
            self._sum.clear()
            self._residuals.clear()
            self._noise.begin_era(policy, policy.clear_steps)
            self._last.keep_only(policy.clear_steps)

    def _follow(self, deviation: float) -> None:
        """Update the level by healthy steps: by an improvement once it lasts, by anything else as noise."""
        policy, sigma = self.policy, self._noise.sigma
        self._faster_steps += 1
        if self._faster_steps > RETURN_STEPS:
            self._slower_level = math.nan
        is_known = self._settled * policy.baseline_rate >= 1
        if is_known and self._sum.sum > policy.alarm_sum / 2 and self._sum.run <= WINDOWS[-1]:
            return  # a possible slowdown is not learnt until it is too old to become an alarm
        if is_known and not self._is_quiet_job and self._residuals.sum > self._residuals.limit / 2:
            return  # nor is a shift in a job that is not quiet, however old
        if not self._is_held_back:  # otherwise a lasting fault would become the level, soonest in a young run
            self._settled += 1
            self._level += max(1 / self._settled, policy.baseline_rate) * min(max(deviation, -sigma), sigma)
        if len(self._last) < _LONG or not self.is_warm:
            return
        mean = fmean(self._clipped(_LONG))
        if mean < -self._limit(_LONG):
            self._become_faster(mean)

    def _become_faster(self, change: float) -> None:
        """Shift the level to that of a run that has become faster, and keep the former one."""
        if math.isnan(self._slower_level) or self._faster_steps > _LONG:  # else it is more of the same improvement
            self._slower_level, self._slower_pace = self._level, self.pace
            self.pace = self._evaluated_steps
        self._faster_steps = 0
        self._move(change)

    def _go_back(self, *, of_its_pace: int) -> None:
        """Shift the level to that of before the run became faster; only the last steps were of its pace."""
        self._last.keep_only(of_its_pace)
        self._move(self._slower_level - self._level)
        self._slower_level, self.pace = math.nan, self._slower_pace
        self.outliers.forget_row()

    def _move(self, change: float) -> None:
        """Shift the level and all deviations measured from it."""
        self._level += change
        self._last.move(change)
        self._settled = _LONG
        self._sum.clear()
        self._residuals.clear()
        self._noise.begin_era(self.policy)

    @property
    def _is_back(self) -> bool:
        """Whether a run that was faster for a while, as in step-by-step evaluation, is back at its former step time."""
        return self._level + self._last.median(_SHORT) > self._slower_level - self._limit(_SHORT)

    def _settle(self) -> None:
        """Set the level at which a run settled after a change of its work, as far as the change explains it."""
        work = self._work
        moved = self._last.median(self.policy.work_settle_steps, granted=True) - self._deviation
        moved = min(max(moved, -work.fall), work.rise)
        self._level += moved
        self._last.keep_only(self.policy.work_settle_steps)
        self._last.move(moved)
        work.forget_change()
        self._settled = max(len(self._last), 1)  # the noise is that of the steps before, less their level
        self._residuals.clear()

    @property
    def is_sure(self) -> bool:
        """Whether a verdict may be reported at once: the job is quiet, or the effect far exceeds its noise.

        Otherwise it must last first, because autocorrelation is known only roughly and the noise of ranks that share
        cores has no known tail. In jobs that are not quiet, a shift is sure once it has lasted for seconds.
        """
        if not self._is_slower:
            return self.is_intermittent
        policy = self.policy
        if self._is_quiet_job:
            return True
        if not self._is_noisy and self._deviation > policy.sure_factor * self._limit(_SHORT):
            return True
        run = self._residuals.run
        lasted_s = run * math.exp(self._level)
        return self._is_shifted and run >= _SURE_STEPS and lasted_s >= _SURE_SECONDS

    @property
    def is_of_other_pace(self) -> bool:
        """Whether the last step was much shorter than the level, as an evaluation's is, and shows nothing of others."""
        return len(self._other) > 0

    @property
    def has_new_work(self) -> bool:
        """Whether the last step showed that the amount of work has changed."""
        return self._work.has_changed

    @property
    def fluctuating(self) -> bool:
        """Whether steps are now longer than history explains, all or here and there."""
        return self._is_slower or self.is_intermittent

    @property
    def _is_slower(self) -> bool:
        """Whether all steps are now longer."""
        return len(self._alarms) > 0

    @property
    def is_intermittent(self) -> bool:
        """Whether only single steps are now longer, here and there."""
        return self.long_steps.is_alarm and not self._is_slower

    @property
    def onset_step(self) -> int:
        """Step at which the slowdown began; -1 while not fluctuating."""
        return self.long_steps.onset_step if self.is_intermittent else self._alarms.of(0)[1]

    @property
    def _deviation(self) -> float:
        """Excess of the logarithm of the step time; 0 unless all steps are longer."""
        return self._alarms.of(0)[0]

    @property
    def is_quiet(self) -> bool:
        """Whether history explains the last step; an alarm ends after some such steps."""
        return not self.long_steps.is_long if self.is_intermittent else self._alarms.has_quiet

    @property
    def is_warm(self) -> bool:
        """Whether the run's level and its noise are known well enough to evaluate."""
        return self._noise.samples >= self.policy.noise_samples

    @property
    def level_ratio(self) -> float:
        """Relative excess of the mean step time, 0 while not fluctuating."""
        return self.long_steps.lost_ratio if self.is_intermittent else math.expm1(self._deviation)

    @property
    def excess_seconds(self) -> float:
        """Excess of the step time over what history explains, seconds, 0 while not fluctuating."""
        return 0.0 if math.isnan(self._level) else self.level_ratio * math.exp(self._level)

    @property
    def lost_seconds(self) -> float:
        """What the last step took beyond what history explains, seconds, where single steps do; else as all of them."""
        if not self.is_intermittent:
            return self.excess_seconds
        return max(self._raw[-1] - (self.baseline_seconds or 0.0), 0.0)

    @property
    def baseline_seconds(self) -> float | None:
        """Step time by the run's history, including its usual imbalance, seconds; None until known."""
        return None if math.isnan(self._level) else math.exp(self._level) + self._imbalance_seconds

    @property
    def recent_seconds(self) -> float | None:
        """Median of the last steps, seconds."""
        return median(list(self._raw)[-self.policy.recent_steps :]) if self._raw else None

    @property
    def mean_over_best_ratio(self) -> float | None:
        """PerfTracker's figure (`mean_over_best.py`), None if noise explains it."""
        return mean_over_best(self._last, self._noise.sigma, self.policy)

    def state_dict(self) -> "StateDict":
        """Return the learnt state, arrays by name."""
        return super().state_dict() | nested({"alarms": self._alarms.state_dict()})

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays that do not fit are ignored."""
        super().load_state_dict(state)
        self._alarms.load_state_dict(part_of(state, "alarms"), len(_THE_RUN))
