import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.reading.ring_file import RingFile
from lockstep.contracts import blob, topics
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import HEAD_BYTES
from lockstep.contracts.capture import CaptureResult, result_to_json
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.marks import BLOCK_BYTES, unpack_block
from tests.exporter.conftest import open_descriptors, record
from tests.support.mark_ring import MarkRing
from tests.support.users import TRAINER, OtherUserError, run_as


@pytest.fixture
def ring(make_ring):
    return make_ring()


@pytest.fixture
def reader(ring: MarkRing):
    reader = RingFile(ring.path, 0)
    yield reader
    reader.close()


@pytest.mark.parametrize("size", [0, 600, layout.BLOCKS_OFFSET + 10])
def test_a_file_cut_under_the_reader_is_an_error_and_not_a_crash(ring: MarkRing, reader: RingFile, size: int):
    """What is left of its words ends in a named error, and of its blocks in fewer bytes."""
    ring.write(record(0))
    os.ftruncate(ring.file, size)
    if size < layout.BLOCKS_OFFSET:
        with pytest.raises(MalformedError, match="ring size"):
            reader.read()
    assert len(reader.blocks(0, 2)) == max(0, size - layout.BLOCKS_OFFSET)


def test_a_ring_that_may_not_be_read_is_named_with_what_was_expected(ring: MarkRing):
    """A link leads to what is not the rank's; a file of other users needs a mode or a group."""
    link = ring.path.with_name("3.ring")
    link.symlink_to(ring.path)
    with pytest.raises(MalformedError, match=r"ring in .*/3\.ring: got a link, expected a file of its own"):
        RingFile(link, 3)
    expected = r"ring in .*/0\.ring: got Permission denied, expected a file that user 61001 may read"
    with pytest.raises(OtherUserError, match=expected):
        run_as(TRAINER, lambda: RingFile(ring.path, 0))
    with pytest.raises(FileNotFoundError):
        RingFile(ring.path.with_name("4.ring"), 4)


def test_blocks_are_the_bytes_of_their_slots(ring: MarkRing, reader: RingFile):
    """From the first one asked for on, as many as asked for."""
    for step in range(3):
        ring.write(record(step))
    data = reader.blocks(1, 2)
    assert len(data) == 2 * BLOCK_BYTES
    assert [unpack_block(data[at:]).sequence for at in (0, BLOCK_BYTES)] == [1, 2]


def test_an_answer_is_seen_once(ring: MarkRing, reader: RingFile):
    """A new answer comes with the next look and not again."""
    answer = CaptureResult(request_id=7, state="running")
    ring.answer(result_to_json(answer))
    assert reader.read().answer == answer
    assert reader.read().answer is None


def test_a_reader_goes_on_where_another_stopped(ring: MarkRing, reader: RingFile):
    """The answer generation of one reader makes the next one see no answer twice."""
    ring.answer(result_to_json(CaptureResult(request_id=7, state="done")))
    reader.read()
    again = RingFile(ring.path, 0)
    again.answer_generation = reader.answer_generation
    assert again.read().answer is None
    again.close()


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"request_id": 1},
        result_to_json(CaptureResult(request_id=1, state="unheard of")),
        result_to_json(CaptureResult(request_id=-1, state="done")),
        result_to_json(CaptureResult(request_id=1, state="done", cost_ns=-5)),
    ],
)
def test_a_malformed_answer_is_reported_once(ring: MarkRing, reader: RingFile, value: Any):
    """An answer that is none is an error next to what else was read."""
    ring.answer(value)
    result = reader.read()
    assert (result.answer, len(result.errors)) == (None, 1)
    assert reader.read().errors == ()


def test_an_answer_nested_without_end_is_refused(ring: MarkRing, reader: RingFile):
    """JSON that would exhaust the decoder's stack is an error like any other."""
    deep = b"[" * 3000
    region = bytearray(layout.ANSWER_BYTES)
    crc = blob.zlib.crc32(deep, blob.zlib.crc32(blob._SEED.pack(1, len(deep))))
    region[:HEAD_BYTES] = blob._HEAD.pack(1, len(deep), crc)
    region[HEAD_BYTES : HEAD_BYTES + len(deep)] = deep
    os.pwrite(ring.file, region, layout.ANSWER_OFFSET)
    assert len(reader.read().errors) == 1


def test_groups_come_when_they_change(ring: MarkRing, reader: RingFile):
    """The groups region is read once per change."""
    ring.groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}])
    assert reader.read().groups == [{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}]
    assert reader.read().groups is None


