# ruff: noqa: N803  (names of arrays end in their shape, as in `waiting`)
"""Which rank transmits longest, as reported by the vendor (Hermes, section 4.2.2, the second synchronisation)."""

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMMUNICATION, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.bandwidth import SLOW_LINK
from lockstep.diagnosis.communication_causes.collectives import Group
from lockstep.diagnosis.communication_causes.matching import CollectiveTable
from lockstep.diagnosis.communication_causes.thresholds import BLAME_SHARE, COLLECTIVES, WAIT_RATIO, WORTH_RATIO
from lockstep.diagnosis.communication_causes.waiting import Times, greatest, wait_ratio


def evaluate_transmission(table: CollectiveTable, window_ns: int) -> list[Finding] | NotEvaluated:
    """Return the ranks for whose transmission the others wait, by the transmission times of the vendor.

    This is Hermes' second synchronisation: T is a device's transmission (transit) time, so the slowest is to blame.
    """
    rule = "waiting for transmission"
    if not len(table) or not (table.transit_ns > 0).any():
        return NotEvaluated(rule=rule, reason="the traces do not distinguish transmission from waiting")
    groups = ((group, table.transit_ns[table.rows_of(group)]) for group in dict.fromkeys(table.groups))
    found = (_slow_transmission(group, transit, table.ranks, window_ns) for group, transit in groups)
    return [finding for finding in found if finding is not None]


def _slow_transmission(
    group: Group, transit_ns: NDArray[np.int64], ranks: tuple[int, ...], window_ns: int
) -> Finding | None:
    transit = np.where(transit_ns > 0, transit_ns, np.nan)
    transit = transit[np.asarray((~np.isnan(transit)).sum(axis=1)) > 1]
    ratio = wait_ratio(transit)
    if len(transit) < COLLECTIVES.value or ratio < WAIT_RATIO.value:
        return None
    last = np.nanargmax(transit, axis=1)
    slowest = np.bincount(last, minlength=len(ranks))
    at = int(slowest.argmax())
    lost_ns = int((greatest(transit) - _second(transit))[last == at].sum())
    if slowest[at] < BLAME_SHARE.value * len(transit) or lost_ns < WORTH_RATIO.value * window_ns:
        return None
    name = group[0] or "unnamed"
    mean_ms = float(np.nanmean(transit[:, at])) / 1e6
    return Finding(
        bottleneck=COMMUNICATION,
        cause=SLOW_LINK,
        ranks=(ranks[at],),
        subject=name,
        evidence=(
            (
                f"in group {name} R_wait is {ratio:.3f} over the transmission of {len(transit)} collectives "
                f"(threshold {WAIT_RATIO.value})"
            ),
            f"rank {ranks[at]} transmits longest in {slowest[at]} of them, {mean_ms:.3f} ms on average",
        ),
        lost_ns=lost_ns,
    )


def _second(values_SR: Times) -> Times:
    """Return the second largest known value of each row."""
    filled = np.where(np.isnan(values_SR), -np.inf, values_SR)
    second: Times = np.partition(filled, -2, axis=1)[:, -2]
    return second
