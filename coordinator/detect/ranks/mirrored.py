# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The test of `cusum_test.py` on negated deviations: alarms of series that are too fast, a live estimate of false ones.

Pure. Nothing that is looked for makes a rank faster than its peers, so an alarm there is one that noise made, and noise
that is symmetrical makes as many on the other side. The same sums, limits and limits are used, on the same steps. It
counts and reports nothing. Stalls are no symmetrical noise: what they cause is not in the estimate. Steps in which any
series is in alarm are left out, since a culprit may move the reference of the others.

Shapes: N series, P noise groups, C candidates.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.alarms import Alarms
from coordinator.detect.ranks.cusum_state import CusumState
from coordinator.detect.ranks.detection_limits import Candidates, DetectionLimits
from coordinator.detect.ranks.groups import median_of_three

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.deviation import Deviation
    from coordinator.detect.ranks.noise_groups import NoiseGroups

    Floats = NDArray[np.float32]
    Figures = NDArray[np.float64]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]

_NO_STEP = -1


class MirroredTest:
    """State of the negated sums, kept as sparsely as the others. `raised` holds the series that alarmed last step."""

    def __init__(self, noise_groups: "NoiseGroups", limits: DetectionLimits) -> None:
        self._noise_groups = noise_groups
        self._limits = limits
        self._alarms = Alarms()
        self.clear()

    def clear(self) -> None:
        """Begin again: all sums are zero. A series in alarm stays in it, it has been counted."""
        self._cusums = CusumState(self._noise_groups)
        self.raised = np.zeros(0, dtype=np.intp)

    def step(
        self,
        values: "Deviation",
        recent: "Sequence[Floats]",
        mean_N: "Floats",
        warm_P: "Marks | None",
        *,
        is_disturbed: bool,
    ) -> None:
        """Evaluate one step, given the values of the two before it, the long means, and whether any series alarms."""
        limits = self._limits
        policy, sigma_P = limits.policy, limits.sigma_P
        if is_disturbed or (warm_P is not None and not warm_P.any()):
            self.clear()
            return
        cusums, self.raised = self._cusums, self.raised[:0]
        fast_N = -values.raw_N
        cusums.move(fast_N, values.seen_N, sigma_P, warm_P, most_P=limits.most_P, policy=policy)
        if len(self._alarms):
            self._keep(values, recent, fast_N)
        if not len(cusums.above(limits.least_alarm_sigmas)):
            return
        chosen = cusums.series[cusums.sum_C > limits.alarm_sigmas_P.astype(np.float32)[cusums.group_C]]
        chosen = self._alarms.without(chosen if values.seen_N is None else chosen[values.seen_N[chosen]])
        if len(chosen):
            self._decide(chosen, (-recent[0][chosen], -recent[1][chosen], fast_N[chosen]), mean_N)

    def _decide(self, chosen: "Places", last_C: "tuple[Floats, Floats, Floats]", mean_N: "Floats") -> None:
        """Raise the alarms of candidates, given their last three values, that pass the limits."""
        figures = self._noise_groups.of(chosen), self._cusums.of(chosen)
        those = Candidates.of(*figures, last=last_C, mean_C=-mean_N[chosen])
        passed_C = self._limits.passed(those)
        self.raised = chosen[passed_C]
        if len(self.raised):
            self._alarms.add(self.raised, those.median[passed_C], np.full(len(self.raised), _NO_STEP))

    def _keep(self, values: "Deviation", recent: "Sequence[Floats]", fast_N: "Floats") -> None:
        """End alarms after enough quiet steps: what lasts is counted once."""
        policy, alarms = self._limits.policy, self._alarms
        chosen = slice(None) if values.seen_N is None else values.seen_N[alarms.series_A]
        series = alarms.series_A[chosen]
        quiet_C = fast_N[series] < policy.clear_share * self._limits.short_limit(self._noise_groups.of(series))
        alarms.keep(chosen, quiet_C, median_of_three(-recent[0][series], -recent[1][series], fast_N[series]))
        ended = alarms.clear(policy.clear_steps)
        if len(ended):
            self._cusums.drop(ended)
