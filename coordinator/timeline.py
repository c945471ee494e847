# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""The steps of one run, laid out as step x rank, and the judgement of which steps are complete.

No clock and no I/O: every call carries the time. Records arrive late, twice, never, or from a rank that lies; each
is counted by reason and dropped, and the other ranks are judged without it. A step is complete when every rank has
reported it, has gone past it, or has been silent for the grace period.

A restart (step indices fall while time goes on) or a leap moves the window only when more than half of the live
ranks say so. Until then the records of those that do are held in a second window, so that a restart loses nothing
and a single rank moves nobody.

Ranks whose records agree with what is known of them are placed all at once, the others record by record.

Shapes: R ranks known (columns, ascending by rank), W steps held, N records taken together, F fields.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.columns import COMPONENTS, Columns, Records, account
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from coordinator.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

REJECTION_REASONS = ("rank", "late", "duplicate", "impossible")
_NS = 1e-9
_NOTHING = -1


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
    floors: "dict[str, NDArray[np.float64]]"
    """Per domain kind, count x shortest operation: a bound of the transfers that holds no waiting for late peers."""
    moved: "dict[str, NDArray[np.float64]]"
    """Bytes per domain kind."""
    tokens: "NDArray[np.float64]"
    work: "NDArray[np.float64]"
    """What compute should be proportional to (no unit): the record's work figure, else its tokens."""


