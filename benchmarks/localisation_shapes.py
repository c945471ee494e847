# ruff: noqa: N803, N806  (names of arrays end in their shape: F functions, D dimensions, W workers)
"""Planted shapes: patterns of a healthy job with a known fault, after PerfTracker's cases (section 6) and beyond.

Each worker's pattern of each function is drawn around the function's own by a relative spread, independently; then the
fault is planted. What is planted is a set of (function, worker) pairs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.localisation import Function, Localisation, PatternMatrix
from lockstep.trace.patterns import FunctionClass

WINDOW_NS = 20_000_000_000
CASE_1, CASE_2 = 2560, 3072
"""Workers of the paper's two jobs."""
SPREAD = 0.03
GEMM, ALL_GATHER, RECEIVE, FORWARD = 0, 13, 15, 16
COLLECTIONS = range(15, 20)
_DATA_PARALLEL = 16

_BETAS = {
    FunctionClass.COMPUTE: (0.20, 0.12, 0.08, 0.05, 0.04, 0.03, 0.02, 0.015, 0.015, 0.012),
    FunctionClass.MEMORY: (0.02, 0.015, 0.012),
    FunctionClass.COLLECTIVE: (0.08, 0.04),
    FunctionClass.HOST: (0.005, 0.006, 0.004, 0.003, 0.002),
}
_USES = {
    FunctionClass.COMPUTE: (0.9, 0.05),
    FunctionClass.MEMORY: (0.6, 0.1),
    FunctionClass.COLLECTIVE: (0.3, 0.05),
    FunctionClass.HOST: (0.8, 0.1),
}
Values = NDArray[np.float64]
Pairs = set[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A job with what is planted in it; `of_suspects` if only those to look at count, not all that are abnormal."""

    name: str
    matrix: PatternMatrix
    planted: Pairs
    groups: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    of_suspects: bool = False


def healthy(workers: int, random: np.random.Generator, spread: float = SPREAD) -> Values:
    """Return patterns of a healthy job, array of shape (20, 3, n_workers)."""
    base = np.array([(beta, *_USES[kind]) for kind, betas in _BETAS.items() for beta in betas])
    return np.maximum(base[:, :, None] * (1 + spread * random.standard_normal((*base.shape, workers))), 0)


def matrix_of(values_FDW: Values) -> PatternMatrix:
    """Return patterns as they are localised."""
    kinds = [kind for kind, betas in _BETAS.items() for _ in betas]
    functions = [Function(kind, (), f"{kind}_{at}") for at, kind in enumerate(kinds)]
    workers = values_FDW.shape[2]
    values = np.clip(values_FDW, 0, 1).astype(np.float32)
    return PatternMatrix(functions, np.arange(workers), np.full(workers, WINDOW_NS), values)


def score(shape: Shape, found: Localisation) -> tuple[float, float]:
    """Return recall and precision of (function, worker) pairs; of a healthy job precision is the share flagged."""
    at = {function: index for index, function in enumerate(shape.matrix.functions)}
    named: Pairs = set()
    for each in found.abnormal:
        ranks = each.suspects if shape.of_suspects else each.ranks
        named |= {(at[each.function], rank) for rank in ranks.tolist()}
    if not shape.planted:
        return float("nan"), len(named) / (len(shape.matrix.functions) * len(shape.matrix))
    right = len(named & shape.planted)
    return right / len(shape.planted), right / len(named) if named else 0.0


def shapes(seed: int) -> list[Shape]:
    """Return all shapes of one seed."""
    return [make(np.random.default_rng((seed, at))) for at, make in enumerate(_MAKERS)]


def _slower(values_FDW: Values, function: int, chosen: NDArray[np.int64], times: tuple[float, ...]) -> Pairs:
    """Multiply beta, mu and sigma (as many as given) of a function on some workers."""
    for dimension, factor in enumerate(times):
        values_FDW[function, dimension, chosen] *= factor
    return {(function, worker) for worker in chosen.tolist()}


def _throttled(name: str, share: float, beta: float, usage: float) -> Callable[[np.random.Generator], Shape]:
    def make(random: np.random.Generator) -> Shape:
        values_FDW = healthy(CASE_1, random)
        chosen = random.choice(CASE_1, round(share * CASE_1), replace=False)
        planted = _slower(values_FDW, GEMM, chosen, (beta, usage))
        return Shape(name, matrix_of(values_FDW), planted)

    return make


def _links_down(name: str, *, only_culprits: bool) -> Callable[[np.random.Generator], Shape]:
    """Three data-parallel groups of 16 with one worker each without NVLink: all 48 are slow, three use more PCIe."""

    def make(random: np.random.Generator) -> Shape:
        values_FDW = healthy(CASE_1, random)
        group_count = CASE_1 // _DATA_PARALLEL
        worker_W = np.arange(CASE_1)
        groups = {"tp": worker_W // 8, "dp": worker_W % group_count}
        slow = random.choice(group_count, 3, replace=False)
        members = np.flatnonzero(np.isin(groups["dp"], slow))
        culprits = slow + group_count * random.integers(0, _DATA_PARALLEL, 3)
        everybody = _slower(values_FDW, ALL_GATHER, members, (2.5, 1.0, 3.0))
        _slower(values_FDW, ALL_GATHER, culprits, (1.0, 2.0, 1 / 3))
        planted = {(ALL_GATHER, worker) for worker in culprits.tolist()} if only_culprits else everybody
        return Shape(name, matrix_of(values_FDW), planted, groups, of_suspects=only_culprits)

    return make


def _waiting_for_storage(name: str, share: float) -> Callable[[np.random.Generator], Shape]:
    def make(random: np.random.Generator) -> Shape:
        values_FDW = healthy(CASE_2, random)
        chosen = random.choice(CASE_2, round(share * CASE_2), replace=False)
        values_FDW[RECEIVE, 0, chosen] = random.uniform(0.03, 0.2, len(chosen))
        return Shape(name, matrix_of(values_FDW), {(RECEIVE, worker) for worker in chosen.tolist()})

    return make


def _slow_forward(random: np.random.Generator) -> Shape:
    values_FDW = healthy(CASE_2, random)
    planted = _slower(values_FDW, FORWARD, np.arange(CASE_2), (20.0,))
    return Shape("C2P2 Python forward slow on all", matrix_of(values_FDW), planted)


def _collections(random: np.random.Generator) -> Shape:
    """Each of 15 % of the workers collects garbage inside one of five functions, wherever it was."""
    values_FDW = healthy(CASE_2, random)
    chosen = random.choice(CASE_2, round(0.15 * CASE_2), replace=False)
    function = random.choice(list(COLLECTIONS), len(chosen))
    values_FDW[function, 0, chosen] = random.uniform(0.02, 0.08, len(chosen))
    planted = set(zip(function.tolist(), chosen.tolist(), strict=True))
    return Shape("C2P3 asynchronous GC, 15 % of workers, 5 functions", matrix_of(values_FDW), planted)


def _masked(random: np.random.Generator) -> Shape:
    values_FDW = healthy(CASE_1, random)
    chosen = random.choice(CASE_1, 21, replace=False)
    planted = _slower(values_FDW, ALL_GATHER, chosen[:20], (2.0,)) | _slower(
        values_FDW, ALL_GATHER, chosen[20:], (9.0,)
    )
    return Shape("20 workers at twice beta, one at nine times", matrix_of(values_FDW), planted)


def _healthy(name: str, spread: float, *, steady: bool = False) -> Callable[[np.random.Generator], Shape]:
    def make(random: np.random.Generator) -> Shape:
        values_FDW = healthy(CASE_1, random, spread)
        if steady:
            values_FDW[:, 2] = np.abs(random.normal(0, 2e-4, values_FDW[:, 2].shape))
        return Shape(name, matrix_of(values_FDW), set())

    return make


_MAKERS = (
    _throttled("C1P1 GEMM throttled on 300: beta x 1.5, SM x 0.65", 300 / CASE_1, 1.5, 0.65),
    _throttled("the same, beta x 1.25, SM x 0.8", 300 / CASE_1, 1.25, 0.8),
    _throttled("the same, beta x 1.15, SM x 0.87", 300 / CASE_1, 1.15, 0.87),
    _links_down("C1P2 AllGather slow on 48 in three groups", only_culprits=False),
    _links_down("C1P2 the three of them without NVLink", only_culprits=True),
    _waiting_for_storage("C2P1 recv_into slow on 60 %", 0.6),
    _waiting_for_storage("C2P1 recv_into slow on all", 1.0),
    _slow_forward,
    _collections,
    _masked,
    _throttled("GEMM throttled on 60 %: beta x 1.5, SM x 0.65", 0.6, 1.5, 0.65),
    _healthy("healthy, spread 3 %", 0.03),
    _healthy("healthy, spread 6 %", 0.06),
    _healthy("healthy, spread 10 %", 0.10),
    _healthy("healthy, spread 15 %", 0.15),
    _healthy("healthy, spread 3 %, sigma nothing but noise", 0.03, steady=True),
)
