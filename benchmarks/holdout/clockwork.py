# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Step by step through time: every rank has its own clock and meets the others where it must.

Tensor, context and expert groups end with their last member. A pipeline runs all its forward and then all its backward
micro-batches, cell by cell. Replicas reduce. With a world-wide reduction everybody ends together; without one a rank
begins its next step when it is done, and the difference shows as somebody's wait one step later.

Shapes: W rows, R ranks, P pipelines, S stages.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.holdout.job import COMPUTE, HOST, LINK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.holdout.job import Case, Layout
    from benchmarks.holdout.work import Work

    Floats = NDArray[np.float64]

_SECONDS_AT_TWO = {"tp": 0.03, "cp": 0.015, "ep": 0.02, "pp": 0.012, "dp": 0.025}
"""What a group of two takes a step; a ring of n takes 2 (n - 1) / n times as long, and a latency for each member."""
_LATENCY = 2e-5
_WORLD = 0.0008
_MICRO_BATCHES = 6
_FORWARD = 1 / 3
_CONTENTION_MAX = 0.03  # of compute
_WARM_UP = 0.8


@dataclass
class Measured:
    """What the ranks measured: seconds, arrays of shape (W, R); `start` and `end` are true time."""

    parts: "dict[str, Floats]"
    start: "Floats"
    end: "Floats"
    waits: "dict[str, Floats]" = field(default_factory=dict)
    transfers: "dict[str, Floats]" = field(default_factory=dict)
    moved: "dict[str, Floats]" = field(default_factory=dict)
    """Bytes, arrays of shape (W, R)."""


def run(case: "Case", layout: "Layout", work: "Work", rng: np.random.Generator) -> Measured:
    """Let the ranks do their work and meet; pauses and warm-up are added to the work first."""
    _pause(case, layout, work, rng)
    shape = work.tokens.shape
    kinds = [kind for kind in ("tp", "cp", "ep", "pp", "dp") if kind in layout.groups]
    measured = Measured(work.parts, np.zeros(shape), np.zeros(shape))
    booked = [*kinds, "world"] if case.has_world or not kinds else kinds
    measured.waits = {kind: np.zeros(shape) for kind in booked}
    measured.transfers = {kind: np.zeros(shape) for kind in kinds}
    stage_R = np.array(layout.topology.stages)
    measured.moved = {kind: _moved(kind, stage_R) * np.ones((case.rows, 1)) for kind in kinds}
    if "dp" in kinds:
        measured.moved["dp"][case.evaluated_W] = 0.0  # an evaluation reduces no gradients
    clock_R = np.zeros(shape[1])
    gap_W = np.zeros(case.rows)
    gap_W[list(case.disorder.restarts)] = 150.0
    for row in range(case.rows):
        if gap_W[row]:
            clock_R = np.full(shape[1], clock_R.max() + gap_W[row])
        _contend(case, measured, row)
        clock_R = _step(case, layout, measured, clock_R, (row, rng))
    return measured


def _moved(kind: str, stage_R: "NDArray[np.int64]") -> "Floats":
    """Return bytes: the embedding's stage reduces 2.2 times as many."""
    heavy_R = (kind == "dp") & (stage_R == 0) & (stage_R.max() > 0)
    return np.where(heavy_R, 2.2, 1.0) * 64e6


def _step(
    case: "Case", layout: "Layout", measured: Measured, start_R: "Floats", at: tuple[int, np.random.Generator]
) -> "Floats":
    """Book one step that each rank begins at its own time; return when each ends it."""
    row, rng = at
    now_R = start_R + _own(measured, row)
    for kind, groups in layout.groups.items():
        if kind not in measured.transfers:
            continue
        seconds_G = _transfer(case, kind, groups, row, rng) * measured.moved[kind][row, groups[:, 0]] / 64e6
        if kind == "pp":
            ended = _pipeline(start_R[groups], (now_R - start_R)[groups], seconds_G)
        else:
            ended = np.broadcast_to(now_R[groups].max(axis=1, keepdims=True) + seconds_G[:, None], groups.shape)
        measured.waits[kind][row, groups] = ended - now_R[groups]
        measured.transfers[kind][row, groups] = (seconds_G * rng.uniform(0.94, 1.0, len(groups)))[:, None]
        now_R = now_R.copy()
        now_R[groups] = ended
    if "world" in measured.waits:
        last = now_R.max() + _WORLD * (1 + abs(rng.standard_normal()) * case.nature.jitter)
        measured.waits["world"][row] = last - now_R
        now_R = np.full_like(now_R, last)
    measured.start[row], measured.end[row] = start_R, now_R
    return now_R


