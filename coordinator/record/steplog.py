"""The step log: one row per rank and step in Parquet, which `lockstep replay` reads; recordings are such logs too.

Blocking file I/O: call it off the event loop. Integers in ns and bytes, null if not measured. Strict reading rejects an
implausible log with a message that names column and row, because its result would be wrong unnoticed. Lenient reading
skips and counts rows that cannot be read, as a coordinator does, and leaves the rest to the timeline. A log is one file
or a directory of parts. It may hold several runs, and rows in any order.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.intake.batch_table import read_batches
from coordinator.intake.views import VIEW_FIELDS
from coordinator.record.unaccounted_time import attribute_unaccounted
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from lockstep.contracts.rows import RANK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lockstep.contracts.messages import StepBatch

KEY_COLUMNS = ("rank", "step", "start_ns", "duration_ns")
PART_COLUMNS = ("compute_ns", "host_ns", "data_ns", "gc_ns")
REQUIRED_COLUMNS = (*KEY_COLUMNS, *PART_COLUMNS)
"""Columns that every log must have; the wait of each kind of domain that the job has is also required (`replay.py`)."""
WAIT_COLUMNS = tuple(f"{kind}_wait_ns" for kind in DOMAIN_KINDS)
OPTIONAL_COLUMNS = (
    *(f"{kind}_transfer_ns" for kind in DOMAIN_KINDS),
    *(f"{kind}_bytes" for kind in DOMAIN_KINDS),
    "tokens",
    "samples",
    "work",
    "model_flops",
    "gc_full_count",
    "flags",
    *VIEW_FIELDS,
    "received_ns",
)
_TIMES = ("step", "start_ns", "end_ns")
_KEPT = (
    *PART_COLUMNS,
    *WAIT_COLUMNS,
    *(name for name in OPTIONAL_COLUMNS if not name.endswith("_transfer_ns") and name != "received_ns"),
    *(f"{kind}_{what}" for kind in DOMAIN_KINDS for what in ("shortest_ns", "count")),
)
"""Fields of the wire format that a recording holds in addition to the times: all that detection uses."""
RUN_COLUMN = "run"
DEFAULT_RUN = "run"
_ACCOUNT_PARTS = 1000  # rounding may add one part in 1,000 of a step, as in the timeline
_ROUNDING_NS = 1000
_CLOCK_OFF_NS = 60 * 10**9  # clocks of nodes differ by milliseconds; one that is off by more is unusable
_VERSION_KEY = b"lockstep.step_log"
VERSION_METADATA = {_VERSION_KEY: b"1"}
"""Metadata of a log that Lockstep wrote. In such a log, null in a required column means not measured."""
_PART_MAX_NS = 86_400 * 10**9  # a day: the timeline's limit for every part of a step
_COUNT_MAX = 1 << 16  # multiplied by the shortest operation, below a day, it still fits in 64 bits
_UNIX_MAX_NS = 1 << 62  # the year 2116


@dataclass(frozen=True, slots=True)
class StepLog:
    """The rows of one run in order of arrival: int64 arrays of shape (n_rows,), MISSING if not measured."""

    run: str
    columns: "dict[str, NDArray[np.int64]]"

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.columns["rank"])

    @property
    def arrival_ns(self) -> "NDArray[np.int64]":
        """When each row arrived, array of shape (n_rows,), unix ns: `received_ns` if present, else the end of the step.

        Clocks of ranks that are off by minutes are corrected first, because a live coordinator uses its own clock.
        """
        end_ns = self.columns["start_ns"] + self.columns["duration_ns"]
        received_ns = self.columns.get("received_ns")
        if received_ns is not None and not (received_ns == MISSING).any():
            return received_ns
        end_ns = end_ns - self._ahead_ns(end_ns)[self.columns["rank"]]
        return end_ns if received_ns is None else np.where(received_ns == MISSING, end_ns, received_ns)

    @property
    def early_rows(self) -> "NDArray[np.intp]":
        """Rows received long before the end of their step by corrected clocks; their time of arrival is unknown."""
        received_ns = self.columns.get("received_ns")
        if received_ns is None:
            return np.empty(0, dtype=np.intp)
        end_ns = self.columns["start_ns"] + self.columns["duration_ns"]
        end_ns = end_ns - self._ahead_ns(end_ns)[self.columns["rank"]]
        return np.flatnonzero((received_ns != MISSING) & (received_ns < end_ns - _CLOCK_OFF_NS))

    def forget_early_receipts(self) -> int:
        """Clear `received_ns` of the early rows; return their number."""
        rows = self.early_rows
        if len(rows):
            received_ns = self.columns["received_ns"].copy()
            received_ns[rows] = MISSING
            self.columns["received_ns"] = received_ns
        return len(rows)

    def _ahead_ns(self, end_ns: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Return how far each rank's clock is ahead of the others, array by rank, ns; 0 if less than a minute."""
        rank, step = self.columns["rank"], self.columns["step"]
        ahead_ns = np.zeros(int(rank.max(initial=-1)) + 1, dtype=np.int64)
        if len(rank):
            beyond_ns = end_ns - _group_median(end_ns, step)
            own_ns = _group_median(beyond_ns, rank)
            ahead_ns[rank] = np.where(np.abs(own_ns) > _CLOCK_OFF_NS, own_ns, 0)
        return ahead_ns


