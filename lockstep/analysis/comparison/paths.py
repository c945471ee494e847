"""Compares two folders of traces; each trace is read by a worker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.analysis.comparison.compare import (
    TOLERANCE,
    ChangeVerdict,
    ObservedRun,
    QuantityChange,
    compare,
    regressions,
)
from lockstep.analysis.comparison.observe import QuantityKind, RankObservation
from lockstep.analysis.sources import SkippedPath, find_sources
from lockstep.analysis.workers import AnalysisJob, Runner
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.version import VERSION

FORMAT = 1
_LISTED = 3
_SAME_LISTED = (QuantityKind.STEP, QuantityKind.PART, QuantityKind.COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What changed from `before` to `after`; `skipped` are paths that could not be used."""

    before: ObservedRun
    after: ObservedRun
    tolerance: float
    changes: tuple[QuantityChange, ...]
    skipped: tuple[SkippedPath, ...]

    @property
    def regressions(self) -> list[QuantityChange]:
        """Return the changes that decide a gate."""
        return regressions(self.changes)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: all changes, and of unchanged quantities the step, its parts and the counts."""
        listed = [
            each
            for each in self.changes
            if each.verdict is not ChangeVerdict.SAME or each.quantity.kind in _SAME_LISTED
        ]
        return {
            "format": FORMAT,
            "tool": f"lockstep analyze {VERSION}",
            "before": {"ranks": len(self.before.ranks), "steps": self.before.steps},
            "after": {"ranks": len(self.after.ranks), "steps": self.after.steps},
            "tolerance_ratio": self.tolerance,
            "regressions": len(self.regressions),
            "compared": len(self.changes),
            "changes": [each.as_json() for each in listed],
            "skipped": [{"path": each.path, "error": each.error} for each in self.skipped],
        }


def compare_paths(
    paths: Sequence[Path],
    baseline: Sequence[Path],
    run: Runner,
    *,
    tolerance: float = TOLERANCE,
    on_done: Callable[[int, int], None] = lambda _done, _all: None,
) -> RunComparison:
    """Return what changed from the traces under `baseline` to those under `paths`; `run` reads each.

    Raises
    ------
    MalformedError
        One side has no trace that can be used, or two of one rank.
    """
    found = [find_sources(side) for side in (baseline, paths)]
    skipped = [each for side in found for each in side.skipped]
    count = sum(len(side.sources) for side in found)
    on_done(0, count)
    runs: tuple[list[RankObservation], list[RankObservation]] = ([], [])
    for observations, side in zip(runs, found, strict=True):
        jobs = [AnalysisJob(number=number, source=source, observe=True) for number, source in enumerate(side.sources)]
        for outcome in run(jobs):
            skipped += outcome.skipped
            if outcome.observation is not None:
                observations.append(outcome.observation)
            on_done(sum(map(len, runs)), count)
    before, after = (_run(ranks, side, skipped) for ranks, side in zip(runs, (baseline, paths), strict=True))
    return RunComparison(
        before=before,
        after=after,
        tolerance=tolerance,
        changes=tuple(compare(before, after, tolerance=tolerance)),
        skipped=tuple(skipped),
    )


def _run(ranks: Sequence[RankObservation], paths: Sequence[Path], skipped: Sequence[SkippedPath]) -> ObservedRun:
    where = ", ".join(map(str, paths[:_LISTED]))
    if not ranks:
        got = "; ".join(each.error for each in skipped[:_LISTED]) or "nothing"
        raise MalformedError("traces", where=where, got=got, expected="at least one trace that can be used")
    numbers = [each.rank for each in ranks]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise MalformedError(
            "traces", where=where, got=f"two of rank {twice}", expected="one trace for each rank of one run"
        )
    return ObservedRun(ranks=tuple(sorted(ranks, key=lambda each: each.rank)))
