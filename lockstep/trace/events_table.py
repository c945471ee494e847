"""Trace columns as an Arrow table of plain values, one row per event, and back.

What the columns hold as codes into tables is text here, dictionary-encoded in memory; unknown is null. So pandas,
DuckDB and Polars read the stored form (`store`) without Lockstep.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, CollectiveArguments, Occupancy, SyncArguments, TraceColumns, WorkKind

_REQUIRED = {"start_ns": pa.int64(), "duration_ns": pa.int64(), "name": pa.string(), "category": pa.string()}
_IDS = ("correlation", "external", "sequence", "bytes")
_COLLECTIVE = {
    "collective": "name",
    "collective_group": "group",
    "collective_description": "description",
    "collective_ranks": "ranks",
    "collective_group_size": "group_size",
    "collective_in_elements": "in_elements",
    "collective_out_elements": "out_elements",
    "collective_dtype": "dtype",
    "collective_sequence": "sequence",
}
_SYNC = {"sync": "kind", "sync_stream": "waits_on_stream", "sync_correlation": "waits_on_correlation"}
_NUMBERS = (
    *("device", "stream", *_IDS),
    *("collective_group_size", "collective_in_elements", "collective_out_elements", "collective_sequence"),
    *("sync_stream", "sync_correlation"),
)
_OCCUPANCY = ("blocks_per_sm", "warp_ratio")
_NULLABLE = (*("process", "thread", "thread_name", "device", "stream", *_IDS, "shapes", "stack", *_COLLECTIVE, *_SYNC),)
SCHEMA = pa.schema(
    [
        *(pa.field(name, kind, nullable=False) for name, kind in _REQUIRED.items()),
        pa.field("work", pa.string(), nullable=False),
        *(pa.field(name, pa.int64() if name in _NUMBERS else pa.string()) for name in _NULLABLE),
        *(pa.field(name, pa.float64()) for name in _OCCUPANCY),
    ]
)
"""Of every table. `start_ns` and `duration_ns` in ns, `start_ns` on the wall clock where the trace gives its base.

