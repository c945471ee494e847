"""What of a slower run its culprits do not explain: all ranks may have more work while one of them is slow besides.

Pure. A slow rank or link makes the others wait, so the step's length says nothing of the others' own work. What does
is the middle rank's: it grows by what all ranks do longer, and by hardly more than a share of its waiting, for ranks
that wait look slower than they are (contention).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.detect.findings import LINK, SLOW_RANK, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.detect.findings import RunFinding

_GROWTH_MIN = 0.03  # of the step: what three steps of a whole run must be longer by, alone
_EXPLAINED_SHARE = 0.4  # of what a culprit costs; contention on waiting ranks makes up to 0.3 of it
_SLOW_MAX_SHARE = 1 / 3  # of the ranks; with more slow ones the middle rank may be one of them


def residual_growth(
    fluctuation: "RunFinding", culprits: "Iterable[RunFinding]", ranks_reporting: int
) -> "RunFinding | None":
    """Return what all ranks do longer besides their culprits, as a finding of the run; None where that may be nothing.

    `excess_seconds` of it is what the cause alone grew by on the middle rank: what the culprits cost is booked there.
    """
    culprits = list(culprits)
    slow = {rank for culprit in culprits if culprit.kind == SLOW_RANK for rank in culprit.ranks}
    usual_s = fluctuation.numbers.get("baseline_step_seconds", 0.0)
    if fluctuation.cause in (LINK, UNKNOWN) or not usual_s or len(slow) > _SLOW_MAX_SHARE * ranks_reporting:
        return None
    costs = [c.excess_seconds if c.lost_seconds is None else c.lost_seconds for c in culprits]
    growth_s = fluctuation.numbers.get(f"{fluctuation.cause}_growth_seconds", 0.0)
    if growth_s < _GROWTH_MIN * usual_s + _EXPLAINED_SHARE * max(costs, default=0.0):
        return None
    summary = f"all ranks: {growth_s * 1e3:.1f} ms a step more of {fluctuation.cause}, besides what single ones cost"
    return replace(
        fluctuation,
        excess_seconds=growth_s,
        excess_ratio=growth_s / usual_s,
        evidence=(*fluctuation.evidence, summary),
    )
