"""Columns made by hand: each event a readable tuple, everything that a test does not care about a default.

columns_of([
    made("aten::mm", OPERATOR, 1, 0, 50, external=7),
    made("gemm", KERNEL, (0, 7), 20, 100, stream=7, correlation=3),
])
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from lockstep.trace.columns import (
    ABSENT,
    COPY,
    DRIVER,
    FILL,
    KERNEL,
    OPERATOR,
    PYTHON,
    RUNTIME,
    CollectiveArguments,
    Occupancy,
    SyncArguments,
    TraceColumns,
    TraceMetadata,
    WorkKind,
)

PID = 7
"""Process of every thread that a test gives as a bare id."""

_WORK = {
    PYTHON: WorkKind.HOST,
    OPERATOR: WorkKind.HOST,
    RUNTIME: WorkKind.HOST,
    DRIVER: WorkKind.HOST,
    KERNEL: WorkKind.COMPUTE,
    COPY: WorkKind.MEMORY,
    FILL: WorkKind.MEMORY,
}


class MadeEvent(NamedTuple):
    """One event; `stream` is an id on device 0 or (device, id), `work` follows the category unless it is given."""

    name: str
    category: str = OPERATOR
    thread: object = 1
    start_ns: int = 0
    duration_ns: int = 1000
    work: WorkKind | None = None
    stream: int | tuple[int, int] | None = None
    shapes: str | None = None
    stack: str | None = None
    correlation: int = ABSENT
    external: int = ABSENT
    sequence: int = ABSENT
    bytes: int = ABSENT
    occupancy: Occupancy | None = None
    collective: CollectiveArguments | None = None
    sync: SyncArguments | None = None


made = MadeEvent


def columns_of(
    events: Iterable[MadeEvent | tuple[Any, ...]],
    *,
    thread_names: Mapping[object, str] | None = None,
    metadata: TraceMetadata | None = None,
) -> TraceColumns:
    """Return the columns of `events` (plain tuples are their first fields); `thread_names` is by the test's thread."""
    rows = [MadeEvent(*event) for event in events]
    name, names = _coded([row.name for row in rows])
    category, categories = _coded([row.category for row in rows])
    thread, threads = _coded([_thread(row.thread) for row in rows])
    stream, streams = _coded([(0, row.stream) if isinstance(row.stream, int) else row.stream for row in rows])
    shapes, shape_texts = _coded([row.shapes for row in rows])
    stack, stacks = _coded([row.stack for row in rows])
    occupancy, occupancies = _coded([row.occupancy for row in rows])
    named = {_thread(key): text for key, text in (thread_names or {}).items()}
    return TraceColumns(
        start_ns=_wide(row.start_ns for row in rows),
        duration_ns=_wide(row.duration_ns for row in rows),
        name=name,
        category=category,
        thread=thread,
        work=np.array([_work(row) for row in rows], np.int8),
        stream=stream,
        shapes=shapes,
        stack=stack,
        occupancy=occupancy,
        correlation=_wide(row.correlation for row in rows),
        external=_wide(row.external for row in rows),
        sequence=_wide(row.sequence for row in rows),
        bytes=_wide(row.bytes for row in rows),
        names=names,
        categories=categories,
        threads=threads,
        thread_names={code: named[key] for code, key in enumerate(threads) if key in named},
        streams=streams,
        shape_texts=shape_texts,
        stacks=stacks,
        occupancies=occupancies,
        collectives={index: row.collective for index, row in enumerate(rows) if row.collective is not None},
        syncs={index: row.sync for index, row in enumerate(rows) if row.sync is not None},
        metadata=metadata or TraceMetadata(),
        trace_bytes=100 * len(rows),
        event_count=len(rows),
        dropped_count=0,
    )


def differences(one: TraceColumns, other: TraceColumns) -> list[str]:
    """Return the fields in which two traces differ, types of arrays included."""
    compared = [each for each in fields(TraceColumns) if each.compare]
    return [each.name for each in compared if not _same(getattr(one, each.name), getattr(other, each.name))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    return bool(type(one) is type(other) and one == other)


def _work(row: MadeEvent) -> WorkKind:
    return _WORK.get(row.category, WorkKind.NOTHING) if row.work is None else row.work


def _thread(thread: object) -> tuple[object, object]:
    return thread if isinstance(thread, tuple) else (PID, thread)  # type: ignore[return-value]


def _wide(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)


def _coded(values: list[Any]) -> tuple[np.ndarray, list[Any]]:
    """Return codes in order of first appearance and what they stand for; None is ABSENT."""
    codes: dict[Any, int] = {}
    coded = [ABSENT if value is None else codes.setdefault(value, len(codes)) for value in values]
    return np.array(coded, np.int32), list(codes)
