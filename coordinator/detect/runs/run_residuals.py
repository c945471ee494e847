"""Detects a slower run in strongly autocorrelated noise: a CUSUM of the residuals of an AR(1) model.

Pure. In a noisy job neighbouring steps are alike: a mean of many of them scatters nearly as much as one, and a shift
hides in it. The difference of a step from its prediction by the previous one is white, so the sums of Page (1954)
apply, as Lu and Reynolds (1999) use them for first-order autoregressive processes. The limit follows from the steps
between false pages (Siegmund 1985); the slack is half of the smallest shift to detect, one sigma. Where noise may
remember for longer than the model states, residuals are correlated, and the limit is higher by their long-run variance.
"""

import math
from typing import TYPE_CHECKING

from coordinator.detect.cusum import Cusum
from coordinator.detect.error_budget import cusum_limit, steps_between

if TYPE_CHECKING:
    from coordinator.detect.runs.run_noise import SeriesNoise
    from coordinator.settings.policy import FluctuationPolicy

_SLACK = 0.5
_MOST = 2.5  # most that a step adds: stalls have heavier tails than a Gaussian
_ERRORS = 2.33  # standard errors by which the correlation may be higher than learnt: in one of 100 jobs it is
_ERRORS_NOISY = 1.28  # one of 10 in noisy jobs, where means find nothing
_SUM_MAX_FACTOR = 2.0  # times the limit: an unbounded sum would not return to zero


class RunResiduals(Cusum):
    """State of one run's sum of residuals; deviations are logarithms. `limit` is what it must exceed for an alarm."""

    LEARNT = (*Cusum.LEARNT, "_before", "limit")

    def __init__(self) -> None:
        super().__init__()
        self._before = 0.0
        self.limit = math.inf

    def add_deviation(
        self, deviation: float, noise: "SeriesNoise", policy: "FluctuationPolicy", outlier_weight: float
    ) -> None:
        """Add one step's deviation from the run's level; a long step counts less if those are common."""
        alike = noise.correlation
        residual = (deviation - alike * self._before) / (noise.sigma * math.sqrt(1 - alike**2))
        self._before = deviation
        # The exponent of the average run length is the limit over the variance that the residuals really have.
        white = cusum_limit(_SLACK, steps_between("run_residuals", policy.false_page_steps))
        may_be_noisy = noise.sigma_of_mean(1) > policy.noisy_sigma  # few steps show the noise only roughly
        self.limit = white * noise.residual_variance(policy, _ERRORS_NOISY if may_be_noisy else _ERRORS)
        self.add(min(residual - _SLACK, _MOST * outlier_weight), deviation, _SUM_MAX_FACTOR * self.limit)

    def clear(self) -> None:
        """Reset to zero, because the run's level has changed."""
        super().clear()
        self._before = 0.0
