# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Batches joined to columns, and which of their records can be true.

Pure. Batches are small and many (8 ranks a node), so those of an interval are joined: what one costs is then the
joining of its bytes. A table of integers is made of them, summed and compared as such, and only then scaled to
single precision, which holds a step of a second to 0.1 µs.

Shapes: N records taken together, F fields read, V values made of them, B batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import DOMAIN_KINDS, MISSING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

COMPONENTS = ("data", "compute", "host", "gc")
_NS = 1e-9
_ROUNDING_NS = 1000
_AT_ONCE = 128  # batches joined at once: their bytes stay in the processor's cache (measured: twice as fast as 1,024)

_HEAD = ("step", "start_ns", "end_ns")
_TIMES = tuple(f"{name}_ns" for name in COMPONENTS)
_WAITS = tuple(f"{kind}_wait_ns" for kind in DOMAIN_KINDS)
_BYTES = tuple(f"{kind}_bytes" for kind in DOMAIN_KINDS)
_AMOUNTS = ("tokens", "work")
_COUNTS = tuple(f"{kind}_count" for kind in DOMAIN_KINDS)
_SHORTEST = tuple(f"{kind}_shortest_ns" for kind in DOMAIN_KINDS)
_ALWAYS = (*_HEAD, *_TIMES)
_READ = (*_ALWAYS, *_WAITS, *_BYTES, *_AMOUNTS, "flags", *_COUNTS, *_SHORTEST)
"""What is read of a batch. The order is that of the table's rows: what is summed stands together."""

_LIMITS = {
    "step": (1 << 62) - 1,
    "start_ns": 1 << 62,  # the year 2116; half a step more stays inside 64 bits
    "end_ns": 1 << 62,
    **dict.fromkeys(_BYTES, 1 << 60),  # in one step by one rank; beyond any machine, and sums stay inside 64 bits
    **dict.fromkeys(_AMOUNTS, 1 << 62),  # FLOPs of a step of the largest machine are 2^55
    **dict.fromkeys(_COUNTS, 1 << 30),
    "flags": 1 << 20,
}
"""Largest value of each field; those not named are times, which policy limits."""

_VALUE_OF = dict(zip(_TIMES, COMPONENTS, strict=True)) | {name: name.removesuffix("_ns") for name in _WAITS}
_VALUE_OF |= {name: name for name in (*_BYTES, *_AMOUNTS)}


class Columns:
    """Batches joined in their order: `rank`, array of shape (N,), and the fields that any sender has.

    `table_FN` holds the fields of `fields`, int64, and is the caller's to change. What a sender left out is MISSING.
    """

    def __init__(self, batches: "Sequence[StepBatch]") -> None:
        self.count = sum([batch.count for batch in batches])
        self.rank = np.frombuffer(b"".join([batch.ranks for batch in batches]), dtype="<i4").astype(np.int64)
        self.fields = _read_of(batches[0])
        self.table_FN = np.empty((len(self.fields), self.count), dtype=np.int64)
        first = 0
        for place in range(0, len(batches), _AT_ONCE):
            chunk = batches[place : place + _AT_ONCE]
            last = first + sum([batch.count for batch in chunk])
            self._join(chunk, first, last)
            first = last

    def of(self, name: str) -> "NDArray[np.int64]":
        """Return a column."""
        return self.table_FN[self.fields.index(name)] if self.has(name) else np.full(self.count, MISSING)

    def has(self, name: str) -> bool:
        """Whether any sender measured this field."""
        return name in self.fields

    def _join(self, batches: "Sequence[StepBatch]", first: int, last: int) -> None:
        """Write the batches into the places `first` to before `last` of the table."""
        names = [*batches[0].columns]
        alike = [[*batch.columns] for batch in batches].count(names) == len(batches)
        if alike and _read_of(batches[0]) == self.fields and set(_ALWAYS).issubset(names):
            _join_into(self.table_FN[:, first:last], batches, self.fields)
            return
        by_names: dict[tuple[str, ...], list[int]] = {}
        for index, batch in enumerate(batches):
            by_names.setdefault(tuple(batch.columns), []).append(index)
        ends = first + np.cumsum([batch.count for batch in batches])
        for members in by_names.values():
            chosen = [batches[index] for index in members]
            self._make_room(_read_of(chosen[0]))
            places = np.concatenate([np.arange(ends[index] - batches[index].count, ends[index]) for index in members])
            sent = [name for name in self.fields if name in chosen[0].columns]
            self.table_FN[:, places] = MISSING
            if sent:
                rows = np.array([self.fields.index(name) for name in sent])
                joined_FN = np.empty((len(sent), len(places)), dtype=np.int64)
                _join_into(joined_FN, chosen, sent)
                self.table_FN[rows[:, None], places] = joined_FN

    def _make_room(self, fields: Sequence[str]) -> None:
        """Take more fields into the table, MISSING in the records before."""
        if set(fields).issubset(self.fields):
            return
        old_FN, old = self.table_FN, self.fields
        self.fields = [name for name in _READ if name in old or name in fields]
        self.table_FN = np.full((len(self.fields), self.count), MISSING)
        self.table_FN[[self.fields.index(name) for name in old]] = old_FN


def _read_of(batch: "StepBatch") -> list[str]:
    return [name for name in _READ if name in batch.columns or name in _ALWAYS]


