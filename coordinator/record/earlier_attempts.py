"""Compares a run with earlier attempts: a run that is slow from its first step has no healthy steps of its own. Pure.

Attempts of the same name take precedence. If none of them is comparable, attempts of other runs with the same workload
(`intake/workload.py`) are used. Attempts are comparable if they do the same work per step: tokens, else samples, of all
ranks, and model FLOPs if both know them.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from coordinator.record.step_series import PARTS
from lockstep.contracts.metrics import EARLIER_MATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coordinator.record.attempt_history import Attempt, AttemptHistory
    from coordinator.record.step_series import StepSeries

WORK_TOLERANCE = 0.02
"""Largest relative difference of the work per step: sequences of uneven length make batches differ."""
NOTABLE_RATIO = 0.05
"""A larger slowdown is worth a person's attention: the same job differs by a few percent on other nodes."""
NAME, WORKLOAD = EARLIER_MATCHES
RUNS_NAMED = 4
_PART_RATIO = 0.01  # of a step: a part that grew by less explains nothing
_REFRESH_CHANGES = 16  # new intervals, about as many seconds, after which the comparison is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """The median step time of comparable earlier attempts, and how much longer the current steps are (ratio - 1).

    `match` is one of `EARLIER_MATCHES`; `runs` names up to `RUNS_NAMED` runs of those attempts, the newest first.
    `part` is the part of the step that grew most, by `part_more_seconds` in the mean over ranks; empty if none grew.
    """

    match: str
    runs: tuple[str, ...]
    attempts: int
    step_seconds: float
    slowdown_ratio: float
    part: str = ""
    part_more_seconds: float = 0.0


class AttemptComparison:
    """Compares a run's last attempt with earlier ones; repeats the comparison after `_REFRESH_CHANGES` intervals."""

    def __init__(self, run: str, history: "AttemptHistory") -> None:
        self._run, self._history = run, history
        self._due_at = 0
        self._found: EarlierAttempts | None = None

    def observe(self, series: "StepSeries", workload: "Callable[[], str]") -> None:
        """Update the history from the run's series; `workload` returns the digest of the last attempt's workload."""
        self._history.observe(self._run, series.complete(), workload)

    def of_series(self, series: "StepSeries", workload: "Callable[[], str]") -> EarlierAttempts | None:
        """Return how the last attempt compares with earlier ones; None if none is comparable."""
        if series.changes >= self._due_at:
            self._due_at = series.changes + _REFRESH_CHANGES
            self.observe(series, workload)
            self._found = compare_attempts(self._run, self._history)
        return self._found


def compare_attempts(run: str, history: "AttemptHistory") -> EarlierAttempts | None:
    """Return how the last attempt of a run compares with earlier ones; None if none is comparable."""
    own = history.of_run(run)
    if not own or not own[-1].figures:
        return None
    last = own[-1]
    for match, earlier in ((NAME, own[:-1]), (WORKLOAD, history.alike(last))):
        alike = [each for each in earlier if _is_same_work(each.figures, last.figures)]
        if alike:
            return _compared(match, alike, last)
    return None


def _compared(match: str, alike: "Sequence[Attempt]", last: "Attempt") -> EarlierAttempts:
    usual_s = median(each.figures["step_s"] for each in alike)
    grown_s = {
        name: last.figures[name] - median(known)
        for name in PARTS
        if name in last.figures and (known := [each.figures[name] for each in alike if name in each.figures])
    }
    part = max(grown_s, key=lambda name: grown_s[name], default="")
    is_grown = bool(part) and grown_s[part] > _PART_RATIO * usual_s
    return EarlierAttempts(
        match=match,
        runs=tuple(dict.fromkeys(each.run for each in alike))[:RUNS_NAMED],
        attempts=len(alike),
        step_seconds=usual_s,
        slowdown_ratio=last.figures["step_s"] / usual_s - 1,
        part=part if is_grown else "",
        part_more_seconds=grown_s[part] if is_grown else 0.0,
    )


def _is_same_work(one: "Mapping[str, float]", other: "Mapping[str, float]") -> bool:
    """Whether both do the same work per step; False if neither tokens nor samples are known of both."""
    for name in ("tokens", "samples"):
        if one.get(name) and other.get(name):
            return _is_close(one[name], other[name]) and _is_close(one.get("ideal_s"), other.get("ideal_s"))
    return False


def _is_close(one: float | None, other: float | None) -> bool:
    """Whether two amounts of work are equal within `WORK_TOLERANCE`; True if one of them is unknown."""
    return not one or not other or math.isclose(one, other, rel_tol=WORK_TOLERANCE)
