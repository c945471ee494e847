"""The kernels of ascend_pytorch_profiler_*.db and msprof_*.db: the same as kernel_details.csv, from tables."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.counters import is_counter
from lockstep.trace.ascend.database import DATABASE_MAX_BYTES, Database, integers, numbers, opened
from lockstep.trace.ascend.database_rows import texts_of
from lockstep.trace.ascend.kernels import COMMUNICATION_CORES, KernelGatherer, Kernels
from lockstep.trace.ascend.links import rows_at
from lockstep.trace.columns import ABSENT

_TASK = {"start": "startNs", "end": "endNs", "id": "globalTaskId", "device": "deviceId", "model": "modelId"}
_MORE_TASK = {"task": "taskId", "stream": "streamId"}
_TEXTS = {
    "name": "name",
    "core": "taskType",
    "type": "opType",
    "state": "opState",
    "input_shapes": "inputShapes",
    "input_types": "inputDataTypes",
    "input_formats": "inputFormats",
    "output_shapes": "outputShapes",
    "output_types": "outputDataTypes",
    "output_formats": "outputFormats",
}
_COUNTERS_MAX = 256


def load_database_kernels(path: Path, *, max_bytes: int = DATABASE_MAX_BYTES) -> Kernels:
    """Return the kernels with their counters, and the collectives, ordered by start.

    Steps are ABSENT: the database does not record which step launched a kernel.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, is no such database, or lacks a table or column.
    """
    with opened(path, max_bytes=max_bytes) as database:
        strings = database.strings()
        ids, start_ns, end_ns, integer_columns, text_columns = _kernels(database, strings)
        counters = _counters(database, strings, ids)
        collectives = _collectives(database, strings)
    gatherer = KernelGatherer(tuple(counters))
    gatherer.add(
        start_ns=_known(start_ns, end_ns),
        duration_ns=_known(end_ns - start_ns, end_ns),
        wait_ns=integer_columns.pop("wait_ns"),
        integer_columns=integer_columns,
        text_columns=text_columns,
        counter_columns=counters,
    )
    start_ns, end_ns, names = collectives
    gatherer.add(
        start_ns=_known(start_ns, end_ns),
        duration_ns=_known(end_ns - start_ns, end_ns),
        wait_ns=np.full(len(names), ABSENT, np.int64),
        integer_columns={},
        text_columns={"name": names, "core": [COMMUNICATION_CORES[0]] * len(names)},
        counter_columns={},
    )
    return gatherer.kernels()


def _known(values: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where((values >= 0) & (end_ns >= 0), values, ABSENT)


def _kernels(
    database: Database, strings: dict[int, str]
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.int64]], dict[str, Sequence[str]]
]:
    """Return ids, starts, ends, numbers and texts of the tasks that COMPUTE_TASK_INFO lists."""
    names = {**_TASK, **_MORE_TASK}
    tasks = dict(zip(names, database.table("TASK", [(each,) for each in names.values()], required=3), strict=True))
    wanted: list[tuple[str, ...]] = [("globalTaskId",), *((each,) for each in _TEXTS.values())]
    wanted += [("blockNum", "blockDim", "block_dim"), ("mixBlockNum", "mixBlockDim"), ("waitNs",)]
    known, *columns = database.table("COMPUTE_TASK_INFO", wanted, required=2)
    *texts, blocks, mix_blocks, wait_ns = columns
    at = rows_at(known, tasks["id"])
    rows = np.flatnonzero(at != ABSENT)
    rows = rows[np.argsort(tasks["start"][rows], kind="stable")]
    at = at[rows]
    integer_columns = {field: tasks[field][rows] for field in ("device", "model", "task", "stream")}
    integer_columns |= {"blocks": blocks[at], "mix_blocks": mix_blocks[at], "wait_ns": wait_ns[at]}
    named_columns: dict[str, Sequence[str]] = {
        field: texts_of(strings, column[at]) for field, column in zip(_TEXTS, texts, strict=True)
    }
    return tasks["id"][rows], tasks["start"][rows], tasks["end"][rows], integer_columns, named_columns


def _counters(database: Database, strings: dict[int, str], ids: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return TASK_PMU_INFO by counter, a value for each kernel, NaN where it has none."""
    found: dict[str, NDArray[np.float64]] = {}
    wanted = [("globalTaskId",), ("name",), ("value",)]
    for block in database.blocks("TASK_PMU_INFO", wanted, required=3) if database.has("TASK_PMU_INFO") else ():
        tasks, names, values = zip(*block, strict=True)
        at = rows_at(ids, integers(tasks))
        name, value = integers(names), numbers(values)
        order = np.flatnonzero(at != ABSENT)
        order = order[np.argsort(name[order], kind="stable")]
        edges = [0, *(np.flatnonzero(np.diff(name[order])) + 1).tolist(), len(order)]
        for begin, end in pairwise(edges):
            rows = order[begin:end]
            text = strings.get(int(name[rows[0]]), "") if len(rows) else ""
            if is_counter(text) and (text in found or len(found) < _COUNTERS_MAX):
                found.setdefault(text, np.full(len(ids), np.nan))[at[rows]] = value[rows]
    return found


def _collectives(database: Database, strings: dict[int, str]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    columns = database.table("COMMUNICATION_OP", [("startNs",), ("endNs",), ("opName",)], required=3)
    start_ns, end_ns, name = columns
    return start_ns, end_ns, texts_of(strings, name)