def _join_into(out_FN: "NDArray[np.int64]", batches: "Sequence[StepBatch]", names: Sequence[str]) -> None:
    """Write these columns of batches that have them."""
    join = b"".join
    if len(names) == 1:  # of a single name `itemgetter` gives no tuple
        flat = np.frombuffer(join([batch.columns[names[0]] for batch in batches]), dtype="<i8")
    else:
        pick = itemgetter(*names)
        flat = np.frombuffer(join([join(pick(batch.columns)) for batch in batches]), dtype="<i8")
    count_B = [batch.count for batch in batches]
    if min(count_B) == max(count_B):
        split = (len(names), len(batches), count_B[0])
        out_FN.reshape(split)[...] = flat.reshape(len(batches), len(names), -1).transpose(1, 0, 2)  # a view: rows split
        return
    count_N = np.repeat(count_B, count_B)
    # Batch after batch, field after field: where each record's first field stands, the others follow at its count.
    before_B = np.cumsum(count_B) - count_B
    first_N = np.arange(len(count_N)) + np.repeat(before_B * (len(names) - 1), count_B)
    out_FN[:] = flat[first_N + count_N * np.arange(len(names))[:, None]]


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
    part of the thread's own time is missing they must sum to it, for that is what self time rests on. The table of
    `columns` is used up.
    """
    limit_ns = int(policy.part_max_seconds / _NS)
    table_FN, fields = columns.table_FN, columns.fields
    possible, known_of = _check(columns, limit_ns)
    step, start, end = table_FN[: len(_HEAD)]
    long = end - start
    possible &= (long > 0) & (long <= limit_ns)
    duration = np.where(possible, long, 1)
    waits = [name for name in _WAITS if name in fields]
    first_wait = len(_ALWAYS)
    waited = table_FN[first_wait : first_wait + len(waits)].sum(axis=0)
    rest = duration - waited - table_FN[len(_HEAD) : first_wait].sum(axis=0)
    tolerance = policy.sum_tolerance_ratio * duration + _ROUNDING_NS
    possible &= rest >= -tolerance
    partial = [known_of[name] for name in _TIMES if name in known_of]
    possible &= (rest <= tolerance) | (~np.logical_and.reduce(partial) if partial else False)
    names, values_VN = _scaled(columns, known_of)
    np.multiply(duration, _NS, out=values_VN[-2], casting="same_kind")
    np.multiply(duration - waited, _NS, out=values_VN[-1], casting="same_kind")
    if all(name in known_of for name in waits):  # a rank that measured no wait at all says nothing of its own work
        unknown = [~known_of[name] for name in waits]
        values_VN[-1][np.logical_and.reduce(unknown) if unknown else slice(None)] = np.nan
    flags = columns.of("flags") if columns.has("flags") else np.zeros(columns.count, dtype=np.int64)
    return Records(place, step, end, duration, flags, names, values_VN), possible


def _check(columns: Columns, limit_ns: int) -> "tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]":
    """Return which records hold no value out of range, and what is known of the columns where something is not.

    What is not known is 0 in the table from here on.
    """
    possible = np.ones(columns.count, dtype=bool)
    known_of = {}
    limit_F = np.array([_LIMITS.get(name, limit_ns) for name in columns.fields], dtype=np.uint64)
    # One look for both ends: negative numbers are the largest here.
    highest_F = columns.table_FN.view(np.uint64).max(axis=1, initial=0)
    for row in np.flatnonzero(highest_F > limit_F):
        name, raw = columns.fields[row], columns.table_FN[row]
        known = raw != MISSING
        lies = known & ((raw < 0) | (raw > int(limit_F[row])))
        possible &= ~lies
        known &= ~lies
        if name in _HEAD:
            possible &= known
        raw[~known] = 0
        known_of[name] = known
    return possible, known_of


def _scaled(
    columns: Columns, known_of: "dict[str, NDArray[np.bool_]]"
) -> "tuple[tuple[str, ...], NDArray[np.float32]]":
    """Return the names of all values and the values, `duration` and `self` (the last two) not yet filled in."""
    table_FN, fields = columns.table_FN, columns.fields
    plain = [name for name in fields if name in _VALUE_OF]
    floors = [kind for kind in DOMAIN_KINDS if f"{kind}_shortest_ns" in fields and f"{kind}_count" in fields]
    names = (*(_VALUE_OF[name] for name in plain), *(f"{kind}_floor" for kind in floors), "duration", "self")
    values_VN = np.empty((len(names), columns.count), dtype=np.float32)
    first = len(_HEAD)
    values_VN[: len(plain)] = table_FN[first : first + len(plain)]
    values_VN[: sum(name in _TIMES or name in _WAITS for name in plain)] *= np.float32(_NS)
    for row, kind in enumerate(floors, start=len(plain)):
        np.multiply(columns.of(f"{kind}_shortest_ns"), np.float32(_NS), out=values_VN[row], casting="same_kind")
        values_VN[row] *= columns.of(f"{kind}_count")
        for name in (f"{kind}_shortest_ns", f"{kind}_count"):
            if name in known_of:
                values_VN[row][~known_of[name]] = np.nan
    for row, name in enumerate(plain):
        if name in known_of:
            values_VN[row][~known_of[name]] = np.nan
    return names, values_VN
