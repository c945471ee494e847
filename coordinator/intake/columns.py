# ruff: noqa: N815  (names of arrays end in their shape, see the legend below)
"""Validates records, and converts what they measured to seconds and bytes.

Pure. All checks and sums use the integers as sent. Only values that passed become single precision, which represents a
step of a second to 0.1 µs.

Shapes: N records, V values of a record.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.intake.views import VIEW_FIELDS, compute_phases, off_cpu
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from lockstep.contracts.rows import RANK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from coordinator.intake.batch_table import BatchTable
    from coordinator.settings.policy import TimelinePolicy

COMPONENTS = ("data", "compute", "host", "gc")
_NS = 1e-9
_ROUNDING_NS = 1000

_HEAD = ("step", "start_ns", "end_ns")
_PARTS = tuple(f"{name}_ns" for name in COMPONENTS)
_WAITS = tuple(f"{kind}_wait_ns" for kind in DOMAIN_KINDS)
_BYTES = tuple(f"{kind}_bytes" for kind in DOMAIN_KINDS)
_AMOUNTS = ("tokens", "samples", "work", "model_flops")
_COUNTS = tuple(f"{kind}_count" for kind in DOMAIN_KINDS)
_SHORTEST = tuple(f"{kind}_shortest_ns" for kind in DOMAIN_KINDS)

FULL_COLLECTIONS = "gc_full_count"

REQUIRED_FIELDS = (RANK, *_HEAD, "flags", *_PARTS)
OPTIONAL_FIELDS = (*_WAITS, *_BYTES, *_AMOUNTS, *_COUNTS, *_SHORTEST, FULL_COLLECTIONS, *VIEW_FIELDS)
"""All fields of the record that this module reads, in the form that `batch_table.read_batches` takes."""

_LIMITS = {
    "step": (1 << 62) - 1,
    "start_ns": 1 << 62,  # the year 2116; half a step more stays inside 64 bits
    "end_ns": 1 << 62,
    **dict.fromkeys(_BYTES, 1 << 60),  # in one step by one rank; beyond any machine
    **dict.fromkeys(_AMOUNTS, 1 << 62),  # a step of the largest machine is 2^55 FLOPs
    **dict.fromkeys((*_COUNTS, FULL_COLLECTIONS), 1 << 30),
    "flags": 1 << 20,
}
"""Largest valid value of each field; all other fields are times, which the policy limits."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records as int64 arrays of shape (N,); `values_VN` holds seconds and bytes, one row for each name in `fields`.

    A value that was not measured is NaN.
    """

    rank: "NDArray[np.int64]"
    step: "NDArray[np.int64]"
    end_ns: "NDArray[np.int64]"
    duration_ns: "NDArray[np.int64]"
    flags: "NDArray[np.int64]"
    fields: tuple[str, ...]
    values_VN: "NDArray[np.float32]"

    def value(self, field: str) -> "NDArray[np.float32]":
        """Return one field of all records, array of shape (N,); all NaN if no sender measured it."""
        if field not in self.fields:
            return np.full(len(self.rank), np.nan, dtype=np.float32)
        value: NDArray[np.float32] = self.values_VN[self.fields.index(field)]
        return value

    def at(self, chosen: "NDArray[np.bool_] | NDArray[np.intp]") -> "Records":
        """Return the selected records."""
        return Records(
            self.rank[chosen],
            self.step[chosen],
            self.end_ns[chosen],
            self.duration_ns[chosen],
            self.flags[chosen],
            self.fields,
            self.values_VN[:, chosen],
        )


def account(table: "BatchTable", policy: "TimelinePolicy") -> "tuple[Records, NDArray[np.bool_]]":
    """Return the records of a table, and which of them are valid, array of shape (N,); other values are undefined.

    A record is valid if no value is negative or above its limit (a day, for times) and its parts do not exceed the
    step. If every part of the thread's own time is present, they must also sum to the own time, because self time
    relies on it. An implausible view (`views.py`) is voided alone and leaves its record valid.
    """
    limit_ns = int(policy.part_max_seconds / _NS)
    known = {name: values != MISSING for name, values in table.items()}
    possible = np.logical_and.reduce([known[name] for name in _HEAD])
    for name in table.keys() - {RANK, *VIEW_FIELDS}:
        beyond = (table[name] < 0) | (table[name] > _LIMITS.get(name, limit_ns))
        possible &= ~(beyond & known[name])
    duration_ns = table["end_ns"] - table["start_ns"]
    possible &= (duration_ns > 0) & (duration_ns <= limit_ns)

    def total(names: "Iterable[str]") -> "NDArray[np.int64]":
        return sum((np.where(known[name], table[name], 0) for name in names), start=np.zeros_like(duration_ns))

    waits = [name for name in _WAITS if name in table]
    waits_ns = total(waits)
    self_ns = duration_ns - waits_ns
    rest_ns = self_ns - total(_PARTS)
    tolerance_ns = policy.sum_tolerance_ratio * duration_ns + _ROUNDING_NS
    is_partial = ~np.logical_and.reduce([known[name] for name in _PARTS])
    possible &= (rest_ns >= -tolerance_ns) & ((rest_ns <= tolerance_ns) | is_partial)

    is_own = _are_waits_known(table, known)
    values = _values(table, known) | {"duration": duration_ns * _NS}
    values["self"] = np.where(is_own, self_ns * _NS, np.nan)
    values |= compute_phases(table, limit_ns, tolerance_ns)
    values |= off_cpu(table, self_ns, waits_ns, limit_ns, tolerance_ns, is_own=is_own & possible)
    return Records(
        rank=table[RANK],
        step=table["step"],
        end_ns=table["end_ns"],
        duration_ns=duration_ns,
        flags=np.where(known["flags"], table["flags"], 0),
        fields=tuple(values),
        values_VN=np.stack(list(values.values()), dtype=np.float32, casting="unsafe"),
    ), possible


def _are_waits_known(table: "BatchTable", known: "dict[str, NDArray[np.bool_]]") -> "NDArray[np.bool_]":
    """Return whether the waits of each record are known, array of shape (N,).

    They are if there is at least one wait, and one for each kind of domain that moved bytes: own work is the step minus
    all waits.
    """
    nothing = np.zeros(len(table[RANK]), dtype=np.bool_)
    waits = [known.get(name, nothing) for name in _WAITS]
    complete = [wait | ~known.get(moved, nothing) for wait, moved in zip(waits, _BYTES, strict=True)]
    are_known: NDArray[np.bool_] = np.logical_or.reduce(waits) & np.logical_and.reduce(complete)
    return are_known


def _values(table: "BatchTable", known: "dict[str, NDArray[np.bool_]]") -> "dict[str, NDArray[np.float64]]":
    """Return parts, waits and floors in seconds, and amounts, by their names in `StepRow`."""

    def measured(name: str, unit: float = 1.0) -> "NDArray[np.float64]":
        return np.where(known[name], table[name] * unit, np.nan)

    values = {name.removesuffix("_ns"): measured(name, _NS) for name in (*_PARTS, *_WAITS) if name in table}
    values |= {name: measured(name) for name in (*_BYTES, *_AMOUNTS, FULL_COLLECTIONS) if name in table}
    for kind, count, shortest in zip(DOMAIN_KINDS, _COUNTS, _SHORTEST, strict=True):
        if count in table and shortest in table:
            values[f"{kind}_floor"] = measured(count) * measured(shortest, _NS)
    return values
