"""Compares two runs: which quantities increased by more than noise explains.

A quantity of a rank is the median over its steps. A change counts if it exceeds each of four limits:

- the scatter of the steps of both runs (`SIGMAS` standard errors, more if few steps were recorded; with five or more
  steps of a rank the farthest outlier is left out of the scatter);
- the scatter of the changes between ranks (`RANK_SIGMAS`), if there are three or more;
- `tolerance`, as a share of the value before;
- `WORTH_RATIO`, as a share of the step, except for counts.

Of several ranks the one with the largest change decides: in a synchronous job all ranks wait for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.analysis.comparison.observe import TOTAL, ComparedQuantity, QuantityKind, RankObservation, Samples
from lockstep.diagnosis.communication_causes.collectives import RankCollectives
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.waiting import transmission_ns
from lockstep.trace.columns import ABSENT

TOLERANCE = 0.05
"""Difference of two runs of one job without any change: own, larger on shared machines."""
WORTH_RATIO = 0.02
"""Share of the step, own: twice the minimal cost of a finding, because a gate must not fail by chance."""
SIGMAS = 5.0
"""Hundreds of quantities are compared, of which chance puts one beyond 3 in every comparison."""
RANK_SIGMAS = 3.0
REPLACED_RATIO = 0.5
"""Share of a function's or kernel's change: if the sum over its kind changes by less, others replaced it."""
_TRIMMED_STEPS = 5
"""Steps from which one outlier per rank is left out: the first after a pause, or a checkpoint."""
_SCATTER_RANKS = 3
_UNKNOWN_NOISE = 0.25
"""Noise of a quantity in runs of one step each, which do not show it."""
_MAD_TO_SIGMA = 1.4826
_Side = dict[int, dict[ComparedQuantity, Samples]]
ALL_RANKS = ABSENT
"""Where the runs have different ranks, all steps of all ranks are one rank's; collectives belong to all."""


