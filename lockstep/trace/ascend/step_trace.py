"""Step times as the vendor's tools give them: step_trace_time.csv and cluster_step_trace_time.csv.

All are us in the files and int64 ns here. The window of a step goes from its first device task to its last; free is
what is left of it, bubble the time of `hcom_receive` operators, stage the window without the bubble, preparing the time
from the step's begin on the host to its first device task.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import limits
from lockstep.trace.ascend.tables import TABLE_MAX_BYTES, Columns, CsvTable
from lockstep.trace.ascend.texts import durations_ns, integers, numbers
from lockstep.trace.columns import ABSENT

TIMES = {
    "computing_ns": "Computing",
    "not_overlapped_ns": "Communication(Not Overlapped)",
    "overlapped_ns": "Overlapped",
    "communication_ns": "Communication",
    "free_ns": "Free",
    "stage_ns": "Stage",
    "bubble_ns": "Bubble",
    "not_overlapped_without_receive_ns": "Communication(Not Overlapped and Exclude Receive)",
    "preparing_ns": "Preparing",
}
RANK, STAGE = "rank", "stage"
_RANKS = re.compile(r"\(?\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*,?\s*\)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times by step; int64 arrays of shape (n_rows,), ns, ABSENT where not recorded.

    `step` is the profiler's number, `device` the device's. In a cluster's file a row is of one rank (`kind` RANK) or of
    a pipeline stage (STAGE), whose times are the longest of its ranks; `ranks` are these. A rank's own file has one row
    a step, of kind RANK without ranks.
    """

    step: NDArray[np.int64]
    device: NDArray[np.int64]
    kind: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    computing_ns: NDArray[np.int64]
    not_overlapped_ns: NDArray[np.int64]
    overlapped_ns: NDArray[np.int64]
    communication_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]
    stage_ns: NDArray[np.int64]
    bubble_ns: NDArray[np.int64]
    not_overlapped_without_receive_ns: NDArray[np.int64]
    preparing_ns: NDArray[np.int64]
    dropped_count: int

    def __len__(self) -> int:
        return len(self.step)


def load_step_times(path: Path, *, max_bytes: int = TABLE_MAX_BYTES) -> StepTimes:
    """Return the content of a step_trace_time.csv or cluster_step_trace_time.csv.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, or its header has no step, computing, communication and free time.
    """
    needed = ("Step", *(TIMES[field] for field in ("computing_ns", "communication_ns", "free_ns")))
    table = CsvTable(path, required=[(name,) for name in needed], max_bytes=max_bytes)
    parts: dict[str, list[NDArray[Any]]] = {field: [] for field in ("step", "device", *TIMES)}
    kinds: list[str] = []
    ranks: list[tuple[int, ...]] = []
    dropped = 0
    for rows in table:
        columns = Columns(rows)
        dropped += rows.dropped_count
        kinds += [each or RANK for each in columns.texts("Type")]
        ranks += map(ranks_of, columns.texts("Index"))
        parts["step"].append(integers(columns.texts("Step")))
        parts["device"].append(integers(columns.texts("Device_id", "Device ID")))
        for field, name in TIMES.items():
            parts[field].append(durations_ns(numbers(columns.texts(name))))
    columns_ns = {field: np.concatenate(part) if part else np.zeros(0, np.int64) for field, part in parts.items()}
    return StepTimes(kind=tuple(kinds), ranks=tuple(ranks), dropped_count=dropped, **columns_ns)


def ranks_of(text: str) -> tuple[int, ...]:
    """Return the ranks that `3` or `(0, 1, 2)` names, none if it names none."""
    if not _RANKS.fullmatch(text):
        return ()
    ranks = tuple(int(each) for each in text.strip("() ").split(",") if each.strip())
    return ranks if len(ranks) <= limits.WORLD_SIZE_MAX else ()


def no_times(count: int) -> NDArray[np.int64]:
    """Return a column in which nothing is recorded."""
    return np.full(count, ABSENT, np.int64)
