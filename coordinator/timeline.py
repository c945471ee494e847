# ruff: noqa: N806, N815  (names of arrays end in their shape, see the legend below)
"""The steps of one run, laid out as step x rank, and the judgement of which steps are complete.

No clock and no I/O: every call carries the time. Records arrive late, twice, never, or from a rank that lies; each
is counted by reason and dropped, and the other ranks are judged without it. A step is complete when every rank has
reported it, has gone past it, or has been silent for the grace period.

A restart (step indices fall while time goes on) or a leap moves the window only when more than half of the live
ranks say so. Until then the records of those that do are held in a second window, so that a restart loses nothing
and a single rank moves nobody.

Shapes: R ranks known (columns, ascending by rank), W steps held, N records of a batch, F fields.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.records import DOMAIN_KINDS, MISSING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

COMPONENTS = ("data", "compute", "host", "gc")
REJECTION_REASONS = ("rank", "late", "duplicate", "impossible")
_NS = 1e-9
_NOTHING = -1
_ROUNDING_NS = 1000
_BYTES_MAX = 1 << 60  # in one step by one rank; beyond any machine, and sums stay inside 64 bits
_COUNT_MAX = 1 << 30
_FLAGS_MAX = 1 << 20
_STEP_MAX = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of all known ranks: arrays of shape (R,), seconds, NaN where not measured.

    `self_seconds` is NaN for a rank that measured no wait at all: its step says nothing about its own work.
    """

    step: int
    end_unix_s: float
    ranks: "NDArray[np.int64]"
    present: "NDArray[np.bool_]"
    flags: "NDArray[np.int64]"
    duration: "NDArray[np.float64]"
    self_seconds: "NDArray[np.float64]"
    components: "dict[str, NDArray[np.float64]]"
    waits: "dict[str, NDArray[np.float64]]"
    transfers: "dict[str, NDArray[np.float64]]"
    """Per domain kind, what may be transfer: the wait, for pipelines count x shortest (their waits hold bubbles)."""
    moved: "dict[str, NDArray[np.float64]]"
    """Bytes per domain kind."""


def rejections() -> Counter[str]:
    """Return an empty count of refused records, every reason in it."""
    return Counter(dict.fromkeys(REJECTION_REASONS, 0))


class Columns:
    """A batch as int64 columns of shape (N,); what the sender left out is MISSING throughout."""

    def __init__(self, batch: "StepBatch") -> None:
        self.count = batch.count
        self.rank = np.frombuffer(batch.ranks, dtype="<i4").astype(np.int64)
        self._columns = batch.columns
        self._missing = np.full(self.count, MISSING)

    def of(self, name: str) -> "NDArray[np.int64]":
        """Return a column, read-only."""
        data = self._columns.get(name)
        return self._missing if data is None else np.frombuffer(data, dtype="<i8")

    def has(self, name: str) -> bool:
        """Whether the sender measured this field at all."""
        return name in self._columns


@dataclass(slots=True)
class _Records:
    """Accepted-so-far records of one batch, arrays of shape (N,)."""

    column: "NDArray[np.intp]"
    step: "NDArray[np.int64]"
    end_ns: "NDArray[np.int64]"
    duration_ns: "NDArray[np.int64]"
    names: tuple[str, ...]
    """What the rows of `value_FN` are."""
    value_FN: "NDArray[np.float64]"

    def at(self, chosen: "NDArray[np.bool_] | slice") -> "_Records":
        return _Records(
            self.column[chosen],
            self.step[chosen],
            self.end_ns[chosen],
            self.duration_ns[chosen],
            self.names,
            self.value_FN[:, chosen],
        )


