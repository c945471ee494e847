"""Reads and writes the parts of a recording: step records as a step log, plus all other input as a journal.

Blocking file I/O: call it off the event loop. A part is one Parquet file that any reader of step logs understands. Its
metadata holds the journal (`journal.py`), and three additional columns give the order of arrival: `arrival` (the serial
of the input that contained the record), `batch` (the index of the message in that input) and `node`. A part appears
only when it is complete.
"""

import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.record.journal import CoordinatorStart, Entry, read_entry
from coordinator.record.steplog import REQUIRED_COLUMNS, RUN_COLUMN, VERSION_METADATA, columns_of
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import StepBatch
from lockstep.contracts.records import MISSING, RECORD_FIELDS
from lockstep.contracts.rows import RANK, SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

PART_PATTERN = "steps-*.parquet"
_JOURNAL_KEY = b"lockstep.journal"
_NODE_COLUMN = "node"
_COMPRESSION = 3  # of 9; higher levels cost time and save little
_JOURNAL_MAX_BYTES = 1 << 30  # of JSON; 100,000 ranks announced ten times take a tenth of it


@dataclass(frozen=True, slots=True)
class _Taken:
    """A batch with its position in the recording."""

    batch: StepBatch
    serial: int
    place: int
    time_ns: int


def part_name(first_ns: int) -> str:
    """Return the name of the part that begins at a time; names sort in the order of the parts."""
    return f"steps-{first_ns:020d}.parquet"


def begin_ns(file: Path) -> int:
    """Return the time in a part's name; 0 if the name is not that of a part."""
    number = file.stem.removeprefix("steps-")
    return int(number) if number.isdecimal() else 0


def write_part(file: Path, entries: Sequence[Entry], journal: Sequence[Any], known: Sequence[Any]) -> None:
    """Write the batches among `entries` as rows, and `journal` and `known` (JSON) as metadata.

    Raises
    ------
    OSError
        The file could not be written; nothing of it is left.
    """
    taken = [
        _Taken(batch, entry.serial, place, entry.time_ns)
        for entry in entries
        if isinstance(entry.what, tuple)
        for place, batch in enumerate(entry.what)
        if batch.count
    ]
    body = json.dumps({"known": known, "entries": journal}, separators=(",", ":")).encode()
    # As text: readers in other languages expect UTF-8 metadata. Without Arrow's schema, which would duplicate it.
    metadata = {**VERSION_METADATA, _JOURNAL_KEY: b64encode(zlib.compress(body, _COMPRESSION))}
    table = _table(taken)
    partial = file.with_name(file.name + ".partial")
    try:
        with pq.ParquetWriter(partial, table.schema, compression="zstd", store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(metadata)
        os.replace(partial, file)  # noqa: PTH105  (one call whose name shows that it is atomic)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _table(taken: Sequence[_Taken]) -> Any:
    counts = [each.batch.count for each in taken]
    columns = columns_of([each.batch for each in taken], [each.time_ns for each in taken])
    unknown = np.full(sum(counts), MISSING)
    arrays: dict[str, Any] = {}
    for name in dict.fromkeys((*REQUIRED_COLUMNS, *columns)):
        values = columns.get(name, unknown)
        arrays[name] = pa.array(values, mask=values == MISSING)
    arrays["arrival"] = pa.array(np.repeat(np.array([each.serial for each in taken], dtype=np.int64), counts))
    arrays["batch"] = pa.array(np.repeat(np.array([each.place for each in taken], dtype=np.int64), counts))
    arrays[_NODE_COLUMN] = _names([each.batch.node for each in taken], counts)
    arrays[RUN_COLUMN] = _names([each.batch.run for each in taken], counts)
    return pa.table(arrays)


def _names(names: Sequence[str], counts: Sequence[int]) -> Any:
    indices = pa.array(np.repeat(np.arange(len(names), dtype=np.int32), counts))
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, type=pa.string())).cast(pa.string())


def parts_of(path: Path) -> list[Path]:
    """Return the parts of a recording in order; empty if `path` is not a recording."""
    files = sorted(path.glob(PART_PATTERN)) if path.is_dir() else [path]
    return files if files and all(_JOURNAL_KEY in _metadata(file) for file in files) else []


def _metadata(file: Path) -> dict[bytes, bytes]:
    try:
        return pq.read_metadata(file).metadata or {}
    except (OSError, pa.ArrowException):
        return {}


