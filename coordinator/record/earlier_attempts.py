"""A run against earlier attempts: what is slow from the first step has no healthy steps before it. Pure.

Attempts of the same name go first; where none of them is comparable, those of runs of other names with the same
workload (`intake/workload.py`). Comparable is only what does the same work per step: tokens, else samples, of all
ranks, and model FLOPs where both know them.
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
"""By which work per step may differ: batches of sequences of uneven length."""
NOTABLE_RATIO = 0.05
"""Slower by more is worth a person's look: the same job on other nodes differs by some percent."""
NAME, WORKLOAD = EARLIER_MATCHES
RUNS_NAMED = 4
_PART_RATIO = 0.01  # of a step: a part that grew by less explains nothing
_REFRESH_CHANGES = 16  # intervals: seconds of a run, of whose attempts all but the last are as they were


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """The median of comparable earlier attempts, and by how much this one's steps are longer (ratio - 1).

    `match` is one of `EARLIER_MATCHES`; `runs` names up to `RUNS_NAMED` runs of those attempts, the youngest first.
    `part` is the part of the step that grew most, by `part_more_seconds` of the mean rank; empty where none grew.
    """

    match: str
    runs: tuple[str, ...]
    attempts: int
    step_seconds: float
    slowdown_ratio: float
    part: str = ""
    part_more_seconds: float = 0.0


class AttemptComparison:
    """Compares a run's last attempt with earlier ones, and again once there are some more intervals."""

    def __init__(self, run: str, history: "AttemptHistory") -> None:
        self._run, self._history = run, history
        self._due_at = 0
        self._found: EarlierAttempts | None = None

    def observe(self, series: "StepSeries", workload: "Callable[[], str]") -> None:
        """Note the attempts of the run's series as they are now; `workload` gives the digest of the last one's."""
        self._history.observe(self._run, series.complete(), workload)

    def of_series(self, series: "StepSeries", workload: "Callable[[], str]") -> EarlierAttempts | None:
        """Return how the last attempt compares, None where there is no comparable earlier one."""
        if series.changes >= self._due_at:
            self._due_at = series.changes + _REFRESH_CHANGES
            self.observe(series, workload)
            self._found = compare_attempts(self._run, self._history)
        return self._found


def compare_attempts(run: str, history: "AttemptHistory") -> EarlierAttempts | None:
    """Return how the last attempt of a run compares with earlier ones."""
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
    """Whether steps are of the same work; False where neither tokens nor samples of both are known."""
    for name in ("tokens", "samples"):
        if one.get(name) and other.get(name):
            return _is_close(one[name], other[name]) and _is_close(one.get("ideal_s"), other.get("ideal_s"))
    return False


def _is_close(one: float | None, other: float | None) -> bool:
    """Whether two amounts of work are the same; what one of them lacks decides nothing."""
    return not one or not other or math.isclose(one, other, rel_tol=WORK_TOLERANCE)
