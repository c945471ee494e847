# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Relative residuals of many series in one step, and bounds of their size.

Pure. Shapes: N series, P noise groups.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from coordinator.detect.ranks.noise_groups import NoiseGroups

    Floats = NDArray[np.float32]

_WILD_RATIO = np.float32(3.0)  # four times the peers' work is not noise: its scatter shows nothing about the others


@dataclass(slots=True)
class Deviation:
    """Residuals from the baselines, ratios; `raw_N` repeats the last value where `seen_N` is False.

    `seen_N` is None if all series have a value. `reach_P` and `reach` bound the residuals' absolute values per noise
    group and overall; `highest` is the largest residual.
    """

    raw_N: "Floats"
    reach_P: "Floats"
    reach: float
    highest: float
    seen_N: "NDArray[np.bool_] | None"

    def without_wild(self, before_N: "Floats", spans: "Iterable[slice]") -> "tuple[Floats, Floats]":
        """Return this step and the one before, clipped in the series groups (by their spans) that have wild values."""
        now_N = self.raw_N
        if self.highest > _WILD_RATIO:
            now_N, before_N = now_N.copy(), before_N.copy()
            for span in spans:
                if now_N[span].max(initial=0) > _WILD_RATIO:
                    for each_N in (now_N, before_N):
                        np.minimum(each_N[span], _WILD_RATIO, out=each_N[span])
        return now_N, before_N


def deviation(
    deviation_N: "NDArray[np.floating]", baseline_N: "Floats", last_N: "Floats", noise_groups: "NoiseGroups"
) -> Deviation:
    """Return the deviations less the baselines; where a deviation is NaN, the last residual is repeated."""
    raw_N: Floats = np.subtract(deviation_N, baseline_N, dtype=np.float32, casting="same_kind")
    highest_P = noise_groups.highest(raw_N)
    highest = float(np.maximum.reduce(highest_P))
    seen_N: NDArray[np.bool_] | None = None
    if math.isnan(highest):
        seen_N = ~np.isnan(raw_N)
        np.copyto(raw_N, last_N, where=~seen_N)
        highest_P = noise_groups.highest(raw_N)
        highest = float(np.maximum.reduce(highest_P))
    reach_P = noise_groups.reach(raw_N, highest_P)
    return Deviation(raw_N, reach_P, float(np.maximum.reduce(reach_P)), highest, seen_N)