def _own(measured: Measured, row: int) -> "Floats":
    own: Floats = np.sum([part[row] for part in measured.parts.values()], axis=0)
    return own


def _contend(case: "Case", measured: Measured, row: int) -> None:
    """Let ranks that will wait look slower than they are."""
    if case.nature.contention:
        own_R, compute_R = _own(measured, row), measured.parts[COMPUTE][row]
        compute_R += np.minimum(case.nature.contention * (own_R.max() - own_R), _CONTENTION_MAX * compute_R)


def _transfer(case: "Case", kind: str, groups: "NDArray[np.intp]", row: int, rng: np.random.Generator) -> "Floats":
    """Return seconds of one step's transfers of each group of a kind."""
    members = groups.shape[1]
    seconds = _SECONDS_AT_TWO[kind] * 2 * (members - 1) / members + _LATENCY * members
    seconds_G: Floats = seconds * rng.lognormal(0, case.nature.jitter, len(groups))
    for truth in case.truths:
        if truth.cause == LINK and kind in truth.kinds:
            touched_G = np.isin(groups, truth.ranks).any(axis=1)
            if truth.scope == "group":
                touched_G = np.isin(groups, truth.ranks).all(axis=1)
            seconds_G *= 1 + truth.strength(row) * touched_G
    return seconds_G


def _pipeline(start: "Floats", work: "Floats", seconds_P: "Floats") -> "Floats":
    """Return when each stage is done, arrays of shape (P, S): forward cells downwards, then backward ones upwards."""
    stages = start.shape[1]
    hop_P = seconds_P / (2 * _MICRO_BATCHES)
    forward, backward = work * _FORWARD / _MICRO_BATCHES, work * (1 - _FORWARD) / _MICRO_BATCHES
    free = start.T.copy()
    arrived = [np.full(len(start), -np.inf)] * _MICRO_BATCHES
    for stage in range(stages):
        done = []
        for cell in range(_MICRO_BATCHES):
            free[stage] = np.maximum(free[stage], arrived[cell]) + forward[:, stage]
            done.append(free[stage] + hop_P)
        arrived = done
    arrived = [np.full(len(start), -np.inf)] * _MICRO_BATCHES
    for stage in reversed(range(stages)):
        done = []
        for cell in range(_MICRO_BATCHES):
            free[stage] = np.maximum(free[stage], arrived[cell]) + backward[:, stage]
            done.append(free[stage] + hop_P)
        arrived = done
    ended: Floats = free.T + hop_P[:, None] * 2 * _MICRO_BATCHES  # every stage sends and receives all of them
    return ended


def _pause(case: "Case", layout: "Layout", work: "Work", rng: np.random.Generator) -> None:
    """Add checkpoints, which some ranks write longer than others, and the warm-up of every attempt."""
    plan = case.disorder
    host, ranks = work.parts[HOST], case.world_size
    writes_R = rng.lognormal(0, 0.35, ranks)
    if plan.writers == "first":
        writes_R *= layout.place("dp") == 0
    for row in range(plan.checkpoint_every - 1, case.rows, plan.checkpoint_every or case.rows):
        host[row] += plan.checkpoint_seconds * writes_R * rng.lognormal(0, 0.05, ranks)
    for begin in (0, *plan.restarts):
        fade_W = np.exp(-np.arange(case.rows - begin) / 2.5)
        work.parts[COMPUTE][begin:] += _WARM_UP * case.seconds * fade_W[:, None] * rng.lognormal(0, 0.02, ranks)
