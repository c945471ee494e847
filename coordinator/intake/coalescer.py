"""Step batches on their way to the runs, coalesced: alone, a batch costs as much as a hundred together.

Bounded: what waits is delivered once it holds `COALESCED_RECORDS`, and at the latest after `COALESCE_S`.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.intake.streams import Receipt
    from lockstep.contracts.messages import StepBatch

COALESCE_S = 0.05  # half of what a verdict may be late; a job of 102,400 ranks sends hundreds of batches in this time
COALESCED_RECORDS = 8_192  # placing them takes 15 ms, in which the event loop does nothing else


class BatchCoalescer:
    """`deliver` is given the batches and their receipts in the order of their arrival, on the event loop."""

    def __init__(self, deliver: "Callable[[Sequence[StepBatch], Sequence[Receipt]], None]") -> None:
        self._deliver = deliver
        self._batches: list[StepBatch] = []
        self._receipts: list[Receipt] = []
        self._records = 0
        self._waiting = asyncio.Event()

    def add(self, batch: "StepBatch", receipt: "Receipt") -> None:
        """Let a batch wait for others; once there are enough, all are delivered."""
        self._batches.append(batch)
        self._receipts.append(receipt)
        self._records += max(batch.count, 1)  # an empty one occupies memory as well
        self._waiting.set()
        if self._records >= COALESCED_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Deliver all that waits, now."""
        batches, self._batches, self._records = self._batches, [], 0
        receipts, self._receipts = self._receipts, []
        self._waiting.clear()
        if batches:
            self._deliver(batches, receipts)

    async def run(self) -> None:
        """Deliver what waits, a moment after the first of it came, until cancelled."""
        while True:
            await self._waiting.wait()
            await asyncio.sleep(COALESCE_S)
            self.flush()
