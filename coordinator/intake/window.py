"""The steps of one attempt that are not judged yet.

No clock and no verdict on records: `attempts.py` decides what belongs here. A step's records lie as they came until
it is handed out, so that a step costs memory only for what has arrived of it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from coordinator.intake.columns import Records

NOTHING = -1


@dataclass(slots=True, eq=False)
class BatchReceipt:
    """What became of a batch: `pending_records` of it wait to be handed out, all others have been or were rejected.

    The timeline that returned it counts down to 0; read it, never set it.
    """

    pending_records: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether every record of the batch was handed out in a step or counted as rejected."""
        return not self.pending_records


@dataclass(slots=True, eq=False)
class PendingStep:
    """What has arrived of one step, at most one record of each rank; `receipts` has one entry for each record."""

    step: int
    ranks: set[int] = field(default_factory=set)
    receipts: list[BatchReceipt] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    parts: "list[Records]" = field(default_factory=list)
    _arrivals: list[tuple[float, int]] = field(default_factory=list)

    def collect(self, records: "Records", now_s: float) -> None:
        """Copy the records that were claimed out of those that were placed at `now_s`."""
        self.parts.append(records.at(np.array(self.rows)))
        self._arrivals.append((now_s, len(self.ranks)))
        self.rows.clear()

    def arrived_s(self, rank_count: int) -> float:
        """Return when so many ranks had reported the step; infinity where they have not."""
        return next((now_s for now_s, count in self._arrivals if count >= rank_count), float("inf"))

    def settle(self) -> int:
        """Count the records off their receipts; return how many they are."""
        for receipt in self.receipts:
            receipt.pending_records -= 1
        return len(self.receipts)


class RecordWindow:
    """The steps of `span`, the oldest not judged yet; the span is empty until the first record.

    Until a step is judged, the window still opens towards older steps: the first rank to report does not define where
    it begins. `last_step` holds the last step of each rank that has a record here.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.span = range(0)
        self.last_step: dict[int, int] = {}
        self.steps: dict[int, PendingStep] = {}
        self._is_open = True

    @property
    def pending_records(self) -> int:
        """How many records wait here."""
        return sum(len(pending.receipts) for pending in self.steps.values())

    def resize(self, length: int) -> None:
        """Admit no step beyond `length` from now on; what is pending stays."""
        self.length = length
        if self.span:
            self.span = range(self.span.start, self.span.start + length)

    def opens_for(self, step: int) -> bool:
        """Begin with a step outside, if the window is still open and it fits together with all that is pending."""
        span = range(step, step + self.length)
        can_open = self._is_open and self.span.start in span and max(self.steps, default=step) in span
        if not self.span or can_open:
            self.span = span
            return True
        return False

    def is_just_before(self, step: int) -> bool:
        """Whether a step lies before the window, by no more than its length."""
        return bool(self.span) and 0 < self.span.start - step <= self.length

    def holds(self, rank: int, step: int) -> bool:
        """Whether a rank has reported a step that is pending."""
        pending = self.steps.get(step)
        return pending is not None and rank in pending.ranks

    def add(self, rank: int, step: int, row: int, receipt: BatchReceipt) -> PendingStep:
        """Claim the record in `row` of those being placed for a step that fits; return the step."""
        pending = self.steps.get(step)
        if pending is None:
            pending = self.steps[step] = PendingStep(step)
        pending.ranks.add(rank)
        pending.receipts.append(receipt)
        pending.rows.append(row)
        receipt.pending_records += 1
        if step > self.last_step.get(rank, NOTHING):
            self.last_step[rank] = step
        return pending

    def arrived_s(self, rank_count: int) -> float:
        """Return when so many ranks had reported any one pending step; infinity where they have not."""
        return min((pending.arrived_s(rank_count) for pending in self.steps.values()), default=float("inf"))

    def hand_out(self) -> PendingStep | None:
        """Give the oldest step away and go on to the next; None where no rank reported it."""
        first = self.span.start
        pending = self.steps.pop(first, None)
        self.span = range(first + 1, first + 1 + self.length)
        self._is_open = False
        if pending is not None:
            pending.settle()
        return pending
