"""What a run's work explains of its step time: batch ramps, and batches that differ from step to step.

Pure. How much longer a step takes for more work is unknown beforehand: between not at all and slightly more than in
proportion. So a change of the work's level gives the step time a band of allowed values, and where the run settles in
it within a few steps becomes its new level; anything outside the band is a slowdown. Jitter around a level is
subtracted by the slope that the run itself shows. Without a work figure nothing is explained, and a ramp looks like a
slowdown.
"""

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from coordinator.detect.runs.run_noise import SeriesNoise
from coordinator.detect.state_dict import Learner

if TYPE_CHECKING:
    from coordinator.settings.policy import FluctuationPolicy

_FIRST_STEPS = 16  # whose mean is the first level; a run is not evaluated this early
CHANGE_STEPS = 3  # work has changed if the median of this many steps differs
_JITTER_SIGMAS = 3.0
_JITTER_MIN_RATIO = 0.005  # smaller changes of work do not enter the slope: the step's noise is larger
_SLOPE_RATE = 1 / 64
_SLOPE_PRIOR = 0.5
_SLOPE_DOUBT = 0.003  # summed squared changes of work at which the slope has half its weight


class RunWork(Learner):
    """State of one run's work, in logarithms."""

    LEARNT = ("_level", "_steps", "_squares", "_products", "_settling", "rise", "fall", "_offsets", "_jitter")

    def __init__(self) -> None:
        self._level = 0.0
        self._steps = 0
        self._jitter = SeriesNoise()
        self._offsets: deque[float] = deque(maxlen=CHANGE_STEPS)
        self._before: tuple[float, float] | None = None
        self._squares = 0.0
        self._products = 0.0
        self._settling = 0
        self.has_changed = False
        """Whether the last step showed that the work's level has changed."""
        self.rise = 0.0
        """How much longer the step may be for the current change, at most."""
        self.fall = 0.0
        """How much shorter it may be."""
        self.passing = 0.0
        """Further allowance of this one step, for work that may not last."""

    def add(self, work: float, value: float, policy: "FluctuationPolicy") -> float:
        """Add one step's work and the logarithm of its time; return the part of the time that work jitter explains."""
        self.passing = 0.0
        self.has_changed = False
        if not (math.isfinite(work) and work > 0):
            self._before = None
            return 0.0
        work_log = math.log(work)
        self._steps += 1
        if self._steps <= _FIRST_STEPS:
            self._level += (work_log - self._level) / self._steps
        self._learn_slope(work_log, value, policy)
        self._jitter.learn(work_log, policy)
        self._offsets.append(work_log - self._level)
        band = max(math.log1p(policy.work_change_ratio), _JITTER_SIGMAS * self._jitter.near_sigma)
        is_known = self._steps > _FIRST_STEPS and len(self._offsets) == CHANGE_STEPS
        changed = median(self._offsets) if is_known else 0.0
        if abs(changed) > band:
            self._change(changed, policy)
        offset = work_log - self._level
        explained = self.slope * offset
        if abs(offset) > band or self.is_changing:
            self.passing = max(policy.elasticity_max * offset, 0.0) - explained
        return explained

    @property
    def slope(self) -> float:
        """Relative increase of the step time per relative increase of work."""
        slope = (self._products + _SLOPE_PRIOR * _SLOPE_DOUBT) / (self._squares + _SLOPE_DOUBT)
        return min(max(slope, 0.0), 1.0)

    def _learn_slope(self, work_log: float, value: float, policy: "FluctuationPolicy") -> None:
        before, self._before = self._before, (work_log, value)
        if before is None or abs(work_log - before[0]) < _JITTER_MIN_RATIO:
            return
        more = work_log - before[0]
        most = policy.elasticity_max * abs(more)  # clips the effect of a stall in the same step
        longer = min(max(value - before[1], -most), most)
        self._squares += more * more - _SLOPE_RATE * self._squares
        self._products += more * longer - _SLOPE_RATE * self._products

    def _change(self, by: float, policy: "FluctuationPolicy") -> None:
        self._level += by
        self.has_changed = True
        self._offsets.clear()
        self._settling = policy.work_settle_steps
        self.rise += policy.elasticity_max * max(by, 0.0)
        self.fall += policy.elasticity_max * max(-by, 0.0)

    @property
    def is_changing(self) -> bool:
        """Whether the run has not yet settled at the level of its new work."""
        return self._settling > 0

    def settle(self) -> bool:
        """Count one step towards settling; return whether it was the last one."""
        self._settling -= 1
        return self._settling == 0

    def forget_change(self) -> None:
        """End the allowance: the run has settled."""
        self.rise = self.fall = 0.0
