"""Finds the parts of the step that became slower between two runs, on which ranks, beyond noise. Pure: two logs in.

Each part of each rank is cut into blocks of consecutive steps, whose means are nearly independent although steps are
not (batch means: Schmeiser, Operations Research 30, 1982). The blocks of both runs are compared by Welch's test (1947),
its t as a normal deviate (Wallace, Annals of Mathematical Statistics 30, 1959), at a level shared by all tests of the
comparison (Bonferroni). A change must also be large enough to matter: `MIN_STEP_RATIO` of a step and `MIN_PART_RATIO`
of the part, which is more than the difference between healthy devices of one model.
"""

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.record.step_table import STEP, StepTable, comparable_parts, table_of
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.record.steplog import StepLog

BLOCKS = 16
STEPS_MIN = 4 * BLOCKS
"""Fewest unflagged steps of each run: blocks of four are the shortest whose means scatter little."""
TAIL_RATIO = 0.025
"""Share of the longest steps that is winsorised: unflagged checkpoints and evaluations, pauses. These are a matter
for incidents."""
MIN_STEP_RATIO = 0.01
MIN_PART_RATIO = 0.02
FALSE_ALARMS = 0.01
"""Probability that a comparison of two equal runs reports anything, assuming independent blocks."""
_ALL_RATIO = 0.8
_SETTLING_STEPS = 10  # first steps of an attempt, skipped even without a flag: allocators and caches fill


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """A part that is slower or faster in the second run: means over these ranks, seconds per step.

    `step_ratio` is the change as a share of the first run's step. `deviate` is the largest change of any rank, in
    standard deviations of its noise. `is_all`: at least four of five ranks changed in this way.
    """

    part: str
    ranks: tuple[int, ...]
    is_all: bool
    before_seconds: float
    after_seconds: float
    step_ratio: float
    deviate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogComparison:
    """The comparison of two runs. `slower` and `faster` list the largest change first.

    `missing_parts` are parts that only one of the runs measured.
    """

    runs: tuple[str, str]
    step_seconds: tuple[float, float]
    steps: tuple[int, int]
    ranks: int
    slower: tuple[PartChange, ...]
    faster: tuple[PartChange, ...]
    missing_parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Block means of each part, float64 of shape (n_ranks, BLOCKS), seconds."""

    means: "Mapping[str, NDArray[np.float64]]"
    steps: int
    ranks: "NDArray[np.int64]"


def compare_runs(before: "StepLog", after: "StepLog") -> StepLogComparison:
    """Return what changed between two runs with the same ranks.

    Raises
    ------
    ConfigError
        The runs have different ranks, or one has too few unflagged steps to estimate its noise.
    """
    one, other = _blocks(before), _blocks(after)
    if not np.array_equal(one.ranks, other.ranks):
        raise ConfigError(
            f"run {after.run}: got {len(other.ranks)} ranks, expected the {len(one.ranks)} of run {before.run}: "
            "the parts of jobs of different sizes are not comparable"
        )
    shared = [name for name in one.means if name in other.means]
    step_s = float(np.nanmean(one.means[STEP])), float(np.nanmean(other.means[STEP]))
    limit = _deviate_of(FALSE_ALARMS / (len(shared) * len(one.ranks)))
    changes = [
        change
        for name in shared
        for change in _changes(name, one.means[name], other.means[name], one.ranks, step_s=step_s[0], limit=limit)
    ]
    changes.sort(key=lambda change: -abs(change.step_ratio))
    return StepLogComparison(
        runs=(before.run, after.run),
        step_seconds=step_s,
        steps=(one.steps, other.steps),
        ranks=len(one.ranks),
        slower=tuple(change for change in changes if change.step_ratio > 0),
        faster=tuple(change for change in changes if change.step_ratio < 0),
        missing_parts=tuple(sorted(one.means.keys() ^ other.means.keys())),
    )


def comparison_to_json(comparison: StepLogComparison) -> dict[str, Any]:
    """Return the JSON form."""
    return asdict(comparison)


def _blocks(log: "StepLog") -> _Blocks:
    table = table_of(log)
    chosen = _unflagged(table)
    if len(chosen) < STEPS_MIN:
        raise ConfigError(
            f"run {log.run}: got {len(chosen)} steps without a flag after the first {_SETTLING_STEPS} of an attempt, "
            f"expected at least {STEPS_MIN}"
        )
    cuts = np.linspace(0, len(chosen), BLOCKS + 1).astype(int)
    means = {}
    for name, values in comparable_parts(table).items():
        own = _without_tail(values[:, chosen])
        blocks = [own[:, first:last] for first, last in pairwise(cuts)]
        known = np.stack([np.isfinite(block).sum(axis=1) for block in blocks], axis=1)
        sums = np.stack([np.nansum(block, axis=1) for block in blocks], axis=1)
        means[name] = np.divide(sums, known, out=np.full(sums.shape, np.nan), where=known > 0)
    return _Blocks(means, len(chosen), table.ranks)


def _without_tail(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return values with the largest `TAIL_RATIO` of each rank reduced to the next smaller value (winsorised)."""
    known = np.isfinite(values).any(axis=1)
    cut = np.full(len(values), np.nan)
    if known.any():
        cut[known] = np.nanquantile(values[known], 1 - TAIL_RATIO, axis=1, method="lower")
    shortened: NDArray[np.float64] = np.minimum(values, cut[:, None])
    return shortened


