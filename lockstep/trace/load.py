"""A trace file to columns."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import limits
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns
from lockstep.trace.decode import Block, Event, TraceDecoder
from lockstep.trace.source import TraceSource

_FORMER_CATEGORIES = {"Operator": OPERATOR}
"""Kineto's names before 2022, and today's."""


def load_trace(path: Path, *, max_bytes: int = limits.TRACE_MAX_BYTES) -> TraceColumns:
    """Return the complete events of a Kineto or Chrome trace, plain or gzip.

    Events whose fields make no sense are left out and counted; unknown phases and categories are no error.

    Raises
    ------
    MalformedError
        The file cannot be read, is larger than `max_bytes` (unpacked as well), is no trace, is cut off, or holds no
        complete event.
    """
    source = TraceSource(path, max_bytes=max_bytes)
    decoder = TraceDecoder(source)
    builder = _Builder()
    for block in decoder:
        builder.add(block)
    if not builder.start_ns or not any(map(len, builder.start_ns)):
        got = f"{builder.event_count} events, none complete, {builder.dropped_count} of them unusable"
        raise source.malformed("trace", got, 'events with "ph": "X"')
    return builder.build(decoder.base_ns, source.read_bytes)


class _Codes(dict[Any, int]):
    """A value's code is the order in which it first came."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class _Builder:
    def __init__(self) -> None:
        self.start_ns: list[NDArray[np.int64]] = []
        self.duration_ns: list[NDArray[np.int64]] = []
        self.event_count = 0
        self.dropped_count = 0
        self._names = _Codes()
        self._categories = _Codes()
        self._threads = _Codes()
        self._codes: list[tuple[NDArray[np.int32], ...]] = []

    def add(self, block: Block) -> None:
        self.event_count += block.event_count
        self.dropped_count += block.dropped_count
        self.start_ns.append(block.start_ns)
        self.duration_ns.append(block.duration_ns)
        self._codes.append(
            (
                _encode(self._names, block.events, attrgetter("name")),
                _encode(self._categories, block.events, attrgetter("cat")),
                _encode(self._threads, block.events, attrgetter("pid", "tid")),
            )
        )

    def build(self, base_ns: int, trace_bytes: int) -> TraceColumns:
        name, category, thread = (np.concatenate(parts) for parts in zip(*self._codes, strict=True))
        categories = _Codes()
        today = np.array([categories[_FORMER_CATEGORIES.get(text, text)] for text in self._categories], np.int32)
        absent = np.full(len(name), ABSENT, np.int64)
        absent_code = absent.astype(np.int32)
        return TraceColumns(
            start_ns=np.concatenate(self.start_ns) + base_ns,
            duration_ns=np.concatenate(self.duration_ns),
            name=name,
            category=today[category],
            thread=thread,
            work=np.zeros(len(name), np.int8),
            stream=absent_code,
            shapes=absent_code,
            stack=absent_code,
            correlation=absent,
            external=absent,
            sequence=absent,
            bytes=absent,
            names=list(self._names),
            categories=list(categories),
            threads=list(self._threads),
            trace_bytes=trace_bytes,
            event_count=self.event_count,
            dropped_count=self.dropped_count,
        )


def _encode(codes: _Codes, events: Iterable[Event], of: Callable[[Event], Any]) -> NDArray[np.int32]:
    return np.fromiter(map(codes.__getitem__, map(of, events)), np.int32)
