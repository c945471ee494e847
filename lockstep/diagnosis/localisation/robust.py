# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The rule in use: PerfTracker's two distances, the second one corrected (docs/localisation.md).

Equation 8 divides by the maximum, so one extreme worker hides all others, and a dimension that is nearly 0 on all ranks
becomes noise. A fixed distance of 0.4 misses effects below 20 %, and equation 11 assumes that the majority is healthy.
Here, per function and per role (workers that do the same work):

* the fastest 30 % of the role's workers, by beta, are the reference: slow is one-sided, so up to 70 % may be slow;
* a worker's beta counts above the reference's slowest, mu and sigma in both directions from the reference's medians,
  each in units of the reference's robust spread, which has floors;
* a worker is unlike the reference if these three together are long and one of them is an effect worth acting on;
* one that spends clearly less time than the reference costs no rank anything: it is not unlike (a short collective is
  the last arriver's, whose own slow function is found by itself).

Shape suffixes: D dimensions, W workers, M members of one role.
"""

from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.localisation.expected import ExpectedRange
from lockstep.diagnosis.localisation.limits import (
    EFFECT_BETA,
    EFFECT_RATIO,
    EFFECT_USE,
    FEW_SPREAD_FLOOR_RATIO,
    FEW_WORKERS,
    LEAST_LENGTH,
    LENGTH_OVER_EXTREME,
    MATTERING_BETA,
    REFERENCE_SHARE,
    ROLE_SHARE,
    SPREAD_FLOOR,
    SPREAD_FLOOR_RATIO,
)
from lockstep.diagnosis.localisation.matrix import BETA, MU, SIGMA, Flags, Single
from lockstep.diagnosis.localisation.paper_rule import SEED, AbnormalWorkers, distance_from_expected
from lockstep.trace.patterns import FunctionClass

SAMPLE_MAX = 1 << 16
"""Workers that a reference is computed from, which gives its quantiles to 0.5 % of a deviation for any number."""

_LOWEST_SHARE = 0.05
_SPREAD_OF_QUANTILES = 1.12  # deviations of a Gaussian between its 5 % and its 30 % quantile
_SPREAD_OF_MAD = 1.4826
_EFFECTS = {BETA: EFFECT_BETA.value, MU: EFFECT_USE.value, SIGMA: EFFECT_USE.value}


Members = slice | NDArray[np.intp]


class Reference(NamedTuple):
    """Reference of one role: beta, mu and sigma, and the unit in which each is measured; arrays of shape (3,).

    mu and sigma are NaN if no worker of the reference has them.
    """

    values: NDArray[np.float64]
    spreads: NDArray[np.float64]


class Roles:
    """Assigns workers to roles: `index_W` is the role of each worker, `members` the workers of each role.

    `sampled` are the workers of each role that a reference is computed from: all of them, or SAMPLE_MAX drawn from a
    fixed seed (with repetition).
    """

    def __init__(self, role_W: NDArray[np.int64] | None, workers: int) -> None:
        self.index_W = np.zeros(workers, np.int64)
        self.members: list[Members] = [slice(0, workers)]
        if role_W is not None:
            _, self.index_W = np.unique(role_W, return_inverse=True)
            order = np.argsort(self.index_W, kind="stable")
            self.members = list(np.split(order, np.flatnonzero(np.diff(self.index_W[order])) + 1))
        random = np.random.default_rng(SEED)
        counts = np.bincount(self.index_W) if workers else np.zeros(1, np.int64)
        self.sampled: list[Members] = []
        for members, count in zip(self.members, counts.tolist(), strict=True):
            drawn = np.sort(random.integers(0, count, SAMPLE_MAX)) if count > SAMPLE_MAX else None
            self.sampled.append(members if drawn is None else drawn if isinstance(members, slice) else members[drawn])


def evaluate_robust(
    values_DW: Single, expected: ExpectedRange, kind: FunctionClass, roles: Roles, length: float
) -> tuple[AbnormalWorkers, list[Reference]]:
    """Return what differs for one function, and the reference of each role; at least one worker.

    `length` is `length_limit` of all patterns that are evaluated.
    """
    matters_W = values_DW[BETA] > np.float32(MATTERING_BETA.value)
    unlike_W = np.zeros(len(matters_W), np.bool_)
    references = []
    for members, sampled in zip(roles.members, roles.sampled, strict=True):
        reference = reference_of(_running(values_DW[:, sampled], kind))
        references.append(reference)
        unlike_W[members] = is_unlike(values_DW[:, members], reference, length)
    unexpected_W = matters_W & (distance_from_expected(values_DW, expected) > 0)
    return AbnormalWorkers(unexpected_W, matters_W & unlike_W), references


def reference_of(values_DM: Single) -> Reference:
    """Return the reference of a role's workers; at least one."""
    beta_M = values_DM[BETA]
    floor_ratio = (SPREAD_FLOOR_RATIO if len(beta_M) >= FEW_WORKERS.value else FEW_SPREAD_FLOOR_RATIO).value
    lowest, highest = (round(share * (len(beta_M) - 1)) for share in (_LOWEST_SHARE, REFERENCE_SHARE.value))
    ordered = np.partition(beta_M, (lowest, highest))
    values, spreads = [float(ordered[highest])], [float(ordered[highest] - ordered[lowest]) / _SPREAD_OF_QUANTILES]
    fastest_M = beta_M <= ordered[highest]
    for uses_M in values_DM[MU:]:
        measured = uses_M[fastest_M]
        measured = measured[~np.isnan(measured)]
        values.append(float(np.median(measured)) if len(measured) else np.nan)
        spreads.append(float(np.median(np.abs(measured - values[-1]))) * _SPREAD_OF_MAD if len(measured) else np.nan)
    reference = np.array(values)
    return Reference(reference, np.maximum(np.maximum(spreads, floor_ratio * reference), SPREAD_FLOOR.value))


def length_limit(patterns: int) -> float:
    """Return the length of a difference, in robust spreads, that hardly any of `patterns` healthy patterns exceeds."""
    return max(LEAST_LENGTH.value, LENGTH_OVER_EXTREME.value + sqrt(2 * log(max(patterns, 1))))


def is_unlike(values_DM: Single, reference: Reference, length: float) -> Flags:
    """Return which workers differ from a reference; what was not measured on either side differs in nothing."""
    square_M = np.zeros(values_DM.shape[1], np.float32)
    effect_M = np.zeros(values_DM.shape[1], np.bool_)
    for dimension, (values_M, value, spread) in enumerate(
        zip(values_DM, reference.values.tolist(), reference.spreads.tolist(), strict=True)
    ):
        if np.isnan(value):
            continue
        effect = max(EFFECT_RATIO.value * value, _EFFECTS[dimension])
        off_M = values_M - np.float32(value)
        if dimension == BETA:
            shorter_M = off_M < -np.float32(effect)
            off_M = np.maximum(off_M, np.float32(0))
        off_M = np.abs(off_M)
        effect_M |= off_M > np.float32(effect)
        off_M /= np.float32(spread)
        off_M *= off_M
        square_M += off_M if not np.isnan(np.add.reduce(off_M)) else np.nan_to_num(off_M, copy=False)
    unlike_M: Flags = (square_M > np.float32(length**2)) & effect_M & ~shorter_M
    return unlike_M


def _running(values_DM: Single, kind: FunctionClass) -> Single:
    """Return the workers from which a reference may be computed.

    Workers without a device function have another, unconfigured role, since kernels follow from the program. Host
    functions occur irregularly (collections, retries), so lacking one is normal. A device function that very few of
    many workers run is evaluated as one that none should run; with few workers it is a stage of its own, without peers.
    """
    if kind is FunctionClass.HOST:
        return values_DM
    running_M = values_DM[BETA] > 0
    count = np.count_nonzero(running_M)
    hardly = max(2, ROLE_SHARE.value * len(running_M)) if len(running_M) >= FEW_WORKERS.value else 1
    runs_everywhere = count == len(running_M) or count < hardly
    return values_DM if runs_everywhere else values_DM[:, running_M]
