"""The step log: one row per rank and step in Parquet, which the coordinator records and `lockstep replay` reads.

Blocking file I/O: call it off the event loop. Integers in ns and bytes, null where nothing was measured. Reading is
strict: a log that cannot be true is refused by name, for its answer would be wrong without anybody noticing. A log
may be one file or a directory of parts; it may hold several runs, and rows in any order.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS, MISSING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lockstep.contracts.messages import StepBatch

KEY_COLUMNS = ("rank", "step", "start_ns", "duration_ns")
PART_COLUMNS = ("compute_ns", "host_ns", "data_ns", "gc_ns")
REQUIRED_COLUMNS = (*KEY_COLUMNS, *PART_COLUMNS)
"""What every log must hold; the wait of each kind that the job has domains of is required besides (`replay.py`)."""
WAIT_COLUMNS = tuple(f"{kind}_wait_ns" for kind in DOMAIN_KINDS)
OPTIONAL_COLUMNS = (
    *(f"{kind}_transfer_ns" for kind in DOMAIN_KINDS),
    *(f"{kind}_bytes" for kind in DOMAIN_KINDS),
    "tokens",
    "work",
    "flags",
    "received_ns",
)
RUN_COLUMN = "run"
DEFAULT_RUN = "run"
PART_ROWS = 1 << 20  # rows of one recorded file: 150 MB in memory, a tenth on disk; 100 s of 10,240 ranks
_VERSION_KEY, _VERSION = b"lockstep.step_log", b"1"
"""Metadata of a log that Lockstep wrote: there, null in a required column means not measured."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """The rows of one run in order of arrival: int64 arrays of shape (n_rows,), MISSING where not measured."""

    run: str
    columns: "dict[str, NDArray[np.int64]]"

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.columns["rank"])

    @property
    def arrival_ns(self) -> "NDArray[np.int64]":
        """When each row became known, array of shape (n_rows,): `received_ns`, else the step's end by its own clock."""
        end_ns = self.columns["start_ns"] + self.columns["duration_ns"]
        received_ns = self.columns.get("received_ns")
        return end_ns if received_ns is None else np.where(received_ns == MISSING, end_ns, received_ns)


def read(path: Path) -> list[StepLog]:
    """Return the runs of a log, by name.

    Raises
    ------
    MalformedError
        It cannot be read as Parquet, lacks a required column, or holds what cannot be: a value that is no whole
        number, negative or not a number, or a step that a rank reports twice. The message names column and row.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise MalformedError("step log", where=str(path), got="an empty directory", expected="*.parquet files")
    rows: dict[str, list[StepLog]] = {}
    for file in files:
        for part in _read_file(file):
            rows.setdefault(part.run, []).append(part)
    return [_ordered(_joined(rows[run]), where=str(path)) for run in sorted(rows)]


def write(log: StepLog, file: Path) -> None:
    """Write a log; `file` appears when it is whole."""
    _write_columns({name: [values] for name, values in log.columns.items()}, [log.run], [log.count], file)


class StepLogRecorder:
    """Keeps the records that a coordinator receives, in parts of at most PART_ROWS rows within a byte quota.

    Not thread-safe, and `add` writes a part when one is due: call both off the event loop, from one task. What has
    not been flushed is lost with the process. The oldest parts go when the directory would exceed `quota_bytes`.
    """

    def __init__(self, directory: Path, *, quota_bytes: int, part_rows: int = PART_ROWS) -> None:
        self._directory = directory
        self._quota_bytes = quota_bytes
        self._part_rows = part_rows
        self._pending: list[StepLog] = []
        self._rows = 0
        self._parts = 0

    def add(self, batch: "StepBatch", received_ns: int) -> None:
        """Take a decoded batch, wall-clock time of its receipt beside it.

        Raises
        ------
        OSError
            A part was due and could not be written; its rows are kept for the next call.
        """
        if batch.count:
            self._pending.append(StepLog(batch.run, _columns_of(batch, received_ns)))
            self._rows += batch.count
        if self._rows >= self._part_rows:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered.

        Raises
        ------
        OSError
            The part could not be written; its rows are kept.
        """
        if not self._pending:
            return
        first_ns = int(self._pending[0].columns["received_ns"][0])
        names = dict.fromkeys(name for log in self._pending for name in log.columns)
        columns = {
            name: [log.columns.get(name, np.full(log.count, MISSING)) for log in self._pending] for name in names
        }
        runs, counts = [log.run for log in self._pending], [log.count for log in self._pending]
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o770)
        file = self._directory / f"steps-{first_ns:020d}-{self._parts:04d}.parquet"
        _write_columns(columns, runs, counts, file)
        self._pending, self._rows, self._parts = [], 0, self._parts + 1
        self._make_room()

    def _make_room(self) -> None:
        parts = sorted(self._directory.glob("steps-*.parquet"))  # names begin with the time: the oldest first
        sizes = [part.stat().st_size for part in parts]
        while len(parts) > 1 and sum(sizes) > self._quota_bytes:
            parts.pop(0).unlink()
            sizes.pop(0)


