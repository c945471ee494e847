"""Finds the part of a slowdown that its culprits do not explain: all ranks may have more work while one is also slow.

Pure. A slow rank or link makes the others wait, so the duration of the step does not show the others' own work. The
middle rank's own work does: it grows by what all ranks do longer, and by little more than a share of its waiting,
because ranks that wait look slower than they are (contention). If the middle rank waits longer, only the amount can
decide: a step grows by no more than the total cost of its culprits, or twice that while a pipeline fills.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import LINK, SLOW_RANK, UNKNOWN, UNSYNCHRONISED_GC
from coordinator.detect.ranks.contention import CONTENTION_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.detect.anomalies import Anomaly

_GROWTH_MIN = 0.03  # of the step: least growth of three steps of a whole run without culprits
_WAITED_SHARE = 2.0  # of the culprits' cost: (m + p - 1) / m for m micro-batches on p <= m stages is less
_SLOW_MAX_SHARE = 1 / 3  # of the ranks; if more are slow, the middle rank may be one of them


def residual_growth(fluctuation: "Anomaly", culprits: "Iterable[Anomaly]", ranks_reporting: int) -> "Anomaly | None":
    """Return the growth of all ranks' work or waits beyond their culprits, as an anomaly of the run.

    None if it may be 0.

    Its `excess_seconds` is the growth of the cause alone on the middle rank; for waits, minus the culprits' cost, which
    is accounted to them.
    """
    culprits = list(culprits)
    if any(culprit.kind == UNSYNCHRONISED_GC and culprit.cause == fluctuation.cause for culprit in culprits):
        return None  # that is the run's own account of its collections
    usual_s = fluctuation.numbers.get("baseline_step_seconds", 0.0)
    costs_s = [c.excess_seconds if c.lost_seconds is None else c.lost_seconds for c in culprits]
    if fluctuation.cause in (LINK, UNKNOWN):
        grown_s = fluctuation.numbers.get("step_growth_seconds", 0.0)
        explained_s, booked_s = _WAITED_SHARE * sum(costs_s), sum(costs_s)
    elif _slow_ranks(culprits) <= _SLOW_MAX_SHARE * ranks_reporting:
        grown_s = fluctuation.numbers.get(f"{fluctuation.cause}_growth_seconds", 0.0)
        explained_s, booked_s = CONTENTION_SHARE * max(costs_s, default=0.0), 0.0
    else:
        return None
    if not usual_s or grown_s < _GROWTH_MIN * usual_s + explained_s:
        return None
    excess_s = grown_s - booked_s
    summary = f"all ranks: {excess_s * 1e3:.1f} ms more {fluctuation.cause} a step, in addition to individual culprits"
    return replace(
        fluctuation,
        excess_seconds=excess_s,
        excess_ratio=excess_s / usual_s,
        evidence=(*fluctuation.evidence, summary),
    )


def _slow_ranks(culprits: "Iterable[Anomaly]") -> int:
    """Return the number of slow ranks."""
    return len({rank for culprit in culprits if culprit.kind == SLOW_RANK for rank in culprit.ranks})
