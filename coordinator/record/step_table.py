"""Arranges a run's step log as a table of steps: attempts, durations by rank, parts of the training thread's time.

Pure. The steps of all attempts are kept in order; a step that a restart repeats is a separate step.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from coordinator.record.steplog import WAIT_COLUMNS
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import COMPUTE_PHASES, DOMAIN_KINDS, MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.record.steplog import StepLog

_NS = 1e-9
OWN_PARTS = ("data", "compute", "host", "gc")
STEP, WAIT, TRANSFER = "step", "wait", "transfer"


@dataclass(frozen=True)
class StepTable:
    """A step log with indices. `columns` are those of the log, int64 of shape (n_rows,), MISSING if not measured.

    Per row, from 0: `step_index` is the index of its step among those of all attempts, `attempt_index` its attempt, and
    `rank_index` the index of its rank in `ranks`.
    """

    run: str
    columns: "Mapping[str, NDArray[np.int64]]"
    ranks: "NDArray[np.int64]"
    rank_index: "NDArray[np.int64]"
    step_index: "NDArray[np.int64]"
    attempt_index: "NDArray[np.int64]"

    @property
    def steps(self) -> int:
        """Number of steps of all attempts; steps that a restart repeats count again."""
        return int(self.step_index.max(initial=-1)) + 1

    @cached_property
    def attempt_of_step(self) -> "NDArray[np.int64]":
        """Attempt of each step, int64 of shape (n_steps,)."""
        attempts = np.zeros(self.steps, dtype=np.int64)
        attempts[self.step_index] = self.attempt_index
        return attempts

    @cached_property
    def flags_of_step(self) -> "NDArray[np.int64]":
        """Flags of each step, combined over all ranks, int64 of shape (n_steps,)."""
        flags = np.zeros(self.steps, dtype=np.int64)
        given = self.columns.get("flags")
        if given is not None:
            np.bitwise_or.at(flags, self.step_index, np.where(given == MISSING, 0, given))
        return flags

    @cached_property
    def end_unix_s(self) -> "NDArray[np.float64]":
        """Unix time at which the last rank ended each step, float64 of shape (n_steps,), seconds."""
        end_ns = np.full(self.steps, np.iinfo(np.int64).min)
        np.maximum.at(end_ns, self.step_index, self.columns["start_ns"] + self.columns["duration_ns"])
        return end_ns * _NS

    @cached_property
    def begin_unix_s(self) -> "NDArray[np.float64]":
        """Unix time at which the first rank began each step, float64 of shape (n_steps,), seconds."""
        begin_ns = np.full(self.steps, np.iinfo(np.int64).max)
        np.minimum.at(begin_ns, self.step_index, self.columns["start_ns"])
        return begin_ns * _NS

    def seconds(self, column: str) -> "NDArray[np.float64] | None":
        """Return a time column in seconds, float64 of shape (n_rows,), NaN if not measured.

        None if it has no values.
        """
        values = self.columns.get(column)
        if values is None or (values == MISSING).all():
            return None
        return np.where(values == MISSING, np.nan, values * _NS)

    def by_rank_and_step(self, values: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Arrange row values as float64 of shape (n_ranks, n_steps); NaN if a rank has no row for a step."""
        table = np.full((len(self.ranks), self.steps), np.nan)
        table[self.rank_index, self.step_index] = values
        return table


def table_of(log: "StepLog") -> StepTable:
    """Return the table of a run's log.

    Raises
    ------
    MalformedError
        The log has no rows.
    """
    if not log.count:
        raise MalformedError("step log", where=f"run {log.run}", got="no rows", expected="steps")
    rank, step, start_ns = (log.columns[name] for name in ("rank", "step", "start_ns"))
    ranks, rank_index = np.unique(rank, return_inverse=True)
    attempt_index = _attempts(rank, step, start_ns)
    _, step_index = np.unique(np.stack([attempt_index, step]), axis=1, return_inverse=True)
    return StepTable(log.run, log.columns, ranks, rank_index, step_index.reshape(-1), attempt_index)


def _attempts(
    rank: "NDArray[np.int64]", step: "NDArray[np.int64]", start_ns: "NDArray[np.int64]"
) -> "NDArray[np.int64]":
    """Return the attempt of each row: a rank begins another one when its step does not increase with time."""
    order = np.lexsort((start_ns, rank))
    is_same_rank = np.diff(rank[order], prepend=-1) == 0
    falls = is_same_rank & (np.diff(step[order], prepend=-1) <= 0)
    counted = np.cumsum(falls)
    first_of_rank = np.maximum.accumulate(np.where(is_same_rank, 0, np.arange(len(order))))
    attempts = np.empty(len(order), dtype=np.int64)
    attempts[order] = counted - counted[first_of_rank]
    return attempts


def parts_of_table(table: StepTable) -> "dict[str, NDArray[np.float64]]":
    """Return the parts of each row's step, which sum to it, by name, float64 of shape (n_rows,), seconds.

    Compute is split into its phases if all three were measured, and waits by kind of domain.
    """
    parts = {name: table.seconds(f"{name}_ns") for name in OWN_PARTS}
    phases = {name: table.seconds(f"{name}_ns") for name in COMPUTE_PHASES}
    if all(values is not None for values in phases.values()):
        parts = phases | {name: values for name, values in parts.items() if name != "compute"}
    waits = {name.removesuffix("_ns").replace("_", " "): table.seconds(name) for name in WAIT_COLUMNS}
    return {name: values for name, values in (parts | waits).items() if values is not None}


def comparable_parts(table: StepTable) -> "dict[str, NDArray[np.float64]]":
    """Return the times in which a rank itself may become slower, float64 of shape (n_ranks, n_steps), seconds.

    These are the whole step, own work by part, and transfers by kind of domain, i.e. the time of a collective when no
    rank is late. Waits are excluded: they show the slowness of others.
    """
    made = {STEP: table.seconds("duration_ns")}
    made |= {name: values for name, values in parts_of_table(table).items() if not name.endswith(f" {WAIT}")}
    for kind in DOMAIN_KINDS:
        made[f"{kind} {TRANSFER}"] = table.seconds(f"{kind}_transfer_ns")
    return {name: table.by_rank_and_step(values) for name, values in made.items() if values is not None}
