"""The rows of ascend_pytorch_profiler_*.db and msprof_*.db, before they are put together.

Times are ns since 1970. Texts are ids of STRING_IDS; which device, thread or connection a row belongs to are numbers. A
thread of the host is `process << 32 | thread`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import times
from lockstep.trace.ascend import tracks
from lockstep.trace.ascend.classes import GROUP_STREAM
from lockstep.trace.ascend.database import Database
from lockstep.trace.ascend.links import rows_at
from lockstep.trace.columns import ABSENT, ANNOTATION, KERNEL, OPERATOR, PYTHON, RUNTIME, WorkKind

_TIMES = (("startNs",), ("endNs",))
_THREAD_BITS = 32
_INVALID = (1 << 32) - 1
"""What the profiler writes for no connection and no rank."""
_LAST_NS = int(times.START_MAX_US) * 1000
_LONGEST_NS = int(times.DURATION_MAX_US) * 1000


class ApiType(IntEnum):
    """Types of PYTORCH_API (torch_npu's ApiType)."""

    OPERATOR = 50001
    QUEUE = 50002
    FRAME = 50003
    MARK = 50004


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table; int64 arrays of shape (n_rows,), ABSENT where not recorded.

    `process` and `thread` name the thread in numbers of the table's own; `stream` is ABSENT for the host. `extra` holds
    what only some tables have.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    name: list[str]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    connection: NDArray[np.int64]
    category: list[str]
    work: list[WorkKind]
    extra: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def usable(self) -> NDArray[np.bool_]:
        """Return which rows have times that make sense."""
        length_ns = self.end_ns - np.minimum(self.start_ns, self.end_ns)
        inside = (self.start_ns >= 0) & (self.start_ns <= _LAST_NS) & (self.end_ns >= self.start_ns)
        good: NDArray[np.bool_] = inside & (self.end_ns <= _LAST_NS) & (length_ns <= _LONGEST_NS)
        return good


def tasks(database: Database, strings: dict[int, str]) -> TableRows:
    """Return TASK: what ran on the device; kernels are those that COMPUTE_TASK_INFO lists."""
    wanted = [*_TIMES, ("globalTaskId",), ("deviceId",), ("streamId",), ("connectionId",), ("taskType",)]
    start_ns, end_ns, task, device, stream, connection, kind = database.table("TASK", wanted, required=3)
    known, compute_name = database.table("COMPUTE_TASK_INFO", [("globalTaskId",), ("name",)], required=2)
    (parts,) = database.table("COMMUNICATION_TASK_INFO", [("globalTaskId",)], required=1)
    at = rows_at(known, task)
    is_part = np.isin(task, parts)
    types = texts_of(strings, kind)
    names, categories, works = [], [], []
    for row, (index, text) in enumerate(zip(at.tolist(), types, strict=True)):
        name = strings.get(int(compute_name[index]), "") if index != ABSENT else text
        category, work = (tracks.PART, WorkKind.NOTHING) if is_part[row] else tracks.task_of(name, text)
        names.append(name)
        categories.append(KERNEL if index != ABSENT else category)
        works.append(WorkKind.COMPUTE if index != ABSENT else _unlisted(work))
    return TableRows(start_ns, end_ns, names, device, stream, device, stream, _connected(connection), categories, works)


def _unlisted(work: WorkKind) -> WorkKind:
    """Return what a task is that has no name next to its type: no kernel of the training's."""
    return WorkKind.NOTHING if work == WorkKind.COMPUTE else work


def collectives(database: Database, strings: dict[int, str]) -> TableRows:
    """Return COMMUNICATION_OP."""
    wanted = [*_TIMES, ("opName",), ("connectionId",), ("groupName",), ("count",), ("dataType",), ("deviceId",)]
    start_ns, end_ns, name, connection, group, count, data_type, device = database.table(
        "COMMUNICATION_OP", wanted, required=3
    )
    thread = np.unique(group, return_inverse=True)[1].astype(np.int64).reshape(-1)
    rows = len(start_ns)
    return TableRows(
        start_ns,
        end_ns,
        texts_of(strings, name),
        device,
        thread,
        device,
        GROUP_STREAM - thread,
        _connected(connection),
        [KERNEL] * rows,
        [WorkKind.COMMUNICATION] * rows,
        {"group": group, "count": count, "data_type": data_type},
    )


def calls(database: Database, strings: dict[int, str]) -> TableRows:
    """Return CANN_API."""
    wanted = [*_TIMES, ("name",), ("globalTid",), ("connectionId",)]
    start_ns, end_ns, name, thread, connection = database.table("CANN_API", wanted, required=4)
    rows = len(start_ns)
    return _host(
        start_ns,
        end_ns,
        texts_of(strings, name),
        thread=thread,
        connection=connection,
        categories=[RUNTIME] * rows,
        works=[WorkKind.HOST] * rows,
    )


def torch_rows(database: Database, strings: dict[int, str]) -> TableRows:
    """Return PYTORCH_API: operators, both ends of the task queue, frames and marks."""
    wanted = [*_TIMES, ("name",), ("globalTid",), ("type",), ("connectionId",)]
    more = {"sequence": "sequenceNumber", "dims": "inputShapes", "types": "inputDtypes", "chain": "callchainId"}
    start_ns, end_ns, name, thread, kind, connection, *extra = database.table(
        "PYTORCH_API", [*wanted, *((each,) for each in more.values())], required=4
    )
    names = texts_of(strings, name)
    found = [_torch_class(each, text) for each, text in zip(kind.tolist(), names, strict=True)]
    part = _host(
        start_ns,
        end_ns,
        names,
        thread=thread,
        connection=connection,
        categories=[each[0] for each in found],
        works=[each[1] for each in found],
    )
    part.extra.update(zip(more, extra, strict=True), type=kind)
    return part


def _torch_class(kind: int, name: str) -> tuple[str, WorkKind]:
    if kind == ApiType.FRAME:
        return PYTHON, WorkKind.HOST
    if kind == ApiType.QUEUE:
        return RUNTIME, WorkKind.HOST
    if kind == ApiType.MARK or tracks.is_mark(name):
        return ANNOTATION, WorkKind.NOTHING
    return OPERATOR, WorkKind.HOST


def collections(database: Database, _strings: dict[int, str]) -> TableRows:
    """Return GC_RECORD."""
    start_ns, end_ns, thread = database.table("GC_RECORD", [*_TIMES, ("globalTid",)], required=3)
    rows = len(start_ns)
    absent = np.full(rows, ABSENT, np.int64)
    return _host(
        start_ns,
        end_ns,
        [tracks.GC_NAME] * rows,
        thread=thread,
        connection=absent,
        categories=[OPERATOR] * rows,
        works=[WorkKind.HOST] * rows,
    )


def marks(database: Database, strings: dict[int, str]) -> TableRows:
    """Return MSTX_EVENTS: ranges and points that the training wrote."""
    start_ns, end_ns, thread, message = database.table(
        "MSTX_EVENTS", [*_TIMES, ("globalTid",), ("message",)], required=4
    )
    rows = len(start_ns)
    absent = np.full(rows, ABSENT, np.int64)
    names = texts_of(strings, message)
    return _host(
        start_ns,
        end_ns,
        names,
        thread=thread,
        connection=absent,
        categories=[ANNOTATION] * rows,
        works=[WorkKind.NOTHING] * rows,
    )


TABLES = (tasks, collectives, calls, torch_rows, collections, marks)


def texts_of(strings: dict[int, str], ids: NDArray[np.int64]) -> list[str]:
    """Return the texts of ids, empty for unknown ones."""
    return [strings.get(each, "") for each in ids.tolist()]


def _host(
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    names: list[str],
    *,
    thread: NDArray[np.int64],
    connection: NDArray[np.int64],
    categories: Sequence[str],
    works: Sequence[WorkKind],
) -> TableRows:
    absent: NDArray[Any] = np.full(len(start_ns), ABSENT, np.int64)
    process, thread = thread >> _THREAD_BITS, thread & _INVALID
    return TableRows(
        start_ns, end_ns, names, process, thread, absent, absent, _connected(connection), list(categories), list(works)
    )


def _connected(connection: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(connection == _INVALID, ABSENT, connection)