class _Window:
    """W steps beginning at `base`, the oldest step not yet judged; None until the first record."""

    def __init__(self, rank_count: int, policy: "TimelinePolicy") -> None:
        cells = policy.window_cells // max(rank_count, 1)
        self.steps = max(policy.window_steps_min, min(policy.window_steps_max, cells))
        self.base: int | None = None
        self.last_step = np.full(rank_count, _NOTHING, dtype=np.int64)
        self.seen = np.zeros((self.steps, rank_count), dtype=bool)
        self.row_step = np.full(self.steps, _NOTHING, dtype=np.int64)
        self.arrived_s = np.full(self.steps, np.nan)
        self.field_of: dict[str, int] = {}
        self.value_FWR = np.zeros((0, self.steps, rank_count))

    def fits(self, step: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        base = int(step.min(initial=0)) if self.base is None else self.base
        inside: NDArray[np.bool_] = (step >= base) & (step < base + self.steps)
        return inside

    def put(self, records: _Records, now_s: float) -> None:
        """Store records that fit."""
        if self.base is None:
            self.base = int(records.step.min())
        for step in set(records.step.tolist()):
            slot = step % self.steps
            if self.row_step[slot] != step:
                self.row_step[slot] = step
                self.seen[slot] = False
                self.arrived_s[slot] = now_s
        slots = records.step % self.steps
        self.seen[slots, records.column] = True
        fields = self._fields(records.names)
        if len(fields) < len(self.field_of):
            self.value_FWR[:, slots, records.column] = np.nan
        self.value_FWR[fields[:, None], slots, records.column] = records.value_FN
        np.maximum.at(self.last_step, records.column, records.step)

    def _fields(self, names: tuple[str, ...]) -> "NDArray[np.intp]":
        """Return where these fields stand, with room made for new ones."""
        new = [name for name in names if name not in self.field_of]
        if new:
            self.field_of |= {name: len(self.field_of) + place for place, name in enumerate(new)}
            self.value_FWR = np.concatenate((self.value_FWR, np.full((len(new), *self.seen.shape), np.nan)))
        return np.array([self.field_of[name] for name in names], dtype=np.intp)

    def holds(self, step: int, column: int) -> bool:
        slot = step % self.steps
        return bool(self.row_step[slot] == step and self.seen[slot, column])

    def widened(self, columns: "NDArray[np.intp]", rank_count: int, policy: "TimelinePolicy") -> "_Window":
        """Return a window of `rank_count` ranks; the present ones move to `columns`."""
        wide = _Window(rank_count, policy)
        wide.base = self.base
        wide.last_step[columns] = self.last_step
        if self.base is None:
            return wide
        kept = np.flatnonzero((self.row_step >= self.base) & (self.row_step < self.base + wide.steps))
        slots = self.row_step[kept] % wide.steps
        wide.row_step[slots], wide.arrived_s[slots] = self.row_step[kept], self.arrived_s[kept]
        wide.seen[np.ix_(slots, columns)] = self.seen[kept]
        fields = wide._fields(tuple(self.field_of))
        wide.value_FWR[np.ix_(fields, slots, columns)] = self.value_FWR[:, kept]
        return wide


class Timeline:
    """Invariants: `rejected` only grows; a step is handed out once per generation, in ascending order.

    `rejected` may be shared by several runs. `generation` counts restarts: whoever keeps memory of steps must begin
    anew when it changes.
    """

    def __init__(self, policy: "TimelinePolicy", rejected: "Counter[str] | None" = None) -> None:
        self._policy = policy
        self.ranks = np.zeros(0, dtype=np.int64)
        self.rejected = rejections() if rejected is None else rejected
        self.generation = 0
        self._present = _Window(0, policy)
        self._strays: _Window | None = None
        self._strayed = np.zeros(0, dtype=bool)
        self._silent = np.zeros(0, dtype=bool)
        self._last_end_ns = np.zeros(0, dtype=np.int64)

    def know(self, ranks: "list[int]") -> bool:
        """Take announced ranks; return whether any was new."""
        wide = np.union1d(self.ranks, np.asarray(ranks, dtype=np.int64))
        if len(wide) == len(self.ranks):
            return False
        columns = np.searchsorted(wide, self.ranks)
        self._present = self._present.widened(columns, len(wide), self._policy)
        self._strays = None
        for name, empty in (("_strayed", False), ("_silent", False), ("_last_end_ns", 0)):
            old = getattr(self, name)
            new = np.full(len(wide), empty, dtype=old.dtype)
            new[columns] = old
            setattr(self, name, new)
        self.ranks = wide
        return True

    def restart_rank(self, rank: int, attempt_unix_ns: int) -> None:
        """Take the announcement of a new incarnation of a known rank: its next records begin another attempt.

        Without effect when records of that incarnation have already arrived.
        """
        column = int(np.searchsorted(self.ranks, rank))
        reported = self._present.last_step[column] != _NOTHING
        if reported and attempt_unix_ns > self._last_end_ns[column] and not self._strayed[column]:
            self._stray(column)

    @property
    def ranks_reporting(self) -> int:
        """Ranks that have reported and are not silent."""
        return int(((self._present.last_step != _NOTHING) & ~self._silent).sum())

    def ingest(self, batch: "StepBatch", now_s: float) -> None:
        """Take a decoded batch; what cannot be used is counted in `rejected`."""
        columns = Columns(batch)
        if batch.count == 0:
            return
        place = np.minimum(np.searchsorted(self.ranks, columns.rank), max(len(self.ranks) - 1, 0))
        known = self.ranks[place] == columns.rank if len(self.ranks) else np.zeros(batch.count, dtype=bool)
        records, possible = _account(columns, place, self._policy)
        self.rejected["rank"] += int((~known).sum())
        self.rejected["impossible"] += int((known & ~possible).sum())
        good = known & possible
        if good.any():
            self._place(records if good.all() else records.at(good), now_s)

    def _place(self, records: _Records, now_s: float) -> None:
        """Store the records of one batch: at once when all go forward, else one by one."""
        order = np.argsort(records.column, kind="stable")
        column, step, end_ns = records.column[order], records.step[order], records.end_ns[order]
        same = column[1:] == column[:-1]
        forward = (
            bool((~same | ((np.diff(step) > 0) & (np.diff(end_ns) > 0))).all())
            and bool((step > self._present.last_step[column]).all())
            and bool((end_ns > self._last_end_ns[column]).all())
            and bool(self._present.fits(step).all())
        )
        if forward:
            self._accept(records, now_s)
            return
        for index in range(len(records.step)):
            self._place_one(records.at(slice(index, index + 1)), now_s)

    def _accept(self, records: _Records, now_s: float) -> None:
        self._present.put(records, now_s)
        np.maximum.at(self._last_end_ns, records.column, records.end_ns)
        self._strayed[records.column] = False
        self._silent[records.column] = False

    def _place_one(self, record: _Records, now_s: float) -> None:
        column, step = int(record.column[0]), int(record.step[0])
        window = self._present
        base = step if window.base is None else window.base
        half_ns = int(record.duration_ns[0]) // 2
        later = int(record.end_ns[0]) > int(self._last_end_ns[column]) + half_ns
        if window.holds(step, column) and not later:
            self.rejected["duplicate"] += 1
        elif step > window.last_step[column] and later and base <= step < base + window.steps:
            self._accept(record, now_s)
        elif later and (step <= window.last_step[column] or not base - window.steps <= step < base):
            self._hold_stray(record, now_s)
        elif not later and base <= step < base + window.steps and step <= window.last_step[column]:
            window.put(record, now_s)  # overtaken by a younger record, and its step not judged yet
        else:
            self.rejected["late"] += 1

    def _hold_stray(self, record: _Records, now_s: float) -> None:
        """Keep a record of another attempt, or from far away, until enough ranks agree."""
        column = int(record.column[0])
        if not self._strayed[column]:
            self._stray(column)
        # With the vote won, the second window has become the present one.
        window = self._present if self._strays is None else self._strays
        if window.fits(record.step).all() and record.step[0] > window.last_step[column]:
            window.put(record, now_s)
            self._last_end_ns[column] = record.end_ns[0]
        else:
            self.rejected["late"] += 1

    def _stray(self, column: int) -> None:
        """Count a vote; with more than half of the live ranks the second window becomes the present one."""
        if self._strays is None:
            self._strays = _Window(len(self.ranks), self._policy)
        self._strayed[column] = True
        self._silent[column] = False
        live = (self._strayed | (self._present.last_step != _NOTHING)) & ~self._silent
        if 2 * int(self._strayed.sum()) > int(live.sum()):
            self._present, self._strays = self._strays, None
            self._strayed[:] = False
            self._silent[:] = False
            self.generation += 1

    def ready(self, now_s: float) -> list[StepRow]:
        """Return the steps that are complete by now, oldest first; each is returned once."""
        rows = []
        window = self._present
        while window.base is not None and self._is_complete(now_s):
            slot = window.base % window.steps
            if window.row_step[slot] == window.base:
                rows.append(self._row(window.base))
            window.base += 1
        return rows

    def _is_complete(self, now_s: float) -> bool:
        window = self._present
        assert window.base is not None
        pending = np.flatnonzero(window.row_step >= window.base)
        if not len(pending):
            return False
        decided = (window.last_step >= window.base) | self._silent
        if decided.all():
            return True
        if now_s - window.arrived_s[pending].min() < self._policy.grace_seconds:
            return False
        self._silent |= ~decided
        return True

    def _row(self, step: int) -> StepRow:
        window = self._present
        slot = step % window.steps
        present = window.seen[slot].copy()
        empty = np.full(len(self.ranks), np.nan)

        def field(name: str) -> "NDArray[np.float64]":
            place = window.field_of.get(name)
            return empty if place is None else np.where(present, window.value_FWR[place, slot], np.nan)

        def by_kind(suffix: str) -> "dict[str, NDArray[np.float64]]":
            return {kind: field(f"{kind}_{suffix}") for kind in DOMAIN_KINDS if f"{kind}_{suffix}" in window.field_of}

        return StepRow(
            step=step,
            end_unix_s=float(np.nanmax(field("end"))),
            ranks=self.ranks,
            present=present,
            flags=np.nan_to_num(field("flags")).astype(np.int64),
            duration=field("duration"),
            self_seconds=field("self"),
            components={name: field(name) for name in COMPONENTS},
            waits=by_kind("wait"),
            transfers=by_kind("transfer"),
            moved=by_kind("bytes"),
        )


def _account(
    columns: Columns, place: "NDArray[np.intp]", policy: "TimelinePolicy"
) -> "tuple[_Records, NDArray[np.bool_]]":
    """Return the batch as records of the columns `place`, in seconds and bytes, and which of them can be true.

    A record can be true when nothing is negative or longer than a day, and its parts do not exceed the step; where no
    part of the thread's own time is missing they must sum to it, for that is what self time rests on.
    """
    limit_ns = int(policy.part_max_seconds / _NS)
    kinds = [kind for kind in DOMAIN_KINDS if columns.has(f"{kind}_wait_ns")]
    fields = [(name, f"{name}_ns", limit_ns, _NS) for name in COMPONENTS]
    fields += [(f"{kind}_wait", f"{kind}_wait_ns", limit_ns, _NS) for kind in kinds]
    own, waits = slice(0, len(COMPONENTS)), slice(len(COMPONENTS), len(fields))
    fields += [(f"{kind}_bytes", f"{kind}_bytes", _BYTES_MAX, 1.0) for kind in kinds if columns.has(f"{kind}_bytes")]
    fields += [("pp_shortest", "pp_shortest_ns", limit_ns, _NS), ("pp_count", "pp_count", _COUNT_MAX, 1.0)]
    fields += [("flags", "flags", _FLAGS_MAX, 1.0)]
    raw_FN = np.stack([columns.of(column) for _, column, _, _ in fields])
    known_FN = raw_FN != MISSING
    limits_F1 = np.array([[limit] for _, _, limit, _ in fields])
    start, end, step = columns.of("start_ns"), columns.of("end_ns"), columns.of("step")
    possible = (start >= 0) & (end > start) & (step >= 0) & (step < _STEP_MAX)
    possible &= (~known_FN | ((raw_FN >= 0) & (raw_FN <= limits_F1))).all(axis=0)
    duration = np.where(possible, end - start, 1)
    possible &= duration <= limit_ns
    plain_FN = np.where(known_FN & possible, raw_FN, 0)
    waited = plain_FN[waits].sum(axis=0)
    rest = duration - plain_FN[own].sum(axis=0) - waited
    tolerance = policy.sum_tolerance_ratio * duration + _ROUNDING_NS
    possible &= (rest >= -tolerance) & (~known_FN[own].all(axis=0) | (rest <= tolerance))
    scales_F1 = np.array([[scale] for _, _, _, scale in fields])
    value_FN = np.where(known_FN, plain_FN * scales_F1, np.nan)
    values = {name: value_FN[row] for row, (name, _, _, _) in enumerate(fields)}
    floor = values.pop("pp_shortest") * values.pop("pp_count")
    for kind in kinds:
        values[f"{kind}_transfer"] = floor if kind == "pp" else values[f"{kind}_wait"]
    values["duration"] = duration * _NS
    values["end"] = end * _NS
    values["self"] = np.where(known_FN[waits].any(axis=0), (duration - waited) * _NS, np.nan)
    return _Records(place, step, end, duration, tuple(values), np.stack(list(values.values()))), possible
