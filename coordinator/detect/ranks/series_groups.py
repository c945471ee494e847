# ruff: noqa: N802, N806  (names of arrays end in their shape, see the legend below)
"""Views of one kind of series in a test that evaluates several kinds together.

A series group's series and noise groups are contiguous in the test; its noise figures are those of its own series.

Shapes: N series of the series group, P noise groups of it.
"""

from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.alarms import Alarms
    from coordinator.detect.ranks.detection_limits import DetectionLimits
    from coordinator.detect.ranks.mirrored import MirroredTest


def side_by_side(lengths: "Sequence[int]") -> list[slice]:
    """Return the slices of consecutive parts with these lengths."""
    return [slice(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]


class JointTest(Protocol):
    """The interface that a series group uses of the test that evaluates it."""

    evaluated_steps: int
    limits: "DetectionLimits"
    alarms: "Alarms"
    mirrored: "MirroredTest"

    @property
    def suspicious(self) -> "NDArray[np.intp]":
        """Series whose references and baselines must not learn now."""

    def warm_P(self) -> "NDArray[np.bool_] | None":
        """Return the noise groups whose noise is known, None if all are."""

    def noise_of(self, series: int) -> tuple[float, float]:
        """Return the standard deviation of one step of a series, and the mean of three that noise explains."""

    def rule_of(self, series: int) -> dict[str, float]:
        """Return what alarms a series: the smallest effect, the limit of its sum, and what a step adds to that."""


class SeriesGroup:
    """A view of a test whose series and noise groups are numbered from 0."""

    def __init__(self, test: JointTest, span: slice, noise_groups: slice) -> None:
        self._test = test
        self.span = span
        self.noise_groups = noise_groups

    @property
    def evaluated_steps(self) -> int:
        """Number of evaluated steps."""
        return self._test.evaluated_steps

    @property
    def is_warm(self) -> bool:
        """Whether noise is known well enough to evaluate."""
        warm_P = self._test.warm_P()
        return warm_P is None or (self.evaluated_steps > 0 and bool(warm_P[self.noise_groups].all()))

    @property
    def sigma_P(self) -> "NDArray[np.float64]":
        """Standard deviation of one step, array of shape (P,); NaN while unknown."""
        return self._test.limits.scale_P[self.noise_groups]

    @property
    def zero_share_P(self) -> "NDArray[np.float64]":
        """Share of series that do not move from step to step, being the reference themselves, array of shape (P,)."""
        return self._test.limits.single.zero_share_P[self.noise_groups]

    @property
    def alarm_N(self) -> "NDArray[np.bool_]":
        """Which series are in alarm, array of shape (N,)."""
        alarm_N = np.zeros(self.span.stop - self.span.start, dtype=bool)
        alarm_N[self.alarms] = True
        return alarm_N

    @property
    def alarms(self) -> "NDArray[np.intp]":
        """Series in alarm, ascending."""
        return self._own(self._test.alarms.series_A)

    @property
    def mirrored_alarms(self) -> int:
        """Number of series that alarmed in the last step for being too fast (`mirrored.py`)."""
        return len(self._own(self._test.mirrored.raised))

    @property
    def suspicious(self) -> "NDArray[np.intp]":
        """Series, some of them twice, whose references and baselines must not learn now."""
        return self._own(self._test.suspicious)

    @property
    def is_alarmed(self) -> bool:
        """Whether any series is in alarm."""
        return len(self._test.alarms) > 0 and len(self.alarms) > 0

    def _own(self, series: "NDArray[np.intp]") -> "NDArray[np.intp]":
        if not len(series):
            return series
        own: NDArray[np.intp] = series[(series >= self.span.start) & (series < self.span.stop)] - self.span.start
        return own

    def __contains__(self, series: int) -> bool:
        """Whether a series is in alarm."""
        return self.span.start + series in self._test.alarms

    def is_quiet(self, series: int) -> bool:
        """Whether a series in alarm had no deviation in the last step."""
        return self._test.alarms.is_quiet(self.span.start + series)

    def level_and_onset(self, series: int) -> tuple[float, int]:
        """Return the deviation of an alarm and the step at which it began, 0 and -1 if there is none."""
        return self._test.alarms.of(self.span.start + series)

    def noise_of(self, series: int) -> tuple[float, float]:
        """Return the standard deviation of one step of a series, and the mean of three that noise explains."""
        return self._test.noise_of(self.span.start + series)

    def rule_of(self, series: int) -> dict[str, float]:
        """Return what alarms a series: the smallest effect, the limit of its sum, and what a step adds to that."""
        return self._test.rule_of(self.span.start + series)
