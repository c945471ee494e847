# ruff: noqa: N806, N815  (names of arrays end in their shape, see the legend below)
"""Batches joined to columns, and which of their records can be true.

Pure. What places a record in time stays whole. The rest goes to single precision at once, which holds a step of a
second to 0.1 µs, and is compared and summed there; a field with a value that is out of range or missing is read once
more as it was sent.

Shapes: N records taken together, F fields read, V values made of them.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from coordinator.intake.joined import layouts_of, parts_of
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from lockstep.contracts.rows import RANK, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from coordinator.settings.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

COMPONENTS = ("data", "compute", "host", "gc")
_NS = 1e-9
_ROUNDING_NS = 1000

_HEAD = ("step", "start_ns", "end_ns")
_WHOLE = (RANK, *_HEAD, "flags")
_TIMES = tuple(f"{name}_ns" for name in COMPONENTS)
_WAITS = tuple(f"{kind}_wait_ns" for kind in DOMAIN_KINDS)
_BYTES = tuple(f"{kind}_bytes" for kind in DOMAIN_KINDS)
_AMOUNTS = ("tokens", "work")
_COUNTS = tuple(f"{kind}_count" for kind in DOMAIN_KINDS)

_LIMITS = {
    "step": (1 << 62) - 1,
    "start_ns": 1 << 62,  # the year 2116; half a step more stays inside 64 bits
    "end_ns": 1 << 62,
    **dict.fromkeys(_BYTES, 1 << 60),  # in one step by one rank; beyond any machine
    **dict.fromkeys(_AMOUNTS, 1 << 62),  # FLOPs of a step of the largest machine are 2^55
    **dict.fromkeys(_COUNTS, 1 << 30),
    "flags": 1 << 20,
}
"""Largest value of each field; those not named are times, which policy limits."""

_VALUE_OF = dict(zip(_TIMES, COMPONENTS, strict=True)) | {name: name.removesuffix("_ns") for name in _WAITS}
_VALUE_OF |= {f"{kind}_shortest_ns": f"{kind}_floor" for kind in DOMAIN_KINDS}


class Columns:
    """Batches joined in their order.

    `whole_FN` holds rank, step, start, end and flags, int64; `table_FN` the fields of `fields` in single precision, and
    behind them two rows with nothing in them yet. Both are the caller's to change. What a sender left out is MISSING.
    """

    def __init__(self, batches: "Sequence[StepBatch]") -> None:
        layouts = layouts_of(batches)
        sent = set().union(*(names_of(layout) for layout in layouts))
        self.floors = tuple(kind for kind in DOMAIN_KINDS if {f"{kind}_shortest_ns", f"{kind}_count"} <= sent)
        counts = (f"{kind}_count" for kind in self.floors)
        shortest = (f"{kind}_shortest_ns" for kind in self.floors)
        rest = (*_WAITS, *shortest, *_BYTES, *_AMOUNTS)
        self.fields = (*counts, *_TIMES, *(name for name in rest if name in sent))
        self.count = sum([batch.count for batch in batches])
        self.whole_FN = np.empty((len(_WHOLE), self.count), dtype=np.int64)
        self.table_FN = np.empty((len(self.fields) + 2, self.count), dtype=np.float32)
        self._parts = []
        for part in parts_of(batches, layouts):
            part.write(self.whole_FN, _WHOLE)
            part.write(self.table_FN, self.fields)
            self._parts.append(part)
        if "flags" not in sent:
            self.whole_FN[-1] = 0

    @property
    def rank(self) -> "NDArray[np.int64]":
        """The rank of each record, array of shape (N,)."""
        rank: NDArray[np.int64] = self.whole_FN[0]
        return rank

    def of(self, name: str) -> "NDArray[np.int64]":
        """Return a field as it was sent, array of shape (N,)."""
        column = np.empty(self.count, dtype=np.int64)
        for part in self._parts:
            part.write(column[None], (name,))
        return column


@dataclass(frozen=True, slots=True)
class Records:
    """Records as arrays of shape (N,): the column of each one's rank, and `values_VN` in seconds and bytes.

    `fields` names the rows of the values; NaN is a value that was not measured.
    """

    column: "NDArray[np.intp]"
    step: "NDArray[np.int64]"
    end_ns: "NDArray[np.int64]"
    duration_ns: "NDArray[np.int64]"
    flags: "NDArray[np.int64]"
    fields: tuple[str, ...]
    values_VN: "NDArray[np.float32]"

    @property
    def count(self) -> int:
        """How many."""
        return len(self.step)

    def of(self, field: str) -> "NDArray[np.float32]":
        """Return one value of all records."""
        value: NDArray[np.float32] = self.values_VN[self.fields.index(field)]
        return value

    def at(self, chosen: "NDArray[np.bool_] | NDArray[np.intp] | slice") -> "Records":
        """Return some of them."""
        return Records(
            self.column[chosen],
            self.step[chosen],
            self.end_ns[chosen],
            self.duration_ns[chosen],
            self.flags[chosen],
            self.fields,
            self.values_VN[:, chosen],
        )

    def by_step(self) -> "Iterator[Records]":
        """Yield the records of one step after another, ascending."""
        if not self.count or (self.step == self.step[0]).all():
            yield self
            return
        ordered = self.at(np.argsort(self.step, kind="stable"))
        bounds = [0, *(np.flatnonzero(np.diff(ordered.step)) + 1).tolist(), self.count]
        for first, last in pairwise(bounds):
            yield ordered.at(slice(first, last))


def account(
    columns: Columns, place: "NDArray[np.intp]", policy: "TimelinePolicy"
) -> "tuple[Records, NDArray[np.bool_]]":
    """Return the batches as records of the columns `place`, in seconds and bytes, and which of them can be true.

    A record can be true when nothing is negative or longer than a day, and its parts do not exceed the step; where no
    part of the thread's own time is missing they must sum to it, for that is what self time rests on. The tables of
    `columns` are used up.
    """
    limit_ns = int(policy.part_max_seconds / _NS)
    possible, known_of = _check(columns, limit_ns)
    _, step, start, end, flags = columns.whole_FN
    duration = end - start
    if int(duration.view(np.uint64).max(initial=0)) > limit_ns or not duration.all():
        possible &= (duration > 0) & (duration <= limit_ns)
        duration[~possible] = 1
    values_VN = columns.table_FN[len(columns.floors) :]  # without the counts
    fields = columns.fields[len(columns.floors) :]
    waits = [name for name in _WAITS if name in fields]
    own_VN, wait_VN = np.split(values_VN[: len(_TIMES) + len(waits)], [len(_TIMES)])
    values_VN[-2] = duration
    np.subtract(values_VN[-2], wait_VN.sum(axis=0), out=values_VN[-1])
    rest = values_VN[-1] - own_VN.sum(axis=0)
    tolerance = policy.sum_tolerance_ratio * values_VN[-2] + _ROUNDING_NS
    partial = [known_of[name] for name in _TIMES if name in known_of]
    if partial:
        possible &= (rest >= -tolerance) & ((rest <= tolerance) | ~np.logical_and.reduce(partial))
    else:
        possible &= np.abs(rest) <= tolerance
    _scale(columns, known_of)
    if all(name in known_of for name in waits):  # a rank that measured no wait at all says nothing of its own work
        unknown = [~known_of[name] for name in waits]
        values_VN[-1][np.logical_and.reduce(unknown) if unknown else slice(None)] = np.nan
    names = (*(_VALUE_OF.get(name, name) for name in fields), "duration", "self")
    return Records(place, step, end, duration, flags, names, values_VN), possible


def _check(columns: Columns, limit_ns: int) -> "tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]":
    """Return which records hold no value out of range, and what is known of the columns where something is not.

    What is not known is 0 in the tables from here on.
    """
    possible = np.ones(columns.count, dtype=bool)
    known_of = {}
    # One look for both ends: as unsigned, negative numbers are the largest. What single precision rounds up to a limit
    # is looked at closely as well.
    fields = columns.fields
    limit_F = np.array([_LIMITS.get(name, limit_ns) for name in fields], dtype=np.float32)
    highest_F = columns.table_FN[: len(fields)].view(np.uint32).max(axis=1, initial=0)
    doubtful = [(fields[row], columns.table_FN[row]) for row in np.flatnonzero(highest_F >= limit_F.view(np.uint32))]
    highest_F = columns.whole_FN.view(np.uint64).max(axis=1, initial=0)
    doubtful += [
        (name, row)
        for name, row, highest in zip(_WHOLE, columns.whole_FN, highest_F.tolist(), strict=True)
        if name != RANK and highest > _LIMITS[name]
    ]
    for name, row in doubtful:
        raw = columns.of(name)
        known = raw != MISSING
        lies = known & ((raw < 0) | (raw > _LIMITS.get(name, limit_ns)))
        possible &= ~lies
        known &= ~lies
        if name in _HEAD:
            possible &= known
        row[~known] = 0
        known_of[name] = known
    return possible, known_of


def _scale(columns: Columns, known_of: "dict[str, NDArray[np.bool_]]") -> None:
    """Make seconds of ns, and floors of the shortest operations; NaN is what is not known."""
    table_FN, fields, kinds = columns.table_FN, columns.fields, columns.floors
    table_FN[len(kinds) : sum(name.endswith(("_ns", "_count")) for name in fields)] *= np.float32(_NS)
    table_FN[-2:] *= np.float32(_NS)
    for count_N, kind in zip(table_FN, kinds, strict=False):
        floor = table_FN[fields.index(f"{kind}_shortest_ns")]
        floor *= count_N
        if f"{kind}_count" in known_of:
            floor[~known_of[f"{kind}_count"]] = np.nan
    for row, name in zip(table_FN, fields, strict=False):
        if name in known_of:
            row[~known_of[name]] = np.nan
