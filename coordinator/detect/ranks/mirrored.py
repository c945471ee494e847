# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The test of `series_cusum.py` on negated deviations: series that are too fast, a live estimate of false alarms.

Pure. No fault makes a rank faster than its peers, so such an alarm comes from noise, and symmetrical noise causes as
many on the other side. The sums, limits and steps are the same. The test only counts, it reports nothing. Stalls are
not symmetrical, so false alarms from stalls are not in the estimate. Steps in which any series is in alarm are left
out, since a culprit may move the reference of the others.

Shapes: N series, P noise groups.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.one_sided_sums import OneSidedSums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.detect.ranks.detection_limits import DetectionLimits
    from coordinator.detect.ranks.deviation import Deviation
    from coordinator.detect.ranks.noise_groups import NoiseGroups
    from coordinator.detect.ranks.one_sided_sums import LastSteps

    Floats = NDArray[np.float32]
    Marks = NDArray[np.bool_]

_NO_STEP = -1


class MirroredTest:
    """State of the negated sums, stored as sparsely as the others. `raised` are the series that alarmed last step."""

    def __init__(self, noise_groups: "NoiseGroups", limits: "DetectionLimits") -> None:
        self._limits = limits
        self._sums = OneSidedSums(noise_groups, limits, sign=-1)
        self.raised = np.zeros(0, dtype=np.intp)

    def clear(self) -> None:
        """Reset all sums to zero. A series in alarm stays in alarm, since it has been counted."""
        self._sums.clear()
        self.raised = self.raised[:0]

    def step(
        self, values: "Deviation", last_N: "LastSteps", mean_N: "Floats", warm_P: "Marks | None", *, is_disturbed: bool
    ) -> None:
        """Evaluate one step, given the last three values, the long means, and whether any series is in alarm."""
        if is_disturbed or (warm_P is not None and not warm_P.any()):
            self.clear()
            return
        limits, sums, self.raised = self._limits, self._sums, self.raised[:0]
        sums.cusums.move(
            -values.raw_N,
            values.seen_N,
            limits.summed_P,
            warm_P,
            most_P=limits.most_P,
            stall_ratio=limits.stall_ratio,
            policy=limits.policy,
        )
        if len(sums.alarms):
            sums.update(last_N, values.seen_N)
        due = sums.due(values.seen_N)
        if len(due):
            those = sums.candidates(due, last_N, mean_N)
            passed_C = limits.passed(those)
            self.raised = due[passed_C]
            if len(self.raised):
                sums.alarms.add(self.raised, those.median[passed_C], np.full(len(self.raised), _NO_STEP))
