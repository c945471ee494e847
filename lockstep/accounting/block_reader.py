"""Reads blocks in order from the slots of a ring of marks, and counts lost ones. contracts/marks.py defines the layout.

May live here: which slot holds what. Not here: files (the caller fetches bytes), marks.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.contracts.bounds import INT63_MAX
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_HEADER, MarkBlock, unpack_block

WINDOW_BLOCKS = 64
"""Slots fetched at once, 64 KiB."""
IDLE_READS = 16
"""Reads without a block after which the whole ring is searched: a writer whose stores failed may continue far ahead."""

_SEQUENCE = 3

Fetch = Callable[[int, int], bytes]
"""Returns the bytes of slots: (first slot, count) -> bytes."""


@dataclass(slots=True)
class BlockRead:
    """Blocks in order, and the numbers of lost ones between them: overwritten before they were read, or unreadable."""

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
        """Return the new blocks, at most about `limit`."""
        read = BlockRead()
        while len(read.blocks) < limit and self._read_window(fetch, read):
            pass
        self._idle_reads = 0 if read.blocks else self._idle_reads + 1
        if self._idle_reads == IDLE_READS:
            self._idle_reads = 0
            self._catch_up(fetch, read)
        return read

    def _read_window(self, fetch: Fetch, read: BlockRead) -> bool:
        """Read slots starting with that of the next block; return whether there may be more."""
        window = self._window(fetch)
        for at in range(0, len(window), BLOCK_BYTES):
            block = unpack_block(window, at, self.next_sequence)
            if block is None:
                return self._skip(fetch, read, window[at:])
            read.blocks.append(block)
            self.next_sequence += 1
        return bool(window)

    def _window(self, fetch: Fetch) -> memoryview:
        """Return slots starting with that of the next block, wrapping around the end of the ring."""
        first, count = self.next_sequence % self._block_count, min(WINDOW_BLOCKS, self._block_count)
        straight = min(count, self._block_count - first)
        slots = fetch(first, straight)
        if straight < count and len(slots) == straight * BLOCK_BYTES:
            slots += fetch(0, count - straight)
        return _whole(slots)

    def _skip(self, fetch: Fetch, read: BlockRead, window: memoryview) -> bool:
        """Skip lost blocks; return whether there were any.

        `window` are slots that start with that of the next block, which does not hold it.
        """
        claimed = _claim(window, 0)
        if claimed > self.next_sequence and unpack_block(window, 0, claimed) is not None:
            return self._catch_up(fetch, read)
        for ahead, at in enumerate(range(0, len(window), BLOCK_BYTES)):
            if unpack_block(window, at, self.next_sequence + ahead) is not None:
                # The block may have been written between the fetch of its slot and that of this one.
                again = _whole(fetch(self.next_sequence % self._block_count, 1))
                if not again or unpack_block(again, 0, self.next_sequence) is None:
                    read.torn += ahead
                    self.next_sequence += ahead
                return True
        return False

    def _catch_up(self, fetch: Fetch, read: BlockRead) -> bool:
        """Continue an eighth of the ring after the oldest block: the writer may overwrite that part meanwhile."""
        slots = _whole(fetch(0, self._block_count))
        newest = next((s for s in reversed(self._claimed(slots)) if self._has(slots, s)), -1)
        if newest <= self.next_sequence:
            return False
        slots = _whole(fetch(0, self._block_count))  # a block may have been written after its slot was copied
        oldest = newest - self._block_count + 1 + self._block_count // 8
        claimed = self._claimed(slots)
        later = claimed[bisect_left(claimed, max(oldest, self.next_sequence)) :]
        target = next((s for s in later if self._has(slots, s)), newest)
        lapped = min(max(oldest - self.next_sequence, 0), target - self.next_sequence)
        read.overwritten += lapped
        read.torn += target - self.next_sequence - lapped
        self.next_sequence = target
        return True

    def _claimed(self, slots: memoryview) -> list[int]:
        """Return the sequences that blocks claim, ascending; only blocks in their proper slots count."""
        claims = (_claim(slots, at) for at in range(0, len(slots), BLOCK_BYTES))
        return sorted(s for slot, s in enumerate(claims) if s % self._block_count == slot and s <= INT63_MAX)

    def _has(self, slots: memoryview, sequence: int) -> bool:
        """Whether the slots of the whole ring hold this block."""
        return unpack_block(slots, sequence % self._block_count * BLOCK_BYTES, sequence) is not None


def _whole(data: bytes) -> memoryview:
    """Return the complete slots in `data`: a truncated file ends within a slot."""
    return memoryview(data)[: len(data) - len(data) % BLOCK_BYTES]


def _claim(slots: memoryview, at: int) -> int:
    """Return the sequence that a block at byte `at` claims."""
    return int(BLOCK_HEADER.unpack_from(slots, at)[_SEQUENCE])
