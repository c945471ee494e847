"""Slots to blocks: laps, gaps, torn slots, and a writer that writes meanwhile."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.accounting.block_reader import IDLE_READS, BlockReader
from lockstep.contracts.marks import BLOCK_BYTES, MarkBlock, pack_block
from tests.agent.mark_buffers import WRITERS, Ring

COUNT = 16


class Slots:
    """A ring in memory."""

    def __init__(self):
        self.data = bytearray(COUNT * BLOCK_BYTES)
        self.before_fetch = []

    def write(self, *sequences):
        for sequence in sequences:
            at = sequence % COUNT * BLOCK_BYTES
            block = pack_block(MarkBlock(sequence, sequence, 0, 0, 0, bytes(24)))
            self.data[at : at + len(block)] = block

    def tear(self, sequence):
        self.data[sequence % COUNT * BLOCK_BYTES + 50] ^= 1

    def fetch(self, first, count):
        found = bytes(self.data[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES])
        if self.before_fetch:
            self.before_fetch.pop(0)()
        return found


def read(reader, slots, limit=100):
    found = reader.read(slots.fetch, limit)
    return [block.sequence for block in found.blocks], found.overwritten, found.torn


def test_blocks_are_read_once_and_in_order():
    """Over the ring's end, and nothing when nothing is new."""
    slots, reader = Slots(), BlockReader(COUNT)
    assert read(reader, slots) == ([], 0, 0)
    slots.write(*range(10))
    assert read(reader, slots) == (list(range(10)), 0, 0)
    assert read(reader, slots) == ([], 0, 0)
    slots.write(*range(10, 24))
    assert read(reader, slots) == (list(range(10, 24)), 0, 0)
    assert read(reader, slots) == ([], 0, 0)


def test_what_was_overwritten_is_counted():
    """A reader that comes late goes on with the oldest blocks, but for those that the writer is about to reach."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(*range(50))
    assert read(reader, slots) == (list(range(36, 50)), 36, 0)


def test_a_torn_block_is_skipped_when_later_ones_are_there():
    """Alone it may be a block that is being written."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(*range(3))
    slots.tear(2)
    assert read(reader, slots) == ([0, 1], 0, 0)
    slots.write(3)
    assert read(reader, slots) == ([3], 0, 1)


def test_a_torn_block_at_the_rings_end_is_skipped_too():
    """The one behind it lies in the ring's first slot."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(*range(COUNT))
    slots.tear(COUNT - 1)
    assert read(reader, slots) == (list(range(COUNT - 1)), 0, 0)
    slots.write(COUNT)
    assert read(reader, slots) == ([COUNT], 0, 1)


def test_a_header_alone_is_no_block():
    """What claims to be far ahead and is torn is not believed, whether it is the newest or on the way there."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(*range(30))
    slots.write(1000 * COUNT + 3)
    slots.tear(1000 * COUNT + 3)
    assert read(reader, slots) == ([*range(16, 19), *range(20, 30)], 16, 1)


def test_a_block_that_is_written_while_it_is_read_is_not_lost():
    """Its slot was fetched before it was there, the next one's after."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(0, 2)
    slots.before_fetch = [lambda: slots.write(1)]
    assert read(reader, slots) == ([0, 1, 2], 0, 0)


def test_blocks_that_are_written_while_the_whole_ring_is_read_are_not_lost():
    """The reader of an idle rank copies a slot, and then others that are written meanwhile."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(0, 1)
    read(reader, slots)
    stale = slots.fetch

    def torn_apart(first, count):
        found = stale(first, count)
        if count == COUNT and first == 0 and not written:
            written.append(slots.write(2, 3, 4))
            found = found[: 3 * BLOCK_BYTES] + stale(3, COUNT - 3)
        return found

    written = []
    idle = [reader.read(stale) for _ in range(IDLE_READS - 1)]
    assert not any(each.blocks for each in idle)
    found = reader.read(torn_apart)
    found.blocks += reader.read(stale).blocks
    assert written
    assert ([block.sequence for block in found.blocks], found.overwritten, found.torn) == ([2, 3, 4], 0, 0)


def test_stores_that_failed_for_long_are_found():
    """Where the next blocks never come, the whole ring is searched now and then."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(*range(COUNT))
    assert len(read(reader, slots)[0]) == COUNT
    slots.write(COUNT + 9, *range(4 * COUNT + 9, 4 * COUNT + 12))
    reads = [read(reader, slots) for _ in range(IDLE_READS + 1)]
    assert [blocks for blocks, _, _ in reads if blocks] == [[73, 74, 75]]
    assert sum(overwritten + torn for _, overwritten, torn in reads) == 73 - COUNT
    assert reader.next_sequence == 76


def test_a_file_that_was_cut_has_no_blocks():
    """A fetch that comes back short is nothing, not an error."""
    assert BlockReader(COUNT).read(lambda _first, _count: b"").blocks == []


def test_a_block_in_a_slot_that_is_not_its_own_is_torn():
    """The number must fit the slot."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(0, 1)
    slots.data[BLOCK_BYTES : 2 * BLOCK_BYTES] = slots.data[:BLOCK_BYTES]
    assert read(reader, slots) == ([0], 0, 0)


def test_the_limit_holds_a_read_short():
    """What is left is read next."""
    slots, reader = Slots(), BlockReader(COUNT)
    slots.write(*range(20))
    first = read(reader, slots, limit=1)[0]
    assert first + read(reader, slots)[0] == list(range(6, 20))


@given(st.lists(st.one_of(st.integers(1, 40), st.just(0)), max_size=30), st.data())
def test_every_block_is_read_or_counted(writes, data):
    """However writer and reader take turns, and whichever slots are torn: read, overwritten and torn are all."""
    slots, reader = Slots(), BlockReader(COUNT)
    written = lost = 0
    found = []
    for count in [*writes, 2]:
        slots.write(*range(written, written + count))
        written += count
        if count and data.draw(st.booleans()):
            slots.tear(written - 1)
        blocks, overwritten, torn = read(reader, slots)
        found += blocks
        lost += overwritten + torn
    assert found == sorted(set(found))
    assert len(found) + lost == reader.next_sequence <= written


def fetch_of(ring, first, count):
    return ring.bytes()[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES]


@pytest.mark.parametrize("name", WRITERS)
def test_the_ring_of_a_writer(name, tmp_path):
    """Reader and writer agree on slots, sequence and position."""
    ring = Ring(tmp_path, name, block_count=COUNT)
    reader = BlockReader(COUNT)
    ring.buffer.begin()
    position = 0
    for _ in range(7):
        for _ in range(200):
            ring.buffer.data_begin()
        ring.buffer.flush()
        for block in reader.read(partial(fetch_of, ring)).blocks:
            assert block.position == position
            position += block.count
    assert position == 1401
    ring.close()
