"""The window of pending steps of one attempt.

No clock, and no validation: `attempts.py` decides which records belong here. The records of a step stay as they arrived
until the step is handed out, so a step takes memory only for the records it has.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from coordinator.intake.columns import Records

NOTHING = -1


@dataclass(slots=True, eq=False)
class BatchReceipt:
    """Receipt for a batch: `pending_records` of it wait to be handed out; the others were handed out or rejected.

    The timeline that returned it counts down to 0. Callers only read it.
    """

    pending_records: int = 0

    @property
    def is_settled(self) -> bool:
        """Return whether every record of the batch was handed out in a step or counted as rejected."""
        return not self.pending_records


@dataclass(slots=True, eq=False)
class PendingStep:
    """The records of one step so far, at most one per rank; `receipts` has one entry per record."""

    step: int
    ranks: set[int] = field(default_factory=set)
    receipts: list[BatchReceipt] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    parts: "list[Records]" = field(default_factory=list)
    _arrivals: list[tuple[float, int]] = field(default_factory=list)

    def collect(self, records: "Records", now_s: float) -> None:
        """Copy the records of this step (`rows`) out of `records`, which were placed at `now_s`."""
        self.parts.append(records.at(np.array(self.rows)))
        self._arrivals.append((now_s, len(self.ranks)))
        self.rows.clear()

    def arrived_s(self, rank_count: int) -> float:
        """Return when `rank_count` ranks had reported the step; infinity if they have not."""
        return next((now_s for now_s, count in self._arrivals if count >= rank_count), float("inf"))

    def settle(self) -> int:
        """Subtract the records from their receipts; return the number of records."""
        for receipt in self.receipts:
            receipt.pending_records -= 1
        return len(self.receipts)


class RecordWindow:
    """The pending steps of `span`, which is empty until the first record.

    Until the first step is handed out, the window still extends towards older steps: the first rank to report does not
    define where it begins. `last_step` holds the last step of each rank that has a record here.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.span = range(0)
        self.last_step: dict[int, int] = {}
        self.steps: dict[int, PendingStep] = {}
        self._is_open = True

    @property
    def pending_records(self) -> int:
        """Return the number of pending records."""
        return sum(len(pending.receipts) for pending in self.steps.values())

    def resize(self, length: int) -> None:
        """Change the length of the window; records that are already pending stay."""
        self.length = length
        if self.span:
            self.span = range(self.span.start, self.span.start + length)

    def opens_for(self, step: int) -> bool:
        """Move the start of the window to `step` if it is still open and all pending steps fit.

        Return whether it moved.
        """
        span = range(step, step + self.length)
        can_open = self._is_open and self.span.start in span and max(self.steps, default=step) in span
        if not self.span or can_open:
            self.span = span
            return True
        return False

    def is_just_before(self, step: int) -> bool:
        """Return whether a step lies before the window by no more than its length."""
        return bool(self.span) and 0 < self.span.start - step <= self.length

    def holds(self, rank: int, step: int) -> bool:
        """Return whether a rank has reported a pending step."""
        pending = self.steps.get(step)
        return pending is not None and rank in pending.ranks

    def add(self, rank: int, step: int, row: int, receipt: BatchReceipt) -> PendingStep:
        """Add the record in `row` of the records being placed to a step inside the window; return the step."""
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
        """Return when `rank_count` ranks had reported any one pending step; infinity if they have not."""
        return min((pending.arrived_s(rank_count) for pending in self.steps.values()), default=float("inf"))

    def hand_out(self) -> PendingStep | None:
        """Remove and return the oldest step, and advance the window; None if no rank reported that step."""
        first = self.span.start
        pending = self.steps.pop(first, None)
        self.span = range(first + 1, first + 1 + self.length)
        self._is_open = False
        if pending is not None:
            pending.settle()
        return pending
