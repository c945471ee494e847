# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Computes figures of ranks and domains over the last steps, in a form that can be stored and shown.

Pure. `explain.py` interprets them.

Shapes: K steps, R ranks, M members of one stage, replica or domain.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import Groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow

    Rows = Sequence[StepRow]
    Columns = NDArray[np.intp]

_DIGITS = 6  # significant digits of every figure: a nanosecond in a millisecond
_DIFFERENCE_TO_SIGMA = 0.886  # Gaussian: E|a - b| = 1.128 sigma
_NOISE_STEPS_MIN = 4


def columns_of(rows: "Rows", ranks: Sequence[int]) -> "Columns":
    """Return the columns of the given ranks in the rows; ranks that the rows lack are skipped."""
    return np.flatnonzero(np.isin(rows[-1].ranks, np.asarray(ranks, dtype=np.int64)))


def own_work(rows: "Rows", column: int) -> "NDArray[np.float64]":
    """Return the own work of one rank in each step, array of shape (K,), seconds."""
    return np.array([row.self_seconds[column] for row in rows], dtype=np.float64)


def references(rows: "Rows", members: "Columns") -> "NDArray[np.float64]":
    """Return the reference of the members' own work in each step, as the detector's, of shape (K,), seconds."""
    groups = Groups(np.zeros(len(members), dtype=np.intp))
    return np.array([float(groups.reference(row.self_seconds[members])[0]) for row in rows])


def replica_excess(rows: "Rows", replica: "Columns", stage_R: "NDArray[np.int64]") -> "NDArray[np.float64] | None":
    """Return the excess over their stages' references that a replica's ranks share, of shape (K,), seconds.

    None if the replica is one rank or all ranks.
    """
    if not 1 < len(replica) < len(stage_R):
        return None
    rest_KM = np.array([row.self_seconds[replica] for row in rows], dtype=np.float64)
    stage_M = stage_R[replica]
    for stage in set(stage_M.tolist()):
        reference_K = references(rows, np.flatnonzero(stage_R == stage))
        rest_KM[:, stage_M == stage] -= reference_K[:, None]
    groups = Groups(np.zeros(len(replica), dtype=np.intp))
    return np.array([float(groups.reference(rest_M)[0]) for rest_M in rest_KM])


def transfers(rows: "Rows", kind: str, members: "Columns") -> "NDArray[np.float64]":
    """Return the shortest time that any member was blocked, of shape (K,), seconds; NaN if one is missing."""
    if not len(members):
        return np.full(len(rows), np.nan)
    least = [row.transfers[kind][members].min() if kind in row.transfers else np.nan for row in rows]
    return np.array(least, dtype=np.float64)


def noise(excess_K: "NDArray[np.float64]", before: int) -> dict[str, float | int | None]:
    """Return the noise of the first `before` samples (of all, if those are too few), and the median of the rest."""
    quiet_K = excess_K[:before] if before >= _NOISE_STEPS_MIN else excess_K
    difference_K = np.abs(np.diff(quiet_K))
    known_K = difference_K[~np.isnan(difference_K)]
    return {
        "sigma_ratio": number(_DIFFERENCE_TO_SIGMA * float(known_K.mean())) if len(known_K) else None,
        "differences": len(known_K),
        "median_excess_ratio": median(excess_K[before:]),
    }


def median(values: "NDArray[np.floating]") -> float | None:
    """Return the median of the known values; None if there are none."""
    known = values[~np.isnan(values)]
    return number(float(np.median(known))) if len(known) else None


def numbers(values_K: "NDArray[np.floating]") -> list[float | None]:
    """Return the values in JSON form, as `number` does."""
    return [number(float(value)) for value in values_K]


def number(value: float) -> float | None:
    """Return a value in JSON form: rounded to `_DIGITS`, None if unknown."""
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
