"""Slots of a ring of marks to its blocks in their order, and how many are lost. contracts/marks.py is the layout.

May live here: which slot holds what. Not here: files (the caller fetches bytes), marks.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.contracts.bounds import INT63_MAX
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_HEADER, MarkBlock, unpack_block

WINDOW_BLOCKS = 64
"""Slots that are fetched at once, 64 KiB."""
IDLE_READS = 16
"""Reads without a block after which the whole ring is searched: a writer whose stores failed may go on far ahead."""

_SEQUENCE = 3
_EMPTY = memoryview(bytes(BLOCK_BYTES))

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
        window = self._window(fetch)
        for at, slot in enumerate(window):
            block = _block_in(slot, self.next_sequence)
            if block is None:
                return self._skip(fetch, read, window[at:])
            read.blocks.append(block)
            self.next_sequence += 1
        return True

    def _window(self, fetch: Fetch) -> list[memoryview]:
        """Return the slots from the next block's on, over the ring's end."""
        first, count = self.next_sequence % self._block_count, min(WINDOW_BLOCKS, self._block_count)
        straight = min(count, self._block_count - first)
        slots = _split(fetch(first, straight), straight)
        return slots if straight == count else slots + _split(fetch(0, count - straight), count - straight)

    def _skip(self, fetch: Fetch, read: BlockRead, window: list[memoryview]) -> bool:
        """Go on behind blocks that are lost; return whether any are.

        `window` are slots from the next block's on, which does not hold it.
        """
        if _sequence_in(window[0]) > self.next_sequence:
            return self._catch_up(fetch, read)
        for ahead, slot in enumerate(window):
            if _block_in(slot, self.next_sequence + ahead) is not None:
                # It may have been written after its slot was fetched, and before this one's was.
                (again,) = _split(fetch(self.next_sequence % self._block_count, 1), 1)
                if _block_in(again, self.next_sequence) is None:
                    read.torn += ahead
                    self.next_sequence += ahead
                return True
        return False

    def _catch_up(self, fetch: Fetch, read: BlockRead) -> bool:
        """Go on with the oldest block but an eighth of the ring, which the writer may reach meanwhile."""
        slots = _split(fetch(0, self._block_count), self._block_count)
        claims = (int(BLOCK_HEADER.unpack_from(slot)[_SEQUENCE]) for slot in slots)
        found = sorted(s for at, s in enumerate(claims) if s % self._block_count == at and s <= INT63_MAX)
        newest = next((s for s in reversed(found) if _block_in(slots[s % self._block_count], s) is not None), -1)
        if newest <= self.next_sequence:
            return False
        oldest = newest - self._block_count + 1 + self._block_count // 8
        later = found[bisect_left(found, max(oldest, self.next_sequence)) :]
        target = next(s for s in later if _block_in(slots[s % self._block_count], s) is not None)
        lapped = min(max(oldest - self.next_sequence, 0), target - self.next_sequence)
        read.overwritten += lapped
        read.torn += target - self.next_sequence - lapped
        self.next_sequence = target
        return True


def _split(data: bytes, count: int) -> list[memoryview]:
    """Return `count` slots, empty ones where the file was cut."""
    view = memoryview(data).toreadonly()
    slots = (view[at : at + BLOCK_BYTES] for at in range(0, count * BLOCK_BYTES, BLOCK_BYTES))
    return [slot if len(slot) == BLOCK_BYTES else _EMPTY for slot in slots]


def _sequence_in(slot: memoryview) -> int:
    """Return the sequence of the block in a slot, -1 where there is none."""
    block = unpack_block(slot)
    return -1 if block is None else block.sequence


def _block_in(slot: memoryview, sequence: int) -> MarkBlock | None:
    """Return the block in a slot if it is number `sequence`: most slots hold former ones, whose checksum costs 1 us."""
    if BLOCK_HEADER.unpack_from(slot)[_SEQUENCE] != sequence:
        return None
    block = unpack_block(slot)
    # A slot that was never written has the sequence 0 and no checksum.
    return block if block is not None and block.sequence == sequence else None
