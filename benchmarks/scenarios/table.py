"""Scores by method, scenario and number of ranks, and how they are written: as text and as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, sqrt

import numpy as np

from benchmarks.scenarios.score import Score

OURS = "lockstep"
COLUMNS = ("recall", "precision", "false/10k", "wrong", "p50", "p95", "cause")
HEADER = " ".join(f"{name:>{width}}" for name, width in zip(COLUMNS, (7, 9, 9, 7, 5, 5, 6), strict=True))


@dataclass(slots=True)
class Table:
    """Sums over the runs of a scenario."""

    scores: dict[tuple[str, str, int], Score] = field(default_factory=dict)

    def add(self, method: str, name: str, ranks: int, result: Score) -> None:
        """Add one run."""
        self.scores.setdefault((method, name, ranks), Score()).add(result)

    def total(self, method: str, ranks: int, names: Iterable[str]) -> Score:
        """Return the sum over scenarios."""
        total = Score()
        for name in names:
            total.add(self.scores.get((method, name, ranks), Score()))
        return total

    def of(self, ranks: int) -> "Table":
        """Return the scores at a number of ranks."""
        return Table({key: score for key, score in self.scores.items() if key[2] == ranks})

    def sizes(self) -> list[int]:
        """Return the numbers of ranks that were measured."""
        return sorted({ranks for _, _, ranks in self.scores})

    def names(self, ranks: int) -> list[str]:
        """Return the scenarios measured at a number of ranks, in order."""
        return [name for method, name, size in self.scores if method == OURS and size == ranks]


def cells(result: Score) -> list[str]:
    """Return a row of the table, a dash where there was nothing to measure."""
    named = result.found + result.wrong
    per_10k = 10_000 * result.alarms_in_health / result.healthy_rows if result.healthy_rows else None
    p50, p95 = np.percentile(result.latency_rows, (50, 95)) if result.latency_rows else (None, None)
    return [
        _number(result.found / result.wanted if result.wanted else None, 3),
        _number(result.found / named if named and result.wanted else None, 3),
        _number(per_10k, 2),
        str(result.wrong_ranks),
        _number(p50, 0),
        _number(p95, 0),
        _number(result.causes_right / result.causes_named if result.causes_named else None, 3),
    ]


def line(result: Score) -> str:
    """Return a row as text, under `HEADER`."""
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells(result), (7, 9, 9, 7, 5, 5, 6), strict=True))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(heading: str, rows: Sequence[tuple[str, Score]]) -> list[str]:
    """Return the lines of a Markdown table."""
    names = [heading, "recall", "precision", "false per 10,000", "wrong ranks", "p50", "p95", "cause"]
    lines = [f"| {' | '.join(names)} |", f"|---|{'---:|' * (len(names) - 1)}"]
    return [*lines, *(f"| {name} | {' | '.join(cells(result))} |" for name, result in rows)]


def rate_bound(count: int, steps: int) -> float:
    """Return the 95 % upper bound of events per step after `count` in `steps`: Poisson, one-sided, exact to 1e-9."""
    low, high = 0.0, count + 10.0 + 5.0 * sqrt(count)
    while high - low > 1e-9:
        mean = (low + high) / 2
        term: float = exp(-mean)
        total = term
        for event in range(1, count + 1):
            term *= mean / event
            total += term
        low, high = (mean, high) if total > 0.05 else (low, mean)
    return high / max(steps, 1)