class ChangeVerdict(StrEnum):
    """Outcome for one quantity."""

    SAME = "same"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    MORE = "more"
    """A part of the step, or a function or kernel that replaced another: it explains, and does not decide."""
    LESS = "less"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityChange:
    """One quantity, `before` and `after` as medians over steps (ns, or a count), on the rank that changed most.

    `limit` is what noise and tolerance explain, in the same unit. `step_ratio` is the change as a share of the step
    before, None of counts.
    """

    quantity: ComparedQuantity
    before: float
    after: float
    limit: float
    step_ratio: float | None
    rank: int
    verdict: ChangeVerdict

    @property
    def difference(self) -> float:
        """Return the increase."""
        return self.after - self.before

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form; the rank is null if the quantity belongs to all ranks."""
        return {
            "kind": self.quantity.kind.value,
            "name": self.quantity.name,
            "verdict": self.verdict.value,
            "unit": "1" if self.quantity.kind is QuantityKind.COUNT else "ns",
            "before": self.before,
            "after": self.after,
            "change_ratio": self.difference / self.before if self.before else None,
            "step_ratio": self.step_ratio,
            "limit": self.limit,
            "rank": None if self.rank == ALL_RANKS else self.rank,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """All ranks of one run."""

    ranks: tuple[RankObservation, ...]

    @property
    def steps(self) -> int:
        """Return the steps of the rank with the fewest."""
        return min(each.steps for each in self.ranks)


def compare(before: ObservedRun, after: ObservedRun, *, tolerance: float = TOLERANCE) -> list[QuantityChange]:
    """Return every quantity of two runs, regressions first, then by the share of the step."""
    step = ComparedQuantity(QuantityKind.STEP, "step")
    step_ns = float(np.median([np.median(each.samples[step]) for each in before.ranks]))
    comparator = _Comparator(step_ns, tolerance)
    sides = [_by_rank(run, same_ranks=_numbers(before) == _numbers(after)) for run in (before, after)]
    quantities = dict.fromkeys(name for side in sides for samples in side.values() for name in samples)
    found = [comparator.change(each, *(_samples_of(side, each) for side in sides)) for each in quantities]
    found = [_unless_replaced(each, *sides) for each in found] + _collectives(before, after, comparator)
    order = {
        ChangeVerdict.REGRESSION: 0,
        ChangeVerdict.IMPROVEMENT: 1,
        ChangeVerdict.MORE: 2,
        ChangeVerdict.LESS: 2,
        ChangeVerdict.SAME: 3,
    }
    return sorted(found, key=lambda each: (order[each.verdict], -abs(each.step_ratio or 0.0)))


def regressions(changes: Iterable[QuantityChange]) -> list[QuantityChange]:
    """Return the changes that decide a gate."""
    return [each for each in changes if each.verdict is ChangeVerdict.REGRESSION]


def _unless_replaced(change: QuantityChange, before: _Side, after: _Side) -> QuantityChange:
    """Return a change as non-deciding if others of its kind change by as much in the opposite direction.

    Libraries select kernels again in each run, and code moves from one function to another.
    """
    kind, name = change.quantity
    decides = change.verdict in (ChangeVerdict.REGRESSION, ChangeVerdict.IMPROVEMENT)
    if not decides or name == TOTAL or kind not in (QuantityKind.FUNCTION, QuantityKind.KERNEL):
        return change
    total = ComparedQuantity(kind, TOTAL)
    was, now = (float(np.median(side[change.rank][total])) for side in (before, after))
    if abs(change.difference) * REPLACED_RATIO <= (now - was) * np.sign(change.difference):
        return change
    is_more = change.verdict is ChangeVerdict.REGRESSION
    return replace(change, verdict=ChangeVerdict.MORE if is_more else ChangeVerdict.LESS)


def _numbers(run: ObservedRun) -> list[int]:
    return sorted(each.rank for each in run.ranks)


def _by_rank(run: ObservedRun, *, same_ranks: bool) -> _Side:
    """Return the samples by rank; where the runs have different ranks, as one rank's."""
    if same_ranks:
        return {each.rank: each.samples for each in sorted(run.ranks, key=lambda each: each.rank)}
    names = dict.fromkeys(name for each in run.ranks for name in each.samples)
    joined = {
        name: np.concatenate([each.samples.get(name, np.zeros(each.steps)) for each in run.ranks]) for name in names
    }
    return {ALL_RANKS: joined}


def _samples_of(side: _Side, quantity: ComparedQuantity) -> dict[int, Samples]:
    absent = {rank: np.zeros_like(next(iter(samples.values()))) for rank, samples in side.items()}
    return {rank: samples.get(quantity, absent[rank]) for rank, samples in side.items()}


class _Comparator:
    """Compares quantities of two runs whose steps took `step_ns` before."""

    def __init__(self, step_ns: float, tolerance: float) -> None:
        self._step_ns, self._tolerance = step_ns, tolerance

    def change(
        self, quantity: ComparedQuantity, before: dict[int, Samples], after: dict[int, Samples], *, calls: float = 1.0
    ) -> QuantityChange:
        """Return the change of a quantity that happens `calls` times in a step; samples by rank, the same ranks."""
        medians = {rank: (float(np.median(before[rank])), float(np.median(after[rank]))) for rank in before}
        differences = {rank: after - before for rank, (before, after) in medians.items()}
        rank = max(differences, key=lambda each: abs(differences[each]))
        was, now = medians[rank]
        is_count = quantity.kind is QuantityKind.COUNT
        limit = max(
            _noise(list(before.values()), list(after.values()), was),
            _between_ranks(list(differences.values())),
            self._tolerance * max(was, min(was, now)),
            0.0 if is_count else WORTH_RATIO * self._step_ns / calls,
        )
        step_ratio = None if is_count or not self._step_ns else calls * (now - was) / self._step_ns
        return QuantityChange(
            quantity=quantity,
            before=was,
            after=now,
            limit=limit,
            step_ratio=step_ratio,
            rank=rank,
            verdict=_verdict(quantity, was, now, limit),
        )


