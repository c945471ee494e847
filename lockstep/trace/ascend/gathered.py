"""Collects the rows of trace_view.json block by block: codes for repeated values, arrays for the rest.

Shape suffix: E rows ("ph": "X") in the order of the file.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.clocks import core_clocks, mhz_of
from lockstep.trace.ascend.decode import (
    NO_ARGUMENTS,
    NO_RAW,
    NO_TEXT,
    Arguments,
    AscendBlock,
    AscendEvent,
    decode_arguments,
)
from lockstep.trace.ascend.links import Flows
from lockstep.trace.ascend.tracks import device_of
from lockstep.trace.columns import ABSENT, PYTHON, CoreClock
from lockstep.trace.interned import Codes, Interned

SHAPES_MAX = 1 << 16
SHAPES_MAX_BYTES = 16 << 20
STACKS_MAX = 1 << 16
STACKS_MAX_BYTES = 32 << 20
"""Distinct values; recordings have hundreds. Further ones are ABSENT."""

CLOCK_ROWS_MAX = 1 << 20
"""Rows of the AI cores' clock; recordings have two, a row every 20 us of a capture of 20 s is this."""

FLOW_KINDS = {"async_npu": 0, "HostToDevice": 1, "fwdbwd": 2}
INTEGERS = ("connection", "queued", "sequence", "count", "size_bytes")
_INTEGERS_TYPE = np.dtype([(field, np.int64) for field in INTEGERS])
_GET_INTEGERS = attrgetter(*INTEGERS)
_INT64_MAX = 2**63 - 1
_TEXTS = ("task_type", "data_type", "group")
_ID_MAX_DIGITS = 40
_FOLD = (1 << 61) - 1  # prime, so that what differs in upper bits stays apart
_SEPARATOR = ";"


class GatheredEvents:
    """Content of the blocks; arrays by `column` and `codes` once all blocks are added."""

    def __init__(self) -> None:
        self.event_count = 0
        self.dropped_count = 0
        self.names, self.categories, self.threads = Codes(), Codes(), Codes()
        self.texts = {field: Codes() for field in _TEXTS}
        self.shapes: Interned[str] = Interned(_shape, SHAPES_MAX, SHAPES_MAX_BYTES)
        self.stacks: Interned[str] = Interned(_stack, STACKS_MAX, STACKS_MAX_BYTES)
        self.processes: dict[object, dict[str, str]] = {}
        self.thread_names: dict[tuple[object, object], str] = {}
        self._parts: dict[str, list[NDArray[Any]]] = {}
        self._flows: list[tuple[NDArray[Any], ...]] = []
        self._clocks: list[tuple[object, int, float]] = []

    def add(self, block: AscendBlock) -> None:
        """Add one block."""
        self.event_count += block.event_count
        self.dropped_count += block.dropped_count
        self._note("start_ns", block.start_ns)
        self._note("duration_ns", block.duration_ns)
        self._note("name", _encoded(self.names, map(attrgetter("name"), block.complete)))
        self._note("category", _encoded(self.categories, map(attrgetter("cat"), block.complete)))
        self._note("thread", _encoded(self.threads, map(attrgetter("pid", "tid"), block.complete)))
        self._add_arguments(block)
        self._add_flows(block)
        for each in block.metadata:
            self._note_metadata(each)
        for each, time_ns in zip(block.clocks, block.clock_ns.tolist(), strict=True):
            if len(self._clocks) < CLOCK_ROWS_MAX:
                self._clocks.append((each.pid, time_ns, mhz_of(each.args)))

    def column(self, field: str) -> NDArray[Any]:
        """Return one field of all rows, array of shape (n_rows,)."""
        return np.concatenate(self._parts[field]) if field in self._parts else np.zeros(0, np.int64)

    def flows(self, kind: str) -> Flows:
        """Return the flows of one kind."""
        parts = zip(*self._flows, strict=True)
        kinds, ids, threads, at_ns, begins = (np.concatenate(each) for each in parts)
        wanted = kinds == FLOW_KINDS[kind]
        return Flows(ids[wanted], threads[wanted], at_ns[wanted], begins[wanted])

    def clocks(self) -> tuple[CoreClock, ...]:
        """Return the clocks of the AI cores, one for each process that has such rows."""
        pids = [pid for pid, _, _ in self._clocks]
        labels = (self.processes.get(pid, {}).get("process_labels", "") for pid in pids)
        device = np.fromiter((device_of(each, ABSENT) for each in labels), np.int64, len(pids))
        time_ns = np.array([time_ns for _, time_ns, _ in self._clocks], np.int64)
        return core_clocks(pids, device, time_ns, np.array([mhz for _, _, mhz in self._clocks], np.float64))

    def _note(self, field: str, part: NDArray[Any]) -> None:
        self._parts.setdefault(field, []).append(part)

    def _add_arguments(self, block: AscendBlock) -> None:
        """Add the arguments' content; frames, half of a trace with stacks, have none of interest."""
        category = self._parts["category"][-1]
        raw = list(map(attrgetter("args"), block.complete))
        with_arguments = [
            row for row in np.flatnonzero(category != self.categories[PYTHON]).tolist() if raw[row] is not NO_RAW
        ]
        arguments = decode_arguments([raw[row] for row in with_arguments])
        rows, count = np.array(with_arguments, np.int64), len(block.complete)
        integers = np.fromiter(map(_GET_INTEGERS, arguments), _INTEGERS_TYPE, len(arguments))
        for field in INTEGERS:
            self._note(field, _spread(integers[field], rows, count, ABSENT))
        for field, codes in self.texts.items():
            values = np.fromiter(map(codes.__getitem__, map(attrgetter(field), arguments)), np.int32, len(arguments))
            self._note(field, _spread(values, rows, count, codes[""]))
        shapes = _codes(arguments, "dims", lambda each: self.shapes[bytes(each.dims), bytes(each.types)])
        stacks = _codes(arguments, "stack", lambda each: self.stacks[bytes(each.stack)])
        self._note("shapes", _spread(shapes, rows, count, ABSENT))
        self._note("stack", _spread(stacks, rows, count, ABSENT))

    def _add_flows(self, block: AscendBlock) -> None:
        count = len(block.flows)
        kinds = np.fromiter(map(_KINDS.__getitem__, map(attrgetter("cat"), block.flows)), np.int8, count)
        ids = _flow_ids(list(map(attrgetter("id"), block.flows)))
        threads = _encoded(self.threads, map(attrgetter("pid", "tid"), block.flows)).astype(np.int64)
        begins = np.fromiter(map("s".__eq__, map(attrgetter("ph"), block.flows)), np.bool_, count)
        known = (kinds != ABSENT) & (ids != ABSENT) & (block.flow_ns != ABSENT)
        self._flows.append(tuple(each[known] for each in (kinds, ids, threads, block.flow_ns, begins)))

    def _note_metadata(self, event: AscendEvent) -> None:
        (arguments,) = decode_arguments([event.args]) if event.args is not NO_RAW else (NO_ARGUMENTS,)
        label = arguments.name or arguments.labels
        if event.name in ("process_name", "process_labels") and label:
            self.processes.setdefault(event.pid, {})[event.name] = label
        elif event.name == "thread_name" and label:
            self.thread_names[event.pid, event.tid] = label


