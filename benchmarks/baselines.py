# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The rules that others publish or use, on the same recordings: what any detector must beat.

Each takes what its source takes, without the corrections that make the coordinator's detector work. `self time` is a
step minus its waits in all domains. All are given every step; the pauses of a job are as unknown to them as to us.

Shapes: W rows, R ranks, S stages.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.score import JOB, Named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.scenarios.recording import Recording

    Floats = NDArray[np.floating]
    Marks = NDArray[np.bool_]

_HISTORY_STEPS = 50
_STEP_RATIO = 1.05
_SIGMAS = 3.0
_DEVIATIONS = 5.0
_MAD_TO_SIGMA = 1.4826
_DIXON_MIN, _DIXON_MAX = 3, 100
_DIXON_QUANTILE = 0.995
_DIXON_DRAWS = 20_000
_RANGE_MIN = 1e-12  # seconds; equal values have no range to divide by
_NVRX_STEPS = 16
_NVRX_SCORE = 0.75


def plain_rule(recording: "Recording", *, by_self: bool = False) -> list[Named]:
    """Hermes 4.1.1: a step 5 % over its history, then the slowest device of each communication domain.

    Published for execution time, which synchronisation makes equal; `by_self` gives it self time instead.
    """
    alarm_W = _beyond_history(recording.duration_W)
    own = recording.own if by_self else np.broadcast_to(recording.duration_W[:, None], recording.own.shape)
    marks = np.zeros(own.shape, dtype=bool)
    rows = np.flatnonzero(alarm_W)
    for domain in recording.topology.domains:
        members = np.array(domain.ranks)
        marks[rows, members[own[np.ix_(rows, members)].argmax(axis=1)]] = True
    return _named(marks)


def plain_rule_by_self(recording: "Recording") -> list[Named]:
    """Return what the plain rule names when it is given self time."""
    return plain_rule(recording, by_self=True)


def _beyond_history(duration_W: "Floats") -> "Marks":
    alarm_W = np.zeros(len(duration_W), dtype=bool)
    for row in range(10, len(duration_W)):
        alarm_W[row] = duration_W[row] > _STEP_RATIO * duration_W[max(0, row - _HISTORY_STEPS) : row].mean()
    return alarm_W


def mean_over_best(recording: "Recording") -> list[Named]:
    """PerfTracker 4.1: the mean of the last 50 steps 5 % over the shortest of them. It names the job only."""
    duration_W = recording.duration_W
    alarm_W = np.zeros(len(duration_W), dtype=bool)
    for row in range(_HISTORY_STEPS, len(duration_W)):
        last = duration_W[row - _HISTORY_STEPS : row]
        alarm_W[row] = last.mean() > _STEP_RATIO * last.min()
    return [Named(int(row), JOB) for row in np.flatnonzero(_rising(alarm_W[:, None])[:, 0])]


def three_sigma(recording: "Recording") -> list[Named]:
    """Self time three standard deviations above the mean of all ranks, step by step."""
    own = recording.own
    return _named(own > own.mean(axis=1, keepdims=True) + _SIGMAS * own.std(axis=1, keepdims=True))


def median_deviation(recording: "Recording") -> list[Named]:
    """Self time five median absolute deviations above the median of the stage, step by step."""
    own = recording.own
    stages = np.array(recording.topology.stages)
    marks = np.zeros(own.shape, dtype=bool)
    for stage in np.unique(stages):
        members = np.flatnonzero(stages == stage)
        part = own[:, members]
        middle = np.median(part, axis=1, keepdims=True)
        spread = _MAD_TO_SIGMA * np.median(np.abs(part - middle), axis=1, keepdims=True)
        marks[:, members] = part > middle + _DEVIATIONS * spread
    return _named(marks)


def shortest_collective(recording: "Recording") -> list[Named]:
    """Mstt's slow_rank, per step: in each group the outlier that spends least in its collective.

    Dixon's test up to 100 members, three sigma above, as there; groups of two give no answer. The limits are the
    99.5 % quantiles of the same ratio, drawn from normal samples.
    """
    kind = "dp" if "dp" in recording.waits else next(iter(recording.waits))
    waits = recording.waits[kind]
    marks = np.zeros(waits.shape, dtype=bool)
    for domain in recording.topology.domains:
        count = len(domain.ranks)
        if domain.kind != kind or count < _DIXON_MIN:
            continue
        part = waits[:, list(domain.ranks)]
        ordered = np.sort(part, axis=1)
        if count <= _DIXON_MAX:
            outlies_W = _dixon_ratio(ordered) > _dixon_limit(count)
        else:
            outlies_W = ordered[:, 0] < part.mean(axis=1) - _SIGMAS * part.std(axis=1)
        rows = np.flatnonzero(outlies_W)
        marks[rows, np.array(domain.ranks)[part[rows].argmin(axis=1)]] = True
    return _named(marks)


def _dixon_ratio(ordered: "Floats") -> "Floats":
    """Return how far the lowest value stands off, as a share of the range: r10, r11, r21 or r22 by sample size."""
    count = ordered.shape[1]
    near = 1 if count <= 10 else 2
    far = 1 if count <= 7 else 2 if count <= 13 else 3
    reach = ordered[:, -far] - ordered[:, 0]
    ratio: Floats = (ordered[:, near] - ordered[:, 0]) / np.maximum(reach, _RANGE_MIN)
    return ratio


@cache
def _dixon_limit(count: int) -> float:
    draws = np.random.default_rng(count).standard_normal((_DIXON_DRAWS, count))
    return float(np.quantile(_dixon_ratio(np.sort(draws, axis=1)), _DIXON_QUANTILE))


def relative_score(recording: "Recording") -> list[Named]:
    """NVRx's relative score: the least of the ranks' medians over a window, over the rank's own; 0.75 and below."""
    own = recording.own
    marks = np.zeros(own.shape, dtype=bool)
    for end in range(_NVRX_STEPS, len(own) + 1, _NVRX_STEPS):
        median_R = np.median(own[end - _NVRX_STEPS : end], axis=0)
        marks[end - 1] = median_R.min() / median_R < _NVRX_SCORE
    return _named(marks, memory=_NVRX_STEPS)


def _named(marks: "Marks", memory: int = 1) -> list[Named]:
    """Return each rank where its marks begin again, after `memory` rows without one."""
    row, rank = np.nonzero(_rising(marks, memory))
    return [Named(at, ("rank", which)) for at, which in zip(row.tolist(), rank.tolist(), strict=True)]


def _rising(marks: "Marks", memory: int = 1) -> "Marks":
    before = np.zeros_like(marks)
    before[memory:] = marks[:-memory]
    rising: Marks = marks & ~before
    return rising


BASELINES: dict[str, Callable[["Recording"], list[Named]]] = {
    "plain rule": plain_rule,
    "plain rule, self time": plain_rule_by_self,
    "mean over best": mean_over_best,
    "three sigma": three_sigma,
    "median + 5 MAD": median_deviation,
    "shortest collective": shortest_collective,
    "NVRx score": relative_score,
}
