"""Coalesces step batches before they reach the runs: placing one batch costs as much as placing a hundred at once.

Bounded: waiting batches are delivered once they hold `COALESCED_RECORDS`, and after `COALESCE_S` at the latest.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.intake.streams import Receipt
    from lockstep.contracts.messages import StepBatch

COALESCE_S = 0.05  # half of a detection's allowed delay; a job of 102,400 ranks sends hundreds of batches in this time
COALESCED_RECORDS = 8_192  # placing them takes 15 ms, which block the event loop


class BatchCoalescer:
    """Calls `deliver` on the event loop with batches and their receipts, in order of arrival."""

    def __init__(self, deliver: "Callable[[Sequence[StepBatch], Sequence[Receipt]], None]") -> None:
        self._deliver = deliver
        self._batches: list[StepBatch] = []
        self._receipts: list[Receipt] = []
        self._records = 0
        self._waiting = asyncio.Event()

    def add(self, batch: "StepBatch", receipt: "Receipt") -> None:
        """Queue a batch; deliver all that wait once there are enough records."""
        self._batches.append(batch)
        self._receipts.append(receipt)
        self._records += max(batch.count, 1)  # an empty one occupies memory as well
        self._waiting.set()
        if self._records >= COALESCED_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Deliver all waiting batches now."""
        batches, self._batches, self._records = self._batches, [], 0
        receipts, self._receipts = self._receipts, []
        self._waiting.clear()
        if batches:
            self._deliver(batches, receipts)

    async def run(self) -> None:
        """Deliver waiting batches `COALESCE_S` after the first of them arrived; runs until cancelled."""
        while True:
            await self._waiting.wait()
            await asyncio.sleep(COALESCE_S)
            self.flush()