def _verdict(quantity: ComparedQuantity, before: float, after: float, limit: float) -> ChangeVerdict:
    if abs(after - before) <= limit:
        return ChangeVerdict.SAME
    explains = quantity.kind is QuantityKind.PART
    if after > before:
        return ChangeVerdict.MORE if explains else ChangeVerdict.REGRESSION
    return ChangeVerdict.LESS if explains else ChangeVerdict.IMPROVEMENT


def _noise(before: Sequence[Samples], after: Sequence[Samples], was: float) -> float:
    """Return the difference of two medians that chance explains, from the scatter of steps within ranks and runs."""
    parts = [_without_outlier(each) for each in (*before, *after)]
    freedom = sum(len(each) - 1 for each in parts)
    if not freedom:
        return _UNKNOWN_NOISE * was
    variance = sum(float(np.square(each - each.mean()).sum()) for each in parts) / freedom
    count = [np.mean([len(each) for each in side]) for side in (before, after)]
    error = float(np.sqrt(variance * (1 / count[0] + 1 / count[1])))
    return SIGMAS * (1 + SIGMAS / freedom) * error


def _without_outlier(samples: Samples) -> Samples:
    """Return the samples without the one farthest from their median, if they are many."""
    if len(samples) < _TRIMMED_STEPS:
        return samples
    return np.delete(samples, np.abs(samples - np.median(samples)).argmax())


def _between_ranks(differences: Sequence[float]) -> float:
    """Return the scatter of the changes between ranks, which a fault of one rank does not affect."""
    if len(differences) < _SCATTER_RANKS:
        return 0.0
    return RANK_SIGMAS * _MAD_TO_SIGMA * float(np.median(np.abs(np.array(differences) - np.median(differences))))


def _collectives(before: ObservedRun, after: ObservedRun, comparator: _Comparator) -> list[QuantityChange]:
    """Return the changes of collectives by kind, size of the group and bytes: transmission, without waiting.

    If a run has only one rank, its durations contain the waiting for others.
    """
    sides = [_calls([each.collectives for each in run.ranks]) for run in (before, after)]
    steps = before.steps
    found = []
    for name in sides[0].keys() & sides[1].keys():
        was, now = ({ALL_RANKS: side[name]} for side in sides)
        calls = max(len(was[ALL_RANKS]) / max(steps, 1), 1.0)
        found.append(comparator.change(ComparedQuantity(QuantityKind.COLLECTIVE, name), was, now, calls=calls))
    return sorted(found, key=lambda each: each.quantity.name)


def _calls(parts: Sequence[RankCollectives]) -> dict[str, Samples]:
    """Return the time of each call by what it is."""
    if len(parts) > 1:
        table = match_collectives(parts)
        names = [
            _name(kind, size, volume)
            for kind, size, volume in zip(table.kinds, table.size.tolist(), table.bytes.tolist(), strict=True)
        ]
        return _grouped(names, transmission_ns(table))
    only = parts[0]
    sizes = [only.group_sizes.get(group, ABSENT) for group in only.groups]
    names = [_name(*each) for each in zip(only.kinds, sizes, only.bytes.tolist(), strict=True)]
    return _grouped(names, only.duration_ns.astype(np.float64))


def _name(kind: str, size: int, volume: int) -> str:
    ranks = "" if size == ABSENT else f" among {size} ranks"
    return f"{kind}{ranks}" + ("" if volume == ABSENT else f", {volume} bytes")


def _grouped(names: Sequence[str], values: NDArray[np.float64]) -> dict[str, Samples]:
    keys = np.array(names, dtype=object)
    return {
        name: values[(keys == name) & np.isfinite(values)]
        for name in dict.fromkeys(names)
        if np.isfinite(values[keys == name]).any()
    }
