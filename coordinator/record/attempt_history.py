# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Stores a few figures of each attempt of all runs, which outlive the runs' step series. Pure.

An attempt is what a run's series calls one: a restart, or another job of the same name. It is described by the faster
half of its steps, so that an incident in it changes little. Bounded: `ATTEMPTS_KEPT` per run; the owner of the history
drops a run's attempts together with the rest of the run's state.

Shapes: I intervals, F fields of an interval (`step_series.COLUMNS`).
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.record.step_series import COLUMNS, PARTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.record.step_series import Figures

_log = logging.getLogger(__name__)

STEPS_MIN = 64
"""Fewest steps of an attempt that is described, the same as for a comparison of two recordings."""
SETTLE_STEPS = 10
"""First steps of an attempt, which are skipped: compilation, caches, first batches."""
_DILUTED_STEPS = 32 * SETTLE_STEPS  # an old interval this long may include the first steps: they are 3 % of it
ATTEMPTS_KEPT = 5
"""The last attempt and four to compare it with; half a KB each, in memory and on disk."""
ALIKE_MAX = 16
"""Attempts of other runs to compare with, the newest; a sweep starts hundreds."""
_AT = {name: place for place, name in enumerate(COLUMNS)}
_FIGURES = ("step_s", "tokens", "samples", "ideal_s", *PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a run. `figures` are means over the faster half of its steps, by field; empty if it is too short.

    `workload` is a digest of what its ranks announced (`intake/workload.py`), empty if unknown.
    """

    run: str
    begin_unix_s: float
    end_unix_s: float
    workload: str = ""
    figures: Mapping[str, float]


def _to_json(attempt: Attempt) -> dict[str, Any]:
    figures = {name: float(f"{value:.9g}") for name, value in attempt.figures.items()}
    times = {"begin_unix_s": attempt.begin_unix_s, "end_unix_s": attempt.end_unix_s}
    return {**times, "workload": attempt.workload, "figures": figures}


def _from_json(run: str, value: Mapping[str, Any]) -> Attempt:
    figures = {name: float(value["figures"][name]) for name in _FIGURES if name in value["figures"]}
    times = float(value["begin_unix_s"]), float(value["end_unix_s"])
    if not all(map(math.isfinite, (*times, *figures.values()))):
        raise ValueError(f"{value!r:.200}, not finite")
    return Attempt(
        run=run, begin_unix_s=times[0], end_unix_s=times[1], workload=str(value["workload"]), figures=figures
    )


class AttemptHistory:
    """The attempts of each run in order, and the names of the runs by workload.

    Invariant: only the last attempt of a run may lack figures.
    """

    def __init__(self) -> None:
        self._of_run: dict[str, tuple[Attempt, ...]] = {}
        self._runs: dict[str, set[str]] = {}

    def of_run(self, run: str) -> tuple[Attempt, ...]:
        """Return the attempts of a run, the oldest first."""
        return self._of_run.get(run, ())

    def to_json(self, run: str) -> tuple[dict[str, Any], ...]:
        """Return the attempts of a run in the form that is stored with the rest of the run's state."""
        return tuple(map(_to_json, self.of_run(run)))

    def adopt(self, run: str, kept: Iterable[Mapping[str, Any]]) -> None:
        """Replace the attempts of a run by stored ones (`to_json`).

        If they are damaged, log a warning and discard them.
        """
        try:
            self.replace(run, [_from_json(run, each) for each in kept])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("attempts of run %s: got %r, expected the stored attempts; discarded", run, error)

    def replace(self, run: str, attempts: Iterable[Attempt]) -> None:
        """Replace the attempts of a run by the newest `ATTEMPTS_KEPT` of these."""
        self.drop(run)
        known = tuple(attempts)
        kept = tuple(each for each in known if each.figures or each is known[-1])[-ATTEMPTS_KEPT:]
        if kept:
            self._of_run[run] = kept
        for each in kept:
            if each.workload:
                self._runs.setdefault(each.workload, set()).add(run)

    def drop(self, run: str) -> None:
        """Drop the attempts of a run."""
        for each in self._of_run.pop(run, ()):
            names = self._runs.get(each.workload, set())
            names.discard(run)
            if not names:
                self._runs.pop(each.workload, None)

    def observe(self, run: str, complete: "Sequence[Figures]", workload: "Callable[[], str]") -> None:
        """Update the attempts of a run from its series; those from before the beginning of the series stay as they are.

        `workload` returns the digest of the attempt under way. An attempt keeps the first one it was given, because
        ranks announce the next attempt before its first step.
        """
        made = describe_attempts(run, complete)
        if not made:
            return
        known = self.of_run(run)
        workloads = {each.begin_unix_s: each.workload for each in known}
        made = [replace(each, workload=workloads.get(each.begin_unix_s, "")) for each in made]
        if not made[-1].workload:
            made[-1] = replace(made[-1], workload=workload())
        self.replace(run, [*(each for each in known if each.end_unix_s <= made[0].begin_unix_s), *made])

    def alike(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """Return earlier attempts of other runs with the same workload, the newest first."""
        names = self._runs.get(attempt.workload, set()) - {attempt.run} if attempt.workload else set()
        found = [
            each
            for name in names
            for each in self._of_run[name]
            if each.figures and each.workload == attempt.workload and each.begin_unix_s < attempt.begin_unix_s
        ]
        return tuple(sorted(found, key=lambda each: (-each.begin_unix_s, each.run))[:ALIKE_MAX])


def describe_attempts(run: str, complete: "Sequence[Figures]") -> list[Attempt]:
    """Return the attempts in a run's complete intervals, the oldest first, without their workloads."""
    if not complete:
        return []
    intervals_IF = np.array(complete)
    attempt_I = intervals_IF[:, _AT["attempt"]]
    made = []
    for number in np.unique(attempt_I):
        own_IF = intervals_IF[attempt_I == number]
        begin_s, end_s = float(own_IF[0, _AT["begin_unix_s"]]), float(own_IF[-1, _AT["end_unix_s"]])
        made.append(Attempt(run=run, begin_unix_s=begin_s, end_unix_s=end_s, figures=_faster_half(own_IF)))
    return made


def _faster_half(intervals_IF: "Figures") -> dict[str, float]:
    """Return means over the fastest intervals that hold half of an attempt's steps.

    Fields never measured are omitted.
    """
    first_step_I, steps_I = intervals_IF[:, _AT["first_step"]], intervals_IF[:, _AT["steps"]]
    is_settled_I = (first_step_I >= first_step_I[0] + SETTLE_STEPS) | (steps_I >= _DILUTED_STEPS)
    settled_IF, steps_I = intervals_IF[is_settled_I], steps_I[is_settled_I]
    if steps_I.sum() < STEPS_MIN:
        return {}
    order = np.argsort(settled_IF[:, _AT["step_s"]], kind="stable")
    count = int(np.searchsorted(np.cumsum(steps_I[order]), steps_I.sum() / 2)) + 1
    rows_IF, weight_I = settled_IF[order[:count]], steps_I[order[:count]]
    is_known_IF = ~np.isnan(rows_IF)
    weight_F = weight_I @ is_known_IF
    sum_F = weight_I @ np.where(is_known_IF, rows_IF, 0.0)
    return {name: float(sum_F[_AT[name]] / weight_F[_AT[name]]) for name in _FIGURES if weight_F[_AT[name]]}