def _columns_of(batch: "StepBatch", received_ns: int) -> "dict[str, NDArray[np.int64]]":
    """Return the log's columns of a batch; what the sender left out is left out."""
    given = {name: np.frombuffer(data, dtype="<i8") for name, data in batch.columns.items()}
    columns = {name: given[name] for name in (*REQUIRED_COLUMNS, *WAIT_COLUMNS, *OPTIONAL_COLUMNS) if name in given}
    columns["rank"] = np.frombuffer(batch.ranks, dtype="<i4").astype(np.int64)
    columns["duration_ns"] = given["end_ns"] - given["start_ns"]
    for kind in DOMAIN_KINDS:
        shortest, count = given.get(f"{kind}_shortest_ns"), given.get(f"{kind}_count")
        if shortest is not None and count is not None:
            known = (shortest != MISSING) & (count != MISSING)
            columns[f"{kind}_transfer_ns"] = np.where(known, shortest * np.where(known, count, 0), MISSING)
    columns["received_ns"] = np.full(batch.count, received_ns)
    return columns


def _write_columns(
    columns: "Mapping[str, Sequence[NDArray[np.int64]]]", runs: Sequence[str], counts: Sequence[int], file: Path
) -> None:
    arrays: dict[str, Any] = {}
    for name, parts in columns.items():
        values = np.concatenate(parts)
        arrays[name] = pa.array(values, mask=values == MISSING)
    indices = pa.array(np.repeat(np.arange(len(runs), dtype=np.int32), counts))
    names = pa.DictionaryArray.from_arrays(indices, pa.array(runs, type=pa.string())).cast(pa.string())
    arrays[RUN_COLUMN] = names
    table = pa.table(arrays).replace_schema_metadata({_VERSION_KEY: _VERSION})
    partial = file.with_name(file.name + ".partial")
    pq.write_table(table, partial, compression="zstd")
    os.replace(partial, file)  # noqa: PTH105  (one call that says atomic)


def _read_file(file: Path) -> list[StepLog]:
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise MalformedError("step log", where=str(file), got=error, expected="a readable Parquet file") from None
    lacking = [name for name in REQUIRED_COLUMNS if name not in table.column_names]
    if lacking:
        raise MalformedError("column", where=str(file), got=f"no {', '.join(lacking)}", expected="it: it is required")
    is_ours = (table.schema.metadata or {}).get(_VERSION_KEY) is not None
    columns = {}
    for name in (*REQUIRED_COLUMNS, *WAIT_COLUMNS, *OPTIONAL_COLUMNS):
        if name not in table.column_names:
            continue
        column = table.column(name).combine_chunks()
        if name not in REQUIRED_COLUMNS and column.null_count == len(column):  # a kind that the job does not have
            continue
        may_be_null = name in OPTIONAL_COLUMNS or (is_ours and name not in KEY_COLUMNS)
        if column.null_count and not may_be_null:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise MalformedError(f"{name} of row {row}", where=str(file), got="null", expected="a whole number")
        columns[name] = _whole(name, column, where=str(file))
        _check_range(name, columns[name], where=str(file))
    return _by_run(table, columns, where=str(file))


