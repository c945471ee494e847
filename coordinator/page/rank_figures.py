# ruff: noqa: N806, N815  (names of arrays end in their shape, see the legend below)
"""Recent figures of each rank for the pages: own work, waits, and own work relative to its peers. Pure.

Shapes: R ranks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import middle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.decide.explain import ExplanationContext
    from coordinator.intake.timeline import StepRow

    Floats = NDArray[np.floating]

RECENT_STEPS = 10  # steps over which a rank's figures are medians, as in the API's list of ranks
_SHORT_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """Recent figures of each rank: arrays of shape (R,), seconds per step, NaN if not measured.

    `excess_R` is own work over the median of the ranks of the same pipeline stage, minus 1.
    """

    ranks: "NDArray[np.int64]"
    self_R: "Floats"
    wait_R: "Floats"
    excess_R: "Floats"


def figures(scene: "ExplanationContext") -> RankFigures | None:
    """Return the ranks' recent figures; None before the first step."""
    rows = scene.rows[-RECENT_STEPS:]
    if not rows:
        return None
    self_R = middle(np.stack([row.self_seconds for row in rows]))
    wait_R = middle(np.stack([waits(row) for row in rows]))
    ranks = rows[-1].ranks
    stage_R = np.asarray(scene.topology.stages)[ranks]
    excess_R = np.full(len(ranks), np.nan)
    for stage in np.unique(stage_R):
        members = stage_R == stage
        known = self_R[members & ~np.isnan(self_R)]
        usual = float(np.median(known)) if len(known) else 0.0
        if usual > _SHORT_S:
            excess_R[members] = self_R[members] / usual - 1
    return RankFigures(ranks=ranks, self_R=self_R, wait_R=wait_R, excess_R=excess_R)


def waits(row: "StepRow") -> "Floats":
    """Return the waits, array of shape (R,), seconds: the step minus own work."""
    seconds_R: Floats = np.maximum(row.duration - row.self_seconds, 0)
    return seconds_R
