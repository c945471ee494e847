"""Selects the ranks that a picture shows if a job has more than fit on a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from lockstep.analysis.report.parts import Rank
from lockstep.html.units import counted

SHOWN_MAX = 64
"""Up to this many ranks, all are shown."""
_NAMED_MAX = 24
_FAR_MAX = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The ranks to show, in order, and a sentence that names them; `usual` is the one nearest to the median."""

    ranks: tuple[Rank, ...]
    note: str
    usual: Rank | None


def choose(ranks: Sequence[Rank], named: Sequence[int]) -> Choice:
    """Return all ranks or, of more than `SHOWN_MAX`, the named ones, those farthest from the median and the median one.

    Distance is the sum over classes of the differences in share. `ranks` must have accounts.
    """
    far = sorted(ranks, key=_distance(ranks))
    usual = far[0] if far else None
    if len(ranks) <= SHOWN_MAX:
        return Choice(ranks=tuple(ranks), note="", usual=usual)
    wanted = list(dict.fromkeys(named))[:_NAMED_MAX]
    by_number = {rank.number: rank for rank in ranks}
    chosen = {number: by_number[number] for number in wanted if number in by_number}
    count = len(chosen)
    for rank in far[:0:-1]:
        if len(chosen) >= count + _FAR_MAX:
            break
        chosen.setdefault(rank.number, rank)
    if usual is not None:
        chosen.setdefault(usual.number, usual)
    note = (
        f"{len(chosen)} of {counted(len(ranks), 'rank')} are shown: {count} that findings name, the {_FAR_MAX} others "
        f"farthest from the median, and the one nearest to it ({usual.label if usual else 'none'})."
    )
    return Choice(ranks=tuple(chosen[number] for number in sorted(chosen)), note=note, usual=usual)


def _distance(ranks: Sequence[Rank]) -> Callable[[Rank], float]:
    """Return how far from the median of all ranks one is; a rank without an account is nowhere, which is at it."""
    rows = [rank.account.ratios for rank in ranks if rank.account is not None]
    middle = [median(column) for column in zip(*rows, strict=True)]

    def distance(rank: Rank) -> float:
        if rank.account is None:
            return 0.0
        return float(sum(abs(value - usual) for value, usual in zip(rank.account.ratios, middle, strict=True)))

    return distance


def focus(ranks: Sequence[Rank], named: Sequence[int], usual: Rank | None, count: int) -> list[Rank]:
    """Return the few ranks to show in detail: those that findings name first, then the usual one."""
    by_number = {rank.number: rank for rank in ranks}
    chosen = [by_number[number] for number in named if number in by_number][: count - 1]
    spare = [usual] if usual is not None and usual.number in by_number else []
    return list({rank.number: rank for rank in [*chosen, *spare, *ranks[:1]]}.values())[:count]
