# ruff: noqa: N806, N815  (names of arrays end in their shape, see the legend below)
"""Batches joined to columns, and which of their records can be true.

Pure. What places a record in time stays whole. The rest goes to single precision at once, which holds a step of a
second to 0.1 µs, and is compared and summed there; a field with a value that is out of range or missing is read once
more as it was sent.

Shapes: N records taken together, F fields read, V values made of them.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from coordinator.intake.joined import parts_of
from coordinator.intake.seats import Seats
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from lockstep.contracts.rows import RANK, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.joined import Sent
    from coordinator.settings.policy import TimelinePolicy

COMPONENTS = ("data", "compute", "host", "gc")
_NS = 1e-9
_ROUNDING_NS = 1000
_FORMS_KEPT = 256  # the nodes of a job send a handful of layouts

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


@dataclass(frozen=True, slots=True)
class _Form:
    """Which fields senders of some layouts have, in the order of a table's rows: counts, then as they are sent.

    What is sent side by side is then written side by side, in one go.
    """

    fields: tuple[str, ...]
    floors: tuple[str, ...]
    row_of: dict[str, int]
    waits: tuple[str, ...]
    times: tuple[slice, ...]
    """Rows that are ns or become so."""


def _form_of(layouts: "Sequence[str]") -> _Form:
    sent = dict.fromkeys(name for layout in layouts for name in names_of(layout))
    floors = tuple(kind for kind in DOMAIN_KINDS if f"{kind}_shortest_ns" in sent and f"{kind}_count" in sent)
    wanted = {*_TIMES, *_WAITS, *_BYTES, *_AMOUNTS, *(f"{kind}_shortest_ns" for kind in floors)}
    counts = [f"{kind}_count" for kind in floors]
    fields = tuple(dict.fromkeys((*counts, *(name for name in sent if name in wanted), *_TIMES)))
    times: list[slice] = []
    for row, name in enumerate((*fields, "duration_ns", "self_ns")):
        if name.endswith("_ns"):
            joins = times and times[-1].stop == row
            times[-1:] = [slice(times[-1].start, row + 1)] if joins else [*times[-1:], slice(row, row + 1)]
    waits = tuple(name for name in _WAITS if name in sent)
    return _Form(fields, floors, {name: row for row, name in enumerate(fields)}, waits, tuple(times))


@lru_cache(_FORMS_KEPT)
def _usual_form(layout: str) -> _Form:
    return _form_of((layout,))


@lru_cache(_FORMS_KEPT)
def _limit_of(fields: tuple[str, ...], limit_ns: int) -> "NDArray[np.uint32]":
    """Return the largest value of each field, as the bits of a single, which order as the numbers do."""
    return np.array([_LIMITS.get(name, limit_ns) for name in fields], dtype=np.float32).view(np.uint32)


class Columns:
    """Batches joined in their order.

    `whole_FN` holds rank, step, start, end and flags, int64; `table_FN` the fields of `fields` in single precision, and
    behind them two rows with nothing in them yet. Both are the caller's to change. What a sender left out is MISSING.
    """

    def __init__(self, batches: "Sent") -> None:
        layouts = batches.layouts()
        self.form = _usual_form(*layouts) if len(layouts) == 1 else _form_of(layouts)
        self.fields = self.form.fields
        self.count = sum(batches.count_B)
        self.whole_FN = np.empty((len(_WHOLE), self.count), dtype=np.int64)
        self.table_FN = np.empty((len(self.fields) + 2, self.count), dtype=np.float32)
        self._parts = []
        for part in parts_of(batches, layouts):
            part.write(self.whole_FN, _WHOLE)
            part.write(self.table_FN, self.fields)
            self._parts.append(part)
        if not any("flags" in names_of(layout) for layout in layouts):
            self.whole_FN[-1] = 0

    @property
    def rank(self) -> "NDArray[np.int64]":
        """The rank of each record, array of shape (N,)."""
        rank: NDArray[np.int64] = self.whole_FN[0]
        return rank

    def row(self, name: str) -> "NDArray[np.float32]":
        """Return the row of a field."""
        row: NDArray[np.float32] = self.table_FN[self.form.row_of[name]]
        return row

    def of(self, name: str) -> "NDArray[np.int64]":
        """Return a field as it was sent, array of shape (N,)."""
        column = np.empty(self.count, dtype=np.int64)
        for part in self._parts:
            part.write(column[None], (name,))
        return column


@dataclass(frozen=True, slots=True)
class Records:
    """Records as arrays of shape (N,): the seat of each one's rank, and `values_VN` in seconds and bytes.

    `fields` names the rows of the values; NaN is a value that was not measured.
    """

    seats: Seats
    step: "NDArray[np.int64]"
    end_ns: "NDArray[np.int64]"
    duration_ns: "NDArray[np.int64]"
    flags: "NDArray[np.int64]"
    fields: tuple[str, ...]
    values_VN: "NDArray[np.float32]"

    @property
    def column(self) -> "NDArray[np.intp]":
        """The column of each one's rank."""
        return self.seats.column

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
            Seats(self.column[chosen]),
            self.step[chosen],
            self.end_ns[chosen],
            self.duration_ns[chosen],
            self.flags[chosen],
            self.fields,
            self.values_VN[:, chosen],
        )

    def by_step(self) -> "Iterator[Records]":
        """Yield the records of one step after another, ascending."""
        if not self.count or np.count_nonzero(self.step == self.step[0]) == self.count:
            yield self
            return
        ordered = self.at(np.argsort(self.step, kind="stable"))
        bounds = [0, *(np.flatnonzero(np.diff(ordered.step)) + 1).tolist(), self.count]
        for first, last in pairwise(bounds):
            yield ordered.at(slice(first, last))


