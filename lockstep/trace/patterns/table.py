"""Pattern summaries as a capture's summary holds them: call stacks share their beginnings, so they are one tree.

Shares are whole numbers of parts per million. What does not fit is left out, smallest beta first, and counted.
"""

from collections.abc import Sequence

from lockstep.contracts.messages import PatternCaller, PatternRow, PatternTable
from lockstep.trace.patterns.pattern import FunctionClass, Pattern, PatternSummary

_PPM = 1_000_000
_ROOT = -1


def table_of(summary: PatternSummary, count: int) -> PatternTable:
    """Return the `count` functions of largest beta; the others are counted."""
    kept, left_out = summary.patterns[:count], summary.patterns[count:]
    tree = _CallerTree()
    rows = [
        PatternRow(
            function=each.function,
            kind=each.kind,
            caller=tree.node(each.stack),
            beta_ppm=round(each.beta * _PPM),
            mu_ppm=_ppm(each.mu),
            sigma_ppm=_ppm(each.sigma),
            active_mu_ppm=_ppm(each.active_mu),
            gap_ppm=_ppm(each.gap_ratio),
        )
        for each in kept
    ]
    return PatternTable(
        window_ns=summary.window_ns,
        callers=tree.callers,
        rows=rows,
        omitted_count=summary.omitted_count + len(left_out),
        omitted_beta_ppm=round((summary.omitted_beta + sum(each.beta for each in left_out)) * _PPM),
    )


def patterns_of(table: PatternTable) -> PatternSummary:
    """Return the patterns in a decoded table, in their order."""
    stacks: list[tuple[str, ...]] = []
    for each in table.callers:
        stacks.append((*(() if each.parent == _ROOT else stacks[each.parent]), each.name))
    return PatternSummary(
        window_ns=table.window_ns,
        patterns=tuple(_pattern(row, () if row.caller == _ROOT else stacks[row.caller]) for row in table.rows),
        omitted_count=table.omitted_count,
        omitted_beta=table.omitted_beta_ppm / _PPM,
    )


def _pattern(row: PatternRow, stack: tuple[str, ...]) -> Pattern:
    return Pattern(
        function=row.function,
        stack=stack,
        kind=FunctionClass(row.kind),
        beta=row.beta_ppm / _PPM,
        mu=_share(row.mu_ppm),
        sigma=_share(row.sigma_ppm),
        active_mu=_share(row.active_mu_ppm),
        gap_ratio=_share(row.gap_ppm),
    )


def _ppm(value: float | None) -> int | None:
    return None if value is None else round(value * _PPM)


def _share(ppm: int | None) -> float | None:
    return None if ppm is None else ppm / _PPM


class _CallerTree:
    """Stacks by the number of their innermost caller, in order of first use."""

    def __init__(self) -> None:
        self.callers: list[PatternCaller] = []
        self._nodes: dict[tuple[int, str], int] = {}

    def node(self, stack: Sequence[str]) -> int:
        node = _ROOT
        for name in stack:
            known = self._nodes.setdefault((node, name), len(self.callers))
            if known == len(self.callers):
                self.callers.append(PatternCaller(parent=node, name=name))
            node = known
        return node
