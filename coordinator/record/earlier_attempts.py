# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""A run against its own earlier attempts: what is slow from the first step has no healthy steps before it. Pure.

An attempt is what a run's series calls one: a restart, or another job of the same name within what is kept. Each is
described by its quicker half, so that an incident in one of them changes little. Attempts are comparable where their
work per step is known and the same: tokens, else samples, of all ranks.

Shapes: I intervals, F fields of an interval (`step_series.COLUMNS`).
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from coordinator.record.step_series import COLUMNS, PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.record.step_series import Figures, StepSeries

STEPS_MIN = 64
"""Of an attempt, as a comparison of two recordings needs."""
SETTLE_STEPS = 10
"""First ones of an attempt, which are left out: compilation, caches, first batches."""
_DILUTED_STEPS = 32 * SETTLE_STEPS  # of an old interval: the first ones, which it cannot be cut from, are 3 % of it
WORK_TOLERANCE = 0.02
"""By which work per step may differ: batches of sequences of uneven length."""
NOTABLE_RATIO = 0.05
"""Slower by more is worth a person's look: the same job on other nodes differs by some percent."""
_PART_RATIO = 0.01  # of a step: a part that grew by less explains nothing
_REFRESH_CHANGES = 16  # intervals: seconds of a run, of whose attempts all but the last are as they were
_AT = {name: place for place, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """The median of comparable earlier attempts, and by how much this one's steps are longer (ratio - 1).

    `part` is the part of the step that grew most, by `part_more_seconds` of the mean rank; empty where none grew.
    """

    attempts: int
    step_seconds: float
    slowdown_ratio: float
    part: str = ""
    part_more_seconds: float = 0.0


class AttemptComparison:
    """Compares a run's last attempt with earlier ones, and again once there are some more intervals."""

    def __init__(self) -> None:
        self._due_at = 0
        self._found: EarlierAttempts | None = None

    def of_series(self, series: "StepSeries") -> EarlierAttempts | None:
        """Return how the last attempt compares, None where there is no comparable earlier one."""
        if series.changes >= self._due_at:
            self._due_at = series.changes + _REFRESH_CHANGES
            self._found = compare_attempts(series.complete())
        return self._found


def compare_attempts(complete: "Sequence[Figures]") -> EarlierAttempts | None:
    """Return how the last attempt of a series compares with those before it."""
    if not complete or complete[-1][_AT["attempt"]] == complete[0][_AT["attempt"]]:
        return None
    intervals_IF = np.array(complete)
    attempt_I = intervals_IF[:, _AT["attempt"]]
    made = (_quicker_half(intervals_IF[attempt_I == attempt]) for attempt in np.unique(attempt_I))
    *earlier, last = made
    if last is None:
        return None
    alike = [each for each in earlier if each is not None and _is_same_work(each, last)]
    if not alike:
        return None
    usual_s = median(each["step_s"] for each in alike)
    grown_s = {name: last[name] - median(known) for name in PARTS if name in last and (known := _known(alike, name))}
    part = max(grown_s, key=lambda name: grown_s[name], default="")
    is_grown = bool(part) and grown_s[part] > _PART_RATIO * usual_s
    return EarlierAttempts(
        attempts=len(alike),
        step_seconds=usual_s,
        slowdown_ratio=last["step_s"] / usual_s - 1,
        part=part if is_grown else "",
        part_more_seconds=grown_s[part] if is_grown else 0.0,
    )


def _known(attempts: "Sequence[Mapping[str, float]]", name: str) -> list[float]:
    return [each[name] for each in attempts if name in each]


def _quicker_half(intervals_IF: "Figures") -> dict[str, float] | None:
    """Return means over the half of an attempt's steps in its quickest intervals; without figures never measured."""
    first_step_I, steps_I = intervals_IF[:, _AT["first_step"]], intervals_IF[:, _AT["steps"]]
    is_settled_I = (first_step_I >= first_step_I[0] + SETTLE_STEPS) | (steps_I >= _DILUTED_STEPS)
    settled_IF, steps_I = intervals_IF[is_settled_I], steps_I[is_settled_I]
    if steps_I.sum() < STEPS_MIN:
        return None
    order = np.argsort(settled_IF[:, _AT["step_s"]], kind="stable")
    count = int(np.searchsorted(np.cumsum(steps_I[order]), steps_I.sum() / 2)) + 1
    rows_IF, weight_I = settled_IF[order[:count]], steps_I[order[:count]]
    is_known_IF = ~np.isnan(rows_IF)
    weight_F = weight_I @ is_known_IF
    sum_F = weight_I @ np.where(is_known_IF, rows_IF, 0.0)
    return {name: float(sum_F[place] / weight_F[place]) for name, place in _AT.items() if weight_F[place]}


def _is_same_work(one: "Mapping[str, float]", other: "Mapping[str, float]") -> bool:
    """Whether steps are of the same work; False where neither tokens nor samples of both are known."""
    for name in ("tokens", "samples"):
        if one.get(name) and other.get(name):
            return math.isclose(one[name], other[name], rel_tol=WORK_TOLERANCE)
    return False
