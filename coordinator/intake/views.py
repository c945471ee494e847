"""Two more views of a rank's own work, apart from its components: phases of compute and time off the CPU.

Pure. A view that is unknown or implausible is NaN and does not invalidate its record. A view that no record has is
omitted and costs nothing.

- Forward, backward and optimizer sum to compute. Phases that do not are unknown.
- Time off the CPU is own work that the CPU time of the training thread does not cover: the thread slept, was blocked on
  I/O or a lock, or was descheduled. The CPU time is that of the whole step, waits included, so this is a lower bound.
  It is unknown if the waits evidently spin, if a wait was not measured, and if there is a device, because the thread
  also waits for the device's work.

Shapes: N records.
"""

from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import COMPUTE_PHASES, MISSING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.intake.batch_table import BatchTable

    Seconds = dict[str, NDArray[np.float64]]

OFF_CPU = "off_cpu"
VIEWS = (*COMPUTE_PHASES, OFF_CPU)

_NS = 1e-9
_PHASES = tuple(f"{name}_ns" for name in COMPUTE_PHASES)
_CPU, _DEVICE = "cpu_ns", "device_step_ns"
VIEW_FIELDS = (*_PHASES, _CPU, _DEVICE)
"""Fields of the record that only this module reads."""

_SPINNING_RATIO = 0.1  # of the waits; up to this much CPU time is the cost of entering and leaving them


def compute_phases(table: "BatchTable", limit_ns: int, tolerance_ns: "NDArray[np.floating]") -> "Seconds":
    """Return forward, backward and optimizer, arrays of shape (N,), seconds; NaN if they do not sum to compute.

    Times above `limit_ns` are invalid; `tolerance_ns` of shape (N,) is the allowed rounding error.
    """
    if not table.keys() >= {*_PHASES}:
        return {}
    parts = [table[name] for name in (*_PHASES, "compute_ns")]
    sums = np.logical_and.reduce([_is_time(values, limit_ns) for values in parts])
    *phases, compute = (np.where(sums, values, 0) for values in parts)
    sums &= np.abs(sum(phases) - compute) <= tolerance_ns
    if not sums.any():
        return {}
    return {name: np.where(sums, values * _NS, np.nan) for name, values in zip(COMPUTE_PHASES, phases, strict=True)}


def off_cpu(
    table: "BatchTable",
    self_ns: "NDArray[np.int64]",
    waits_ns: "NDArray[np.int64]",
    limit_ns: int,
    tolerance_ns: "NDArray[np.floating]",
    *,
    is_own: "NDArray[np.bool_]",
) -> "Seconds":
    """Return own work off the CPU, array of shape (N,), seconds; NaN if unknown.

    `self_ns` is the own work, valid where `is_own`; `waits_ns` is the sum of the waits. Both have shape (N,).
    """
    if _CPU not in table:
        return {}
    known = is_own & _is_time(table[_CPU], limit_ns)
    if _DEVICE in table:
        known &= table[_DEVICE] == MISSING
    off_ns = np.where(known, self_ns, 0) - np.where(known, table[_CPU], 0)
    known &= off_ns >= -_SPINNING_RATIO * np.where(known, waits_ns, 0) - tolerance_ns
    return {OFF_CPU: np.where(known, np.maximum(off_ns, 0) * _NS, np.nan)} if known.any() else {}


def _is_time(values: "NDArray[np.int64]", limit_ns: int) -> "NDArray[np.bool_]":
    return (values >= 0) & (values <= limit_ns)
