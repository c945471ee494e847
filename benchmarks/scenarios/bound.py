"""How soon can any test find a slow part in noise? The delay of the most powerful one at the detector's error budget.

A CUSUM of log likelihood ratios has the least expected delay, in the worst case, of all tests that page as seldom
(Moustakides 1986). This one knows the part's noise, the size of the fault and the mean of its peers, looks at each part
of each rank, and spends the whole budget on that. Stalls, and noise that must be learnt, make any test slower still.
"""

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.job import PHASES, SIGMAS
from coordinator.detect.error_budget import cusum_limit
from lockstep.contracts.domains import parse_degrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.scenarios.job import Fault, Scenario

_PARTS = len(PHASES) + len(SIGMAS)
_RUNS = 4000
_STEPS = 200
_SEED = 1986


def shift_sigmas(scenario: "Scenario", fault: "Fault") -> float | None:
    """Return a fault's size in standard deviations of its part less the mean of its peers; None of other faults."""
    if not scenario.has_phases or fault.wanted != "rank" or fault.cause not in (*PHASES, *SIGMAS):
        return None
    if fault.cause in PHASES:
        sigma_s = scenario.noise.step * sqrt(PHASES[fault.cause]) * scenario.compute
    else:
        sigma_s = SIGMAS[fault.cause] * getattr(scenario, fault.cause)
    peers = scenario.ranks // parse_degrees(scenario.degrees, where="scenario").get("pp", 1) - 1
    return fault.ratio * scenario.own_seconds / (sigma_s * sqrt(1 + 1 / peers))


def least_delays(scenario: "Scenario", false_page_steps: float) -> "NDArray[np.int64] | None":
    """Return how many steps the most powerful test takes in each of many runs; None where no slow part is the fault."""
    shift = shift_sigmas(scenario, scenario.faults[0]) if len(scenario.faults) == 1 else None
    if shift is None or scenario.faults[0].end is not None:
        return None
    slack = shift / 2  # a log likelihood ratio, over the shift
    limit = max(cusum_limit(slack, scenario.ranks * _PARTS * false_page_steps), 0.0)
    sums, delays = np.zeros(_RUNS), np.full(_RUNS, _STEPS)
    rng = np.random.default_rng(_SEED)
    for step in range(1, _STEPS):
        sums = np.maximum(sums + rng.standard_normal(_RUNS) + shift - slack, 0.0)
        delays[(delays == _STEPS) & (sums > limit)] = step
    return delays
