"""kernel_details.csv and op_summary_*.csv: every task of the device with its shapes and counters.

Shape suffix: K kernels in the order of the file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.counters import Metrics, is_counter, metrics_of
from lockstep.trace.ascend.tables import TABLE_MAX_BYTES, Columns, CsvTable
from lockstep.trace.ascend.texts import UNKNOWN, durations_ns, integers, ns_of_times, numbers
from lockstep.trace.columns import ABSENT, Mask
from lockstep.trace.interned import Codes

NAME = ("Name", "Op Name")
TYPE = ("Type", "OP Type")
CORE = ("Accelerator Core", "Task Type")
START = ("Start Time(us)", "Task Start Time(us)")
DURATION = ("Duration(us)", "Task Duration(us)")
WAIT = ("Wait Time(us)", "Task Wait Time(us)")
COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")
"""The core of a collective, as older and newer versions write it."""
_TEXT_COLUMNS = {
    "name": NAME,
    "type": TYPE,
    "core": CORE,
    "state": ("OP State",),
    "input_shapes": ("Input Shapes",),
    "input_types": ("Input Data Types",),
    "input_formats": ("Input Formats",),
    "output_shapes": ("Output Shapes",),
    "output_types": ("Output Data Types",),
    "output_formats": ("Output Formats",),
}
_INTEGER_COLUMNS = {
    "step": ("Step Id",),
    "device": ("Device_id", "Device ID"),
    "model": ("Model ID",),
    "task": ("Task ID",),
    "stream": ("Stream ID",),
    "blocks": ("Block Dim", "Block Num"),
    "mix_blocks": ("Mix Block Dim", "Mix Block Num"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Tasks of one rank's device; arrays of shape (n_kernels,), read, never written.

    `start_ns`, `duration_ns` and `wait_ns` are int64 ns, starts since 1970; `wait_ns` is ABSENT where not recorded.
    `step`, `device`, `model`, `task`, `stream`, `blocks` (cores that a kernel ran on) and `mix_blocks` are int64,
    ABSENT where not recorded. Texts (`name`, `type`, `core`, `state`, shapes, types, formats) are int32 codes into
    `texts` by the same name, empty where not recorded ("N/A" counts as that). `counters` are float64 by the column's
    name with its unit, NaN where a kernel has none; `metrics` states which settings recorded them.
    """

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    wait_ns: NDArray[np.int64]
    step: NDArray[np.int64]
    device: NDArray[np.int64]
    model: NDArray[np.int64]
    task: NDArray[np.int64]
    stream: NDArray[np.int64]
    blocks: NDArray[np.int64]
    mix_blocks: NDArray[np.int64]
    name: NDArray[np.int32]
    type: NDArray[np.int32]
    core: NDArray[np.int32]
    state: NDArray[np.int32]
    input_shapes: NDArray[np.int32]
    input_types: NDArray[np.int32]
    input_formats: NDArray[np.int32]
    output_shapes: NDArray[np.int32]
    output_types: NDArray[np.int32]
    output_formats: NDArray[np.int32]
    texts: dict[str, list[str]]
    counters: dict[str, NDArray[np.float64]]
    metrics: tuple[Metrics, ...]
    dropped_count: int
    """Rows left out because they were cut or had no usable time."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Return when each task ended."""
        return self.start_ns + self.duration_ns

    @property
    def communicates(self) -> Mask:
        """Return which rows are collectives; all others are computing in the vendor's account."""
        known = np.array([each in COMMUNICATION_CORES for each in self.texts["core"]], np.bool_)
        mask: Mask = known[self.core] if len(known) else np.zeros(len(self), np.bool_)
        return mask

    def text(self, field: str, row: int) -> str:
        """Return the value of row `row` in the text column `field`."""
        return self.texts[field][int(getattr(self, field)[row])]


def load_kernels(path: Path, *, max_bytes: int = TABLE_MAX_BYTES) -> Kernels:
    """Return the kernels of a kernel_details.csv or op_summary_*.csv.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, or its header has no name, start and duration.
    """
    table = CsvTable(path, required=(NAME, START, DURATION), max_bytes=max_bytes)
    gatherer = KernelGatherer(tuple(filter(is_counter, table.header)))
    for rows in table:
        columns = Columns(rows)
        gatherer.dropped_count += rows.dropped_count
        gatherer.add(
            start_ns=ns_of_times(columns.texts(*START)),
            duration_ns=durations_ns(numbers(columns.texts(*DURATION))),
            wait_ns=durations_ns(numbers(columns.texts(*WAIT))),
            integer_columns={field: integers(columns.texts(*names)) for field, names in _INTEGER_COLUMNS.items()},
            text_columns={field: columns.texts(*names) for field, names in _TEXT_COLUMNS.items()},
            counter_columns={name: numbers(columns.texts(name)) for name in gatherer.counters},
        )
    return gatherer.kernels()


class KernelGatherer:
    """Combines blocks of kernels from any reader; rows without a usable time are dropped and counted."""

    def __init__(self, counters: Sequence[str]) -> None:
        self.counters = counters
        self.dropped_count = 0
        self._codes = {field: Codes() for field in _TEXT_COLUMNS}
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def add(
        self,
        *,
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
        wait_ns: NDArray[np.int64],
        integer_columns: dict[str, NDArray[np.int64]],
        text_columns: dict[str, Sequence[str]],
        counter_columns: dict[str, NDArray[np.float64]],
    ) -> None:
        """Add one block; missing columns are ABSENT, empty or NaN."""
        good = (start_ns != ABSENT) & (duration_ns != ABSENT)
        self.dropped_count += int((~good).sum())
        count = len(start_ns)
        columns: dict[str, NDArray[Any]] = {"start_ns": start_ns, "duration_ns": duration_ns, "wait_ns": wait_ns}
        for field in _INTEGER_COLUMNS:
            columns[field] = integer_columns.get(field, np.full(count, ABSENT, np.int64))
        for field, codes in self._codes.items():
            columns[field] = _encoded(codes, text_columns.get(field, [""] * count))
        for name in self.counters:
            columns[name] = counter_columns.get(name, np.full(count, np.nan))
        for field, values in columns.items():
            self._parts.setdefault(field, []).append(values[good])

    def kernels(self) -> Kernels:
        """Return all that was added."""
        return Kernels(
            **{
                field: self._column(field, np.int64)
                for field in ("start_ns", "duration_ns", "wait_ns", *_INTEGER_COLUMNS)
            },
            **{field: self._column(field, np.int32) for field in _TEXT_COLUMNS},
            texts={field: list(codes) for field, codes in self._codes.items()},
            counters={name: self._column(name, np.float64) for name in self.counters},
            metrics=tuple(each for each in Metrics if each in set(map(metrics_of, self.counters))),
            dropped_count=self.dropped_count,
        )

    def _column(self, field: str, dtype: Any) -> NDArray[Any]:
        return np.concatenate(self._parts[field]) if field in self._parts else np.zeros(0, dtype)


def _encoded(codes: Codes, texts: Iterable[str]) -> NDArray[np.int32]:
    cleaned = ("" if text in UNKNOWN else text.strip('"') for text in texts)
    return np.fromiter(map(codes.__getitem__, cleaned), np.int32)
