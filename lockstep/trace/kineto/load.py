"""Loads a trace file as columns."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import limits
from lockstep.trace.columns import ABSENT, ANNOTATION, CollectiveArguments, Mask, SyncArguments, TraceColumns
from lockstep.trace.interned import Codes
from lockstep.trace.kineto import categories
from lockstep.trace.kineto.arguments import ArgumentReader
from lockstep.trace.kineto.blocks import EventBlock
from lockstep.trace.kineto.decode import TraceDecoder
from lockstep.trace.kineto.scanned import compiled_scan
from lockstep.trace.kineto.work import ON_DEVICE, work_of
from lockstep.trace.source import TraceSource

_EPOCH_NS = 946_684_800_000_000_000  # the year 2000: a start after it is a time of day, one before it an uptime
_COLUMN_FIRST = 1 << 15
_OF_BLOCKS = ("name", "thread", "category", "start_ns", "duration_ns")
_DIGITS = re.compile(r"\d{1,9}$")


def load_trace(path: Path, *, max_bytes: int = limits.TRACE_MAX_BYTES, cores: int = 1) -> TraceColumns:
    """Return the complete events of a Kineto or Chrome trace, plain or gzip, read by up to `cores` threads.

    Events whose fields make no sense are left out and counted; unknown phases and categories are no error.

    Raises
    ------
    MalformedError
        The file cannot be read, is larger than `max_bytes` (unpacked as well), is no trace, is cut off, or holds no
        complete event.
    """
    source = TraceSource(path, max_bytes=max_bytes)
    return columns_of(TraceDecoder(source, scan=compiled_scan(), cores=cores), source)


def columns_of(decoder: TraceDecoder, source: TraceSource) -> TraceColumns:
    """Return the columns of all that a decoder of `source` yields; errors as of `load_trace`."""
    builder = _Builder()
    for block in decoder:
        builder.add(block)
    if not builder.complete_count:
        got = f"{builder.event_count} events, none complete, {builder.dropped_count} of them unusable"
        raise source.malformed("trace", got, 'events with "ph": "X"')
    return builder.build(decoder, source.read_bytes)


class _Column:
    """An array that grows in place: joining parts at the end would need the memory twice."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._values: NDArray[Any] = np.empty(_COLUMN_FIRST, kind)
        self._count = 0

    def extend(self, part: NDArray[Any]) -> None:
        """Append `part`."""
        begin, self._count = self._count, self._count + len(part)
        if self._count > len(self._values):
            self._values.resize(max(self._count, len(self._values) * 5 // 4), refcheck=False)
        self._values[begin : self._count] = part

    def taken(self) -> NDArray[Any]:
        """Return the array; the column is not used afterwards."""
        self._values.resize(self._count, refcheck=False)
        return self._values


class _Builder:
    """Collects blocks; only their columns are stored."""

    def __init__(self) -> None:
        self.complete_count = 0
        self.event_count = 0
        self.dropped_count = 0
        self._reader = ArgumentReader()
        self._columns: dict[str, _Column] = {}
        self._collectives: dict[int, CollectiveArguments] = {}
        self._syncs: dict[int, SyncArguments] = {}

    def add(self, block: EventBlock) -> None:
        """Add a block's columns; its events are not stored."""
        arguments = self._reader.read(len(block.name), block.arguments)
        own = {name: getattr(block, name) for name in _OF_BLOCKS}
        for name, part in (own | arguments.columns).items():
            if name not in self._columns:
                self._columns[name] = _Column(part.dtype)
            self._columns[name].extend(part)
        before = self.complete_count
        self._collectives.update((before + place, metadata) for place, metadata in arguments.collectives.items())
        self._syncs.update((before + place, metadata) for place, metadata in arguments.syncs.items())
        self.complete_count += len(block.name)
        self.event_count += block.event_count
        self.dropped_count += block.dropped_count

    def build(self, decoder: TraceDecoder, trace_bytes: int) -> TraceColumns:
        """Return the trace; the builder is empty then."""
        names, threads, found = map(list, (decoder.kinds.names, decoder.kinds.threads, decoder.kinds.categories))
        name, thread = self._taken("name"), self._taken("thread")
        category, category_names = _todays(name, self._taken("category"), names, found)
        stream = self._taken("stream")
        work = work_of(
            name,
            category,
            thread,
            names=names,
            category_names=category_names,
            with_stream=stream != ABSENT,
            collectives=self._collectives,
        )
        on_device = np.isin(category, [code for code, each in enumerate(category_names) if each in ON_DEVICE])
        stream, streams = _with_streams(stream, self._reader.streams.values_in_order(), thread, threads, on_device)
        metadata = decoder.metadata
        start_ns = self._taken("start_ns")
        start_ns += decoder.base_ns
        return TraceColumns(
            start_ns=start_ns,
            name=name,
            category=category,
            thread=thread,
            work=work,
            stream=stream,
            **{field: self._taken(field) for field in list(self._columns)},
            names=names,
            categories=category_names,
            threads=threads,
            thread_names={
                code: metadata.thread_names[each] for code, each in enumerate(threads) if each in metadata.thread_names
            },
            streams=streams,
            shape_texts=self._reader.shapes.values_in_order(),
            stacks=self._reader.stacks.values_in_order(),
            occupancies=self._reader.occupancies.values_in_order(),
            collectives=metadata.with_ranks(self._collectives),
            syncs=self._syncs,
            metadata=metadata.build(
                names=names,
                categories=found,
                has_device_work=bool(on_device.any()),
                clock_is_shared=decoder.base_ns > 0 or int(start_ns.min()) > _EPOCH_NS,
            ),
            trace_bytes=trace_bytes,
            event_count=self.event_count,
            dropped_count=self.dropped_count,
        )

    def _taken(self, name: str) -> Any:
        return self._columns.pop(name).taken()


def _todays(
    name: NDArray[np.int32], category: NDArray[np.int32], names: list[str], found: list[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the codes and names of today's categories; until 2021 annotations had the category of operators."""
    codes = Codes()
    code = np.array([codes[categories.today(each)] for each in found], np.int32)[category]
    former = np.array([categories.mixes_annotations(each) for each in found], np.bool_)[category]
    if former.any():
        former &= np.array([categories.is_annotation(each) for each in names], np.bool_)[name]
        code[former] = codes[ANNOTATION]
    return code, list(codes)


def _with_streams(
    stream: NDArray[np.int32],
    streams: list[tuple[int, int]],
    thread: NDArray[np.int32],
    threads: list[tuple[object, object]],
    on_device: Mask,
) -> tuple[NDArray[np.int32], list[tuple[int, int]]]:
    """Return the streams, those of device work that names none after the process and thread that it is shown in."""
    missing = on_device & (stream == ABSENT)
    if missing.any():
        codes = Codes({each: code for code, each in enumerate(streams)})
        for code in np.unique(thread[missing]).tolist():
            stream[missing & (thread == code)] = codes[_shown_stream(code, threads[code])]
        streams = list(codes)
    return stream, streams


def _shown_stream(code: int, thread: tuple[object, object]) -> tuple[int, int]:
    device, stream = (int(each) if isinstance(each, int) and abs(each) < 1 << 32 else ABSENT for each in thread)
    digits = _DIGITS.search(str(thread[1])[-10:])
    return device, stream if stream >= 0 else int(digits[0]) if digits else code
