"""Trace columns as one Parquet file, for later drill-down; what is read is what was written, to the last field.

One row per event. Ids are packed as differences, durations and codes byte by byte, for their upper bytes are alike;
starts the smaller way. All of it goes through zstd. Times that are all whole microseconds, as older profilers wrote
them, are stored as such: version 2, with columns named `start_us` and `duration_us`. What the codes stand for,
and what the trace says about itself, is JSON in the file's metadata: `lockstep.trace` in plain text, and
`lockstep.trace.tables` packed with zstd as base64, for footers are not compressed.
"""

import base64
import binascii
import json
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.trace import times
from lockstep.trace.columns import ABSENT, CollectiveArguments, SyncArguments, TraceAbout, TraceColumns, WorkKind

VERSION, VERSION_US = 1, 2
STORED_MAX_BYTES = 512 << 20
"""Of a file: 20 times what a trace of the largest size accepted takes."""
EVENTS_MAX = 1 << 25
"""Three times what fits a trace of the largest size; 80 bytes each in memory."""
TABLES_MAX_BYTES = 256 << 20
"""Of the tables, unpacked."""

_ABOUT_KEY = b"lockstep.trace"
_TABLES_KEY = b"lockstep.trace.tables"
_LEVEL = 3
_SMALL_EVENTS = 1 << 14
_SMALL_LEVEL, _SMALL_TABLES_LEVEL = 12, 19
"""Of a trace with fewer events, where it costs milliseconds."""
_IDS = ("correlation", "external", "sequence")
_CODED = {
    "name": "names",
    "category": "categories",
    "thread": "threads",
    "stream": "streams",
    "shapes": "shape_texts",
    "stack": "stacks",
    "collective": "collectives",
    "sync": "syncs",
}
"""Columns of codes, and the tables that they point into."""
_ALWAYS = ("name", "category", "thread")
_TYPES = {
    **dict.fromkeys(("start_ns", "duration_ns", *_IDS, "bytes"), pa.int64()),
    **dict.fromkeys(_CODED, pa.int32()),
    "work": pa.int8(),
}
_NS_PER_US = 1000
_NAMES_US = {"start_ns": "start_us", "duration_ns": "duration_us"}
"""Of the columns of version 2 whose unit is another."""
_DIFFERENCES, _BYTE_BY_BYTE = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"
_ENCODINGS = {
    **dict.fromkeys(("correlation", "external"), _DIFFERENCES),
    **dict.fromkeys(("duration_ns", "duration_us", "work"), _BYTE_BY_BYTE),
    **dict.fromkeys((name for name in _CODED if name != "stream"), _BYTE_BY_BYTE),
    "sequence": "PLAIN",
}
"""Of columns without a dictionary, the smallest on the recordings at hand; that of starts depends on the trace."""
_TRIED_EVENTS = 1 << 16
"""So many starts are packed in either way to see which is smaller."""

_START_MAX_NS = int(times.START_MAX_US) * _NS_PER_US + times.BASE_MAX_NS
_START_MAX_US, _DURATION_MAX_US = _START_MAX_NS // _NS_PER_US, int(times.DURATION_MAX_US)
_BOUNDS = {
    "start_ns": (-_START_MAX_NS, _START_MAX_NS),
    "start_us": (-_START_MAX_US, _START_MAX_US),
    "duration_ns": (0, _DURATION_MAX_US * _NS_PER_US),
    "duration_us": (0, _DURATION_MAX_US),
    "work": (0, len(WorkKind) - 1),
}
_EVENT_BYTES = 128  # of one event in all columns, encodings included
_SLACK_BYTES = 1 << 20
_PARTS_MAX = 1 << 16  # row groups and columns of a footer


class _Version(msgspec.Struct):
    version: int


