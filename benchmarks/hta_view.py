"""The device's time as HolisticTraceAnalysis accounts for it, so that its users find their figures again.

Its window goes from the first work of the device to the last, its classes are by kernel, and it takes work without a
launch in the trace for irrelevant. What it does otherwise (rounding to us, names with "Sync", rows that are no work) is
explained where it is compared: tests/trace/hta.
"""

from dataclasses import dataclass

from lockstep.trace.columns import ABSENT, Mask, TraceColumns, WorkKind
from lockstep.trace.intervals import merged
from lockstep.trace.launches import launches_of
from lockstep.trace.step_breakdown import ClassPieces

TYPES = ("COMPUTATION", "COMMUNICATION", "MEMORY")
_WORKS = (WorkKind.COMPUTE, WorkKind.COMMUNICATION, WorkKind.MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """`get_temporal_breakdown`, `get_comm_comp_overlap` and `get_gpu_kernel_breakdown` in integer ns.

    `kernel_type_ns` has the exclusive time of each combination of `TYPES`, joined by " overlapping " as HTA does.
    `overlap_ratio` is the share of communication with computation at the same time, None without communication.
    """

    window_ns: int
    idle_ns: int
    compute_ns: int
    non_compute_ns: int
    overlap_ratio: float | None
    kernel_type_ns: dict[str, int]


def launched_in_trace(columns: TraceColumns) -> Mask:
    """Return the work of the device that HTA keeps."""
    kept: Mask = columns.on_device & (launches_of(columns) != ABSENT)
    return kept


def device_pieces(columns: TraceColumns, kept: Mask) -> ClassPieces:
    """Return when which of `TYPES` is active, in that order of bits, of the work in `kept`."""
    works = [kept & (columns.work == work) for work in _WORKS]
    return ClassPieces([merged(columns.start_ns[each], columns.end_ns[each]) for each in works])


def view_device(columns: TraceColumns, kept: Mask | None = None) -> DeviceView:
    """Return HTA's figures of the work in `kept`, of all work of the device if None; zeros where there is none."""
    pieces = device_pieces(columns, columns.on_device if kept is None else kept)
    window_ns = int(pieces.edges_ns[-1] - pieces.edges_ns[0]) if len(pieces.edges_ns) else 0
    shares_ns = pieces.shares_ns(int(pieces.edges_ns[0]), int(pieces.edges_ns[-1])).tolist() if window_ns else [0] * 16
    compute_ns = sum(shares_ns[1:8:2])
    communication_ns = sum(ns for state, ns in enumerate(shares_ns) if state & 2)
    both_ns = sum(ns for state, ns in enumerate(shares_ns) if state & 3 == 3)
    return DeviceView(
        window_ns=window_ns,
        idle_ns=shares_ns[0],
        compute_ns=compute_ns,
        non_compute_ns=window_ns - shares_ns[0] - compute_ns,
        overlap_ratio=both_ns / communication_ns if communication_ns else None,
        kernel_type_ns={name_of(state): ns for state, ns in enumerate(shares_ns) if state and ns},
    )


def name_of(state: int) -> str:
    """Return HTA's name of a combination of `TYPES`."""
    return " overlapping ".join(name for bit, name in enumerate(TYPES) if state >> bit & 1)
