"""Batches joined to columns, and which of their records can be true.

Pure. Batches are small and many (8 ranks a node), so those of an interval are joined: what one costs is then the
joining of its bytes.

Shapes: N records taken together.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import DOMAIN_KINDS, MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

COMPONENTS = ("data", "compute", "host", "gc")
_NS = 1e-9
_ROUNDING_NS = 1000
_BYTES_MAX = 1 << 60  # in one step by one rank; beyond any machine, and sums stay inside 64 bits
_COUNT_MAX = 1 << 30
_FLAGS_MAX = 1 << 20
_STEP_MAX = 1 << 62
_WORK_MAX = 1 << 62  # FLOPs of a step of the largest machine are 2^55


class Columns:
    """Batches that hold the same columns in the same order, joined as int64 arrays of shape (N,).

    What the senders left out is MISSING throughout.
    """

    def __init__(self, batches: "Sequence[StepBatch]") -> None:
        self.count = sum([batch.count for batch in batches])
        self.rank = np.frombuffer(b"".join([batch.ranks for batch in batches]), dtype="<i4").astype(np.int64)
        parts = zip(*[batch.columns.values() for batch in batches], strict=True)
        self._parts = dict(zip(batches[0].columns, parts, strict=True))

    def of(self, name: str) -> "NDArray[np.int64]":
        """Return a column, read-only."""
        parts = self._parts.get(name)
        return np.full(self.count, MISSING) if parts is None else np.frombuffer(b"".join(parts), dtype="<i8")

    def has(self, name: str) -> bool:
        """Whether the senders measured this field at all."""
        return name in self._parts


@dataclass(frozen=True, slots=True)
class Records:
    """Records as arrays of shape (N,): the column of each one's rank, and `values` by field in seconds and bytes.

    NaN is a value that was not measured.
    """

    column: "NDArray[np.intp]"
    step: "NDArray[np.int64]"
    end_ns: "NDArray[np.int64]"
    duration_ns: "NDArray[np.int64]"
    values: "dict[str, NDArray[np.float64]]"

    @property
    def count(self) -> int:
        """How many."""
        return len(self.step)

    def at(self, chosen: "NDArray[np.bool_] | slice") -> "Records":
        """Return some of them."""
        return Records(
            self.column[chosen],
            self.step[chosen],
            self.end_ns[chosen],
            self.duration_ns[chosen],
            {name: value[chosen] for name, value in self.values.items()},
        )


def account(
    columns: Columns, place: "NDArray[np.intp]", policy: "TimelinePolicy"
) -> "tuple[Records, NDArray[np.bool_]]":
    """Return the batches as records of the columns `place`, in seconds and bytes, and which of them can be true.

    A record can be true when nothing is negative or longer than a day, and its parts do not exceed the step; where no
    part of the thread's own time is missing they must sum to it, for that is what self time rests on.
    """
    limit_ns = int(policy.part_max_seconds / _NS)
    start, end, step = columns.of("start_ns"), columns.of("end_ns"), columns.of("step")
    possible = (start >= 0) & (end > start) & (step >= 0) & (step < _STEP_MAX)
    duration = np.where(possible, end - start, 1)
    possible &= duration <= limit_ns
    kinds = [kind for kind in DOMAIN_KINDS if columns.has(f"{kind}_wait_ns")]
    own = [_measured(columns.of(f"{name}_ns"), limit_ns, possible) for name in COMPONENTS]
    waits = [_measured(columns.of(f"{kind}_wait_ns"), limit_ns, possible) for kind in kinds]
    waited = sum((plain for plain, _ in waits), start=np.zeros(columns.count, dtype=np.int64))
    rest = duration - sum((plain for plain, _ in own), start=waited)
    tolerance = policy.sum_tolerance_ratio * duration + _ROUNDING_NS
    all_known = np.logical_and.reduce([known for _, known in own if known is not None])
    possible &= (rest >= -tolerance) & (~all_known | (rest <= tolerance))
    values = {name: _scaled(*each, _NS) for name, each in zip(COMPONENTS, own, strict=True)}
    values |= {f"{kind}_wait": _scaled(*each, _NS) for kind, each in zip(kinds, waits, strict=True)}
    amounts = [*((f"{kind}_bytes", _BYTES_MAX) for kind in kinds), ("flags", _FLAGS_MAX)]
    amounts += [(name, _WORK_MAX) for name in ("tokens", "work")]
    for name, limit in amounts:
        if columns.has(name):
            values[name] = _scaled(*_measured(columns.of(name), limit, possible), 1.0)
    for kind in kinds:
        if columns.has(f"{kind}_shortest_ns") and columns.has(f"{kind}_count"):
            shortest = _scaled(*_measured(columns.of(f"{kind}_shortest_ns"), limit_ns, possible), _NS)
            values[f"{kind}_floor"] = shortest * _scaled(
                *_measured(columns.of(f"{kind}_count"), _COUNT_MAX, possible), 1.0
            )
    values["duration"] = duration * _NS
    values["self"] = _scaled(duration - waited, _any_known(waits, columns.count), _NS)
    return Records(place, step, end, duration, values), possible


_Measured = tuple["NDArray[np.int64]", "NDArray[np.bool_] | None"]
"""A column, 0 for what is not known, and what is; None where all of it is, which costs nothing to carry on."""


def _measured(raw: "NDArray[np.int64]", limit: int, possible: "NDArray[np.bool_]") -> _Measured:
    """Return a column as measured; a value out of range makes its record impossible."""
    if raw.view(np.uint64).max(initial=0) <= limit:  # one look for both ends: negative numbers are the largest here
        return raw, None
    known = raw != MISSING
    lies = known & ((raw < 0) | (raw > limit))
    possible &= ~lies
    return np.where(known & ~lies, raw, 0), known


def _any_known(columns: "Sequence[_Measured]", count: int) -> "NDArray[np.bool_] | None":
    """Return which records know any of the columns, None where all do."""
    masks = [known for _, known in columns if known is not None]
    return None if len(masks) < len(columns) else np.logical_or.reduce([np.zeros(count, dtype=bool), *masks])


def _scaled(plain: "NDArray[np.int64]", known: "NDArray[np.bool_] | None", scale: float) -> "NDArray[np.float64]":
    """Return a column in base units, NaN where it is not known."""
    value = plain * np.float64(scale)
    if known is not None:
        value[~known] = np.nan
    return value