def account(columns: Columns, seats: Seats, policy: "TimelinePolicy") -> "tuple[Records, NDArray[np.bool_]]":
    """Return the batches as records of these seats, in seconds and bytes, and which of them can be true.

    A record can be true when nothing is negative or longer than a day, and its parts do not exceed the step; where no
    part of the thread's own time is missing they must sum to it, for that is what self time rests on. The tables of
    `columns` are used up.
    """
    limit_ns = int(policy.part_max_seconds / _NS)
    possible, known_of = _check(columns, limit_ns)
    _, step, start, end, flags = columns.whole_FN
    duration = end - start
    if np.maximum.reduce(duration.view(np.uint64), initial=0) > limit_ns or np.count_nonzero(duration) < len(duration):
        possible &= (duration > 0) & (duration <= limit_ns)
        duration[~possible] = 1
    form, duration_N, self_N = columns.form, columns.table_FN[-2], columns.table_FN[-1]
    duration_N[:] = duration
    if form.waits:
        np.subtract(duration_N, _sum([columns.row(name) for name in form.waits]), out=self_N)
    else:
        self_N[:] = duration_N
    rest = self_N - _sum([columns.row(name) for name in _TIMES])
    tolerance = policy.sum_tolerance_ratio * duration_N + _ROUNDING_NS
    partial = [known_of[name] for name in _TIMES if name in known_of]
    if partial:
        possible &= (rest >= -tolerance) & ((rest <= tolerance) | ~np.logical_and.reduce(partial))
    else:
        possible &= np.abs(rest) <= tolerance
    _scale(columns, known_of)
    if all(name in known_of for name in form.waits):  # a rank that measured no wait at all says nothing of its own work
        unknown = [~known_of[name] for name in form.waits]
        self_N[np.logical_and.reduce(unknown) if unknown else slice(None)] = np.nan
    counts = len(form.floors)  # not needed any more
    names = (*(_VALUE_OF.get(name, name) for name in form.fields[counts:]), "duration", "self")
    return Records(seats, step, end, duration, flags, names, columns.table_FN[counts:]), possible


def _sum(rows: "Sequence[NDArray[np.float32]]") -> "NDArray[np.float32]":
    """Return the sum of some rows; one after the other is twice as fast as a reduction over few."""
    total = rows[0] + rows[1] if len(rows) > 1 else rows[0]
    for row in rows[2:]:
        total += row
    return total


def _check(columns: Columns, limit_ns: int) -> "tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]":
    """Return which records hold no value out of range, and what is known of the columns where something is not.

    What is not known is 0 in the tables from here on.
    """
    possible = np.ones(columns.count, dtype=bool)
    known_of = {}
    # One look for both ends: as unsigned, negative numbers are the largest. What single precision rounds up to a limit
    # is looked at closely as well.
    fields = columns.fields
    highest_F = np.maximum.reduce(columns.table_FN[: len(fields)].view(np.uint32), axis=1, initial=0)
    beyond = (highest_F >= _limit_of(fields, limit_ns)).nonzero()[0].tolist()
    doubtful = [(fields[row], columns.table_FN[row]) for row in beyond]
    highest_F = np.maximum.reduce(columns.whole_FN.view(np.uint64), axis=1, initial=0)
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
    table_FN, form = columns.table_FN, columns.form
    for rows in form.times:
        table_FN[rows] *= np.float32(_NS)
    for count_N, kind in zip(table_FN, form.floors, strict=False):
        floor_N = columns.row(f"{kind}_shortest_ns")
        floor_N *= count_N
        if f"{kind}_count" in known_of:
            floor_N[~known_of[f"{kind}_count"]] = np.nan
    if not known_of:
        return
    for row, name in zip(table_FN, form.fields, strict=False):
        if name in known_of:
            row[~known_of[name]] = np.nan
