"""Step logs and recordings as a table: `read_steps`."""

from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa

from coordinator.record.steplog import KEY_COLUMNS, OPTIONAL_COLUMNS, PART_COLUMNS, WAIT_COLUMNS, StepLog, read
from lockstep.contracts.records import MISSING
from lockstep.notebook.tables import Frame, made, required, shown, stacked

_MEASURED = (*PART_COLUMNS, *WAIT_COLUMNS, *OPTIONAL_COLUMNS)
STEP_ROWS = pa.schema(
    [
        required("run", pa.string()),
        *(required(name, pa.int64()) for name in KEY_COLUMNS),
        *(pa.field(name, pa.int64()) for name in _MEASURED),
    ]
)


def read_steps(recording: str | PathLike[str], *, arrow: bool = False) -> Frame:
    """Return a step log, or a recording of the coordinator, with one row for each step of each rank.

    `recording` is a Parquet file or a folder of parts (`docs/replay.md`). Columns: run string; rank, step, start_ns
    (Unix time), duration_ns int64; then Int64, <NA> where not measured: compute_ns, host_ns, data_ns, gc_ns, a wait
    for each kind of domain (tp_wait_ns, ..., world_wait_ns), which with the parts sum to duration_ns; what a transfer
    takes when no rank is late (tp_transfer_ns, ...), bytes of each kind, tokens, work, flags, views of compute such as
    forward_ns, and received_ns (Unix time). Rows are in order of arrival.

    Raises
    ------
    MalformedError
        It is no step log; the message names file, column and row.
    """
    tables = [_table(log) for log in read(Path(recording))]
    return shown(stacked(STEP_ROWS, tables), arrow=arrow)


def _table(log: StepLog) -> pa.Table:
    absent = np.full(log.count, MISSING)
    columns = {name: log.columns.get(name, absent) for name in _MEASURED}
    measured = {name: pa.array(values, pa.int64(), mask=values == MISSING) for name, values in columns.items()}
    keys = {name: log.columns[name] for name in KEY_COLUMNS}
    return made(STEP_ROWS, {"run": [log.run] * log.count, **keys, **measured})
