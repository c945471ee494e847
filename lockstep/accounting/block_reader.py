"""Slots of a ring of marks to its blocks in their order, and how many are lost. contracts/marks.py is the layout.

May live here: which slot holds what. Not here: files (the caller fetches bytes), marks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.contracts.bounds import INT63_MAX
from lockstep.contracts.marks import BLOCK_BYTES, MarkBlock, unpack_block

WINDOW_BLOCKS = 64
"""Slots that are fetched at once, 64 KiB."""
IDLE_READS = 16
"""Reads without a block after which the whole ring is searched: a writer whose stores failed may go on far ahead."""

Fetch = Callable[[int, int], bytes]
"""(first slot, count) to the bytes of these slots."""


@dataclass(slots=True)
class BlockRead:
    """Blocks in their order, and those between them that are lost: overwritten before they were read, or unreadable."""

    blocks: list[MarkBlock] = field(default_factory=list)
    overwritten: int = 0
    torn: int = 0


class BlockReader:
    """Reads a ring of `block_count` slots; `next_sequence` is the block to read next."""

    def __init__(self, block_count: int, next_sequence: int = 0) -> None:
        self._block_count = block_count
        self.next_sequence = next_sequence
        self._idle_reads = 0

    def read(self, fetch: Fetch, limit: int = 4096) -> BlockRead:
        """Return what is new, at most about `limit` blocks."""
        read = BlockRead()
        while len(read.blocks) < limit and self._read_window(fetch, read):
            pass
        self._idle_reads = 0 if read.blocks else self._idle_reads + 1
        if self._idle_reads == IDLE_READS:
            self._idle_reads = 0
            self._catch_up(fetch, read)
        return read

    def _read_window(self, fetch: Fetch, read: BlockRead) -> bool:
        """Read the slots from the next block's on; return whether there may be more."""
        first = self.next_sequence % self._block_count
        window = self._fetch(fetch, first, min(WINDOW_BLOCKS, self._block_count - first))
        for at, block in enumerate(window):
            if block is None or block.sequence != self.next_sequence:
                return self._skip(fetch, read, window[at:])
            read.blocks.append(block)
            self.next_sequence += 1
        return True

    def _skip(self, fetch: Fetch, read: BlockRead, window: list[MarkBlock | None]) -> bool:
        """Go on behind blocks that are lost; return whether any are.

        `window` are slots from the next block's on, which does not hold it.
        """
        block = window[0]
        if block is not None and block.sequence > self.next_sequence:
            return self._catch_up(fetch, read)
        for ahead, later in enumerate(window):
            if later is not None and later.sequence == self.next_sequence + ahead:
                # It may have been written after its slot was fetched, and before this one's was.
                (again,) = self._fetch(fetch, self.next_sequence % self._block_count, 1)
                if again is None or again.sequence != self.next_sequence:
                    read.torn += ahead
                    self.next_sequence += ahead
                return True
        return False

    def _catch_up(self, fetch: Fetch, read: BlockRead) -> bool:
        """Go on with the oldest block but an eighth of the ring, which the writer may reach meanwhile."""
        found = sorted(block.sequence for block in self._fetch(fetch, 0, self._block_count) if block is not None)
        if not found or found[-1] <= self.next_sequence:
            return False
        oldest = found[-1] - self._block_count + 1 + self._block_count // 8
        target = next(sequence for sequence in found if sequence >= max(oldest, self.next_sequence))
        lapped = min(max(oldest - self.next_sequence, 0), target - self.next_sequence)
        read.overwritten += lapped
        read.torn += target - self.next_sequence - lapped
        self.next_sequence = target
        return True

    def _fetch(self, fetch: Fetch, first: int, count: int) -> list[MarkBlock | None]:
        """Return the block in each of these slots, None where there is none that belongs there."""
        data = memoryview(fetch(first, count))
        blocks = [
            unpack_block(data[at : at + BLOCK_BYTES]) if at + BLOCK_BYTES <= len(data) else None
            for at in range(0, count * BLOCK_BYTES, BLOCK_BYTES)
        ]
        return [
            block
            if block is not None and block.sequence % self._block_count == slot and block.sequence <= INT63_MAX
            else None
            for slot, block in enumerate(blocks, first)
        ]
