"""PerfTracker's figure for a slower run: the mean of its last 50 steps over the shortest of them.

Pure. The published rule (5 %, PerfTracker 4.1) always holds on a noisy healthy job, so a second condition is added: the
figure must exceed what noise explains.
"""

import math
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.detect.runs.run_window import RunWindow
    from coordinator.settings.policy import FluctuationPolicy

PUBLISHED_STEPS = 50


def mean_over_best(last: "RunWindow", sigma: float, policy: "FluctuationPolicy") -> float | None:
    """Return the mean over the shortest step minus 1, ratio; None if noise explains it or steps are too few.

    `last` holds deviations as logarithms, without pauses; `sigma` is the noise of single steps.
    """
    if len(last) < PUBLISHED_STEPS:
        return None
    values = last.whole()
    deviation = fmean(values) - min(values)
    beats = deviation > max(math.log1p(policy.mean_ratio), policy.mean_sigmas * sigma)
    return math.expm1(deviation) if beats else None
