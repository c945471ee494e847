# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""From what the ranks measured to the step log that reaches the coordinator, with the truth.

Shapes: W rows, R ranks, N records in order of arrival.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.holdout.job import COMPUTE, HANG, RANKS_PER_NODE
from coordinator.record.steplog import StepLog, write
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.holdout.clockwork import Measured
    from benchmarks.holdout.job import Case
    from benchmarks.holdout.work import Work

    Marks = NDArray[np.bool_]
    Whole = NDArray[np.int64]

_NS = 1_000_000_000
_EPOCH_NS = 1_785_000_000 * _NS
_BATCH_NS = 60_000_000
_LIE_ROW = 50
_THREE_YEARS_NS = 94_000_000 * _NS


def steps_of(case: "Case") -> "Whole":
    """Return the step index that the job gives each row, array of shape (W,)."""
    step_W = np.arange(case.rows)
    for begin in case.disorder.restarts:
        step_W[begin:] -= case.disorder.rollback
    return step_W


def log_of(case: "Case", measured: "Measured", work: "Work", rng: np.random.Generator) -> StepLog:
    """Return the records that arrive, in order of arrival."""
    present, delay = _present(case, rng), _delays(case, rng)
    node_R = np.arange(case.world_size) // RANKS_PER_NODE
    skew_R = rng.uniform(-1, 1, node_R[-1] + 1)[node_R] * case.disorder.skew_seconds / 2
    end_ns = np.rint((measured.end + skew_R) * _NS).astype(np.int64) + _EPOCH_NS
    start_ns = np.rint((measured.start + skew_R) * _NS).astype(np.int64) + _EPOCH_NS
    late_s = delay * (measured.end - measured.start) + (delay > 0) * case.disorder.late_seconds
    received_ns = end_ns + _BATCH_NS + np.rint(late_s * _NS).astype(np.int64)
    cells = np.flatnonzero(present)
    cells = cells[np.argsort(received_ns.ravel()[cells], kind="stable")]
    row, rank = np.divmod(cells, case.world_size)

    def taken(values: "NDArray[np.float64]", scale: float = 1.0) -> "Whole":
        return np.rint(values.ravel()[cells] * scale).astype(np.int64)

    columns = {
        "rank": rank,
        "step": steps_of(case)[row],
        "start_ns": start_ns.ravel()[cells],
        "duration_ns": (end_ns - start_ns).ravel()[cells],
    }
    booked = {f"{name}_ns": taken(values, _NS) for name, values in measured.parts.items() if name != COMPUTE}
    booked |= {f"{kind}_wait_ns": np.maximum(taken(values, _NS), 0) for kind, values in measured.waits.items()}
    columns |= booked
    columns["compute_ns"] = columns["duration_ns"] - np.sum(list(booked.values()), axis=0)
    columns |= {f"{kind}_transfer_ns": taken(values, _NS) for kind, values in measured.transfers.items()}
    columns |= {f"{kind}_bytes": taken(values) for kind, values in measured.moved.items()}
    columns |= {"tokens": taken(work.tokens), "work": taken(work.work), "received_ns": received_ns.ravel()[cells]}
    columns["flags"] = _flags(case)[row]
    _lie(case, columns, row)
    return StepLog(case.name, {name: v for name, v in columns.items() if not name.endswith(case.absent or ("\0",))})


def _present(case: "Case", rng: np.random.Generator) -> "Marks":
    plan, shape = case.disorder, (case.rows, case.world_size)
    present: Marks = rng.random(shape) >= plan.missing
    for _ in range(plan.missing_bursts):
        row, length = int(rng.integers(10, case.rows - 15)), int(rng.integers(3, 13))
        present[row : row + length, rng.choice(shape[1], max(1, shape[1] // 16), replace=False)] = False
    first = min(plan.restarts, default=case.rows)
    if plan.leaves:
        present[first:, shape[1] - plan.leaves :] = False
    if plan.joins:
        present[:first, shape[1] - plan.joins :] = False
    for truth in case.truths:
        if truth.scope == HANG:  # it has not arrived in the step that the others have just left
            present[truth.begin, list(truth.ranks)] = False
    return present


def _delays(case: "Case", rng: np.random.Generator) -> "NDArray[np.float64]":
    """Return by how many steps each record comes late, array of shape (W, R)."""
    plan, shape = case.disorder, (case.rows, case.world_size)
    delay = (rng.random(shape) < plan.late) * rng.uniform(1, 4, shape)
    nodes = -(-shape[1] // RANKS_PER_NODE)
    for _ in range(plan.late_nodes):
        row, node = int(rng.integers(10, case.rows - 10)), int(rng.integers(nodes))
        delay[row : row + 3, node * RANKS_PER_NODE : (node + 1) * RANKS_PER_NODE] = rng.uniform(2, 4)
    return delay


def _flags(case: "Case") -> "Whole":
    flags_W = np.zeros(case.rows, dtype=np.int64)
    if case.disorder.flagged and case.disorder.checkpoint_every:
        flags_W[case.disorder.checkpoint_every - 1 :: case.disorder.checkpoint_every] = Flag.CHECKPOINT
    return flags_W


def _lie(case: "Case", columns: "dict[str, Whole]", row: "Whole") -> None:
    plan = case.disorder
    if plan.frozen_rank is not None:
        columns["step"] = np.where((columns["rank"] == plan.frozen_rank) & (row > _LIE_ROW), _LIE_ROW, columns["step"])
    if plan.mad_clock_rank is not None:
        mad = (columns["rank"] == plan.mad_clock_rank) & (row >= _LIE_ROW)
        columns["start_ns"] = columns["start_ns"] + mad * _THREE_YEARS_NS


def save(case: "Case", log: StepLog, directory: "Path") -> None:
    """Write the log and, next to it, the truth: what `lockstep replay` needs and what its lines should be."""
    directory.mkdir(parents=True, exist_ok=True)
    write(log, directory / f"{case.name.replace(' ', '-')}-{case.world_size}-{case.seed}.parquet")
    truth = {"domains": case.degrees, "ranks_per_node": RANKS_PER_NODE, "truths": [asdict(t) for t in case.truths]}
    name = f"{case.name.replace(' ', '-')}-{case.world_size}-{case.seed}.json"
    (directory / name).write_text(json.dumps(truth, indent=1) + "\n")
