"""Is a run slower, where its noise hides a few steps and remembers long? A CUSUM of what each step adds to the last.

Pure. In a noisy job neighbouring steps are alike: a mean of many of them scatters nearly as much as one, and a shift
hides in it. What a step differs by from what its neighbour lets expect is white, so sums of that are those of Page
(1954), as Lu and Reynolds (1999) use them for first-order autoregressive processes. The limit follows from the steps
between false pages (Siegmund 1985); the slack is half of the smallest shift that it is made for, one sigma.
"""

import math
from typing import TYPE_CHECKING

from coordinator.detect.error_budget import cusum_limit, steps_between
from coordinator.detect.keeping import keep, take_back

if TYPE_CHECKING:
    from coordinator.detect.keeping import Memory
    from coordinator.detect.runs.run_noise import SeriesNoise

_SLACK = 0.5
_MOST = 2.5  # that a step adds: stalls have longer tails than any Gaussian
_SUM_MAX_FACTOR = 2.0  # times the limit: a sum that grows for ever never comes back
_KEPT = ("_before", "sum", "run", "total")


class RunResiduals:
    """Memory of one run's sum: `run` steps and the `total` of their excesses since it left zero."""

    def __init__(self) -> None:
        self._before = 0.0
        self.sum = 0.0
        self.run = 0
        self.total = 0.0

    def add(self, excess: float, noise: "SeriesNoise", false_page_steps: float) -> None:
        """Take one step's excess over the run's level, in logarithms."""
        memory = noise.memory
        residual = (excess - memory * self._before) / (noise.sigma * math.sqrt(1 - memory**2))
        self._before = excess
        self.sum += min(residual, _SLACK + _MOST) - _SLACK
        self.sum = min(max(self.sum, 0.0), _SUM_MAX_FACTOR * limit(false_page_steps))
        self.run = self.run + 1 if self.sum > 0 else 0
        self.total = self.total + excess if self.sum > 0 else 0.0

    def clear(self) -> None:
        """Begin again: the run's level is another one."""
        self._before = self.sum = self.total = 0.0
        self.run = 0

    @property
    def mean(self) -> float:
        """Mean excess since the sum left zero, 0 at zero."""
        return self.total / self.run if self.run else 0.0

    def keep(self) -> "Memory":
        """Return what has been learnt."""
        return keep(self, _KEPT)

    def take_back(self, memory: "Memory") -> None:
        """Take back what `keep` gave."""
        take_back(self, memory, _KEPT)


def limit(false_page_steps: float) -> float:
    """Return the sum that alarms, given the steps between false pages of the whole run."""
    return cusum_limit(_SLACK, steps_between("run_residuals", false_page_steps))
