# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""What happens to a generated run and to its records: pauses, restarts, losses, and ranks that lie.

Shapes: W rows, R ranks.
"""

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.job import HANG, LIE_ROW
from benchmarks.scenarios.recording import RANKS_PER_NODE
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.scenarios.job import Interruptions, Scenario

    Floats = NDArray[np.float32]

_BURST_ROWS = 8
_STALL_SEED = 75  # keeps the draw of stalls apart from that of everything else
_STALL_FIRST_ROW, _STALL_EVERY_ROWS = 40, 12
_BURST_SHARE = 1 / 16  # of the ranks
_YEARS_NS = 94_000_000_000_000_000  # three of them


def interrupt(
    scenario: "Scenario", parts: "dict[str, Floats]", rng: np.random.Generator
) -> "tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]":
    """Add pauses, captures and warm-up to the parts; return step indices, gaps before rows, and flags."""
    plan: Interruptions = scenario.interruptions
    rows, ranks = parts["host"].shape
    step_W, gap_W = np.arange(rows), np.zeros(rows)
    for begin in scenario.restarts:
        step_W[begin:] -= plan.rollback_steps
        gap_W[begin] = plan.restart_seconds
    for begin in (0, *scenario.restarts):
        fade = np.exp(-np.arange(rows - begin) / plan.warm_up_fade_steps).astype(np.float32)
        longer = parts["compute"][begin:] if plan.warm_up_scales else np.float32(scenario.compute)
        parts["compute"][begin:] += longer * (np.float32(plan.warm_up_ratio) * fade[:, None])
    if plan.collection_every:
        at = np.arange(rows) % plan.collection_every == plan.collection_every - 1
        parts["gc"][at] += np.float32(plan.collection_seconds)
    _hold_single_ranks(scenario, parts["host"], step_W)
    flags = np.zeros((rows, ranks), dtype=np.int64)
    for every, seconds, flag in (
        (plan.checkpoint_every, plan.checkpoint_seconds, Flag.CHECKPOINT),
        (plan.evaluation_every, plan.evaluation_seconds, Flag.EVALUATION),
    ):
        at = np.flatnonzero(step_W % every == every - 1) if every else []
        for row in at:
            parts["host"][row] += np.float32(seconds) * _uneven(ranks, rng)
            flags[row] |= flag if plan.flagged else 0
    if plan.profiled_every:
        for row in range(plan.profiled_every, rows - 1, plan.profiled_every):
            chosen = rng.choice(ranks, 2, replace=False)
            flags[row : row + 2, chosen] |= Flag.PROFILED
            parts["host"][row : row + 3, chosen] += np.float32(0.5 * scenario.compute)
    return step_W, gap_W, flags


def _hold_single_ranks(scenario: "Scenario", host_WR: "Floats", step_W: "NDArray[np.int64]") -> None:  # noqa: N803
    """Add what holds up one rank at a time: a checkpoint that rank 0 writes by itself, and stalls."""
    plan, own = scenario.interruptions, np.float32(scenario.own_seconds)
    if plan.writer_every:
        host_WR[step_W % plan.writer_every == plan.writer_every - 1, 0] += np.float32(plan.writer_ratio) * own
    if plan.stall is not None:
        for row, rank in _stalls(scenario):
            host_WR[row : row + plan.stall.steps, rank] += np.float32(plan.stall.ratio) * own
            host_WR[row + plan.stall.after_step, rank] += np.float32(plan.stall.after_ratio) * own


def _uneven(ranks: int, rng: np.random.Generator) -> "Floats":
    uneven: Floats = 1 + np.float32(0.05) * rng.standard_normal(ranks, dtype=np.float32)
    return uneven


def present(scenario: "Scenario", rng: np.random.Generator) -> "NDArray[np.bool_]":
    """Return which records ever arrive, array of shape (W, R)."""
    plan, shape = scenario.interruptions, (scenario.steps, scenario.ranks)
    here: NDArray[np.bool_] = rng.random(shape, dtype=np.float32) >= plan.missing
    for _ in range(plan.missing_bursts):
        row = int(rng.integers(_BURST_ROWS, shape[0] - _BURST_ROWS))
        lost = rng.choice(shape[1], max(1, int(_BURST_SHARE * shape[1])), replace=False)
        here[row : row + _BURST_ROWS, lost] = False
    _lose_unsent(scenario, here, rng)
    first = min(scenario.restarts, default=shape[0])
    if plan.leaving_ranks:
        here[first:, shape[1] - plan.leaving_ranks :] = False
    if plan.joining_ranks:
        here[:first, shape[1] - plan.joining_ranks :] = False
    if plan.stall is not None and not plan.stall.late_seconds:
        for row, rank in _stalls(scenario):
            here[[row + step for step in plan.stall.lost], rank] = False
    for fault in scenario.faults:
        if fault.cause == HANG:
            here[fault.begin : fault.end, list(fault.ranks)] = False
    return here


def _lose_unsent(scenario: "Scenario", here_WR: "NDArray[np.bool_]", rng: np.random.Generator) -> None:  # noqa: N803
    """Remove what nodes have not sent when an attempt ends."""
    most = scenario.interruptions.unsent_steps
    for row in scenario.restarts if most else ():
        for node in range(0, scenario.ranks, RANKS_PER_NODE):
            here_WR[row - int(rng.integers(most + 1)) : row, node : node + RANKS_PER_NODE] = False


def held_back(scenario: "Scenario") -> "NDArray[np.float64]":
    """Return by how many seconds records around stalls are late, array that broadcasts to (W, R)."""
    stall = scenario.interruptions.stall
    if stall is None or not stall.late_seconds:
        return np.zeros((1, 1))
    held_WR = np.zeros((scenario.steps, scenario.ranks))
    for row, rank in _stalls(scenario):
        held_WR[[row + step for step in stall.lost], rank] = stall.late_seconds
    return held_WR


def _stalls(scenario: "Scenario") -> "list[tuple[int, int]]":
    """Return row and rank of each stall with records that do not arrive in time, far from each other."""
    assert scenario.interruptions.stall is not None
    rng = np.random.default_rng((scenario.seed, _STALL_SEED))
    rows = rng.permutation(np.arange(_STALL_FIRST_ROW, scenario.steps - _STALL_EVERY_ROWS, _STALL_EVERY_ROWS))
    rows = rows[: scenario.interruptions.stall.count]
    return list(zip(rows.tolist(), rng.integers(scenario.ranks, size=len(rows)).tolist(), strict=True))


def reported_steps(scenario: "Scenario", step_W: "NDArray[np.int64]") -> "NDArray[np.int64]":  # noqa: N803
    """Return the step index that each rank reports, array that broadcasts to (W, R)."""
    frozen = scenario.interruptions.frozen_rank
    if frozen is None:
        return step_W[:, None]
    shown = np.repeat(step_W[:, None], scenario.ranks, axis=1)
    shown[LIE_ROW:, frozen] = LIE_ROW
    return shown


def clock_ahead(scenario: "Scenario") -> "NDArray[np.int64]":
    """Return by how much each rank's clock is ahead, ns, array that broadcasts to (W, R)."""
    mad = scenario.interruptions.mad_clock_rank
    if mad is None:
        return np.zeros((1, 1), dtype=np.int64)
    ahead = np.zeros((scenario.steps, scenario.ranks), dtype=np.int64)
    ahead[LIE_ROW:, mad] = _YEARS_NS
    return ahead
