# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""One rank's columns as tables: kernels, operators, steps, collectives.

Shape suffix: G groups of events with one name.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.collectives import collectives_of
from lockstep.diagnosis.roofline.launches import launching_operators
from lockstep.notebook.tables import made, required
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns, WorkKind
from lockstep.trace.prepared import prepare
from lockstep.trace.self_time import self_times
from lockstep.trace.step_breakdown import break_down_steps
from lockstep.trace.steps import find_steps, step_at

_INT, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()

KERNELS = pa.schema(
    [
        *(required("rank", _INT), required("name", _TEXT), required("work", _TEXT)),
        *(required(name, _INT) for name in ("count", "total_ns", "min_ns", "max_ns")),
        *(required(name, _REAL) for name in ("mean_ns", "median_ns", "std_ns", "device_ratio")),
    ]
)
OPERATORS = pa.schema(
    [
        *(required("rank", _INT), required("name", _TEXT)),
        *(required(name, _INT) for name in ("count", "total_ns", "self_ns", "device_ns")),
    ]
)
_PARTS = ("compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns")
_MORE_PARTS = ("memory_ns", "compute_communication_overlap_ns")
STEPS = pa.schema(
    [
        *(required("rank", _INT), required("step", _INT)),
        *(required("source", _TEXT), required("partial", pa.bool_())),
        *(required(name, _INT) for name in ("start_ns", "duration_ns", "window_ns", *_PARTS, *_MORE_PARTS)),
    ]
)
COLLECTIVES = pa.schema(
    [
        *(required("rank", _INT), pa.field("step", _INT), required("kind", _TEXT), required("group", _TEXT)),
        *(pa.field("group_size", _INT), required("start_ns", _INT), required("duration_ns", _INT)),
        *(pa.field("bytes", _INT), pa.field("sequence", _INT)),
    ]
)


def kernels(rank: int, columns: TraceColumns) -> pa.Table:
    """Return the device's work by name (`KERNELS`), most time first."""
    events = np.flatnonzero(columns.on_device)
    keys, first, group = np.unique(
        columns.name[events].astype(np.int64) * len(WorkKind) + columns.work[events],
        return_index=True,
        return_inverse=True,
    )
    duration_ns, count_G = columns.duration_ns[events], np.bincount(group, minlength=len(keys))
    total_ns_G = _sums(group, duration_ns, len(keys))
    mean_ns_G = total_ns_G / np.maximum(count_G, 1)
    variance_G = np.bincount(group, (duration_ns - mean_ns_G[group]) ** 2, len(keys)) / np.maximum(count_G, 1)
    order = np.lexsort((duration_ns, group))
    begin_G = np.cumsum(count_G) - count_G
    sorted_ns = duration_ns[order]
    middle_G = [sorted_ns[begin_G + (count_G - 1) // 2], sorted_ns[begin_G + count_G // 2]] if len(keys) else [0.0, 0.0]
    heaviest = np.argsort(-total_ns_G, kind="stable")
    codes, works = columns.name[events][first], columns.work[events][first]
    values = {
        "count": count_G,
        "total_ns": total_ns_G,
        "min_ns": sorted_ns[begin_G],
        "max_ns": sorted_ns[begin_G + count_G - 1],
        "mean_ns": mean_ns_G,
        "median_ns": (middle_G[0] + middle_G[1]) / 2 + np.zeros(len(keys)),
        "std_ns": np.sqrt(variance_G),
        "device_ratio": total_ns_G / max(int(duration_ns.sum()), 1),
    }
    texts = {
        "rank": np.full(len(keys), rank),
        "name": [columns.names[code] for code in codes[heaviest].tolist()],
        "work": [WorkKind(work).name.lower() for work in works[heaviest].tolist()],
    }
    return made(KERNELS, texts | {name: value[heaviest] for name, value in values.items()})


def _sums(group: NDArray[np.intp], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    total = np.zeros(count, np.int64)
    np.add.at(total, group, values)
    return total


def operators(rank: int, columns: TraceColumns) -> pa.Table:
    """Return the operators by name (`OPERATORS`), most device time first, then most self time."""
    chosen = columns.category == columns.category_code(OPERATOR)
    events = np.flatnonzero(chosen)
    device = np.flatnonzero(columns.on_device)
    owner = launching_operators(columns, device)
    device_ns = np.zeros(len(columns), np.int64)
    np.add.at(device_ns, owner[owner != ABSENT], columns.duration_ns[device[owner != ABSENT]])
    codes, group = np.unique(columns.name[events], return_inverse=True)
    self_ns = _sums(group, self_times(columns, chosen)[events], len(codes))
    of_device_ns = _sums(group, device_ns[events], len(codes))
    order = np.lexsort((-self_ns, -of_device_ns))
    return made(
        OPERATORS,
        {
            "rank": np.full(len(codes), rank),
            "name": [columns.names[code] for code in codes[order].tolist()],
            "count": np.bincount(group, minlength=len(codes))[order],
            "total_ns": _sums(group, columns.duration_ns[events], len(codes))[order],
            "self_ns": self_ns[order],
            "device_ns": of_device_ns[order],
        },
    )


def steps(rank: int, columns: TraceColumns) -> pa.Table:
    """Return the account of each step (`STEPS`), in order."""
    account = break_down_steps(prepare(columns))
    found, windows = account.steps, account.windows
    values = {name: [getattr(each, name) for each in account.per_step] for name in (*_PARTS, *_MORE_PARTS)}
    return made(
        STEPS,
        {
            "rank": np.full(len(found), rank),
            "step": found.number,
            "source": [found.source.value] * len(found),
            "partial": found.partial,
            "start_ns": found.start_ns,
            "duration_ns": found.end_ns - found.start_ns,
            "window_ns": windows.end_ns - windows.start_ns,
            **values,
        },
    )


def collectives(rank: int, columns: TraceColumns) -> pa.Table:
    """Return the collectives in order of start (`COLLECTIVES`); one belongs to the step in which it starts."""
    found = collectives_of(columns, rank=rank)
    of_trace = find_steps(columns)
    step = step_at(of_trace, found.start_ns)
    number = of_trace.number[np.maximum(step, 0)] if len(of_trace) else step
    return made(
        COLLECTIVES,
        {
            "rank": np.full(len(found), rank),
            "step": _or_unknown(number, step == ABSENT),
            "kind": found.kinds,
            "group": [name for name, _ in found.groups],
            "group_size": [found.group_sizes.get(group) for group in found.groups],
            "start_ns": found.start_ns,
            "duration_ns": found.duration_ns,
            "bytes": _or_unknown(found.bytes, found.bytes == ABSENT),
            "sequence": _or_unknown(found.sequence, found.sequence == ABSENT),
        },
    )


def _or_unknown(values: NDArray[np.int64], unknown: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=unknown)
