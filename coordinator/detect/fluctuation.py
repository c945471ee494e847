"""Tells whether a run is slower than its own history explains.

Pure. Only undisturbed steps may be given: what checkpoints, evaluations, warm-up and captures last says nothing. A
pause of one or two steps that nobody flagged cannot alarm: the alarm's sum is clipped, its gate a median of three.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.excess import ExcessTest

if TYPE_CHECKING:
    from coordinator.policy import ExcessPolicy, FluctuationPolicy


class FluctuationTest:
    """Memory of one run's step time.

    `baseline_seconds` and `recent_seconds` are None until they are known.
    """

    def __init__(self, policy: "FluctuationPolicy", excess: "ExcessPolicy") -> None:
        self._policy = policy
        self._test = ExcessTest(np.zeros(1, dtype=np.intp), excess, floor_ratio=policy.floor_ratio)
        self._last: deque[float] = deque(maxlen=policy.mean_steps)
        self.baseline_seconds: float | None = None

    def step(self, step_seconds: float, step: int) -> None:
        """Take the duration of one undisturbed step."""
        self._last.append(step_seconds)
        if self.baseline_seconds is None:
            if len(self._last) < self._policy.warm_up_steps:
                return
            self.baseline_seconds = float(np.median(self._last))
        excess = step_seconds / self.baseline_seconds - 1
        self._test.step(np.array([excess]), step)
        if not self._test.suspicious_N[0]:
            floor = self._policy.floor_ratio  # a pause of many steps' length must not move it more than noise does
            self.baseline_seconds *= 1 + self._policy.baseline_rate * min(max(excess, -floor), floor)

    @property
    def fluctuating(self) -> bool:
        """Whether steps are longer now than history explains."""
        return bool(self._test.alarm_N[0])

    @property
    def level_ratio(self) -> float:
        """How much longer, 0 while not fluctuating."""
        return float(self._test.level_N[0])

    @property
    def onset_step(self) -> int:
        """Step at which it began; -1 while not fluctuating."""
        return int(self._test.onset_N[0])

    @property
    def recent_seconds(self) -> float | None:
        """Median of the last steps."""
        recent = list(self._last)[-self._policy.recent_steps :]
        return float(np.median(recent)) if recent else None

    @property
    def mean_over_best_ratio(self) -> float | None:
        """PerfTracker's figure, mean of the last 50 steps over the shortest of them minus 1; None if noise explains it.

        On a noisy healthy job the printed rule (5 %) holds for ever, hence the second condition.
        """
        if len(self._last) < self._policy.mean_steps:
            return None
        last = np.array(self._last)
        best = float(last.min())
        sigma = 0.886 * float(np.abs(np.diff(last)).mean())
        excess = float(last.mean()) - best
        beats = excess > self._policy.mean_ratio * best and excess > self._policy.mean_sigmas * sigma
        return excess / best if beats else None