def _unflagged(table: StepTable) -> "NDArray[np.intp]":
    """Return the plain training steps, without the first ones of each attempt."""
    first = np.searchsorted(table.attempt_of_step, table.attempt_of_step)  # steps are in order of their attempts
    is_plain = (table.flags_of_step & ~int(Flag.SKIPPED_OPTIMIZER)) == 0
    return np.flatnonzero(is_plain & (np.arange(table.steps) - first >= _SETTLING_STEPS))


def _changes(
    name: str,
    before: "NDArray[np.float64]",
    after: "NDArray[np.float64]",
    ranks: "NDArray[np.int64]",
    *,
    step_s: float,
    limit: float,
) -> list[PartChange]:
    """Return one change for the ranks whose part grew, and one for those whose part shrank."""
    deviates = _welch_deviates(before, after)
    with np.errstate(invalid="ignore"):
        own, grown = np.nanmean(before, axis=1), np.nanmean(after, axis=1)
        difference = grown - own
        is_worth = np.abs(difference) >= np.maximum(MIN_STEP_RATIO * step_s, MIN_PART_RATIO * own)
        is_changed = is_worth & (np.abs(deviates) >= limit)
    made = []
    for here in (is_changed & (difference > 0), is_changed & (difference < 0)):
        if here.any():
            mean_s = float(own[here].mean()), float(grown[here].mean())
            made.append(
                PartChange(
                    part=name,
                    ranks=tuple(ranks[here].tolist()),
                    is_all=bool(here.mean() >= _ALL_RATIO),
                    before_seconds=mean_s[0],
                    after_seconds=mean_s[1],
                    step_ratio=(mean_s[1] - mean_s[0]) / step_s,
                    deviate=float(np.abs(deviates[here]).max()),
                )
            )
    return made


def _welch_deviates(before: "NDArray[np.float64]", after: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the difference of two means in normal deviates, float64 of shape (n_ranks,); 0 if unknown."""
    counts = [np.isfinite(blocks).sum(axis=1) for blocks in (before, after)]
    known = (counts[0] >= 2) & (counts[1] >= 2)  # noqa: PLR2004  (a variance needs two)
    result = np.zeros(len(known))
    if not known.any():
        return result
    both = before[known], after[known]
    n = [np.isfinite(blocks).sum(axis=1) for blocks in both]
    errors = [np.nanvar(blocks, axis=1, ddof=1) / count for blocks, count in zip(both, n, strict=True)]
    variance = np.maximum(errors[0] + errors[1], np.finfo(float).tiny)
    freedom = variance**2 / np.maximum(errors[0] ** 2 / (n[0] - 1) + errors[1] ** 2 / (n[1] - 1), np.finfo(float).tiny)
    freedom = np.clip(freedom, 1.0, n[0] + n[1] - 2)
    t = (np.nanmean(both[1], axis=1) - np.nanmean(both[0], axis=1)) / np.sqrt(variance)
    wallace = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t**2 / freedom))
    result[known] = np.sign(t) * wallace
    return result


def _deviate_of(chance: float) -> float:
    """Return the normal deviate that a two-sided test exceeds with this probability, by bisection on erfc."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) > chance else (low, middle)
    return high
