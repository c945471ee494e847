# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Sums and alarms of one direction: of series above their peers, or of series below them.

Pure. The direction of faults (`series_cusum.py`) and its mirror image (`mirrored.py`) differ only in sign.

Shapes: N series, C chosen series.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.alarms import Alarms
from coordinator.detect.ranks.cusum_state import CusumState
from coordinator.detect.ranks.detection_limits import Candidates, DetectionLimits
from coordinator.detect.ranks.groups import median_of_three

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.detect.ranks.noise_groups import NoiseGroups

    Floats = NDArray[np.float32]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]
    LastSteps = tuple[Floats, Floats, Floats]


class OneSidedSums:
    """State of one direction. `sign` is 1 for series above their peers, -1 for series below."""

    def __init__(self, noise_groups: "NoiseGroups", limits: DetectionLimits, *, sign: int) -> None:
        self._noise_groups = noise_groups
        self._limits = limits
        self._sign = np.float32(sign)
        self.alarms = Alarms()
        self.clear()

    def clear(self) -> None:
        """Reset all sums to zero; series in alarm stay in alarm."""
        self.cusums = CusumState(self._noise_groups)

    def due(self, seen_N: "Marks | None") -> "Places":
        """Return the series that `seen_N` marks (None: all), not yet in alarm, whose sum reaches an alarm's."""
        cusums, limits = self.cusums, self._limits
        if not len(cusums.above(limits.least_alarm_sigmas)):
            return cusums.series[:0]
        due = cusums.series[cusums.sum_C > limits.alarm_sigmas_P.astype(np.float32)[cusums.group_C]]
        if seen_N is not None:
            due = due[seen_N[due]]
        return self.alarms.without(due)

    def candidates(
        self, series: "Places", last_N: "LastSteps", mean_N: "Floats", *, noise_factor: "Floats | float" = 1.0
    ) -> Candidates:
        """Return the candidates for the limits, given all series' last three values and long means."""
        figures = self._noise_groups.of(series), self.cusums.of(series)
        last_C = self._of(series, last_N)
        return Candidates.of(*figures, last=last_C, mean_C=self._sign * mean_N[series], noise_factor=noise_factor)

    def update(self, last_N: "LastSteps", seen_N: "Marks | None") -> None:
        """Update alarms from all series' last three values, and end those with enough quiet steps."""
        policy, alarms = self._limits.policy, self.alarms
        chosen = slice(None) if seen_N is None else seen_N[alarms.series_A]
        series = alarms.series_A[chosen]
        last_C = self._of(series, last_N)
        quiet_C = last_C[-1] < policy.clear_share * self._limits.short_limit(self._noise_groups.of(series))
        alarms.update(chosen, quiet_C, median_of_three(*last_C))
        ended = alarms.clear(policy.clear_steps)
        if len(ended):
            self.cusums.drop(ended)

    def _of(self, series: "Places", last_N: "LastSteps") -> "LastSteps":
        before_C, last_C, now_C = (self._sign * each_N[series] for each_N in last_N)
        return before_C, last_C, now_C
