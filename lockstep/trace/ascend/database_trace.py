"""ascend_pytorch_profiler_*.db and msprof_*.db to `TraceColumns`: the same as trace_view.json gives, from tables.

Order of rows: tasks, collectives, calls into CANN, torch's rows, collections, marks.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.clocks import database_clocks, device_names
from lockstep.trace.ascend.collective import BYTES_OF, COUNT_MAX, arguments_of, by_suffix
from lockstep.trace.ascend.database import DATABASE_MAX_BYTES, Database, opened
from lockstep.trace.ascend.database_rows import TABLES, ApiType, TableRows, texts_of
from lockstep.trace.ascend.gathered import SHAPES_MAX, SHAPES_MAX_BYTES, STACKS_MAX, STACKS_MAX_BYTES, shape_text
from lockstep.trace.ascend.links import Flows, LinkRows, link
from lockstep.trace.ascend.load import metadata_of
from lockstep.trace.ascend.rank_metadata import AscendSettings
from lockstep.trace.columns import (
    ABSENT,
    OPERATOR,
    SYNC,
    CollectiveArguments,
    SyncArguments,
    TraceColumns,
    TraceMetadata,
    WorkKind,
)
from lockstep.trace.interned import Codes, Interned

_NO_SETTINGS = AscendSettings()
_FIRST_TABLES = ("TASK", "PYTORCH_API", "CANN_API")
_NOTHING = np.zeros(0, np.int64)
_NO_FLOWS = Flows(_NOTHING, _NOTHING, _NOTHING, _NOTHING.astype(np.bool_))
_TASKS, _COLLECTIVES, _CALLS, _TORCH = range(4)
_STACK_DEPTH_MAX = 4096
_DEVICE_PROCESS, _GROUP_PROCESS = "Ascend Hardware", "Communication"


def load_database_trace(
    path: Path, settings: AscendSettings = _NO_SETTINGS, *, max_bytes: int = DATABASE_MAX_BYTES
) -> TraceColumns:
    """Return the events of a profiler's database, read-only and without touching anything next to it.

    `trace_bytes` is the file's size, for there is no JSON.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, is no such database, lacks a column, or holds no event.
    """
    with opened(path, max_bytes=max_bytes) as database:
        if not any(database.has(each) for each in _FIRST_TABLES):
            raise database.malformed("tables", ", ".join(sorted(database.tables())), " or ".join(_FIRST_TABLES))
        strings = database.strings()
        parts = [read(database, strings) for read in TABLES]
        if not sum(len(part.start_ns) for part in parts):
            raise database.malformed("events", 0, "at least one")
        return _Built(database, strings, parts).columns(settings, path.stat().st_size)


class _Built:
    """All parts one after the other; `keep` are the rows whose times make sense."""

    def __init__(self, database: Database, strings: dict[int, str], parts: list[TableRows]) -> None:
        self._database = database
        self._strings = strings
        self._parts = parts
        self._offsets = np.cumsum([0, *(len(part.start_ns) for part in parts)]).tolist()
        self._keep = np.concatenate([part.usable() for part in parts])
        self._threads, self._streams, self._system = Codes(), Codes(), Codes()

    def columns(self, settings: AscendSettings, size: int) -> TraceColumns:
        names, categories = Codes(), Codes()
        name = _coded(names, (text for part in self._parts for text in part.name))
        category = _coded(categories, (text for part in self._parts for text in part.category))
        work = np.array([int(each) for part in self._parts for each in part.work], np.int8)
        thread = _coded(self._threads, self._thread_keys())
        stream = np.array([self._streams[each] if each else ABSENT for each in self._stream_keys()], np.int32)
        correlation, external = self._linked(thread.astype(np.int64), categories, category)
        shapes, shape_texts, stack, stacks = self._operands()
        keep = self._keep
        start_ns = self._joined("start_ns")
        kept = np.cumsum(keep) - 1
        found = self._collectives(settings)
        return TraceColumns(
            start_ns=start_ns[keep],
            duration_ns=(self._joined("end_ns") - start_ns)[keep],
            name=name[keep],
            category=category[keep],
            thread=thread[keep],
            work=work[keep],
            stream=stream[keep],
            shapes=shapes[keep],
            stack=stack[keep],
            occupancy=np.full(np.count_nonzero(keep), ABSENT, np.int32),
            correlation=_moved(correlation, kept)[keep],
            external=_moved(external, kept)[keep],
            sequence=self._extra(_TORCH, "sequence")[keep],
            bytes=self._bytes()[keep],
            names=list(names),
            categories=list(categories),
            threads=list(self._threads),
            streams=list(self._streams),
            shape_texts=shape_texts,
            stacks=stacks,
            collectives={int(kept[row]): arguments for row, arguments in found.items() if keep[row]},
            syncs=self._syncs(category, categories, kept),
            metadata=self._metadata(settings, work),
            trace_bytes=size,
            event_count=len(keep),
            dropped_count=int((~keep).sum()),
        )

    def _metadata(self, settings: AscendSettings, work: NDArray[np.int8]) -> TraceMetadata:
        return replace(
            metadata_of(settings, has_collectives=bool(np.any(work == WorkKind.COMMUNICATION))),
            devices=device_names(self._database, np.unique(self._parts[_TASKS].device)),
            clocks=database_clocks(self._database),
        )

    def _joined(self, field: str) -> NDArray[np.int64]:
        return np.concatenate([getattr(part, field) for part in self._parts])

    def _extra(self, part: int, field: str) -> NDArray[np.int64]:
        """Return the rows of one table, ABSENT for the rows of others."""
        spread = np.full(self._offsets[-1], ABSENT, np.int64)
        spread[self._offsets[part] : self._offsets[part + 1]] = self._parts[part].extra[field]
        return spread

    def _mask(self, part: int) -> NDArray[np.bool_]:
        rows = np.arange(self._offsets[-1])
        mask: NDArray[np.bool_] = (rows >= self._offsets[part]) & (rows < self._offsets[part + 1])
        return mask

    def _thread_keys(self) -> Iterable[tuple[object, object]]:
        prefixes = {_TASKS: _DEVICE_PROCESS, _COLLECTIVES: _GROUP_PROCESS}
        for number, part in enumerate(self._parts):
            for process, thread in zip(part.process.tolist(), part.thread.tolist(), strict=True):
                yield (f"{prefixes[number]} {process}" if number in prefixes else process), thread

    def _stream_keys(self) -> Iterable[tuple[int, int] | None]:
        for part in self._parts:
            for device, stream in zip(part.device.tolist(), part.stream.tolist(), strict=True):
                yield None if stream == ABSENT else (device, stream)

    def _linked(
        self, thread: NDArray[np.int64], categories: Codes, category: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        system = np.array([self._system[tid] for _, tid in self._threads], np.int64)
        kind = self._extra(_TORCH, "type")
        names = [text for part in self._parts for text in part.name]
        queue = np.flatnonzero(kind == ApiType.QUEUE)
        puts = np.zeros(len(kind), np.bool_)
        puts[queue] = [names[row].startswith("Enqueue") for row in queue.tolist()]
        rows = LinkRows(
            start_ns=self._joined("start_ns"),
            end_ns=self._joined("end_ns"),
            thread=thread,
            system_thread=system[thread],
            operator=(category == categories[OPERATOR]) & (kind == ApiType.OPERATOR),
            enqueue=puts,
            dequeue=(kind == ApiType.QUEUE) & ~puts,
            call=self._mask(_CALLS),
            device=self._mask(_TASKS) | self._mask(_COLLECTIVES),
            queued=self._queue_ids(),
            connection=self._joined("connection"),
        )
        if not self._keep.all():
            return (np.full(len(kind), ABSENT, np.int64),) * 2  # ends before starts would break the nesting
        return link(rows, self._operator_flows(rows), _NO_FLOWS, system)

    def _connections(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return CONNECTION_IDS: an id of PYTORCH_API and each connection that it stands for."""
        ids, connections = self._database.table("CONNECTION_IDS", [("id",), ("connectionId",)], required=2)
        order = np.argsort(ids, kind="stable")
        return ids[order], connections[order]

    def _queue_ids(self) -> NDArray[np.int64]:
        """Return the connection that both ends of the queue share, by the first one that their id stands for."""
        ids, connections = self._connections()
        own = np.where(self._mask(_TORCH), self._joined("connection"), ABSENT)
        at = np.minimum(np.searchsorted(ids, own), max(len(ids) - 1, 0))
        known = (own != ABSENT) & (ids[at] == own) if len(ids) else np.zeros(len(own), np.bool_)
        return np.where(known, connections[at], ABSENT) if len(ids) else np.full(len(own), ABSENT, np.int64)

    def _operator_flows(self, rows: LinkRows) -> Flows:
        """Return a flow from each operator to each device row with one of its connections."""
        ids, connections = self._connections()
        operators = np.flatnonzero(rows.operator & (rows.connection != ABSENT))
        operators = operators[np.argsort(rows.connection[operators], kind="stable")]
        own = rows.connection[operators]
        at = np.searchsorted(own, ids)
        known = (at < len(own)) & (own[np.minimum(at, max(len(own) - 1, 0))] == ids) if len(own) else at < 0
        begins = operators[at[known]]
        ends = np.flatnonzero(rows.device & (rows.connection != ABSENT))
        both = np.concatenate((begins, ends))
        return Flows(
            np.concatenate((connections[known], rows.connection[ends])),
            rows.thread[both],
            rows.start_ns[both],
            np.arange(len(both)) < len(begins),
        )

    def _operands(self) -> tuple[NDArray[np.int32], list[str], NDArray[np.int32], list[str]]:
        """Return codes of shapes and stacks, each with its texts."""
        shapes: Interned[str] = Interned(_shape, SHAPES_MAX, SHAPES_MAX_BYTES)
        stacks: Interned[str] = Interned(str, STACKS_MAX, STACKS_MAX_BYTES)
        torch = self._parts[_TORCH].extra
        pairs = zip(texts_of(self._strings, torch["dims"]), texts_of(self._strings, torch["types"]), strict=True)
        shape_codes = [shapes[each] if any(each) else ABSENT for each in pairs]
        chains = self._chains()
        stack_codes = [stacks[chains[each]] if each in chains else ABSENT for each in torch["chain"].tolist()]
        spread = np.full((2, self._offsets[-1]), ABSENT, np.int32)
        spread[:, self._offsets[_TORCH] : self._offsets[_TORCH + 1]] = (shape_codes, stack_codes)
        return spread[0], shapes.values_in_order(), spread[1], stacks.values_in_order()

    def _chains(self) -> dict[int, str]:
        """Return call stacks by their id, innermost frame first."""
        chain, stack, depth = self._database.table(
            "PYTORCH_CALLCHAINS", [("id",), ("stack",), ("stackDepth",)], required=3
        )
        order = np.lexsort((depth, chain))
        frames: dict[int, list[str]] = {}
        for each, frame in zip(chain[order].tolist(), texts_of(self._strings, stack[order]), strict=True):
            below = frames.setdefault(each, [])
            if len(below) < _STACK_DEPTH_MAX:
                below.append(frame)
        return {each: "\n".join(below) for each, below in frames.items()}

    def _data_types(self) -> list[str]:
        """Return the element type of each collective: an id of its own table or, in older versions, of STRING_IDS."""
        ids = self._parts[_COLLECTIVES].extra["data_type"]
        named: dict[int, str] = {}
        if self._database.has("ENUM_HCCL_DATA_TYPE"):
            for block in self._database.blocks("ENUM_HCCL_DATA_TYPE", [("id",), ("name",)], required=2):
                named.update((key, text) for key, text in block if type(key) is int and type(text) is str)
        return texts_of(named or self._strings, ids)

    def _bytes(self) -> NDArray[np.int64]:
        moved = np.full(self._offsets[-1], ABSENT, np.int64)
        sizes = np.array([BYTES_OF.get(each, 0) for each in self._data_types()], np.int64)
        count = self._parts[_COLLECTIVES].extra["count"]
        known = (count >= 0) & (count < COUNT_MAX) & (sizes > 0)
        first = self._offsets[_COLLECTIVES]
        moved[first : first + len(count)] = np.where(known, np.where(known, count, 0) * sizes, ABSENT)
        return moved

    def _collectives(self, settings: AscendSettings) -> dict[int, CollectiveArguments]:
        part = self._parts[_COLLECTIVES]
        groups = texts_of(self._strings, part.extra["group"])
        suffixes = by_suffix(settings.groups)
        rows = zip(part.name, part.extra["count"].tolist(), self._data_types(), groups, strict=True)
        return {
            self._offsets[_COLLECTIVES] + row: arguments_of(
                name,
                count=count,
                data_type=data_type,
                group=group,
                groups=settings.groups,
                suffixes=suffixes,
                group_names=settings.group_names,
            )
            for row, (name, count, data_type, group) in enumerate(rows)
        }

    def _syncs(
        self, category: NDArray[np.int32], categories: Codes, kept: NDArray[np.int64]
    ) -> dict[int, SyncArguments]:
        if SYNC not in categories:
            return {}
        rows = np.flatnonzero(self._keep & (category == categories[SYNC])).tolist()
        tasks = self._parts[_TASKS].name
        return {int(kept[row]): SyncArguments(kind=tasks[row]) for row in rows}


def _shape(source: tuple[str, str]) -> str:
    return shape_text(*source)


def _coded(codes: Codes, values: Iterable[object]) -> NDArray[np.int32]:
    return np.fromiter(map(codes.__getitem__, values), np.int32)


def _moved(ids: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids of rows (their index plus one) after rows before them were left out."""
    return np.where(ids > 0, kept[np.maximum(ids, 1) - 1] + 1, ids)
