"""Bandwidth of collectives, compared with what their link is expected to reach.

Algorithm bandwidth is the group's bytes over the transmission time. Bus bandwidth is that times the factor of the
collective, which makes it comparable with one link whatever the number of ranks (nccl-tests). The transmission time of
a collective is known only if several ranks were captured or the vendor records it: one rank's duration contains
waiting.

Shape suffix: S collectives.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMMUNICATION, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.collectives import Group, bus_factor
from lockstep.diagnosis.communication_causes.matching import CollectiveTable
from lockstep.diagnosis.communication_causes.thresholds import (
    BANDWIDTH_RATIO,
    COLLECTIVES,
    SMALL_MESSAGE_BYTES,
    WORTH_RATIO,
)
from lockstep.diagnosis.communication_causes.waiting import transmission_ns

SLOW_LINK = "slow_link"
RULE = "bandwidth of collectives"

Rates = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """Bytes per second of each matched collective, arrays of shape (n_collectives,), NaN if bytes are unknown."""

    transmission_ns: Rates
    algorithm: Rates
    bus: Rates


def bandwidths(table: CollectiveTable) -> Bandwidths:
    """Return the bandwidths of all matched collectives."""
    spent_ns = transmission_ns(table)
    moved = np.where(table.bytes > 0, table.bytes, np.nan)
    algorithm = moved / np.where(spent_ns > 0, spent_ns, np.nan) * 1e9
    factor = [bus_factor(kind, int(size)) for kind, size in zip(table.kinds, table.size, strict=True)]
    return Bandwidths(
        transmission_ns=spent_ns, algorithm=algorithm, bus=algorithm * np.array(factor, np.float64).reshape(len(table))
    )


def evaluate_bandwidth(
    table: CollectiveTable, window_ns: int, expected: Mapping[Group, float] | None = None
) -> list[Finding] | NotEvaluated:
    """Return the groups whose large collectives reach clearly less than the bandwidth of their links.

    `expected` is the bus bandwidth of a group in bytes per second, where known. Groups without one are compared with
    groups that do the same (kind, bytes, ranks), if there are at least two others. Small collectives are left out:
    latency dominates their time (`messages`).
    """
    large = np.flatnonzero(table.bytes >= SMALL_MESSAGE_BYTES.value)
    if not len(large):
        return NotEvaluated(
            rule=RULE, reason=f"no collective of {SMALL_MESSAGE_BYTES.value / 1e6:.0f} MB or more is shared"
        )
    rates = bandwidths(table)
    found, compared = [], 0
    peers = _like_groups(table, rates, large)
    for group in dict.fromkeys(table.groups):
        rows = np.intersect1d(table.rows_of(group), large)
        rows = rows[~np.isnan(rates.bus[rows])]
        if len(rows) < COLLECTIVES.value:
            continue
        given = (expected or {}).get(group)
        limit = (
            np.full(len(rows), given) if given is not None else np.array([_peers(peers, table, row) for row in rows])
        )
        known = ~np.isnan(limit)
        compared += int(known.any())
        if known.any():
            found += _low(table, rates, rows[known], limit[known], (window_ns, given is not None))
    if not compared:
        return NotEvaluated(
            rule=RULE,
            reason="the expected bandwidth of the groups' links is not known, and no other groups do the same",
        )
    return sorted(found, key=lambda each: -(each.lost_ns or 0))


def _low(
    table: CollectiveTable, rates: Bandwidths, rows: NDArray[np.int64], limit: Rates, how: tuple[int, bool]
) -> list[Finding]:
    window_ns, is_given = how
    ratio = float(np.median(rates.bus[rows] / limit))
    lost_ns = int((rates.transmission_ns[rows] * (1 - rates.bus[rows] / limit)).clip(min=0).sum())
    if ratio >= BANDWIDTH_RATIO.value or lost_ns < WORTH_RATIO.value * window_ns:
        return []
    group = table.groups[int(rows[0])]
    ranks = group[1] or tuple(table.ranks[at] for at in np.flatnonzero(table.present[rows].any(axis=0)).tolist())
    source = "expected of its link" if is_given else "median of the groups that do the same"
    return [
        Finding(
            bottleneck=COMMUNICATION,
            cause=SLOW_LINK,
            ranks=ranks,
            subject=group[0] or "unnamed",
            evidence=(
                (
                    f"{len(rows)} collectives of group {group[0] or 'unnamed'} have a bus bandwidth of "
                    f"{np.median(rates.bus[rows]) / 1e9:.2f} GB/s, {ratio:.0%} of {np.median(limit) / 1e9:.2f} GB/s "
                    f"({source}; threshold {BANDWIDTH_RATIO.value:.0%})"
                ),
                f"their transmission without waiting takes {rates.transmission_ns[rows].sum() / 1e6:.3f} ms",
            ),
            lost_ns=lost_ns,
            confidence="high" if is_given else MEDIUM,
        )
    ]


Likeness = tuple[str, int, int]


def _like_groups(
    table: CollectiveTable, rates: Bandwidths, rows: NDArray[np.int64]
) -> dict[Likeness, dict[Group, list[float]]]:
    """Return bus bandwidths by operation (kind, bytes, ranks) and group."""
    found: dict[Likeness, dict[Group, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.tolist():
        if not np.isnan(rates.bus[row]):
            found[_likeness(table, row)][table.groups[row]].append(float(rates.bus[row]))
    return found


def _likeness(table: CollectiveTable, row: int) -> Likeness:
    return table.kinds[row], int(table.bytes[row]), int(table.size[row])


def _peers(peers: Mapping[Likeness, Mapping[Group, list[float]]], table: CollectiveTable, row: int) -> float:
    """Return the median of the other groups' medians, NaN if there are fewer than two others."""
    groups = peers.get(_likeness(table, row), {})
    others = [float(np.median(values)) for group, values in groups.items() if group != table.groups[row]]
    return float(np.median(others)) if len(others) > 1 else float("nan")
