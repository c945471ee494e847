"""Assigns each record to an attempt of the run, and rejects duplicates.

No clock and no I/O. Records are placed one by one, in order of arrival. A restart (step indices fall while time
advances) or a jump moves the window only when more than half of the live ranks vote for it. Until then the records of
the voters wait in a second window, so a restart loses nothing and a single rank cannot move the window of the others.
They wait no longer than a step that few ranks report: every record is handed out or counted in bounded time.
"""

from typing import TYPE_CHECKING

from coordinator.intake.window import NOTHING, BatchReceipt, PendingStep, RecordWindow

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from coordinator.intake.columns import Records


class Attempts:
    """The records of a run that have not been evaluated yet; `rejected` counts the rejected ones by reason.

    `present` is the window of the current attempt; `generation` counts attempts. `silent` holds the ranks that are no
    longer waited for; a rank leaves it when one of its records is placed. `_live` are the ranks that reported in this
    attempt or voted for another one, and are not silent. `_voted` are the ranks that voted and have not returned since;
    their records of the other attempt are in `_strays`. Invariant: without votes there are no strays.
    """

    def __init__(self, window_steps: int, rejected: "Counter[str]") -> None:
        self.rejected = rejected
        self.generation = 0
        self.present = RecordWindow(window_steps)
        self.silent: set[int] = set()
        self._strays = RecordWindow(window_steps)
        self._voted: set[int] = set()
        self._live: set[int] = set()
        self._last_end_ns: dict[int, int] = {}
        self._accepted_s: dict[int, float] = {}

    @property
    def pending_records(self) -> int:
        """Number of records that wait to be handed out, including those of another attempt."""
        return self.present.pending_records + self._strays.pending_records

    def resize(self, window_steps: int) -> None:
        """Limit the pending steps to `window_steps` from now on; records that are already pending stay."""
        self.present.resize(window_steps)
        self._strays.resize(window_steps)

    def restart(self, rank: int, attempt_ns: int) -> None:
        """Vote on behalf of a rank that announced a new incarnation, which began at `attempt_ns` (unix ns).

        Does nothing if records of that incarnation have already arrived.
        """
        is_new = rank in self.present.last_step and attempt_ns > self._last_end_ns.get(rank, 0)
        if is_new and rank not in self._voted:
            self._vote(rank)

    def silence(self, ranks: "Iterable[int]") -> None:
        """Stop waiting for these ranks until they report again."""
        self.silent.update(ranks)
        self._live.difference_update(ranks)

    def last_step_of(self, rank: int) -> int:
        """Return the last step of the rank in the current attempt.

        -1 if it is unknown: no record of the rank was placed, or its records continue with indices of another attempt.
        """
        return NOTHING if rank in self._voted else self.present.last_step.get(rank, NOTHING)

    def accepted_s(self, rank: int) -> float:
        """Return when a record of the rank was last accepted in the current attempt; -infinity if never."""
        return self._accepted_s.get(rank, float("-inf"))

    def place(self, records: "Records", receipts: "Iterable[BatchReceipt]", now_s: float) -> None:
        """Store records in order of arrival; count those that cannot be used."""
        touched: list[PendingStep] = []
        each = zip(
            records.rank.tolist(),
            records.step.tolist(),
            records.end_ns.tolist(),
            (records.duration_ns // 2).tolist(),
            receipts,
            strict=True,
        )
        for row, (rank, step, end_ns, half_ns, receipt) in enumerate(each):
            window = self._window_of(rank, step, end_ns, half_ns, now_s)
            if window is None:
                continue
            pending = window.add(rank, step, row, receipt)
            if len(pending.rows) == 1:
                touched.append(pending)
            if end_ns > self._last_end_ns.get(rank, 0):
                self._last_end_ns[rank] = end_ns
        for pending in touched:
            pending.collect(records, now_s)

    def _window_of(self, rank: int, step: int, end_ns: int, half_ns: int, now_s: float) -> RecordWindow | None:
        """Return the window that a record belongs to; None if it was rejected.

        A record belongs to the present attempt if its step and its end both lie after the rank's last ones, or both
        before (it was overtaken). If it ends later by more than half of its duration, its step index is of another
        attempt.
        """
        present, last_end_ns = self.present, self._last_end_ns.get(rank, 0)
        is_next = step > present.last_step.get(rank, NOTHING)
        is_later = end_ns > last_end_ns + half_ns
        agrees = end_ns > last_end_ns if is_next else not is_later
        fits = step in present.span or (agrees and present.opens_for(step))
        has_voted = rank in self._voted
        is_held = (not is_next and present.holds(rank, step)) or (fits and has_voted and self._strays.holds(rank, step))
        if agrees and fits and not is_held:
            if is_next or not has_voted:  # otherwise it belongs to the attempt that this rank has left
                self._accepted_s[rank] = now_s
                if has_voted or rank not in self._live:
                    self._rejoin(rank)
            return present
        if is_later and not (is_next and (fits or present.is_just_before(step))):
            return self._stray_window_of(rank, step)
        if is_next and agrees and present.is_just_before(step):  # too late to be evaluated, but the rank has ended it
            present.last_step[rank] = step
        self.rejected["duplicate" if is_held and not is_later else "late"] += 1
        return None

    def _rejoin(self, rank: int) -> None:
        """Mark a rank as live: its first report in the present attempt, or the first after a silence or a vote."""
        self._live.add(rank)
        self.silent.discard(rank)
        self._voted.discard(rank)
        if not self._voted:
            self._strays = self._dropped(self._strays)

    def _stray_window_of(self, rank: int, step: int) -> RecordWindow | None:
        """Let the rank vote, then return the window for its record of another attempt or of a distant step.

        None if rejected.
        """
        generation = self.generation
        if rank not in self._voted:
            self._vote(rank)
        window = self._strays if self.generation == generation else self.present
        fits = step in window.span or window.opens_for(step)
        if window is self._strays and not fits:
            # A rank whose steps jump must not block this window for ranks that restart: the larger group gets it.
            holding = len(self._voted & window.last_step.keys())
            if len(self._voted) - holding >= holding:
                window = self._strays = self._dropped(window)
                fits = window.opens_for(step)
        if fits and step > window.last_step.get(rank, NOTHING):
            if window is self.present:
                self._live.add(rank)
            return window
        self.rejected["late"] += 1
        return None

    def _vote(self, rank: int) -> None:
        """Count the vote of a rank that has not voted yet; a majority makes the second window the present one."""
        self._voted.add(rank)
        self._live.add(rank)
        self.silent.discard(rank)
        if 2 * len(self._voted) > len(self._live):
            self.present, self._strays = self._strays, self._dropped(self.present)
            self._voted.clear()
            self.silent.clear()
            self._live = set(self.present.last_step)
            self.generation += 1

    def expire_strays(self, before_s: float) -> None:
        """Drop steps of another attempt that began to arrive before `before_s` and that no majority joined."""
        steps = self._strays.steps
        for step in [step for step, pending in steps.items() if pending.arrived_s(1) <= before_s]:
            self.rejected["late"] += steps.pop(step).settle()

    def drop_pending(self) -> None:
        """Drop all pending records and count them as late."""
        self.present, self._strays = self._dropped(self.present), self._dropped(self._strays)

    def _dropped(self, window: RecordWindow) -> RecordWindow:
        """Count the pending records of a window as late; return an empty window to replace it."""
        for pending in window.steps.values():
            self.rejected["late"] += pending.settle()
        return RecordWindow(window.length)
