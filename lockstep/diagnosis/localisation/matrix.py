# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""The patterns of all workers as one dense array.

Shape suffixes: F functions, D dimensions (beta, mu, sigma), W workers, P patterns of all workers in a row.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import LocalError
from lockstep.diagnosis.localisation.limits import MATTERING_BETA
from lockstep.trace.patterns import FunctionClass, PatternSummary

BETA, MU, SIGMA = range(3)
DIMENSIONS = ("beta", "mu", "sigma")

CELLS_MAX = 1 << 25
"""Functions x workers: 400 MB, e.g. 33 functions of a million workers; PerfTracker has at most 20 relevant ones."""

Single = NDArray[np.float32]
Ranks = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Function:
    """What is compared between workers."""

    kind: FunctionClass
    stack: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class PatternMatrix:
    """`values_FDW` is float32: beta is 0 if a worker does not run a function, mu and sigma are NaN if not measured.

    `rank_W` are int64 ranks, `window_ns_W` the windows. `left_out` functions were relevant but exceeded the limit.

    Raises
    ------
    LocalError
        Shapes do not fit, or a beta is no number or negative.
    """

    functions: list[Function]
    rank_W: Ranks
    window_ns_W: NDArray[np.int64]
    values_FDW: Single
    left_out: int = 0

    def __post_init__(self) -> None:
        shape = len(self.functions), len(DIMENSIONS), len(self.rank_W)
        if self.values_FDW.shape != shape or self.values_FDW.dtype != np.float32:
            got = f"{self.values_FDW.dtype} of shape {self.values_FDW.shape}"
            raise LocalError(f"values_FDW: got {got}, expected float32 of shape {shape}")
        if self.window_ns_W.shape != self.rank_W.shape:
            raise LocalError(f"window_ns_W: got {self.window_ns_W.shape}, expected {self.rank_W.shape}")
        if self.values_FDW.size and not (self.values_FDW[:, BETA].min() >= 0):
            raise LocalError("beta: got a negative one or NaN, expected 0 or more")

    def __len__(self) -> int:
        return len(self.rank_W)


def gather(summaries: Mapping[int, PatternSummary]) -> PatternMatrix:
    """Return the patterns of all ranks, in order of rank, for the functions that are relevant on at least one of them.

    A function missing in a summary has beta 0 there: it is below 1e-4 of the window, or below all functions sent. A
    function listed twice has the sum of both betas, and mu and sigma of the last entry.
    """
    ranks = sorted(summaries)
    codes: dict[tuple[FunctionClass, tuple[str, ...], str], int] = {}
    function, worker = array("q"), array("q")
    values = array("d")
    nan = float("nan")
    for at, rank in enumerate(ranks):
        for each in summaries[rank].patterns:
            function.append(codes.setdefault(each.identity, len(codes)))
            worker.append(at)
            mu, sigma = each.mu, each.sigma
            values.extend((each.beta, nan if mu is None else mu, nan if sigma is None else sigma))
    windows_ns = [summaries[rank].window_ns for rank in ranks]
    return _dense(
        [Function(*identity) for identity in codes],
        np.array(ranks, np.int64),
        np.array(windows_ns, np.int64),
        function_P=np.array(function, np.int64),
        worker_P=np.array(worker, np.int64),
        values_PD=np.array(values, np.float64).reshape(-1, len(DIMENSIONS)),
    )


def _dense(
    functions: list[Function],
    rank_W: Ranks,
    window_ns_W: NDArray[np.int64],
    *,
    function_P: NDArray[np.int64],
    worker_P: NDArray[np.int64],
    values_PD: NDArray[np.float64],
) -> PatternMatrix:
    total_F = np.bincount(function_P, values_PD[:, BETA], len(functions))
    matters_F = np.zeros(len(functions), np.bool_)
    matters_F[function_P[values_PD[:, BETA] > MATTERING_BETA.value]] = True
    mattering = np.flatnonzero(matters_F)
    space = CELLS_MAX // max(len(rank_W), 1)
    kept = np.sort(mattering[np.argsort(-total_F[mattering], kind="stable")][:space])
    place_F = np.full(len(functions), -1, np.int64)
    place_F[kept] = np.arange(len(kept))
    chosen_P = place_F[function_P] >= 0
    at = place_F[function_P[chosen_P]], worker_P[chosen_P]
    values_FDW = np.full((len(kept), len(DIMENSIONS), len(rank_W)), np.nan, np.float32)
    values_FDW[:, BETA] = 0
    np.add.at(values_FDW[:, BETA], at, values_PD[chosen_P, BETA].astype(np.float32))
    for dimension in (MU, SIGMA):
        values_FDW[:, dimension][at] = values_PD[chosen_P, dimension]
    chosen = [functions[function] for function in kept.tolist()]
    return PatternMatrix(chosen, rank_W, window_ns_W, values_FDW, len(mattering) - len(kept))