`work` is nothing, host, compute, memory or communication. `process` and `thread` are the trace's ids as text.
`correlation` joins a launch and what it launched, `external` an operator and what it launched, `sequence` a forward
operator and its backward one. `shapes` and `collective_ranks` are JSON; `stack` has one frame a line, innermost first.
`collective` and `sync` are "" rather than null where the event has such arguments without a name. `blocks_per_sm` and
`warp_ratio` are those of `Occupancy`.
"""
TEXTS = tuple(field.name for field in SCHEMA if field.type == pa.string())
_WORKS = [each.name.lower() for each in WorkKind]
_DIGITS_MAX = 40
"""Of an id that is taken for a number: Python turns longer ones into numbers slowly."""


def table_of(columns: TraceColumns) -> pa.Table:
    """Return the events as a table with the columns of `SCHEMA`; texts are dictionary-encoded."""
    shown: dict[str, Any] = {
        "start_ns": pa.array(columns.start_ns),
        "duration_ns": pa.array(columns.duration_ns),
        "name": _texts(columns.name, columns.names),
        "category": _texts(columns.category, columns.categories),
        "work": _texts(columns.work, _WORKS),
        "process": _texts(columns.thread, [_id_text(process) for process, _ in columns.threads]),
        "thread": _texts(columns.thread, [_id_text(thread) for _, thread in columns.threads]),
        "thread_name": _texts(columns.thread, [columns.thread_names.get(at) for at in range(len(columns.threads))]),
        "device": _numbers(columns.stream, [device for device, _ in columns.streams]),
        "stream": _numbers(columns.stream, [stream for _, stream in columns.streams]),
        "shapes": _texts(columns.shapes, columns.shape_texts),
        "stack": _texts(columns.stack, columns.stacks),
    }
    for name in _IDS:
        values = getattr(columns, name)
        shown[name] = pa.array(values, mask=values == ABSENT)
    for at, name in enumerate(_OCCUPANCY):
        values = np.array([*(each[at] for each in columns.occupancies), ABSENT], np.float64)[columns.occupancy]
        shown[name] = pa.array(values, mask=values == ABSENT)
    shown |= _arguments(columns.collectives, _COLLECTIVE, len(columns))
    shown |= _arguments(columns.syncs, _SYNC, len(columns))
    return pa.table({name: shown[name] for name in SCHEMA.names})


def _arguments(found: Mapping[int, Any], fields: Mapping[str, str], count: int) -> dict[str, Any]:
    """Return the columns of the arguments that some events have: each distinct value once, and codes."""
    codes: dict[Any, int] = {}
    column = np.full(count, ABSENT, np.int32)
    for event, arguments in found.items():
        column[event] = codes.setdefault(arguments, len(codes))
    made = {}
    for at, (name, field) in enumerate(fields.items()):
        values = [getattr(each, field) for each in codes]
        if name in _NUMBERS:
            made[name] = _numbers(column, [None if value == ABSENT else value for value in values])
        else:
            made[name] = _texts(column, [_argument_text(value, may_be_empty=at == 0) for value in values])
    return made


def _argument_text(value: object, *, may_be_empty: bool) -> str | None:
    if isinstance(value, tuple):
        return json.dumps(value, separators=(",", ":"))
    return str(value) if value or may_be_empty else None


def _id_text(value: object) -> str | None:
    return None if value is None else str(value)


def _texts(codes: NDArray[Any], texts: list[Any]) -> pa.Array:
    """Return a text for each code, null for ABSENT and for a text that is None; equal texts are one."""
    distinct = {text: at for at, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    lookup = np.array([*(distinct.get(text, ABSENT) for text in texts), ABSENT], np.int32)
    found = lookup[codes]
    return pa.DictionaryArray.from_arrays(pa.array(found, mask=found == ABSENT), pa.array(list(distinct), pa.string()))


def _numbers(codes: NDArray[Any], values: list[int | None]) -> pa.Array:
    known = np.array([*(value is not None for value in values), False])
    numbers = np.array([*(0 if value is None else value for value in values), 0], np.int64)
    return pa.array(numbers[codes], mask=~known[codes])


def fields_of(table: pa.Table) -> dict[str, Any]:
    """Return the fields of `TraceColumns` that a table with the columns of `SCHEMA` holds.

    Raises
    ------
    ValueError
        A required value is null, a class of work is unknown, or an argument is not of its form.
    """
    name, names = _codes(table, "name")
    category, categories = _codes(table, "category")
    work, works = _codes(table, "work")
    shapes, shape_texts = _codes(table, "shapes")
    stack, stacks = _codes(table, "stack")
    found = {each: _ints(table, each) for each in (*_IDS, "start_ns", "duration_ns")}
    for each in _REQUIRED | {"work": None}:
        if table.column(each).null_count:
            raise ValueError(f"{each}: {table.column(each).null_count} nulls")
    unknown = set(works) - set(_WORKS)
    if unknown:
        raise ValueError(f"work: {min(unknown)!r}")
    classes = np.array([*(_WORKS.index(each) for each in works), 0], np.int8)
    thread, threads, thread_names = _threads(table)
    stream, streams = _streams(table)
    occupancy, occupancies = _occupancies(table)
    return found | {
        "name": name,
        "names": names,
        "category": category,
        "categories": categories,
        "work": classes[work],
        "thread": thread,
        "threads": threads,
        "thread_names": thread_names,
        "stream": stream,
        "streams": streams,
        "shapes": shapes,
        "shape_texts": shape_texts,
        "stack": stack,
        "stacks": stacks,
        "occupancy": occupancy,
        "occupancies": occupancies,
        "collectives": _arguments_of(table, _COLLECTIVE, CollectiveArguments),
        "syncs": _arguments_of(table, _SYNC, SyncArguments),
    }


def _codes(table: pa.Table, name: str) -> tuple[NDArray[np.int32], list[str]]:
    array = _dictionary(table, name)
    codes = array.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    return codes, array.dictionary.to_pylist()


def _dictionary(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.unify_dictionaries().combine_chunks() if column.num_chunks else column.combine_chunks()


def _ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    found: NDArray[np.int64] = table.column(name).combine_chunks().fill_null(ABSENT).to_numpy(zero_copy_only=False)
    return found


def _distinct(*codes: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return a code for each combination, in order of first appearance, and an event that has it."""
    _, first, inverse = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank[inverse.ravel()], first[order]


