# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""PerfTracker's rule as published: equations 6 to 11.

Choices that the equations leave open:

* the N sampled peers W_N are the same for all workers and functions, drawn once from a fixed seed; a worker that is
  one of them counts itself, at distance 0, and the sum is divided by N all the same;
* a distance equal to delta is not below it (equation 10 has "< delta": 0, otherwise 1);
* a dimension whose maximum is 0 is 0 for all ranks (0/0); one that a worker or a peer lacks counts 0 between them;
* all workers are in W, also those that do not run the function: their beta is 0.

Shape suffixes: D dimensions, W workers, N peers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.localisation.expected import ExpectedRange
from lockstep.diagnosis.localisation.far_peers import Counts, count_far
from lockstep.diagnosis.localisation.limits import (
    MATTERING_BETA,
    PRINTED_DISTANCE,
    PRINTED_PEERS,
    PRINTED_SPREADS,
)
from lockstep.diagnosis.localisation.matrix import BETA, Flags, Single

SEED = 11  # of the sample of peers: the same input gives the same answer


class AbnormalWorkers(NamedTuple):
    """Result of a rule on one function; arrays of shape (n_workers,).

    `unexpected` have D > 0, `unlike` differ from their peers; both only where beta > 1 %.
    """

    unexpected: Flags
    unlike: Flags


def sample_peers(workers: int) -> NDArray[np.int64]:
    """Return W_N of equation 9: N = min(100, |W|) workers without repetition."""
    count = min(int(PRINTED_PEERS.value), workers)
    return np.sort(np.random.default_rng(SEED).choice(workers, count, replace=False))


def distance_from_expected(values_DW: Single, expected: ExpectedRange) -> Single:
    """Return D of equation 7, float32: the sum over dimensions of a worker's distance from the range."""
    total_W = np.zeros(values_DW.shape[1], np.float32)
    for values_W, (least, most) in zip(values_DW, expected.box, strict=True):
        if np.fmin.reduce(values_W) >= least and np.fmax.reduce(values_W) <= most:
            continue
        outside_W = np.fmax(values_W - np.float32(most), np.float32(least) - values_W)
        total_W += np.fmax(outside_W, np.float32(0))
    return total_W


def normalised(values_DW: Single) -> Single:
    """Return equation 8: each dimension divided by its maximum over all workers; NaN where a worker lacks it."""
    maximum_D = np.fmax.reduce(values_DW, axis=1)
    divisor_D = np.where(maximum_D > 0, maximum_D, np.float32(1)).astype(np.float32)
    return values_DW / divisor_D[:, None]


def evaluate_by_paper(values_DW: Single, expected: ExpectedRange, peer_N: NDArray[np.int64]) -> AbnormalWorkers:
    """Return equation 11 for one function."""
    counts_W = count_far(normalised(values_DW), peer_N, np.float32(PRINTED_DISTANCE.value))
    matters_W = values_DW[BETA] > np.float32(MATTERING_BETA.value)
    unexpected_W = matters_W & (distance_from_expected(values_DW, expected) > 0)
    return AbnormalWorkers(unexpected_W, matters_W & above_spread(counts_W))


def above_spread(counts_W: Counts) -> Flags:
    """Return Delta > M + k MAD of equation 11, on counts of peers: exact, in quarters of a peer."""
    workers_of_count = np.bincount(counts_W)
    counts = np.arange(len(workers_of_count))
    twice_median = _twice_median(counts, workers_of_count)
    four_mad = _twice_median(np.abs(2 * counts - twice_median), workers_of_count)
    above_of_count: Flags = 4 * counts - 2 * twice_median > int(PRINTED_SPREADS.value) * four_mad
    return above_of_count[counts_W]


def _twice_median(values: NDArray[np.int64], weights: NDArray[np.int64]) -> int:
    """Return the sum of the two middle values, each value as often as its weight."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    middle = (below[-1] - 1) // 2, below[-1] // 2
    return int(sum(values[order][np.searchsorted(below, at, side="right")] for at in middle))