def _by_run(table: Any, columns: "dict[str, NDArray[np.int64]]", *, where: str) -> list[StepLog]:
    if RUN_COLUMN not in table.column_names:
        return [StepLog(DEFAULT_RUN, columns)] if table.num_rows else []
    try:
        names = table.column(RUN_COLUMN).cast(pa.string()).combine_chunks().dictionary_encode()
    except pa.ArrowException as error:
        raise MalformedError(RUN_COLUMN, where=where, got=error, expected="names") from None
    if names.null_count:
        raise MalformedError(RUN_COLUMN, where=where, got="null", expected="a name in each row")
    index = names.indices.to_numpy(zero_copy_only=False)
    return [
        StepLog(str(name), {column: values[index == number] for column, values in columns.items()})
        for number, name in enumerate(names.dictionary.to_pylist())
    ]


def _whole(name: str, column: Any, *, where: str) -> "NDArray[np.int64]":
    """Return a column as int64, MISSING for null; floats pass when each is a whole number."""
    expected = "whole numbers of 64 bits"
    if pa.types.is_floating(column.type):
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~((np.abs(values) < 2.0**63) & (values == np.rint(values))))
        if len(wrong):
            raise MalformedError(f"{name} of row {wrong[0]}", where=where, got=values[wrong[0]], expected=expected)
        whole = values.astype(np.int64)
    elif pa.types.is_integer(column.type):
        try:
            whole = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise MalformedError(name, where=where, got=error, expected=expected) from None
    else:
        raise MalformedError(name, where=where, got=column.type, expected=expected)
    if not column.null_count:
        return np.asarray(whole, dtype=np.int64)
    return np.where(column.is_null().to_numpy(zero_copy_only=False), MISSING, whole)


def _check_range(name: str, values: "NDArray[np.int64]", *, where: str) -> None:
    """Refuse what cannot be: all of a log counts from 0, and a step takes time."""
    low = 1 if name == "duration_ns" else 0
    high = WORLD_SIZE_MAX - 1 if name == "rank" else 1 << 62
    wrong = np.flatnonzero(((values < low) | (values > high)) & (values != MISSING))
    if len(wrong):
        row = int(wrong[0])
        raise MalformedError(f"{name} of row {row}", where=where, got=values[row], expected=f"{low} to {high}")


def _joined(parts: list[StepLog]) -> StepLog:
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns = {
        name: np.concatenate([part.columns.get(name, np.full(part.count, MISSING)) for part in parts]) for name in names
    }
    return StepLog(parts[0].run, columns)


def _ordered(log: StepLog, *, where: str) -> StepLog:
    """Return the rows in order of arrival, and refuse a step that a rank reports twice.

    After a restart a rank reports the same index again, at another time: twice means less than half a step apart.
    """
    rank, step, start_ns = (log.columns[name] for name in ("rank", "step", "start_ns"))
    order = np.lexsort((start_ns, step, rank))
    one, next_ = order[:-1], order[1:]
    again = (rank[one] == rank[next_]) & (step[one] == step[next_])
    again &= start_ns[next_] - start_ns[one] <= log.columns["duration_ns"][one] // 2
    if again.any():
        row = int(next_[np.flatnonzero(again)[0]])
        raise MalformedError(
            f"row {row}", where=where, got=f"rank {rank[row]} step {step[row]} again", expected="each step once"
        )
    order = np.lexsort((step, rank, log.arrival_ns))
    if np.array_equal(order, np.arange(len(order))):
        return log
    return StepLog(log.run, {name: values[order] for name, values in log.columns.items()})