def rejections() -> Counter[str]:
    """Return an empty count of refused records, every reason in it."""
    return Counter(dict.fromkeys(REJECTION_REASONS, 0))


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
        self.end_ns = np.zeros(self.steps, dtype=np.int64)
        self.field_of: dict[str, int] = {}
        self.value_FWR = np.zeros((0, self.steps, rank_count))

    def fits(self, step: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        base = int(step.min(initial=0)) if self.base is None else self.base
        inside: NDArray[np.bool_] = (step >= base) & (step < base + self.steps)
        return inside

    def put(self, records: Records, now_s: float) -> None:
        """Store records that fit, one at most for each cell that is not held yet."""
        if self.base is None:
            self.base = int(records.step.min())
        fields = self._fields(records.values)
        slots = records.step % self.steps
        fresh = self.row_step[slots] != records.step
        for step in set(records.step[fresh].tolist()):
            slot = step % self.steps
            self.row_step[slot] = step
            self.arrived_s[slot] = now_s
            self.end_ns[slot] = 0
            self.seen[slot] = False
            self.value_FWR[:, slot] = np.nan
        cells = slots * self.seen.shape[1] + records.column
        self.seen.reshape(-1)[cells] = True
        for field, values in zip(fields, records.values.values(), strict=True):
            self.value_FWR[field].reshape(-1)[cells] = values
        np.maximum.at(self.end_ns, slots, records.end_ns)
        np.maximum.at(self.last_step, records.column, records.step)

    def _fields(self, names: "Iterable[str]") -> list[int]:
        """Return where these fields stand, with room made for new ones."""
        new = [name for name in names if name not in self.field_of]
        if new:
            self.field_of |= {name: len(self.field_of) + place for place, name in enumerate(new)}
            # Not filled: a row is when its step begins, and hundreds of megabytes nobody uses yet cost nothing.
            room = np.empty((len(new), *self.seen.shape))
            room[:, self.row_step != _NOTHING] = np.nan
            self.value_FWR = np.concatenate((self.value_FWR, room)) if len(self.value_FWR) else room
        return [self.field_of[name] for name in names]

    def held(self, records: Records) -> "NDArray[np.bool_]":
        """Return which records, of steps that fit, fall on cells that are taken, array of shape (N,)."""
        slots = records.step % self.steps
        taken: NDArray[np.bool_] = self.seen[slots, records.column] & (self.row_step[slots] == records.step)
        return taken

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
        wide.end_ns[slots] = self.end_ns[kept]
        wide.seen[np.ix_(slots, columns)] = self.seen[kept]
        fields = np.array(wide._fields(self.field_of), dtype=np.intp)
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
        self.ingest_all((batch,), now_s)

    def ingest_all(self, batches: "Iterable[StepBatch]", now_s: float) -> None:
        """Take decoded batches in the order of their arrival, far cheaper together than one by one."""
        alike: dict[tuple[str, ...], list[StepBatch]] = {}
        for batch in batches:
            if batch.count:
                alike.setdefault(tuple(batch.columns), []).append(batch)
        for group in alike.values():
            self._ingest(Columns(group), now_s)

    def _ingest(self, columns: Columns, now_s: float) -> None:
        place, known = self._columns_of(columns.rank)
        records, possible = account(columns, place, self._policy)
        self.rejected["rank"] += int((~known).sum())
        self.rejected["impossible"] += int((known & ~possible).sum())
        good = known & possible
        if good.any():
            self._place(records if good.all() else records.at(good), now_s)

    def _columns_of(self, rank: "NDArray[np.int64]") -> "tuple[NDArray[np.intp], NDArray[np.bool_]]":
        """Return the column of each record's rank, any column where the rank is unknown, and which are known."""
        count = len(self.ranks)
        if not count:
            return np.zeros(len(rank), dtype=np.intp), np.zeros(len(rank), dtype=bool)
        if self.ranks[-1] == count - 1:  # ranks 0 to R - 1, as in nearly every job: nothing to search
            known = (rank >= 0) & (rank < count)
            return np.where(known, rank, 0), known
        place = np.minimum(np.searchsorted(self.ranks, rank), count - 1)
        return place, self.ranks[place] == rank

    def _place(self, records: Records, now_s: float) -> None:
        """Store records: at once those of ranks whose records agree with all that is known, the others one by one."""
        odd = self._contradicted(records)[records.column]
        plain = records if not odd.any() else records.at(~odd)
        if plain.count:
            self._accept(plain, now_s)
        rest = records.at(odd)
        for index in range(rest.count):
            self._place_one(rest.at(slice(index, index + 1)), now_s)

    def _contradicted(self, records: Records) -> "NDArray[np.bool_]":
        """Return the ranks whose records more than one attempt is needed to explain, array of shape (R,).

        The records of all others are new and inside the window, take place in the order of their indices, and each
        goes on from the rank's last one or was overtaken by it.
        """
        window = self._present
        column, step, end_ns = records.column, records.step, records.end_ns
        fits = window.fits(step)
        is_next = step > window.last_step[column]
        last_end_ns = self._last_end_ns[column]
        agrees = np.where(is_next, end_ns > last_end_ns, end_ns <= last_end_ns + records.duration_ns // 2)
        wrong = ~(fits & agrees)
        if not is_next.all():
            wrong |= ~is_next & window.held(records)
        odd_R = self._strayed.copy()
        odd_R[column[wrong]] = True
        base = int(step.min()) if window.base is None else window.base
        key = column * (window.steps + 1) + np.clip(step - base, 0, window.steps)
        if not (key[1:] > key[:-1]).all():
            order = np.argsort(key, kind="stable")
            column, step, end_ns = column[order], step[order], end_ns[order]
        twisted = (column[1:] == column[:-1]) & ((step[1:] <= step[:-1]) | (end_ns[1:] <= end_ns[:-1]))
        odd_R[column[1:][twisted]] = True
        return odd_R

    def _accept(self, records: Records, now_s: float) -> None:
        self._present.put(records, now_s)
        np.maximum.at(self._last_end_ns, records.column, records.end_ns)
        self._strayed[records.column] = False
        self._silent[records.column] = False

    def _place_one(self, record: Records, now_s: float) -> None:
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

    def _hold_stray(self, record: Records, now_s: float) -> None:
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
            return empty if place is None else window.value_FWR[place, slot].copy()

        def by_kind(suffix: str) -> "dict[str, NDArray[np.float64]]":
            return {kind: field(f"{kind}_{suffix}") for kind in DOMAIN_KINDS if f"{kind}_{suffix}" in window.field_of}

        waits, floors = by_kind("wait"), by_kind("floor")
        tokens, work = field("tokens"), field("work")

        return StepRow(
            step=step,
            end_unix_s=float(window.end_ns[slot] * _NS),
            ranks=self.ranks,
            present=present,
            flags=np.nan_to_num(field("flags")).astype(np.int64),
            duration=field("duration"),
            self_seconds=field("self"),
            components={name: field(name) for name in COMPONENTS},
            waits=waits,
            transfers=waits | ({"pp": floors.get("pp", empty)} if "pp" in waits else {}),
            floors=floors,
            moved=by_kind("bytes"),
            tokens=tokens,
            work=np.where(np.isnan(work), tokens, work),
        )
