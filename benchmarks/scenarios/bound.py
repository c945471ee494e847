# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""How soon can any test find a fault in noise? The delay of the most powerful one at the detector's error budget.

A CUSUM of log likelihood ratios has the least expected delay, in the worst case, of all tests that page as seldom
(Moustakides 1986). This one knows the noise, the size of the fault and the mean of its peers, looks at each part of
each rank or at the run, and spends the whole budget on that. Stalls, and noise that must be learnt, make any test
slower still. For single slow steps it is the number of them that chance brings so seldom (Neyman and Pearson 1933).
So it is for a hang in a step log: the number of ranks that lack their last records before a restart.

Shapes: W rows, R runs, S steps since the fault began, C counts.
"""

from dataclasses import replace
from math import factorial, sqrt
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.job import HANG, PHASES, SIGMAS, Noise
from benchmarks.scenarios.model import generate
from coordinator.detect.error_budget import cusum_limit
from lockstep.contracts.domains import parse_degrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.scenarios.job import Fault, Scenario

_PARTS = len(PHASES) + len(SIGMAS)
_RUNS = 4000
_STEPS = 200
_SEED = 1986
_MAD_TO_SIGMA = 1.4826
_HEALTHY_RATE = 1 / 2000  # of slow steps of a healthy host, as in `coordinator/detect/ranks/intermittent.py`
_COUNTS_MAX = 12


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


def job_shift(scenario: "Scenario") -> tuple[float, float] | None:
    """Return a slower job's size in standard deviations of a step, and the correlation of neighbours; None of others.

    Both are those of the logarithms of the generated step times, with the fault and without it.
    """
    fault = scenario.faults[0]
    if fault.wanted != "job" or not fault.ratio or scenario.noise.common <= Noise().common:
        return None
    healthy_W = np.log(generate(replace(scenario, faults=())).duration_W)
    slower_W = np.log(generate(scenario).duration_W)
    scatter = _MAD_TO_SIGMA * float(np.median(np.abs(healthy_W - np.median(healthy_W))))
    return float(np.median((slower_W - healthy_W)[fault.begin :])) / scatter, scenario.noise.common_memory


def least_delays(scenario: "Scenario", false_page_steps: float) -> "NDArray[np.int64] | None":
    """Return how many steps the most powerful test takes in each of many runs; None where no bound is computed."""
    if len(scenario.faults) != 1 or scenario.faults[0].end is not None:
        return None
    fault = scenario.faults[0]
    rng = np.random.default_rng(_SEED)
    if fault.wanted == "rank" and fault.scatter_rate:
        return _of_counts(fault.scatter_rate, scenario.ranks * false_page_steps, rng)
    shift = shift_sigmas(scenario, fault)
    if shift is not None:
        return _of_shift(np.full(_STEPS, shift), scenario.ranks * _PARTS * false_page_steps, rng)
    slower = job_shift(scenario)
    if slower is None:
        return None
    size, alike = slower
    residual_S = np.full(_STEPS, size * sqrt((1 - alike) / (1 + alike)))  # after the first step, which has none before
    residual_S[1] = size / sqrt(1 - alike**2)
    return _of_shift(residual_S, false_page_steps, rng)


def hang_recall(scenario: "Scenario", false_page_steps: float) -> float | None:
    """Return the share of hangs of one rank that the most powerful test of a step log finds; None of other faults.

    A rank that hangs lacks its last records before the restart, as a rank does that has lost them: nothing else in the
    log differs. The number of such ranks is a Poisson variable in a healthy job and one more in a hang, so the most
    powerful test pages from a number on, which chance may bring once in `false_page_steps` (Neyman and Pearson 1933).
    It knows the rate of lost records and spends the whole budget; that it must also name the right rank is left out.
    """
    fault = scenario.faults[0]
    if fault.cause != HANG or fault.end is None or len(fault.ranks) != 1:
        return None
    mean = np.array([scenario.ranks * scenario.interruptions.missing ** (fault.end - fault.begin)])
    left, recall = scenario.steps / (false_page_steps * len(scenario.restarts)), 0.0
    for count in range(int(mean[0] + 10 * sqrt(mean[0])) + _COUNTS_MAX, 0, -1):
        by_chance, in_hang = float(_poisson(count, mean)[0]), float(_poisson(count - 1, mean)[0])
        if by_chance > left:
            return recall + in_hang * left / by_chance
        left, recall = left - by_chance, recall + in_hang
    return recall


def _of_shift(shift_S: "NDArray[np.float64]", steps: float, rng: np.random.Generator) -> "NDArray[np.int64]":
    """Return the delays for a shift of white noise, in its standard deviations in each step; the first is step 1."""
    slack = shift_S[-1] / 2  # a log likelihood ratio, over the shift
    limit = max(cusum_limit(slack, steps), 0.0)
    sums, delays = np.zeros(_RUNS), np.full(_RUNS, _STEPS)
    for step in range(1, _STEPS):
        sums = np.maximum(sums + rng.standard_normal(_RUNS) + shift_S[step] - slack, 0.0)
        delays[(delays == _STEPS) & (sums > limit)] = step
    return delays


def _of_counts(share: float, steps: float, rng: np.random.Generator) -> "NDArray[np.int64]":
    """Return the delays for steps that are slow beyond doubt, a share of all, where hosts have one in 2,000.

    A test that looks at n steps needs so many slow ones that chance brings them once in `steps` / n looks.
    """
    count_RS = np.cumsum(rng.random((_RUNS, _STEPS + 1)) < share, axis=1)
    looked_S = np.arange(1, _STEPS + 2)
    chance_CS = np.cumsum([_poisson(count, looked_S * _HEALTHY_RATE) for count in range(_COUNTS_MAX)], axis=0)
    needed_S = np.argmax(1 - chance_CS < looked_S / steps, axis=0) + 1
    found_RS = count_RS >= needed_S
    return np.where(found_RS.any(axis=1), np.argmax(found_RS, axis=1) + 1, _STEPS + 1)


def _poisson(count: int, mean_S: "NDArray[np.floating]") -> "NDArray[np.floating]":
    chance_S: NDArray[np.floating] = mean_S**count * np.exp(-mean_S) / factorial(count)
    return chance_S