def _shape(source: tuple[bytes, bytes]) -> str:
    return shape_text(*map(_text, source))


def _stack(source: bytes) -> str:
    return stack_text(_text(source))


def shape_text(dims: str, types: str) -> str:
    """Return shapes and types as in `TraceColumns`, from `32,1000;;` and `float;None;None`; empty for none."""
    if not dims.strip() and not types.strip():
        return ""
    return json.dumps([[_axes(each) for each in _split(dims)], _split(types)], separators=(",", ":"))


def stack_text(stack: str) -> str:
    """Return a call stack with one frame a line."""
    return "\n".join(each for each in _split(stack) if each)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(_SEPARATOR)]


def _axes(text: str) -> list[int]:
    axes = [each.strip() for each in text.split(",") if each.strip()]
    usable = all(each.isdecimal() and each.isascii() and len(each) <= len(str(_INT64_MAX)) for each in axes)
    return [int(each) for each in axes] if usable else []


def _text(raw: bytes) -> str:
    """Return a JSON text, empty if it is something else."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _encoded(codes: Codes, values: Iterable[Any]) -> NDArray[np.int32]:
    return np.fromiter(map(codes.__getitem__, values), np.int32)


def _codes(arguments: Sequence[Arguments], field: str, code: Callable[[Arguments], int]) -> NDArray[np.int32]:
    raw = map(attrgetter(field), arguments)
    with_arguments = [row for row, text in enumerate(raw) if text is not NO_TEXT]
    codes = np.fromiter((code(arguments[row]) for row in with_arguments), np.int32, len(with_arguments))
    return _spread(codes, np.array(with_arguments, np.int64), len(arguments), ABSENT)


def _spread(values: NDArray[Any], rows: NDArray[np.int64], count: int, otherwise: int) -> NDArray[Any]:
    """Return an array of `count` with these values in these rows."""
    spread = np.full(count, otherwise, values.dtype)
    spread[rows] = values
    return spread


def _flow_ids(values: Sequence[int | str | None]) -> NDArray[np.int64]:
    """Return flows' ids within int64, ABSENT where there is none; HCCL's have 65 bits and are folded."""
    try:
        return np.fromiter(map(_FOLD.__rmod__, map(int, values)), np.int64, len(values))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        texts = [str(value) if len(str(value)) <= _ID_MAX_DIGITS else "" for value in values]
        return np.fromiter((int(text) % _FOLD if text.isdecimal() else ABSENT for text in texts), np.int64, len(texts))


class _Kinds(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return ABSENT


_KINDS = _Kinds(FLOW_KINDS)