def read_parts(files: Sequence[Path]) -> Iterator[Entry]:
    """Yield all input in order; one part is in memory at a time.

    The announcements at the head of a part are yielded only at the beginning of the recording and after missing parts.

    Raises
    ------
    MalformedError
        A part was not written by a recorder.
    """
    next_serial: int | None = None
    for file in files:
        where = str(file)
        table, known, entries = _open(file)
        known_entries = [read_entry(row, where=where) for row in known]
        merged = _merged(table, [read_entry(row, where=where) for row in entries], where)
        first = next(merged, None)
        if first is None:
            continue
        if first.serial not in (next_serial, 0):
            for each in known_entries:
                # After missing parts it is still the same coordinator: only the announcements are repeated.
                if next_serial is None or not isinstance(each.what, CoordinatorStart):
                    yield Entry(-1, first.time_ns, each.what)
        yield first
        next_serial = first.serial + 1
        for entry in merged:
            yield entry
            next_serial = entry.serial + 1


def _open(file: Path) -> tuple[Any, list[Any], list[Any]]:
    try:
        table = pq.read_table(file)
        squeezed = (table.schema.metadata or {})[_JOURNAL_KEY]
        unpacker = zlib.decompressobj()
        body = json.loads(unpacker.decompress(b64decode(squeezed), _JOURNAL_MAX_BYTES))
        known, entries = list(body["known"]), list(body["entries"])
    except (OSError, pa.ArrowException, zlib.error, ValueError, KeyError, TypeError) as error:
        raise MalformedError(
            "recording", where=str(file), got=repr(error), expected="a part that a recorder wrote"
        ) from None
    return table, known, entries


def _merged(table: Any, entries: Sequence[Entry], where: str) -> Iterator[Entry]:
    """Yield rows (in their original batches) and entries, merged in order of their serials."""
    waiting = list(reversed(entries))
    for entry in _batches(table, where):
        while waiting and waiting[-1].serial < entry.serial:
            yield waiting.pop()
        yield entry
    yield from reversed(waiting)


def _batches(table: Any, where: str) -> Iterator[Entry]:
    if not table.num_rows:
        return
    try:
        columns = {
            name: _integers(table.column(name)) for name in table.column_names if name not in (RUN_COLUMN, _NODE_COLUMN)
        }
        names = {name: table.column(name).combine_chunks().dictionary_encode() for name in (RUN_COLUMN, _NODE_COLUMN)}
        arrival, batch = columns.pop("arrival"), columns.pop("batch")
        received_ns, rank = columns.pop("received_ns"), columns.pop(RANK)
        columns["end_ns"] = columns["start_ns"] + columns.pop("duration_ns")
    except (KeyError, pa.ArrowException) as error:
        raise MalformedError("recording", where=where, got=repr(error), expected="a recorder's columns") from None
    run_index, node_index = (names[name].indices.to_numpy() for name in (RUN_COLUMN, _NODE_COLUMN))
    run_names, node_names = (names[name].dictionary.to_pylist() for name in (RUN_COLUMN, _NODE_COLUMN))
    columns = {RANK: rank} | {name: values for name, values in columns.items() if name in RECORD_FIELDS}
    fields, rows = [*columns], np.stack([*columns.values()], axis=1).astype("<i8", copy=False)
    gaps = [place for place in range(1, len(fields)) if (rows[:, place] == MISSING).any()]
    begins = np.flatnonzero(np.diff(arrival, prepend=-1) | np.diff(batch, prepend=-1)).tolist()
    gathered: list[StepBatch] = []
    for begin, end in zip(begins, [*begins[1:], len(arrival)], strict=True):
        own = rows[begin:end]
        left_out = [place for place in gaps if (own[:, place] == MISSING).all()]
        gathered.append(
            StepBatch(
                run=run_names[run_index[begin]],
                node=node_names[node_index[begin]],
                sent_unix_ns=int(received_ns[begin]),
                count=end - begin,
                layout=SEPARATOR.join(name for place, name in enumerate(fields) if place not in left_out),
                records=np.delete(own, left_out, axis=1).tobytes(),
            )
        )
        if end == len(arrival) or arrival[end] != arrival[begin]:
            yield Entry(int(arrival[begin]), int(received_ns[begin]), tuple(gathered))
            gathered = []


def _integers(column: Any) -> "NDArray[np.int64]":
    """Return a column as int64, MISSING for null."""
    whole = column.combine_chunks()
    values: NDArray[np.int64] = whole.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(whole.is_null().to_numpy(zero_copy_only=False), MISSING, values) if whole.null_count else values