def test_facts_come_when_they_change(ring: MarkRing, reader: RingFile):
    """The facts region is read once per change, and a region in the middle of being written is left for later."""
    assert reader.read().facts is None
    ring.facts({"device": "cpu"})
    assert reader.read().facts == {"device": "cpu"}
    assert reader.read().facts is None
    os.pwrite(ring.file, (9).to_bytes(8, "little"), layout.FACTS_OFFSET)
    assert reader.read().facts is None


def test_what_is_no_ring_is_refused_by_name(root: Path, make_ring):
    """Foreign, older, mislabelled files, links and pipes end in an error that names the path, never in a hang."""
    ring = make_ring(rank=1)
    directory = ring.path.parent
    (directory / "2.ring").write_bytes(b"x" * layout.BLOCKS_OFFSET)
    (directory / "3.ring").symlink_to(ring.path)
    os.mkfifo(directory / "4.ring")
    (directory / "5.ring").hardlink_to(ring.path)
    (directory / "6.ring").write_bytes(b"")
    (directory / "8.ring").mkdir()
    for rank in (2, 3, 4, 5, 6, 8):
        with pytest.raises(MalformedError, match=f"/{rank}.ring"):
            RingFile(directory / f"{rank}.ring", rank)
    older = make_ring(rank=7)
    os.pwrite(older.file, (99).to_bytes(4, "little"), 8)
    with pytest.raises(ContractVersionError, match=r"7\.ring"):
        RingFile(older.path, 7)


def test_a_refused_file_leaves_no_descriptor_open(root: Path):
    """Refusing a file over and over uses up nothing."""
    path = root / "0.ring"
    path.write_bytes(b"nothing")
    before = open_descriptors()
    for _ in range(20):
        with pytest.raises(MalformedError):
            RingFile(path, 0)
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("word", "what", "value"),
    [
        (layout.WORD_HEARTBEAT, "heartbeat", (1 << 61) + 1),
        (layout.WORD_HEARTBEAT, "heartbeat", 1 << 63),
        (layout.WORD_HEARTBEAT, "heartbeat", (1 << 64) - 1),
        (layout.WORD_STATE, "state", 5),
        (layout.WORD_STATE, "state", (1 << 64) - 1),
    ],
)
def test_a_word_that_no_rank_writes_is_refused_by_name(ring: MarkRing, reader: RingFile, word: int, what: str, value):
    """Each word is checked before anything is computed with it."""
    ring.word(word, value)
    for look in (reader.read, reader.heartbeat_ns):
        with pytest.raises(MalformedError, match=f"^{what} in .*0.ring: got {value}, expected 0 to "):
            look()


@pytest.mark.parametrize(
    ("word", "what", "value"),
    [
        (layout.WORD_FLAGS, "flags", 1 << 32),
        (layout.WORD_FLAGS, "flags", (1 << 64) - 1),
        (layout.WORD_HELD, "held", 2),
        (layout.WORD_ISSUES + 3 * layout.WORDS_PER_ISSUE_SLOT, "issue count", 1 << 63),
        (layout.WORD_ISSUES + 127 * layout.WORDS_PER_ISSUE_SLOT + 1, "issue time", (1 << 61) + 1),
    ],
)
def test_issues_that_no_rank_counts_are_refused_by_name(ring: MarkRing, reader: RingFile, word: int, what: str, value):
    """They would be announced, and no message holds them."""
    ring.word(word, value)
    with pytest.raises(MalformedError, match=f"^{what} in .*0.ring: got {value}, expected 0 to "):
        reader.issues()


@pytest.mark.parametrize(
    ("field", "value"),
    [("attempt", -1), ("attempt", (1 << 63) - 1), ("clock_offset_ns", -1), ("clock_offset_ns", (1 << 61) + 1),
     ("local_rank", -1), ("pid", -1)],
)  # fmt: skip
def test_a_header_that_no_rank_writes_is_refused(make_ring, field: str, value: int):
    """Its numbers end up in announcements and clocks."""
    ring = make_ring(rank=9, **{field: value})
    with pytest.raises(MalformedError, match=r"9\.ring"):
        RingFile(ring.path, 9)


def test_the_largest_words_of_a_rank_make_a_message(ring: MarkRing, reader: RingFile):
    """Sums of clocks at the ends of their ranges are unix times that a message holds."""
    ring.word(layout.WORD_HEARTBEAT, 1 << 61)
    ring.answer(result_to_json(CaptureResult(request_id=(1 << 63) - 1, state="done", reason="\ud800 in a file name")))
    result = reader.read()
    assert result.answer is not None
    assert result.answer.reason == "? in a file name"
    answer = replace(result.answer, run="r", node="n", rank=0)
    assert decode(topics.run_topic("r", topics.ANSWER, "n"), encode(answer)) == answer
