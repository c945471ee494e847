"""Detects a run of which single steps become long, here and there, far more often than before.

Pure. A sum of deviations forgets a single long step, as it must, and long steps in a row are a slower run
(`fluctuation.py`). Repetition is detected by counting: a CUSUM of Bernoulli events (Reynolds and Stoumbos 1999), which
is the log likelihood ratio of a fault's rate against the usual one. The limit follows from the steps between false
pages: such a sum reaches h at most once in exp(h) steps (Lorden 1971).

The usual rate is learnt from the steps for which the sum is at zero, so that it never learns a fault. It is known from
few steps, so its upper confidence bound is used: a run of which 100 steps were evaluated, none of them long, is assumed
to have one in 27. Long steps on a schedule (`detect/schedule.py`) are checkpoints, and are usual.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

from coordinator.detect.error_budget import steps_between
from coordinator.detect.schedule import on_schedule
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from coordinator.settings.policy import FluctuationPolicy

_LONG_RATIO = 0.1  # by which a long step is longer: as a long step of a rank
_DECAY = 1 - 1 / 2048  # memory of the usual rate
_MORE_EVENTS, _BOUND_SIGMAS = 1.75, 2.0  # of the bound of a Poisson count that chance exceeds in 1 of 40 runs
_FAULT_RATE = 0.08  # smallest rate that the sum is designed to detect, ...
_FAULT_FACTOR = 4.0  # ... and at least this multiple of the usual one
_FAULT_RATE_MAX = 0.5  # of events, which are at least a step apart
_KEPT = 12  # events in which a schedule is looked for
_SCHEDULED_SHARE = 0.8  # of these
_USUAL_STEPS = 512  # for which a rate that is no alarm is higher before it is the usual one
_QUIET_GAPS = 7.0  # mean gaps between events without one that end an alarm: chance leaves such a gap once in 1,000 ...
_QUIET_STEPS_MIN = 32  # ... and at least these


class LongSteps(Learner):
    """State of one run's long steps; a sum above zero covers the `_steps` evaluated since `onset_step`."""

    LEARNT = (
        *("_usual_events", "_usual_steps", "_sum", "_steps", "_events", "_excess", "_rest_steps"),
        *("onset_step", "is_alarm", "_event_steps"),
    )

    def __init__(self) -> None:
        self._usual_events = 0.0
        self._usual_steps = 0.0
        self._rest_steps = 0  # since the last long step
        self._event_steps: deque[int] = deque(maxlen=_KEPT)
        self.is_alarm = False
        """Whether single steps are long now, more often than usual."""
        self.clear()

    def clear(self) -> None:
        """Drop the sum and its alarm, and learn nothing of its steps."""
        self._sum = self._excess = 0.0
        self._steps = self._events = 0
        self.onset_step = -1
        self.is_alarm = False

    def step(self, deviation: float, sigma: float, step: int, policy: "FluctuationPolicy") -> None:
        """Add one step's deviation from the run's level; `sigma` is the noise of single steps. Both are logarithms."""
        is_long = deviation > max(math.log1p(_LONG_RATIO), policy.clip_sigmas * sigma)
        is_event = is_long and self._rest_steps > 0  # long steps in a row are one event
        self._rest_steps = 0 if is_long else self._rest_steps + 1
        if is_event and not self._events:
            self.onset_step = step
        self._steps += 1
        self._events += is_event
        self._excess += math.expm1(deviation) * is_long
        self._sum += self._score(is_event=is_event)
        if is_event:
            self._event_steps.append(step)
        self._decide(policy)

    def _score(self, *, is_event: bool) -> float:
        """Return a step's log likelihood ratio, 0 if long steps are too common for any rate to be a fault's."""
        usual = self._usual_rate
        fault = max(_FAULT_RATE, _FAULT_FACTOR * usual)
        if fault > _FAULT_RATE_MAX:
            return 0.0
        return math.log(fault / usual) if is_event else math.log1p(-fault) - math.log1p(-usual)

    def _decide(self, policy: "FluctuationPolicy") -> None:
        """Raise or end the alarm, or learn what was none."""
        if self.is_alarm:
            if self._rest_steps > max(_QUIET_STEPS_MIN, _QUIET_GAPS * self._steps / self._events):
                self.clear()
            return
        limit = math.log(steps_between("run_counts", policy.false_page_steps))
        exceeds = self._sum > limit and self._rest_steps == 0 and self.lost_ratio > policy.floor_ratio
        if exceeds and not self._is_scheduled():
            self.is_alarm = True
        elif exceeds or self._sum <= 0 or self._steps > _USUAL_STEPS:
            self._learn()

    def _is_scheduled(self) -> bool:
        """Whether nearly all of the last long steps are on a schedule: of one in ten, chance puts half on one."""
        return len(on_schedule(sorted(self.onsets))) >= _SCHEDULED_SHARE * len(self.onsets)

    def _learn(self) -> None:
        """Count the steps of the sum as usual ones, and begin another."""
        fading = _DECAY**self._steps
        self._usual_events = self._usual_events * fading + self._events
        self._usual_steps = self._usual_steps * fading + self._steps
        self.clear()

    @property
    def _usual_rate(self) -> float:
        """Upper confidence bound of the usual rate of events, per step."""
        bound = self._usual_events + _MORE_EVENTS + _BOUND_SIGMAS * math.sqrt(self._usual_events + 1)
        return bound / (self._usual_steps + 1)

    @property
    def lost_ratio(self) -> float:
        """What long steps add to the mean step time beyond what usual ones add, ratio; 0 at a sum of zero."""
        if not self._events:
            return 0.0
        more = max(1 - self._usual_events / (self._usual_steps + 1) * self._steps / self._events, 0.0)
        return more * self._excess / self._steps

    @property
    def share(self) -> float:
        """Share of the steps, since the sum left zero, at which a long one began."""
        return self._events / self._steps if self._steps else 0.0

    @property
    def is_long(self) -> bool:
        """Whether the last step was long."""
        return self._rest_steps == 0

    @property
    def onsets(self) -> set[int]:
        """Steps at which long ones began, the last twelve."""
        return {int(step) for step in self._event_steps}  # restored as floats
