"""Step batches on their way to the runs, taken together: a batch by itself costs as much as a hundred among others.

Bounded: what waits is taken as soon as it is worth it, and at the latest after `GATHER_S`.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.intake.streams import Receipt
    from lockstep.contracts.messages import StepBatch

GATHER_S = 0.05  # half of what a verdict may be late; a job of 102,400 ranks sends hundreds of batches in this time
GATHER_RECORDS = 32_768  # no more than the timeline takes at once


class Gathering:
    """`take` is given the batches and their receipts in the order of their arrival, on the event loop."""

    def __init__(self, take: "Callable[[Sequence[StepBatch], Sequence[Receipt]], None]") -> None:
        self._take = take
        self._batches: list[StepBatch] = []
        self._receipts: list[Receipt] = []
        self._records = 0
        self._waiting = asyncio.Event()

    def add(self, batch: "StepBatch", receipt: "Receipt") -> None:
        """Let a batch wait for others; once there are enough, all are taken."""
        self._batches.append(batch)
        self._receipts.append(receipt)
        self._records += max(batch.count, 1)  # an empty one takes room as well
        self._waiting.set()
        if self._records >= GATHER_RECORDS:
            self.take()

    def take(self) -> None:
        """Take all that waits, now."""
        batches, self._batches, self._records = self._batches, [], 0
        receipts, self._receipts = self._receipts, []
        self._waiting.clear()
        if batches:
            self._take(batches, receipts)

    async def keep_taking(self) -> None:
        """Take what waits, a moment after the first of it came, until cancelled."""
        while True:
            await self._waiting.wait()
            await asyncio.sleep(GATHER_S)
            self.take()
