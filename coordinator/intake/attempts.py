# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which attempt a record belongs to, and whether it is new.

No clock and no I/O. A restart (step indices fall while time goes on) or a leap moves the window only when more than
half of the live ranks say so. Until then the records of those that do are held in a second window, so that a restart
loses nothing and a single rank moves nobody.

Whatever is taken together ends as if it had been taken one by one. Ranks whose records agree with what is known of
them, and ranks that all say that another attempt has begun, are placed all at once, the others record by record.

Shapes: R ranks known (columns), N records taken together.
"""

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from coordinator.intake.seats import Seats
from coordinator.intake.window import NOTHING, Window

if TYPE_CHECKING:
    from collections import Counter

    from numpy.typing import NDArray

    from coordinator.intake.columns import Records
    from coordinator.settings.policy import TimelinePolicy

T = TypeVar("T", bound=np.generic)

_ROUNDS = 4  # attempts to take a block as a whole before its records are taken one by one


class Attempts:
    """The records of R ranks that are not judged yet; `rejected` counts those refused, by reason.

    `present` is the window of the attempt that goes on; `generation` counts attempts. `silent_R` is the caller's: ranks
    that nobody waits for any more. A record placed ends a rank's silence, and `heard_s_R` says when it came.
    """

    def __init__(self, rank_count: int, policy: "TimelinePolicy", rejected: "Counter[str]") -> None:
        self.policy = policy
        self.rejected = rejected
        self.generation = 0
        self.present = Window(rank_count, policy)
        self.silent_R = np.zeros(rank_count, dtype=bool)
        self._strays = Window(rank_count, policy)
        self._strayed_R = np.zeros(rank_count, dtype=bool)
        self._last_end_ns_R = np.zeros(rank_count, dtype=np.int64)
        self.heard_s_R = np.full(rank_count, -np.inf)

    def widen(self, columns: "NDArray[np.intp]", rank_count: int) -> None:
        """Make room for `rank_count` ranks; the present ones move to `columns`."""
        self.present = self.present.widened(columns, rank_count, self.policy)
        self._strays = self._strays.widened(columns, rank_count, self.policy)
        self.silent_R = _moved(self.silent_R, columns, rank_count)
        self._strayed_R = _moved(self._strayed_R, columns, rank_count)
        self._last_end_ns_R = _moved(self._last_end_ns_R, columns, rank_count)
        heard_s_R = np.full(rank_count, -np.inf)
        heard_s_R[columns] = self.heard_s_R
        self.heard_s_R = heard_s_R

    def restart(self, column: "NDArray[np.intp]", attempt_ns: "NDArray[np.int64]") -> None:
        """Take word of new incarnations of ranks, unix ns; one whose records are there already changes nothing."""
        is_new = (attempt_ns > self._last_end_ns_R[column]) & (self.present.last_step_R[column] != NOTHING)
        self._vote(column[is_new & ~self._strayed_R[column]])

    def place(self, records: "Records", now_s: float) -> None:
        """Store records in the order of their arrival as if they came one by one; what cannot be used is counted."""
        for _ in range(_ROUNDS):
            if not records.count:
                return
            if self._go_on(records):
                self._accept(records, now_s, go_on=True)
                return
            records = self._place_whole(records, now_s)
        self._place_each(records, now_s)

    def _place_whole(self, records: "Records", now_s: float) -> "Records":
        """Place records at once as far as no vote can move the window before them; return the others."""
        begin = self.present.base
        plain, settled, astray = self._sort_out(records)
        if plain.all():
            self._accept(records, now_s)
            return records.at(slice(0, 0))
        voting = np.flatnonzero(~plain & ~settled & ~self._strayed_R[records.column])
        first = np.sort(np.unique(records.column[voting], return_index=True)[1])
        moved = self._majority(records.column[voting][first])
        if moved is not None:
            stop = int(voting[first[moved]])
            self.present.base = begin  # records behind the vote may belong to another window
            self._strays.base = self._strays.base if self._strays.steps else None
            head = self._place_whole(records.at(slice(0, stop)), now_s) if stop else records.at(slice(0, 0))
            assert not head.count
            self._place_each(records.at(slice(stop, stop + 1)), now_s)
            return records.at(slice(stop + 1, None))
        self._accept(records.at(plain), now_s)
        self._count_settled(records.at(settled))
        self._hold(records.at(astray), now_s)
        self._place_each(records.at(~(plain | settled | astray)), now_s)
        return records.at(slice(0, 0))

    def _go_on(self, records: "Records") -> bool:
        """Whether all records are plain because each goes on from its rank's last one: as nearly always, soon seen."""
        seats, step, count = records.seats, records.step, records.count
        if self.present.is_open or np.count_nonzero(self._strayed_R):
            return False
        if np.count_nonzero(step > seats.of(self.present.last_step_R)) < count:
            return False
        if np.count_nonzero(records.end_ns > seats.of(self._last_end_ns_R)) < count:
            return False
        return bool(np.count_nonzero(self.present.fits(step)) == count) and seats.are_unique(len(self.silent_R))

    def _sort_out(self, records: "Records") -> "tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]":
        """Return which records are plain, which are settled, and which begin another attempt, arrays of shape (N,).

        A rank's records are plain when they are new, inside the window and go on from the rank's last one or were
        overtaken by it, and no two of them contradict each other. A settled one changes nothing but a count, whatever
        comes before it. Of what is none of the three, only one record after the other says what it is.
        """
        window = self.present
        column, step, end_ns = records.column, records.step, records.end_ns
        last_end_ns = self._last_end_ns_R[column]
        is_next = step > window.last_step_R[column]
        later = end_ns > last_end_ns + records.duration_ns // 2
        agrees = np.where(is_next, end_ns > last_end_ns, ~later)
        window.open_for(step[agrees])
        fits = window.fits(step)
        held = np.zeros(records.count, dtype=bool)
        if not is_next.all():
            held[~is_next] = window.held(records.at(~is_next))
        wrong = ~(agrees & fits) | held
        if not wrong.any() and not self._strayed_R.any() and records.seats.are_unique(len(self.silent_R)):
            return ~wrong, wrong, wrong
        settled = wrong & ~later & (held | window.is_past(step))
        odd_R = self._strayed_R.copy()
        odd_R[column[wrong & ~settled]] = True
        _mark_twisted(odd_R, column[~settled], step[~settled], end_ns[~settled])
        astray = ~settled & odd_R[column]
        if astray.any():
            away = later & (~is_next | ~(fits | window.is_short_of(step)))
            odd = astray.copy()
            astray[odd] = self._astray(records.at(odd), away[odd])
            if self._strayed_R[column[odd & ~astray]].any():  # it may take its vote back, before or after the others'
                astray[:] = False
        return ~settled & ~odd_R[column], settled, astray

    def _astray(self, records: "Records", away: "NDArray[np.bool_]") -> "NDArray[np.bool_]":
        """Return which records are of ranks that tell nothing here but another attempt, each record after the other."""
        column, step = records.column, records.step
        self._drop_stale_strays()
        self._strays.open_for(step[away])
        if not self._strays.fits(step[away]).all():  # whose they are is a matter of who comes first
            return np.zeros(records.count, dtype=np.bool_)
        good = away & (step > self._strays.last_step_R[column])
        bad_R = np.zeros(len(self.silent_R), dtype=np.bool_)
        bad_R[column[~good]] = True
        order = np.argsort(column, kind="stable")
        column, step, end_ns = column[order], step[order], records.end_ns[order]
        follows = (step[1:] > step[:-1]) & (end_ns[1:] > end_ns[:-1] + records.duration_ns[order][1:] // 2)
        bad_R[column[1:][(column[1:] == column[:-1]) & ~follows]] = True
        return ~bad_R[records.column]

    def _accept(self, records: "Records", now_s: float, *, go_on: bool = False) -> None:
        """Store plain records."""
        if records.count:
            self._store(self.present, records, now_s, go_on=go_on)
            for marked_R in (self._strayed_R, self.silent_R):
                if np.count_nonzero(marked_R):
                    records.seats.put(marked_R, False)
            records.seats.put(self.heard_s_R, now_s)

    def _hold(self, records: "Records", now_s: float) -> None:
        """Keep records of another attempt, too few to win a vote, until enough ranks agree."""
        if records.count:
            column = np.unique(records.column)
            self._vote(column[~self._strayed_R[column]])
            self._store(self._strays, records, now_s)

    def _store(self, window: Window, records: "Records", now_s: float, *, go_on: bool = False) -> None:
        """Store records of any steps; they `go_on` where each is beyond all that is known of its rank."""
        for part in records.by_step():
            window.put(part, now_s, go_on=go_on)
            end_ns = part.end_ns if go_on else np.maximum(part.seats.of(self._last_end_ns_R), part.end_ns)
            part.seats.put(self._last_end_ns_R, end_ns)

    def _count_settled(self, records: "Records") -> None:
        if records.count:
            duplicates = int(self.present.held(records).sum())
            self.rejected["duplicate"] += duplicates
            self.rejected["late"] += records.count - duplicates

    def _place_each(self, records: "Records", now_s: float) -> None:
        """Store records one by one."""
        each = zip(records.column.tolist(), records.step.tolist(), records.end_ns.tolist(), strict=True)
        half_ns = (records.duration_ns // 2).tolist()
        for index, (column, step, end_ns) in enumerate(each):
            window, last_end_ns = self.present, int(self._last_end_ns_R[column])
            is_next = step > window.last_step_R[column]
            later = end_ns > last_end_ns + half_ns[index]
            agrees = end_ns > last_end_ns if is_next else not later
            if agrees:
                window.open_for(records.step[index : index + 1])
            fits = bool(window.fits(records.step[index : index + 1])[0])
            strayed = bool(self._strayed_R[column])
            held = window.holds(step, column) or (fits and strayed and self._strays.holds(step, column))
            if agrees and fits and not held:
                record = records.at(slice(index, index + 1))
                if is_next or not strayed:
                    self._accept(record, now_s)
                else:
                    self._store(window, record, now_s)  # of the attempt that this rank has left
            elif not later:
                self.rejected["duplicate" if held else "late"] += 1
            elif not is_next or not (fits or window.is_short_of(records.step[index : index + 1])[0]):
                self._hold_one(records.at(slice(index, index + 1)), now_s)
            else:
                self.rejected["late"] += 1

    def _hold_one(self, record: "Records", now_s: float) -> None:
        """Keep a record of another attempt, or from far away, until enough ranks agree."""
        window = self._strays_for(record)
        if window.fits(record.step)[0] and record.step[0] > window.last_step_R[record.column[0]]:
            self._store(window, record, now_s)
        else:
            self.rejected["late"] += 1

    def _strays_for(self, record: "Records") -> Window:
        """Return the window that the record belongs to after its rank has voted: with the vote won, the present one."""
        generation = self.generation
        if not self._strayed_R[record.column[0]]:
            self._drop_stale_strays()
            self._vote(record.column)
        window = self._strays if self.generation == generation else self.present
        window.open_for(record.step)
        if window is self._strays and not window.fits(record.step).all():
            # No rank that leaps about may keep this window from ranks that restart: it goes to who are more.
            holding = int((window.reported_R & self._strayed_R).sum())
            if int(self._strayed_R.sum()) - holding >= holding:
                window = self._strays = Window(len(self.silent_R), self.policy)
                window.open_for(record.step)
        return window

    def _drop_stale_strays(self) -> None:
        """Forget what the second window holds of ranks that have all come back."""
        if not self._strayed_R.any() and self._strays.base is not None:
            self._strays = Window(len(self.silent_R), self.policy)

    def _vote(self, column: "NDArray[np.intp]") -> None:
        """Count votes of ranks that have not voted, in order; a majority makes the second window the present one."""
        moved = self._majority(column)
        voters = column if moved is None else column[: moved + 1]
        self._strayed_R[voters] = True
        self.silent_R[voters] = False
        if moved is not None:
            self.present, self._strays = self._strays, Window(len(self.silent_R), self.policy)
            self._strayed_R[:] = False
            self.silent_R[:] = False
            self.generation += 1

    def _majority(self, column: "NDArray[np.intp]") -> int | None:
        """Return the place of the vote with which more than half of the live ranks have voted, None without one."""
        if not len(column):
            return None
        live_R = (self._strayed_R | self.present.reported_R) & ~self.silent_R
        votes = int(self._strayed_R.sum()) + np.arange(1, len(column) + 1)
        won = np.flatnonzero(2 * votes > int(live_R.sum()) + np.cumsum(~live_R[column]))
        return int(won[0]) if len(won) else None


def _moved(old_R: "NDArray[T]", columns: "NDArray[np.intp]", rank_count: int) -> "NDArray[T]":
    new_R = np.zeros(rank_count, dtype=old_R.dtype)
    new_R[columns] = old_R
    return new_R


def _mark_twisted(
    odd_R: "NDArray[np.bool_]", column: "NDArray[np.intp]", step: "NDArray[np.int64]", end_ns: "NDArray[np.int64]"
) -> None:
    """Mark ranks with two records whose order by index is not that of their ends, or of one index."""
    if Seats(column).are_unique(len(odd_R)):
        return
    order = np.lexsort((step, column))
    column, step, end_ns = column[order], step[order], end_ns[order]
    twisted = (column[1:] == column[:-1]) & ((step[1:] <= step[:-1]) | (end_ns[1:] <= end_ns[:-1]))
    odd_R[column[1:][twisted]] = True
