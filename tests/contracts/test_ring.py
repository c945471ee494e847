"""The ring's byte layout: round trips, torn slots, foreign and older files."""

import struct

import pytest
from hypothesis import given

from lockstep.contracts import ring
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.records import RECORD_STRUCT
from tests.strategies import int64, record

HEADER = ring.RingHeader(
    rank=3, local_rank=1, world_size=8, pid=42, attempt=7, clock_offset_ns=5, hostname="host-a", slot_count=16
)


def unpack(data, file_bytes=HEADER.file_bytes):
    return ring.unpack_header(data, where="3.ring", file_bytes=file_bytes)


def packed(index, values):
    slot = bytearray(ring.SLOT_BYTES)
    ring.pack_slot(memoryview(slot), 0, index, RECORD_STRUCT.pack(*values))
    return bytes(slot)


def test_header_round_trip():
    """What is packed is what is read."""
    assert unpack(ring.pack_header(HEADER)) == HEADER


def test_header_fits_before_the_words():
    """The static header ends before the words begin, and words are aligned."""
    assert len(ring.pack_header(HEADER)) <= ring.WORDS_OFFSET
    assert ring.WORDS_OFFSET % 8 == ring.SLOTS_OFFSET % 8 == ring.SLOT_BYTES % 8 == 0


def test_issues_stand_between_the_words_and_the_blobs():
    """Counts and times of all slots lie in the header's page, behind the other words and before the answer."""
    assert ring.WORD_HELD < ring.WORD_ISSUES
    assert ring.ISSUES_OFFSET == 8 * ring.WORD_ISSUES
    assert ring.ISSUES_BYTES == 16 * ring.ISSUE_SLOTS
    assert ring.ISSUES_OFFSET + ring.ISSUES_BYTES <= ring.ANSWER_OFFSET


@given(index=int64.filter(lambda i: i >= 0), values=record)
def test_slot_round_trip(index, values):
    """Index and record come back as they were."""
    got = ring.unpack_slot(packed(index, values))
    assert got is not None
    assert (got[0], list(RECORD_STRUCT.unpack(got[1]))) == (index, values)


@pytest.mark.parametrize("cut", range(0, ring.SLOT_BYTES - 4, 29))
def test_torn_slot_is_seen(cut):
    """A slot that holds the first part of one record and the rest of another is refused."""
    old, new = packed(5, [1] * (RECORD_STRUCT.size // 8)), packed(21, [2] * (RECORD_STRUCT.size // 8))
    torn = new[:cut] + old[cut:]
    assert ring.unpack_slot(torn) is None or torn in (old, new)


def test_a_slot_touches_nothing_beside_it():
    """Writing at an offset changes the slot's own bytes and no others."""
    wide = bytearray(b"\xaa" * 3 * ring.SLOT_BYTES)
    ring.pack_slot(memoryview(wide), ring.SLOT_BYTES, 9, bytes(RECORD_STRUCT.size))
    assert wide[: ring.SLOT_BYTES] == wide[2 * ring.SLOT_BYTES :] == b"\xaa" * ring.SLOT_BYTES
    assert ring.unpack_slot(bytes(wide[ring.SLOT_BYTES : 2 * ring.SLOT_BYTES])) is not None


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        (lambda d: b"NOTARING" + d[8:], MalformedError, "magic"),
        (lambda d: d[:8] + struct.pack("<I", 99) + d[12:], ContractVersionError, "version"),
        (lambda d: d[:12] + struct.pack("<I", 99) + d[16:], ContractVersionError, "version"),
        (lambda d: d[:20] + struct.pack("<I", 17) + d[24:], MalformedError, "slot count"),
        (lambda d: d[:28] + struct.pack("<i", 8) + d[32:], MalformedError, "rank"),
        (lambda d: d[:20], MalformedError, "size"),
    ],
)
def test_foreign_headers_are_refused_by_name(change, error, names):
    """Another file, another version and sizes that do not fit are each refused with the file's name."""
    with pytest.raises(error, match=names) as caught:
        unpack(change(ring.pack_header(HEADER)))
    assert "3.ring" in str(caught.value)


@pytest.mark.parametrize("file_bytes", [0, 100, ring.SLOTS_OFFSET - 1, 1 << 40])
def test_file_sizes_are_limited(file_bytes):
    """A file too small or too large is refused before it is mapped."""
    with pytest.raises(MalformedError, match="ring size"):
        unpack(ring.pack_header(HEADER), file_bytes=file_bytes)
