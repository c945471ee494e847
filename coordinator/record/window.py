# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Reads the window of healthy steps that a run's model is fitted to from a step log or recording. Blocking file I/O.

Shapes: R ranks, T steps of the log that every rank has reported.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.expected.healthy import HealthySteps
from coordinator.intake.timeline import StepRow
from coordinator.record.steplog import StepLog, read
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.records import DOMAIN_KINDS, MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lockstep.contracts.domains import Topology
    from lockstep.simulator.calibration.measured import Window

_NS = 1e9
_OPTIMIZER = "optimizer"
_PARTS = ("compute", "host", "data", "gc")
WARM_UP_RATIO = 0.1
"""Share of a log's steps that is skipped at its beginning: compilation, cold caches, growing buffers."""


def read_window(path: Path, topology: "Topology", *, run: str = "") -> "Window":
    """Return the window of the steps of `run`; if it is empty, of the log's only run.

    The last steps are used, as in a coordinator. They are not checked for anomalies, so the log must hold healthy
    steps.

    Raises
    ------
    LockstepError
        The log cannot be read, holds no such run, or no step that all ranks of `topology` have reported.
    """
    logs = {log.run: log for log in read(path)}
    if not run and len(logs) > 1:
        raise ConfigError(f"step log {path}: got {len(logs)} runs, expected --run with one of {', '.join(logs)}")
    log = logs.get(run) if run else next(iter(logs.values()), None)
    if log is None:
        raise ConfigError(f"run of {path}: got {run!r}, expected one of {', '.join(logs) or 'a log that is not empty'}")
    ranks = np.arange(topology.world_size)
    steps = HealthySteps(topology, ranks)
    for row in rows_of(log, topology.world_size):
        steps.add(row, float(np.median(row.duration)))
    if not len(steps):
        got = f"{int(log.columns['rank'].max(initial=-1)) + 1} ranks"
        raise ConfigError(f"step log {path}: got {got}, expected steps of all {topology.world_size} of the job")
    return steps.window()


def rows_of(log: StepLog, world_size: int) -> "Iterator[StepRow]":
    """Yield the steps that all `world_size` ranks have reported, in order, without the warm-up."""
    columns = log.columns
    order = np.lexsort((columns["rank"], columns["step"]))
    step, first, counts = np.unique(columns["step"][order], return_index=True, return_counts=True)
    whole_T = np.flatnonzero(counts == world_size)
    for index in whole_T[int(len(whole_T) * WARM_UP_RATIO) :].tolist():
        places = order[first[index] : first[index] + world_size]
        if (columns["rank"][places] == np.arange(world_size)).all():
            yield _row(columns, places, int(step[index]))


def _row(columns: "dict[str, NDArray[np.int64]]", places: "NDArray[np.intp]", step: int) -> StepRow:
    def seconds(name: str) -> "NDArray[np.float32]":
        values = columns.get(name)
        if values is None:
            return np.full(len(places), np.nan, dtype=np.float32)
        return np.where(values[places] == MISSING, np.nan, values[places] / _NS).astype(np.float32)

    kinds = [kind for kind in DOMAIN_KINDS if f"{kind}_wait_ns" in columns]
    waits = {kind: seconds(f"{kind}_wait_ns") for kind in kinds}
    shortest = {kind: seconds(f"{kind}_transfer_ns") for kind in kinds if f"{kind}_transfer_ns" in columns}
    transfers = {kind: shortest.get(kind, wait) if kind == "pp" else wait for kind, wait in waits.items()}
    duration = seconds("duration_ns")
    unknown = np.full(len(places), np.nan, dtype=np.float32)
    waited = np.zeros(len(places), dtype=np.float32)
    for wait in waits.values():
        waited += np.nan_to_num(wait)
    return StepRow(
        step=step,
        end_unix_s=float(np.median(columns["start_ns"][places] / _NS + duration)),
        ranks=np.arange(len(places)),
        present=np.ones(len(places), dtype=bool),
        flags=np.zeros(len(places), dtype=np.int64),
        duration=duration,
        self_seconds=duration - waited,
        components={name: np.nan_to_num(seconds(f"{name}_ns")) for name in _PARTS},
        views={_OPTIMIZER: seconds(f"{_OPTIMIZER}_ns")},
        waits=waits,
        transfers=transfers,
        floors=shortest,
        moved={},
        tokens=unknown,
        work=unknown,
    )
