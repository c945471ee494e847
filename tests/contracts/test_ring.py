"""The ring's byte layout: round trips, foreign and older files. Blocks are those of contracts/marks.py."""

import struct

import pytest

from lockstep.contracts import ring
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import RING_FILE_MAX_BYTES
from lockstep.contracts.marks import BLOCK_BYTES

HEADER = ring.RingHeader(
    rank=3, local_rank=1, world_size=8, pid=42, attempt=7, clock_offset_ns=5, hostname="host-a", block_count=16
)


def unpack(data, file_bytes=HEADER.file_bytes):
    return ring.unpack_header(data, where="3.ring", file_bytes=file_bytes)


def test_header_round_trip():
    """What is packed is what is read."""
    assert unpack(ring.pack_header(HEADER)) == HEADER


def test_header_fits_before_the_words():
    """The static header ends before the words begin, and words are aligned."""
    assert len(ring.pack_header(HEADER)) <= ring.WORDS_OFFSET
    assert ring.WORDS_OFFSET % 8 == 0


def test_issues_stand_between_the_words_and_the_blobs():
    """Counts and times of all slots lie in the header's page, behind the other words and before the answer."""
    assert ring.WORD_HELD < ring.WORD_ISSUES
    assert ring.ISSUES_OFFSET == 8 * ring.WORD_ISSUES
    assert ring.ISSUES_BYTES == 16 * ring.ISSUE_SLOTS
    assert ring.ISSUES_OFFSET + ring.ISSUES_BYTES <= ring.ANSWER_OFFSET


def test_the_ring_that_is_written_fits_the_limit():
    """A file of as many blocks as an agent has is one that an exporter reads."""
    assert ring.BLOCKS_OFFSET % BLOCK_BYTES == 0
    header = ring.RingHeader(rank=0, local_rank=0, world_size=1, pid=1, attempt=1, clock_offset_ns=0, hostname="")
    assert 2 << 20 < header.file_bytes <= RING_FILE_MAX_BYTES


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        (lambda d: b"NOTARING" + d[8:], MalformedError, "magic"),
        (lambda d: d[:8] + struct.pack("<I", 99) + d[12:], ContractVersionError, "version"),
        (lambda d: d[:12] + struct.pack("<I", 99) + d[16:], ContractVersionError, "version"),
        (lambda d: d[:20] + struct.pack("<I", 17) + d[24:], MalformedError, "block count"),
        (lambda d: d[:16] + struct.pack("<I", 512) + d[20:], ContractVersionError, "block bytes"),
        (lambda d: d[:24] + struct.pack("<i", 8) + d[28:], MalformedError, "rank"),
        (lambda d: d[:20], MalformedError, "size"),
    ],
)
def test_foreign_headers_are_refused_by_name(change, error, names):
    """Another file, another version and sizes that do not fit are each refused with the file's name."""
    with pytest.raises(error, match=names) as caught:
        unpack(change(ring.pack_header(HEADER)))
    assert "3.ring" in str(caught.value)


@pytest.mark.parametrize("file_bytes", [0, 100, ring.BLOCKS_OFFSET - 1, 1 << 40])
def test_file_sizes_are_limited(file_bytes):
    """A file too small or too large is refused before it is mapped."""
    with pytest.raises(MalformedError, match="ring size"):
        unpack(ring.pack_header(HEADER), file_bytes=file_bytes)