class _About(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    trace_bytes: int
    event_count: int
    dropped_count: int
    tables_bytes: int
    about: TraceAbout


class _Tables(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]
    categories: list[str]
    threads: list[tuple[Any, Any]]
    thread_names: dict[int, str]
    streams: list[tuple[int, int]]
    shape_texts: list[str]
    stacks: list[str]
    collectives: list[CollectiveArguments]
    syncs: list[SyncArguments]


def write_columns(columns: TraceColumns, path: Path) -> None:
    """Write `columns` to `path`, whole or not at all.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    collective, collectives = _coded(columns.collectives, len(columns))
    sync, syncs = _coded(columns.syncs, len(columns))
    tables = {
        "names": columns.names,
        "categories": columns.categories,
        "threads": columns.threads,
        "thread_names": columns.thread_names,
        "streams": columns.streams,
        "shape_texts": columns.shape_texts,
        "stacks": columns.stacks,
        "collectives": [asdict(each) for each in collectives],
        "syncs": [asdict(each) for each in syncs],
    }
    text = json.dumps(tables).encode()
    own = {"collective": collective, "sync": sync}
    table = _table({name: own[name] if name in own else getattr(columns, name) for name in _TYPES})
    about = {
        "version": VERSION if table.column_names == list(_TYPES) else VERSION_US,
        "trace_bytes": columns.trace_bytes,
        "event_count": columns.event_count,
        "dropped_count": columns.dropped_count,
        "tables_bytes": len(text),
        "about": asdict(columns.about),
    }
    tables_level = _LEVEL if len(columns) >= _SMALL_EVENTS else _SMALL_TABLES_LEVEL
    packed = pa.Codec("zstd", compression_level=tables_level).compress(text, asbytes=True)
    _write(table, {_ABOUT_KEY: json.dumps(about).encode(), _TABLES_KEY: base64.b64encode(packed)}, path)


def _table(arrays: dict[str, NDArray[Any]]) -> pa.Table:
    types = _TYPES
    if not any((arrays[name] % _NS_PER_US).any() for name in _NAMES_US):
        types = _types_us()
        arrays |= {name: arrays[name] // _NS_PER_US for name in _NAMES_US}
    parts = [pa.array(array, kind) for array, kind in zip(arrays.values(), types.values(), strict=True)]
    return pa.Table.from_arrays(parts, schema=pa.schema(list(types.items())))


def _types_us() -> dict[str, pa.DataType]:
    return {_NAMES_US.get(name, name): kind for name, kind in _TYPES.items()}


def _write(table: pa.Table, metadata: dict[bytes, bytes], path: Path) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _writer(part, table) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(metadata)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _writer(sink: Path | pa.NativeFile, table: pa.Table, *, starts: str = "") -> pq.ParquetWriter:
    """Return a writer for a table; how starts are packed is tried out if it is not given."""
    encodings = {name: encoding for name, encoding in _ENCODINGS.items() if name in table.column_names}
    encodings[table.column_names[0]] = starts or _packing_of_starts(table)
    return pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_level(table.num_rows),
        use_dictionary=[name for name in table.column_names if name not in encodings],
        column_encoding=encodings,
        write_statistics=False,
        store_schema=False,  # it would hold the metadata a second time
    )


def _packing_of_starts(table: pa.Table) -> str:
    """Return the encoding in which starts take less: that of small and of unordered ones is byte by byte."""
    tried = table.select([0]).slice(0, _TRIED_EVENTS)
    size_bytes = {}
    for encoding in (_DIFFERENCES, _BYTE_BY_BYTE):
        with pa.BufferOutputStream() as sink:
            with _writer(sink, tried, starts=encoding) as writer:
                writer.write_table(tried)
            size_bytes[encoding] = int(sink.tell())
    return min(size_bytes, key=size_bytes.__getitem__)


def _level(events: int) -> int:
    return _LEVEL if events >= _SMALL_EVENTS else _SMALL_LEVEL


def _coded(found: dict[int, Any], count: int) -> tuple[NDArray[np.int32], list[Any]]:
    """Return, per event, the code of what is said about it, and what the codes stand for."""
    codes: dict[Any, int] = {}
    column = np.full(count, ABSENT, np.int32)
    for event, said in found.items():
        column[event] = codes.setdefault(said, len(codes))
    return column, list(codes)


def read_columns(path: Path) -> TraceColumns:
    """Return the columns that `write_columns` wrote to `path`.

    Raises
    ------
    MalformedError
        No such file, too large, cut off or damaged, not of this form, or with values that no trace has.
    ContractVersionError
        Columns of another version.
    """
    try:
        return _read(path)
    except OSError as error:
        raise _malformed(path, "stored trace", error.strerror or error, "a readable Parquet file") from error
    except (pa.ArrowException, EOFError) as error:
        raise _malformed(path, "stored trace", error, "a whole Parquet file") from error
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, RecursionError) as error:
        raise _malformed(path, "tables of a stored trace", error, "the JSON of this version") from error


def _read(path: Path) -> TraceColumns:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > STORED_MAX_BYTES:
        got = f"{stat.filemode(status.st_mode)}, {status.st_size} bytes"
        raise _malformed(path, "stored trace", got, f"a regular file of at most {STORED_MAX_BYTES} bytes")
    with pq.ParquetFile(
        path, thrift_string_size_limit=STORED_MAX_BYTES, thrift_container_size_limit=_PARTS_MAX
    ) as file:
        about = _check_head(path, file)
        tables = _read_tables(path, file.metadata.metadata.get(_TABLES_KEY, b""), about.tables_bytes)
        table = file.read(use_threads=False)
    arrays: dict[str, Any] = {name: _array(path, name, table.column(name)) for name in table.column_names}
    _check(path, arrays, tables)
    if about.version == VERSION_US:
        arrays |= {name: arrays.pop(stored) * _NS_PER_US for name, stored in _NAMES_US.items()}
    collective, sync = arrays.pop("collective"), arrays.pop("sync")
    shown = {name: getattr(tables, name) for name in _Tables.__struct_fields__ if name not in ("collectives", "syncs")}
    return TraceColumns(
        **arrays,
        **shown,
        collectives=_placed(collective, tables.collectives),
        syncs=_placed(sync, tables.syncs),
        about=about.about,
        trace_bytes=about.trace_bytes,
        event_count=about.event_count,
        dropped_count=about.dropped_count,
    )


def _check_head(path: Path, file: pq.ParquetFile) -> _About:
    """Check all that a footer says before anything is read for it."""
    found = file.metadata
    text = (found.metadata or {}).get(_ABOUT_KEY)
    if text is None:
        raise _malformed(path, "stored trace", "another Parquet file", f"metadata {_ABOUT_KEY.decode()}")
    version = msgspec.json.decode(text, type=_Version).version
    if version not in (VERSION, VERSION_US):
        expected = f"{VERSION} or {VERSION_US}"
        raise ContractVersionError("stored trace version", where=str(path), got=version, expected=expected)
    about = msgspec.json.decode(text, type=_About)
    types = _types_us() if version == VERSION_US else _TYPES
    if [(each.name, each.type) for each in file.schema_arrow] != list(types.items()):
        raise _malformed(path, "columns of a stored trace", file.schema_arrow.names, list(types))
    if not 0 < found.num_rows <= EVENTS_MAX or not 0 <= about.tables_bytes <= TABLES_MAX_BYTES:
        got = f"{found.num_rows} events, {about.tables_bytes} bytes of tables"
        raise _malformed(path, "stored trace", got, f"1 to {EVENTS_MAX} events, at most {TABLES_MAX_BYTES} bytes")
    size = sum(found.row_group(index).total_byte_size for index in range(found.num_row_groups))
    if not 0 <= size <= _SLACK_BYTES + found.num_rows * _EVENT_BYTES:
        raise _malformed(path, "stored trace", f"{size} bytes unpacked", f"at most {_EVENT_BYTES} an event")
    return about


def _read_tables(path: Path, packed: bytes, size_bytes: int) -> _Tables:
    text = pa.Codec("zstd").decompress(base64.b64decode(packed, validate=True), size_bytes, asbytes=True)
    tables = msgspec.json.decode(text, type=_Tables)
    scalar = (int, str, float, type(None))
    if not all(isinstance(part, scalar) for thread in tables.threads for part in thread):
        raise _malformed(path, "threads of a stored trace", "a list", "numbers and texts")
    return tables


def _array(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    if column.null_count:
        raise _malformed(path, f"{name} of a stored trace", f"{column.null_count} nulls", "none")
    values: NDArray[Any] = column.to_numpy()
    return values


def _check(path: Path, arrays: dict[str, NDArray[Any]], tables: _Tables) -> None:
    """Check that every code points into its table and that no end overflows."""
    bounds = {name: _BOUNDS[name] for name in arrays if name in _BOUNDS}
    for name, table in _CODED.items():
        bounds[name] = (0 if name in _ALWAYS else ABSENT, len(getattr(tables, table)) - 1)
    for name, (low, high) in bounds.items():
        least, most = int(arrays[name].min()), int(arrays[name].max())
        if not low <= least <= most <= high:
            raise _malformed(path, f"{name} of a stored trace", f"{least} to {most}", f"{low} to {high}")
    if any(not 0 <= code < len(tables.threads) for code in tables.thread_names):
        raise _malformed(path, "thread names of a stored trace", "a name of no thread", "codes of threads")


def _placed(codes: NDArray[np.int32], said: list[Any]) -> dict[int, Any]:
    at = np.flatnonzero(codes != ABSENT)
    return {event: said[code] for event, code in zip(at.tolist(), codes[at].tolist(), strict=True)}


def _malformed(path: Path, what: str, got: object, expected: object) -> MalformedError:
    return MalformedError(what, where=str(path), got=got, expected=expected)
