"""Detects a slower run in strongly autocorrelated noise: a CUSUM of the residuals of an AR(1) model.

Pure. In a noisy job neighbouring steps are alike: a mean of many of them scatters nearly as much as one, and a shift
hides in it. The difference of a step from its prediction by the previous one is white, so the sums of Page (1954)
apply, as Lu and Reynolds (1999) use them for first-order autoregressive processes. The limit follows from the steps
between false pages (Siegmund 1985); the slack is half of the smallest shift to detect, one sigma.
"""

import math
from typing import TYPE_CHECKING

from coordinator.detect.cusum import Cusum
from coordinator.detect.error_budget import cusum_limit, steps_between

if TYPE_CHECKING:
    from coordinator.detect.runs.run_noise import SeriesNoise

_SLACK = 0.5
_MOST = 2.5  # most that a step adds: stalls have heavier tails than a Gaussian
_SUM_MAX_FACTOR = 2.0  # times the limit: an unbounded sum would not return to zero


class RunResiduals(Cusum):
    """State of one run's sum of residuals; deviations are logarithms."""

    LEARNT = (*Cusum.LEARNT, "_before")

    def __init__(self) -> None:
        super().__init__()
        self._before = 0.0

    def add_deviation(
        self, deviation: float, noise: "SeriesNoise", false_page_steps: float, outlier_weight: float
    ) -> None:
        """Add one step's deviation from the run's level; a long step counts less if those are common."""
        alike = noise.correlation
        residual = (deviation - alike * self._before) / (noise.sigma * math.sqrt(1 - alike**2))
        self._before = deviation
        self.add(min(residual - _SLACK, _MOST * outlier_weight), deviation, _SUM_MAX_FACTOR * limit(false_page_steps))

    def clear(self) -> None:
        """Reset to zero, because the run's level has changed."""
        super().clear()
        self._before = 0.0


def limit(false_page_steps: float) -> float:
    """Return the sum that alarms, given the expected steps between false pages of the whole run."""
    return cusum_limit(_SLACK, steps_between("run_residuals", false_page_steps))