def _group_median(values: "NDArray[np.int64]", group: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """Return the median of each value's group, array of shape (n_rows,)."""
    _, group = np.unique(group, return_inverse=True)
    order = np.lexsort((values, group))
    sizes = np.bincount(group)
    first = np.cumsum(sizes) - sizes
    middle: NDArray[np.int64] = values[order][first + (sizes - 1) // 2][group]
    return middle


def read(path: Path, skipped: Counter[str] | None = None) -> list[StepLog]:
    """Return the runs of a log, by name. With `skipped`, reading is lenient and counts skipped rows there, by column.

    Raises
    ------
    MalformedError
        It is not readable as Parquet, or lacks a required column (if lenient: rank, step or time). If strict, also for
        implausible values: not a whole number, negative, longer than a day, a step that a rank reports twice, a row
        received before the end of its step, or most steps not the sum of their parts. The message names column and row.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise MalformedError("step log", where=str(path), got="an empty directory", expected="*.parquet files")
    rows: dict[str, list[StepLog]] = {}
    for file in files:
        for part in _read_file(file, skipped):
            rows.setdefault(part.run, []).append(part)
    logs = [_joined(rows[run]) for run in sorted(rows)]
    if skipped is None:
        for log in logs:
            _check_once(log, where=str(path))
            _check_account(log, where=str(path))
            _check_receipt(log, where=str(path))
    else:
        for log in logs:
            skipped["received_ns"] += log.forget_early_receipts()
    return [_ordered(log) for log in logs]


def write(log: StepLog, file: Path) -> None:
    """Write a log; `file` appears only when it is complete."""
    _write_columns({name: [values] for name, values in log.columns.items()}, [log.run], [log.count], file)


def columns_of(batches: "Sequence[StepBatch]", received_ns: Sequence[int]) -> "dict[str, NDArray[np.int64]]":
    """Return consecutive batches as columns of a log, each with its time of receipt.

    Fields that no sender measured are omitted. Arithmetic on false values may wrap around; that loses nothing, because
    the coordinator's reader reverses it.
    """
    counts = [batch.count for batch in batches]
    given = read_batches(batches, (RANK, *_TIMES), _KEPT)
    columns = {name: values for name, values in given.items() if name != "end_ns"}
    columns["duration_ns"] = given["end_ns"] - given["start_ns"]
    for kind in DOMAIN_KINDS:
        shortest, count = given.get(f"{kind}_shortest_ns"), given.get(f"{kind}_count")
        if shortest is not None and count is not None:
            known = (shortest >= 0) & (shortest <= _PART_MAX_NS) & (count >= 0) & (count <= _COUNT_MAX)
            columns[f"{kind}_transfer_ns"] = np.where(known, shortest * np.where(known, count, 0), MISSING)
    columns["received_ns"] = np.repeat(np.array(received_ns, dtype=np.int64), counts)
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
    table = pa.table(arrays).replace_schema_metadata(VERSION_METADATA)
    partial = file.with_name(file.name + ".partial")
    pq.write_table(table, partial, compression="zstd")
    os.replace(partial, file)  # noqa: PTH105  (one call whose name shows that it is atomic)


def _read_file(file: Path, skipped: Counter[str] | None) -> list[StepLog]:
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise MalformedError("step log", where=str(file), got=error, expected="a readable Parquet file") from None
    required = REQUIRED_COLUMNS if skipped is None else KEY_COLUMNS
    missing = [name for name in required if name not in table.column_names]
    if missing:
        raise MalformedError("column", where=str(file), got=f"no {', '.join(missing)}", expected=", ".join(required))
    is_ours = (table.schema.metadata or {}).get(_VERSION_KEY) is not None
    columns = {}
    good = np.ones(table.num_rows, dtype=bool)
    for name in (*REQUIRED_COLUMNS, *WAIT_COLUMNS, *OPTIONAL_COLUMNS):
        if name not in table.column_names:
            continue
        column = table.column(name).combine_chunks()
        if name not in REQUIRED_COLUMNS and column.null_count == len(column):  # a kind that the job does not have
            continue
        may_be_null = name in OPTIONAL_COLUMNS or (is_ours and name not in KEY_COLUMNS)
        if skipped is not None:
            columns[name], readable = _readable(name, column, where=str(file))
            skipped[name] += int((good & ~readable).sum())
            good &= readable
            continue
        if column.null_count and not may_be_null:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise MalformedError(f"{name} of row {row}", where=str(file), got="null", expected="a whole number")
        columns[name] = _whole(name, column, where=str(file))
        _check_range(name, columns[name], where=str(file))
    if not is_ours:
        attribute_unaccounted(columns, PART_COLUMNS, WAIT_COLUMNS)
    if not good.all():
        table, columns = table.filter(pa.array(good)), {name: values[good] for name, values in columns.items()}
    return _by_run(table, columns, where=str(file))


def _readable(name: str, column: Any, *, where: str) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
    """Return a column, and which of its rows the timeline can check: it validates values, not texts and fractions."""
    present = ~column.is_null().to_numpy(zero_copy_only=False)
    readable = present | (name not in KEY_COLUMNS)
    if pa.types.is_floating(column.type):
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        readable &= ~present | ((np.abs(values) < 2.0**63) & (values == np.rint(values)))
        column = pa.array(np.where(readable, values, 0.0), mask=~present)
    whole = _whole(name, column, where=where)
    low, high = _RANGES.get(name, (MISSING, _UNIX_MAX_NS - 1))
    return whole, readable & ((whole >= low) & (whole <= high) | ~present)


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
    """Return a column as int64, MISSING for null; floats are accepted if all are whole numbers."""
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


_RANGES = {
    "rank": (0, WORLD_SIZE_MAX - 1),
    "step": (0, (1 << 62) - 1),
    "start_ns": (0, _UNIX_MAX_NS),
    "received_ns": (0, _UNIX_MAX_NS),
}
"""Valid ranges of columns that determine the order of arrival (sums must fit in 64 bits) or must fit the wire
format."""


def _check_range(name: str, values: "NDArray[np.int64]", *, where: str) -> None:
    """Reject implausible values: no value is negative, and a step takes more than 0 ns and less than a day."""
    low = 1 if name == "duration_ns" else 0
    is_time = name.endswith("_ns") and name not in _RANGES
    high = _PART_MAX_NS if is_time else _RANGES.get(name, (0, 1 << 62))[1]
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


def _check_once(log: StepLog, *, where: str) -> None:
    """Reject a step that a rank reports twice.

    After a restart a rank reports the same index again, but at another time: twice means less than half a step apart.
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


def _check_account(log: StepLog, *, where: str) -> None:
    """Reject a log most of whose steps differ from the sum of their parts and waits, e.g. because waits are missing.

    The timeline rejects such rows one by one, as it does live, but if it rejected most of them, no one would notice.
    """
    duration_ns = log.columns["duration_ns"]
    parts = [log.columns[name] for name in PART_COLUMNS]
    waits = [log.columns[name] for name in WAIT_COLUMNS if name in log.columns]
    spent_ns = np.zeros(log.count, dtype=np.int64)
    for values in (*parts, *waits):
        spent_ns += np.where(values == MISSING, 0, values)
    complete = np.logical_and.reduce([values != MISSING for values in parts])
    tolerance_ns = duration_ns // _ACCOUNT_PARTS + _ROUNDING_NS
    wrong = (spent_ns > duration_ns + tolerance_ns) | (complete & (spent_ns < duration_ns - tolerance_ns))
    rows = np.flatnonzero(wrong)
    if 2 * len(rows) > log.count:
        row = int(rows[0])
        missing = [name for name in WAIT_COLUMNS if name not in log.columns]
        hint = f" (no column {', '.join(missing)})" if missing and spent_ns[row] < duration_ns[row] else ""
        raise MalformedError(
            f"rank {log.columns['rank'][row]} step {log.columns['step'][row]}",
            where=where,
            got=f"parts and waits of {spent_ns[row]} ns{hint}",
            expected=f"its duration, {duration_ns[row]} ns; {len(rows)} of {log.count} rows are like this",
        )


def _check_receipt(log: StepLog, *, where: str) -> None:
    rows = log.early_rows
    if len(rows):
        row = int(rows[0])
        raise MalformedError(
            f"received_ns of rank {log.columns['rank'][row]} step {log.columns['step'][row]}",
            where=where,
            got=log.columns["received_ns"][row],
            expected="no time before the step's end",
        )


def _ordered(log: StepLog) -> StepLog:
    """Return the rows in order of arrival."""
    order = np.lexsort((log.columns["step"], log.columns["rank"], log.arrival_ns))
    if np.array_equal(order, np.arange(len(order))):
        return log
    return StepLog(log.run, {name: values[order] for name, values in log.columns.items()})
