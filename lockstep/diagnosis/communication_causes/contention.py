# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Collectives slowed down by computation: the same collective during computation and alone (Hermes, table 3).

Shape suffix: S collectives.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMMUNICATION, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.bandwidth import bandwidths
from lockstep.diagnosis.communication_causes.matching import CollectiveTable
from lockstep.diagnosis.communication_causes.thresholds import (
    ALONE_OVERLAP,
    BANDWIDTH_RATIO,
    COLLECTIVES,
    CONTENTION_OVERLAP,
    WORTH_RATIO,
)
from lockstep.trace.columns import TraceColumns, WorkKind
from lockstep.trace.intervals import Intervals, common, merged

CONTENTION = "communication_contention"


def computing(columns: TraceColumns) -> Intervals:
    """Return when the rank's device computes."""
    at = columns.on_device & (columns.work == WorkKind.COMPUTE)
    return merged(columns.start_ns[at], columns.end_ns[at])


def overlap_ratio(table: CollectiveTable, compute: Mapping[int, Intervals]) -> NDArray[np.float64]:
    """Return the share of each transmission that overlaps computation, of shape (n_collectives,).

    Measured on the rank with the shortest duration, whose collective is the transmission, by its own clock; NaN if that
    rank's computation is not given.
    """
    duration = np.where(table.present, table.duration_ns, np.iinfo(np.int64).max)
    ratio_S = np.full(len(table), np.nan)
    for row, column in enumerate(duration.argmin(axis=1).tolist() if len(table) else []):
        rank, length = table.ranks[column], int(table.duration_ns[row, column])
        if rank in compute and length > 0:
            start = table.start_ns[row, column]
            own = merged(np.array([start]), np.array([start + length]))
            ratio_S[row] = common(own, _near(compute[rank], own)).measure_ns() / length
    return ratio_S


def find_contention(
    table: CollectiveTable, compute: Mapping[int, Intervals], window_ns: int
) -> list[Finding] | NotEvaluated:
    """Return groups whose collectives during computation reach less than 80 % of the bandwidth that they reach alone.

    Collectives of equal group, kind and bytes are compared. Both cases must occur often enough for a comparison.
    """
    ratio_S, rates = overlap_ratio(table, compute), bandwidths(table)
    pairs: dict[object, list[int]] = defaultdict(list)
    for row in np.flatnonzero(~np.isnan(ratio_S) & ~np.isnan(rates.algorithm)).tolist():
        pairs[table.groups[row], table.kinds[row], int(table.bytes[row])].append(row)
    found, compared = [], 0
    for places in pairs.values():
        rows = np.array(places)
        during, alone = rows[ratio_S[rows] >= CONTENTION_OVERLAP.value], rows[ratio_S[rows] <= ALONE_OVERLAP.value]
        if min(len(during), len(alone)) < COLLECTIVES.value:
            continue
        compared += 1
        slow, fast = float(np.median(rates.algorithm[during])), float(np.median(rates.algorithm[alone]))
        lost_ns = int((rates.transmission_ns[during] * (1 - rates.algorithm[during] / fast)).clip(min=0).sum())
        if slow < BANDWIDTH_RATIO.value * fast and lost_ns >= WORTH_RATIO.value * window_ns:
            found.append(_finding(table, (during, alone), (slow, fast), lost_ns))
    if not compared:
        return NotEvaluated(
            rule=CONTENTION, reason="no collective runs often enough both during computation and without it"
        )
    return sorted(found, key=lambda each: -(each.lost_ns or 0))


def _finding(
    table: CollectiveTable,
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    rates: tuple[float, float],
    lost_ns: int,
) -> Finding:
    during, alone = rows
    first = int(during[0])
    group = table.groups[first]
    return Finding(
        bottleneck=COMMUNICATION,
        cause=CONTENTION,
        ranks=group[1] or table.ranks,
        subject=group[0] or "unnamed",
        evidence=(
            (
                f"{table.kinds[first]} of {int(table.bytes[first])} bytes moves {rates[0] / 1e9:.2f} GB/s in "
                f"{len(during)} collectives during computation and {rates[1] / 1e9:.2f} GB/s in {len(alone)} without"
            ),
            f"that is {rates[0] / rates[1]:.0%} (threshold {BANDWIDTH_RATIO.value:.0%})",
        ),
        lost_ns=lost_ns,
        confidence=MEDIUM,
    )


def _near(intervals: Intervals, own: Intervals) -> Intervals:
    """Return the intervals that may overlap `own`."""
    first = int(np.searchsorted(intervals.end_ns, own.start_ns[0], side="right"))
    last = int(np.searchsorted(intervals.start_ns, own.end_ns[0], side="left"))
    return Intervals(intervals.start_ns[first:last], intervals.end_ns[first:last])
