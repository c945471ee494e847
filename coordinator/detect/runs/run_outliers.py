"""Steps far longer than noise explains: how common they are in a run, and how many in a row exceed chance.

Pure. In a job of thousands of ranks some rank stalls in every tenth step. Checkpoints recur at an interval, but hardly
ever in two consecutive steps. Both rates are learnt, so that neither is mistaken for a slowdown, while three long steps
are one in a job that has none.
"""

import math
from typing import TYPE_CHECKING

from coordinator.detect.error_budget import steps_between
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from coordinator.settings.policy import FluctuationPolicy

_RATE = 1 / 256  # smoothing of the outlier rate, per step; faster at first, ...
_FIRST_STEPS = 64  # ... where the prior counts as this many steps
_AGAIN_RATE = 1 / 32  # smoothing of the rate at which one follows another, per outlier
_SHARE = 1 / 400  # prior rate of outliers, which affect the whole job for a step
_AGAIN_SHARE = 0.015
_ROW_STEPS_MAX = 20


class Outliers(Learner):
    """State of one run's outliers, and of the very long ones among them that may be a pause."""

    LEARNT = ("_steps", "_share", "_again_share", "_row", "_pause")

    def __init__(self) -> None:
        self._steps = _FIRST_STEPS
        self._share = _SHARE
        self._again_share = _AGAIN_SHARE
        self._row = 0
        self._pause = 0
        self.ended_pause = 0
        """Length of the pause that the last step ended, steps, 0 if it ended none."""

    def add(self, deviation: float, sigma: float, policy: "FluctuationPolicy", *, learns: bool) -> None:
        """Add one step's deviation from the current level; it is an outlier by the noise `sigma`."""
        self.ended_pause = 0
        if deviation > max(math.log1p(policy.pause_ratio), policy.clip_sigmas * sigma):
            self._pause += 1
        elif self._pause:
            self.ended_pause = self._pause if self._pause < self.row_steps(policy) else 0
            self._pause = 0
        if not learns:
            return
        if deviation > policy.outlier_sigmas * sigma:
            self._row += 1
            return
        self._learn_row(self._row)
        self._row = 0

    def _learn_row(self, steps: int) -> None:
        self._steps += 1
        rate = max(1 / self._steps, _RATE)
        self._share *= 1 - rate
        for place in range(min(steps, _ROW_STEPS_MAX)):
            self._share += rate * (1 - self._share)
            self._again_share += _AGAIN_RATE * ((place + 1 < steps) - self._again_share)

    def begin_attempt(self) -> None:
        """Forget the current sequence and pause; the rate of long steps carries over to the next attempt."""
        self._row = self._pause = self.ended_pause = 0

    def forget_row(self) -> None:
        """Learn nothing from the present row: it was no chance."""
        self._row = 0

    def row_steps(self, policy: "FluctuationPolicy") -> int:
        """Return how many in a row chance does not bring, nor more of them with others in between.

        Long steps are a Markov chain of two states. The last `row_min_steps` must be long, which has a chance; the sum
        of those before is a clipped random walk, which passes a height h no more often than exp(-theta h) where the
        mean of exp(theta score), for a chain the largest eigenvalue of its matrix, is 1 at most (Asmussen 2003).
        """
        share = self._share
        again = min(max(self._again_share, share, 1e-3), 1 - 1e-3)  # no less often after a long one
        expected = share * again ** (policy.row_min_steps - 1) * steps_between("run_rows", policy.false_page_steps)
        steps = policy.row_min_steps
        while expected > 1 and steps < _ROW_STEPS_MAX:
            steps += 1
            score = (policy.alarm_sum + 1) / steps
            theta = math.log(expected) / (policy.alarm_sum + 1 - policy.row_min_steps * score)
            others = math.exp(theta**2 / 2 - theta * policy.slack_sigmas)  # white noise, less the slack
            rest = 1 - (1 - share) * others
            if rest > 0 and math.exp(theta * score) * (again * rest + share * (1 - again) * others) <= rest:
                break
        return steps

    @property
    def pause_steps(self) -> int:
        """Steps of the current pause, including the last one."""
        return self._pause
