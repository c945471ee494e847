# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Finds outliers among static differences: devices differ from the first step on, in some fleets by percents.

Pure. A one-sided form of the generalized extreme Studentized deviate test (Rosner 1983): up to half of the series may
be outliers, and several outliers do not mask each other, because every number of them is tried. Values are measured
from their reference, so their scale is the root mean square, with one degree of freedom less for each reference
estimated from them. A few values hardly determine a scale, so a prior counts as much as some of them.

Shapes: N series, M numbers of series that are no outliers.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.detection_limits import LONG_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.detection_limits import Candidates, DetectionLimits
    from coordinator.detect.ranks.groups import Groups
    from coordinator.detect.ranks.noise_groups import NoiseGroups
    from coordinator.detect.ranks.series_groups import SeriesGroup

    Floats = NDArray[np.float32]
    Figures = NDArray[np.floating]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]
    FleetViews = Callable[[Floats], "Sequence[FleetView]"]

PRIOR_FREEDOM = 3.0
"""Degrees of freedom of the prior: the values of one small domain of four outweigh it."""
_SAMPLED = 1024  # series sampled, which give the scale to 2 %
_MARGIN_SIGMAS = 1.0  # of a level of 16 steps: the past of a young fleet is one such level
_PAST_RATE = np.float32(1 / 4)  # of a window of 16 steps: a memory of 64, as that of noise


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Lasting deviations of comparable devices: the series in `span` are evaluated, with their values in `level_N`.

    `fleet_N` are the values that show the spread, measured from `references` references of their own.
    """

    span: slice
    level_N: "Figures"
    fleet_N: "Figures"
    references: int


class StaticDifferences:
    """Past levels of N series (`past_N`, ratio, 0 until a window of steps has been seen), and their static part.

    A candidate for an alarm is rejected if it has not changed since then, and is not an outlier of the fleet shown by
    `views`. Series in no view are already compared with their own past. A static difference is a share of the work or
    a time: in a shorter step the same time is a larger ratio, so past ratios grow with the pace of noise groups, steps
    per second.
    """

    def __init__(self, noise_groups: "NoiseGroups", count: int, views: "FleetViews", limits: "DetectionLimits") -> None:
        self._noise_groups = noise_groups
        self._views = views
        self._limits = limits
        self.past_N: Floats = np.zeros(count, dtype=np.float32)
        self.before_N: Floats = np.zeros(count, dtype=np.float32)  # levels a window ago
        self.past_pace_P: Floats = np.ones(noise_groups.count, dtype=np.float32)  # mean over the same steps
        self.before_pace_P: Floats = np.ones(noise_groups.count, dtype=np.float32)
        self.growth_P: Floats = np.ones(noise_groups.count, dtype=np.float32)  # of past ratios since then
        self.share_P: Floats = np.zeros(noise_groups.count, dtype=np.float32)  # of the past that is not noise
        self.margin_P: Floats = np.zeros(noise_groups.count, dtype=np.float32)  # noise of the past, ratio

    def learn(self, level_N: "Floats", pace_P: "Floats", evaluated_steps: int, alarmed: "Places") -> None:
        """Update levels at the end of a window, delayed by a window: a fault that has just begun is no past."""
        if evaluated_steps == LONG_STEPS:
            self.past_N[:], self.past_pace_P[:] = level_N, pace_P
        else:
            change_N = self.before_N - self.past_N
            change_N[alarmed] = 0
            self.past_N += change_N * _PAST_RATE
            self.past_pace_P += (self.before_pace_P - self.past_pace_P) * _PAST_RATE
        self.before_N[:], self.before_pace_P[:] = level_N, pace_P
        self.share_P[:] = self._limits.static_share(self.past_N, self._noise_groups)
        self.margin_P[:] = _MARGIN_SIGMAS * self._limits.level_sigma_P()

    def follow(self, pace_P: "Floats") -> None:
        """Update how much larger the past differences are as ratios of the present work."""
        np.maximum(pace_P / self.past_pace_P, 1, out=self.growth_P)

    def past_of(self, series: "Places") -> "Floats":
        """Return the past levels of some series as ratios of the present work, array of shape (C,)."""
        past_C: Floats = self.past_N[series] * self.growth_P[self._noise_groups.of(series)]
        return past_C

    def static_of(self, series: "Places") -> "Floats":
        """Return the static differences of some series, shrunk by the noise of the levels they were learnt from."""
        static_C: Floats = self.past_of(series) * self.share_P[self._noise_groups.of(series)]
        return static_C

    def most_of(self, series: "Places") -> "Floats":
        """Return an upper bound of the static differences of some series: estimate plus uncertainty."""
        most_C: Floats = self.static_of(series) + self.margin_P[self._noise_groups.of(series)]
        return most_C

    def passed(
        self,
        series: "Places",
        those: "Candidates",
        level_N: "Floats",
        own_C: "Floats",
        change_C: "Floats",
        *,
        evaluated_steps: int,
    ) -> "Marks":
        """Return which candidates are more than a static difference, array of shape (C,).

        `level_N` are the lasting deviations of all series; `own_C` is the part that the candidates' figures leave out,
        i.e. the learnt level of each; `change_C` is the result of `CusumState.changes_of`.
        """
        limits = self._limits
        passed_C: Marks = np.zeros(len(series), dtype=bool)
        if evaluated_steps >= LONG_STEPS:
            passed_C = limits.has_changed(those, self.static_of(series) - own_C, change_C)
        if passed_C.all():
            return passed_C
        is_viewed_C = np.zeros(len(series), dtype=bool)
        for view in self._views(level_N):
            here_C = (series >= view.span.start) & (series < view.span.stop)
            is_viewed_C |= here_C
            here_C &= ~passed_C
            if here_C.any():
                limit = outlier_limit(
                    view.fleet_N, view.references, prior_sigma=limits.policy.static_sigma, false_rate=limits.static_rate
                )
                # The floor is for the level itself: a median of three passes it by chance, again and again.
                limit = max(limit, limits.floor_ratio)
                passed_C[here_C] = view.level_N[series[here_C] - view.span.start] > limit
        return passed_C | ~is_viewed_C


def views_of_series_groups(level_N: "Floats", series_groups: "Sequence[SeriesGroup]") -> list[FleetView]:
    """Return each series group as a fleet of its own, whose noise groups have one reference each."""
    return [
        FleetView(
            span=each.span,
            level_N=level_N[each.span],
            fleet_N=level_N[each.span],
            references=each.noise_groups.stop - each.noise_groups.start,
        )
        for each in series_groups
    ]


def views_of_ranks(
    level_N: "Floats",
    ranks: "SeriesGroup",
    replicas: "SeriesGroup",
    stages: "Groups",
    replica_groups: "Groups | None",
    *,
    are_batches_even: bool,
    expert_places: int = 0,
) -> list[FleetView]:
    """Return the views of how far the devices of a job differ; `replica_groups` is None if ranks share no batch.

    Each of the `expert_places` in which ranks or replicas are compared has one reference.

    If batches are even, each rank is taken together with what its replica shares: all devices are in one view, because
    a replica of two or four hardly shows the spread of a fleet. Otherwise batches would be mistaken for devices, so
    ranks are compared within their replicas, and replicas with each other. A stage is compared with its own past, which
    contains its static difference.
    """
    rank_R = level_N[ranks.span]
    references = max(stages.count, expert_places)
    if replica_groups is None:
        return [FleetView(span=ranks.span, level_N=rank_R, fleet_N=rank_R, references=references)]
    shared_D = level_N[replicas.span]
    if are_batches_even:
        whole_R = rank_R + replica_groups.spread(shared_D)
        return [
            FleetView(span=ranks.span, level_N=whole_R, fleet_N=whole_R, references=references),
            FleetView(span=replicas.span, level_N=shared_D, fleet_N=whole_R, references=references),
        ]
    return [
        FleetView(span=ranks.span, level_N=rank_R, fleet_N=rank_R, references=replica_groups.count),
        FleetView(span=replicas.span, level_N=shared_D, fleet_N=shared_D, references=max(1, expert_places)),
    ]


def outlier_limit(fleet_N: "Figures", references: int, *, prior_sigma: float, false_rate: float) -> float:
    """Return the value beyond which the spread of the others explains none; infinite if there are no others.

    Of a large fleet a sample shows the spread; the limit is for all of its values.

    Parameters
    ----------
    fleet_N
        Array of shape (N,), ratio: deviation over a reference.
    references
        How many references were estimated from these values; that many are 0 by construction.
    prior_sigma
        Prior standard deviation, before any value is seen, ratio.
    false_rate
        Probability that a healthy fleet has an outlier.
    """
    every = max(-(-len(fleet_N) // _SAMPLED), 1)
    sizes_N = np.sort(np.abs(fleet_N[::every]).astype(np.float64))
    references = max(min(references, len(sizes_N) - 1), 0)
    least = references + (len(sizes_N) - references) // 2
    healthy_M = np.arange(max(least, 1), len(sizes_N) + 1)
    if len(sizes_N) <= 1:
        return math.inf
    freedom_M = healthy_M - references + PRIOR_FREEDOM
    squares_M = np.cumsum(sizes_N**2)[healthy_M - 1]
    sigma_M = np.sqrt((PRIOR_FREEDOM * prior_sigma**2 + squares_M) / freedom_M)
    limit_M = student_quantile(false_rate / len(fleet_N), freedom_M) * sigma_M
    is_outlier_M = np.append(sizes_N, math.inf)[healthy_M] > limit_M
    return float(limit_M[is_outlier_M.argmax()])


def student_quantile(tail: float, freedom_M: "Figures") -> "Figures":
    """Return the value that Student's t exceeds with probability `tail`, by degrees of freedom (Wallace 1959)."""
    normal = NormalDist().inv_cdf(1 - tail)
    scaled_M = normal * (8 * freedom_M + 3) / (8 * freedom_M + 1)
    quantile_M: Figures = np.sqrt(freedom_M * np.expm1(scaled_M**2 / freedom_M))
    return quantile_M
