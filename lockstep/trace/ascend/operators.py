"""operator_details.csv: torch's operators with their time on the host and on the device.

Shape suffix: O operators in the order of the file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.gathered import STACKS_MAX, STACKS_MAX_BYTES, stack_text
from lockstep.trace.ascend.tables import TABLE_MAX_BYTES, Columns, CsvTable
from lockstep.trace.ascend.texts import durations_ns, numbers
from lockstep.trace.columns import ABSENT
from lockstep.trace.interned import Codes, Interned

TIMES = {
    "host_self_ns": "Host Self Duration(us)",
    "host_total_ns": "Host Total Duration(us)",
    "device_self_ns": "Device Self Duration(us)",
    "device_total_ns": "Device Total Duration(us)",
    "device_self_core_ns": "Device Self Duration With AICore(us)",
    "device_total_core_ns": "Device Total Duration With AICore(us)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Calls of operators; int64 ns, arrays of shape (n_operators,), ABSENT where not recorded.

    `name`, `shapes` and `stack` are int32 codes into `names`, `shape_texts` (as the file has them) and `stacks` (one
    frame a line, innermost first); the latter two are ABSENT where a call has none.
    """

    name: NDArray[np.int32]
    shapes: NDArray[np.int32]
    stack: NDArray[np.int32]
    host_self_ns: NDArray[np.int64]
    host_total_ns: NDArray[np.int64]
    device_self_ns: NDArray[np.int64]
    device_total_ns: NDArray[np.int64]
    device_self_core_ns: NDArray[np.int64]
    device_total_core_ns: NDArray[np.int64]
    names: list[str]
    shape_texts: list[str]
    stacks: list[str]
    dropped_count: int

    def __len__(self) -> int:
        return len(self.name)


def load_operators(path: Path, *, max_bytes: int = TABLE_MAX_BYTES) -> Operators:
    """Return the content of an operator_details.csv.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, or its header has no name and times of host and device.
    """
    needed = ("Name", TIMES["host_self_ns"], TIMES["device_self_ns"])
    table = CsvTable(path, required=[(name,) for name in needed], max_bytes=max_bytes)
    names = Codes()
    shapes: Interned[str] = Interned(str, STACKS_MAX, STACKS_MAX_BYTES)
    stacks: Interned[str] = Interned(stack_text, STACKS_MAX, STACKS_MAX_BYTES)
    parts: dict[str, list[NDArray[Any]]] = {field: [] for field in ("name", "shapes", "stack", *TIMES)}
    dropped = 0
    for rows in table:
        columns = Columns(rows)
        dropped += rows.dropped_count
        parts["name"].append(np.fromiter(map(names.__getitem__, columns.texts("Name")), np.int32, rows.count))
        parts["shapes"].append(_coded(shapes, columns.texts("Input Shapes")))
        parts["stack"].append(_coded(stacks, columns.texts("Call Stack")))
        for field, name in TIMES.items():
            parts[field].append(durations_ns(numbers(columns.texts(name))))
    columns_by_field: dict[str, NDArray[Any]] = {
        field: np.concatenate(part) if part else np.zeros(0, np.int64) for field, part in parts.items()
    }
    return Operators(
        names=list(names),
        shape_texts=shapes.values_in_order(),
        stacks=stacks.values_in_order(),
        dropped_count=dropped,
        **columns_by_field,
    )


def _coded(interned: Interned[str], texts: Any) -> NDArray[np.int32]:
    return np.fromiter((interned[text] if text else ABSENT for text in texts), np.int32)
