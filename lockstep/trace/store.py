"""Stores trace columns as one Parquet file, for later drill-down, without loss.

One row per event with plain values (`events_table`), so that pandas, DuckDB and Polars read it as it is; Parquet's own
dictionary encoding and zstd make it small. The trace's own metadata is JSON under `lockstep.trace` in the file's
metadata. A file may be hostile: its footer is checked before anything else is read.
"""

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.trace import times
from lockstep.trace.columns import TraceColumns, TraceMetadata
from lockstep.trace.events_table import SCHEMA, TEXTS, fields_of, names_of, table_of

VERSION = 4
STORED_MAX_BYTES = 512 << 20
"""Of a file: 20 times what a trace of the largest size accepted takes."""
EVENTS_MAX = 1 << 25
"""Three times what fits a trace of the largest size; 80 bytes each in memory."""
TABLES_MAX_BYTES = 256 << 20
"""Of the distinct texts of a column, unpacked."""

_STEP_LOG_COLUMNS = {"rank", "step", "duration_ns"}
_HEAD_KEY = b"lockstep.trace"
_LEVEL = 3
_SMALL_EVENTS, _SMALL_LEVEL = 1 << 14, 12
"""A trace with fewer events is packed harder, where that costs milliseconds."""
_DIFFERENCES = ("start_ns", "correlation", "external", "sequence")
"""Nearly in order, so that differences are small."""
_WITHOUT_DICTIONARY = ("duration_ns", *_DIFFERENCES)

_START_MAX_NS = int(times.START_MAX_US) * 1000 + times.BASE_MAX_NS
_BOUNDS = {"start_ns": (-_START_MAX_NS, _START_MAX_NS), "duration_ns": (0, int(times.DURATION_MAX_US) * 1000)}
_EVENT_BYTES = 256  # of one event in all columns, encodings included
_SLACK_BYTES = 1 << 20
_PARTS_MAX = 1 << 16  # row groups and columns of a footer


class _Version(msgspec.Struct):
    version: int


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    trace_bytes: int
    event_count: int
    dropped_count: int
    metadata: TraceMetadata


def write_columns(columns: TraceColumns, path: Path) -> None:
    """Write `columns` to `path`, whole or not at all.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    head = {
        "version": VERSION,
        "trace_bytes": columns.trace_bytes,
        "event_count": columns.event_count,
        "dropped_count": columns.dropped_count,
        "metadata": asdict(columns.metadata),
    }
    _write(table_of(columns), {_HEAD_KEY: json.dumps(head).encode()}, path)


def _write(table: pa.Table, metadata: dict[bytes, bytes], path: Path) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _writer(part, table) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(metadata)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _writer(sink: Path, table: pa.Table) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_LEVEL if table.num_rows >= _SMALL_EVENTS else _SMALL_LEVEL,
        use_dictionary=[name for name in table.column_names if name not in _WITHOUT_DICTIONARY],
        column_encoding=dict.fromkeys(_DIFFERENCES, "DELTA_BINARY_PACKED"),
        dictionary_pagesize_limit=TABLES_MAX_BYTES,
        write_statistics=False,
        store_schema=False,  # readers get texts, not Arrow's dictionaries
    )


def read_columns(path: Path) -> TraceColumns:
    """Return the columns that `write_columns` wrote to `path`; ids of threads that are whole numbers are int.

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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(path, "metadata of a stored trace", error, "the JSON of this version") from error
    except ValueError as error:
        raise _malformed(path, "column of a stored trace", error, "values of this version") from error


def _read(path: Path) -> TraceColumns:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > STORED_MAX_BYTES:
        got = f"{stat.filemode(status.st_mode)}, {status.st_size} bytes"
        raise _malformed(path, "stored trace", got, f"a regular file of at most {STORED_MAX_BYTES} bytes")
    limits = {"thrift_string_size_limit": STORED_MAX_BYTES, "thrift_container_size_limit": _PARTS_MAX}
    with pq.ParquetFile(path, **limits) as file:
        head, footer = _check_head(path, file), file.metadata
    with pq.ParquetFile(path, metadata=footer, read_dictionary=list(TEXTS), **limits) as file:
        fields = fields_of(file.read(use_threads=False))
    for name, (low, high) in _BOUNDS.items():
        least, most = int(fields[name].min()), int(fields[name].max())
        if not low <= least <= most <= high:
            raise _malformed(path, f"{name} of a stored trace", f"{least} to {most}", f"{low} to {high}")
    return TraceColumns(
        **fields,
        metadata=head.metadata,
        trace_bytes=head.trace_bytes,
        event_count=head.event_count,
        dropped_count=head.dropped_count,
    )


def _check_head(path: Path, file: pq.ParquetFile) -> _Head:
    """Check the footer before anything is read for it."""
    found = file.metadata
    text = (found.metadata or {}).get(_HEAD_KEY)
    if text is None:
        is_log = set(file.schema_arrow.names) >= _STEP_LOG_COLUMNS
        got = "a step log, which `lockstep replay` reads" if is_log else "another Parquet file"
        raise _malformed(path, "stored trace", got, f"metadata {_HEAD_KEY.decode()}")
    version = msgspec.json.decode(text, type=_Version).version
    if version != VERSION:
        raise ContractVersionError("stored trace version", where=str(path), got=version, expected=VERSION)
    head = msgspec.json.decode(text, type=_Head)
    if names_of(file.schema_arrow) != names_of(SCHEMA):
        raise _malformed(path, "columns of a stored trace", file.schema_arrow.names, SCHEMA.names)
    if not 0 < found.num_rows <= EVENTS_MAX:
        raise _malformed(path, "stored trace", f"{found.num_rows} events", f"1 to {EVENTS_MAX} events")
    size = sum(found.row_group(index).total_byte_size for index in range(found.num_row_groups))
    if not 0 <= size <= TABLES_MAX_BYTES + _SLACK_BYTES + found.num_rows * _EVENT_BYTES:
        expected = f"at most {TABLES_MAX_BYTES} of texts and {_EVENT_BYTES} an event"
        raise _malformed(path, "stored trace", f"{size} bytes unpacked", expected)
    return head


def _malformed(path: Path, what: str, got: object, expected: object) -> MalformedError:
    return MalformedError(what, where=str(path), got=got, expected=expected)
