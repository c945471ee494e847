"""Figures of a run by interval of steps, as the coordinator reports them and as they are forwarded. Pure.

A figure has the same name in every tracker. Seconds are means of a step over its ranks; a figure that was not measured
has no value.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import COMPUTE_PHASES

_LONGEST = "longest_step_seconds"
_RATES = ("tokens_per_second", "samples_per_second", "mfu_ratio")
_FIGURES = ("step_seconds", _LONGEST, *_RATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """The steps `first_step` to `last_step` of an attempt, `steps` of which were measured; `values` by figure.

    Steps count from 0 in each attempt.
    """

    begin_unix_s: float
    end_unix_s: float
    attempt: int
    first_step: int
    last_step: int
    steps: int
    values: Mapping[str, float]


def parse_points(answer: Mapping[str, Any], *, where: str) -> tuple[list[StepPoint], set[str]]:
    """Parse the points of `/api/v1/runs/RUN/series`, oldest first; also return figures with non-finite numbers.

    Those are left out of their points; null is a figure that was not measured.

    Raises
    ------
    MalformedError
        The response has an unexpected form.
    """
    refused: set[str] = set()
    try:
        points = [_point(each, refused) for each in answer["points"]]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        expected = "points of a coordinator of this version"
        raise MalformedError("series", where=where, got=repr(error), expected=expected) from error
    return sorted(points, key=lambda point: point.end_unix_s), refused


def _point(each: Mapping[str, Any], refused: set[str]) -> StepPoint:
    parts = {f"{name}_seconds": value for name, value in each["part_seconds"].items()}
    named = {name: each.get(name) for name in _FIGURES} | parts
    known = {name: value for name, value in named.items() if value is not None}
    values = {name: float(value) for name, value in known.items() if _is_finite(value)}
    refused |= known.keys() - values.keys()
    phases = [values.get(f"{name}_seconds") for name in COMPUTE_PHASES]
    if "compute_seconds" not in values and None not in phases:
        values["compute_seconds"] = sum(phase for phase in phases if phase is not None)
    begin, end = float(each["begin_unix_seconds"]), float(each["end_unix_seconds"])
    if not (math.isfinite(begin) and math.isfinite(end)):
        raise ValueError(f"times {begin} to {end}")
    whole = {name: int(each[name]) for name in ("attempt", "first_step", "last_step", "steps")}
    return StepPoint(begin_unix_s=begin, end_unix_s=end, values=values, **whole)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def join_points(points: Iterable[StepPoint], interval_s: float) -> list[StepPoint]:
    """Join the points of one attempt that end in the same interval of the clock; oldest first."""
    joined: list[list[StepPoint]] = []
    for point in points:
        if joined and _slot(joined[-1][-1], interval_s) == _slot(point, interval_s):
            joined[-1].append(point)
        else:
            joined.append([point])
    return [_mean(group) for group in joined]


def _slot(point: StepPoint, interval_s: float) -> tuple[int, int]:
    return point.attempt, math.floor(point.end_unix_s / interval_s)


def _mean(group: Sequence[StepPoint]) -> StepPoint:
    """Return one point: seconds are weighted by steps, rates by time; the longest step is the maximum."""
    if len(group) == 1:
        return group[0]
    names = dict.fromkeys(name for point in group for name in point.values)
    return StepPoint(
        begin_unix_s=group[0].begin_unix_s,
        end_unix_s=group[-1].end_unix_s,
        attempt=group[0].attempt,
        first_step=group[0].first_step,
        last_step=group[-1].last_step,
        steps=sum(point.steps for point in group),
        values={name: _joined_value(name, group) for name in names},
    )


def _joined_value(name: str, group: Sequence[StepPoint]) -> float:
    known = [point for point in group if name in point.values]
    if name == _LONGEST:
        return max(point.values[name] for point in known)
    weigh: Callable[[StepPoint], float] = _train_seconds if name in _RATES else lambda point: max(point.steps, 1)
    weights = [weigh(point) for point in known]
    total = sum(weights)
    values = [point.values[name] for point in known]
    return sum(map(_product, values, weights)) / total if total > 0 else values[-1]


def _product(value: float, weight: float) -> float:
    return value * weight


def _train_seconds(point: StepPoint) -> float:
    return point.values.get("step_seconds", 0.0) * point.steps


def with_values(point: StepPoint, **values: float) -> StepPoint:
    """Return the point with additional figures."""
    return replace(point, values={**point.values, **values})