def _threads(table: pa.Table) -> tuple[NDArray[np.int32], list[tuple[object, object]], dict[int, str]]:
    process, processes = _codes(table, "process")
    thread, threads = _codes(table, "thread")
    title, titles = _codes(table, "thread_name")
    code, events = _distinct(process, thread, title)
    known = [(_id(processes, process[event]), _id(threads, thread[event])) for event in events.tolist()]
    named = {at: titles[title[event]] for at, event in enumerate(events.tolist()) if title[event] != ABSENT}
    return code, known, named


def _id(texts: list[str], code: int) -> object:
    if code == ABSENT:
        return None
    text = texts[code]
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and (digits == "0" or digits[0] != "0") and text != "-0"
    return int(text) if is_number and len(digits) < _DIGITS_MAX else text


def _streams(table: pa.Table) -> tuple[NDArray[np.int32], list[tuple[int, int]]]:
    device, stream = table.column("device").combine_chunks(), table.column("stream").combine_chunks()
    has = ~(device.is_null().to_numpy(zero_copy_only=False) | stream.is_null().to_numpy(zero_copy_only=False))
    codes = np.full(len(has), ABSENT, np.int32)
    devices, numbers = (each.fill_null(0).to_numpy(zero_copy_only=False)[has] for each in (device, stream))
    if not has.any():
        return codes, []
    codes[has], events = _distinct(devices, numbers)
    return codes, list(zip(devices[events].tolist(), numbers[events].tolist(), strict=True))


def _occupancies(table: pa.Table) -> tuple[NDArray[np.int32], list[Occupancy]]:
    blocks, warps = (
        table.column(name).combine_chunks().fill_null(ABSENT).to_numpy(zero_copy_only=False) for name in _OCCUPANCY
    )
    for name, values in zip(_OCCUPANCY, (blocks, warps), strict=True):
        if not (np.isfinite(values) & (values >= ABSENT)).all():
            raise ValueError(f"{name}: {values.min()} to {values.max()}")
    codes = np.full(len(blocks), ABSENT, np.int32)
    has = (blocks != ABSENT) | (warps != ABSENT)
    if not has.any():
        return codes, []
    codes[has], events = _distinct(blocks[has], warps[has])
    pairs = zip(blocks[has][events].tolist(), warps[has][events].tolist(), strict=True)
    return codes, [Occupancy(*each) for each in pairs]


def _arguments_of(table: pa.Table, fields: Mapping[str, str], kind: type[Any]) -> dict[int, Any]:
    """Return by event its arguments; equal values are one object."""
    first = next(iter(fields))
    events = np.flatnonzero(~table.column(first).combine_chunks().is_null().to_numpy(zero_copy_only=False))
    if not len(events):
        return {}
    rows = table.select(list(fields)).take(pa.array(events))
    code, places = _distinct(*(_any_codes(rows, name) for name in fields))
    distinct = rows.take(pa.array(places)).to_pylist()
    made = [kind(**_given(each, fields)) for each in distinct]
    return {event: made[at] for event, at in zip(events.tolist(), code.tolist(), strict=True)}


def _any_codes(rows: pa.Table, name: str) -> NDArray[np.int64]:
    codes = _codes(rows, name)[0] if name in TEXTS else _ints(rows, name)
    return codes.astype(np.int64)


def _given(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    given = {field: row[name] for name, field in fields.items() if row[name] is not None}
    if "ranks" in given:
        given["ranks"] = msgspec.json.decode(given["ranks"], type=tuple[int, ...])
    return given


def names_of(fields: Iterable[pa.Field]) -> list[tuple[str, Any]]:
    """Return names and types of columns, a dictionary-encoded text as text."""
    return [(each.name, each.type.value_type if pa.types.is_dictionary(each.type) else each.type) for each in fields]
