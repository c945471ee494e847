import os
from pathlib import Path
from typing import Any

import pytest

from exporter.reading.ring_file import RingFile
from lockstep.contracts import blob, topics
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import HEAD_BYTES
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.control import OrderAnswer, answer_to_json
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.messages import ProfileAnswer
from lockstep.contracts.records import RECORD_INDEX
from tests.exporter.conftest import FakeRing, open_descriptors, record


def steps(look: Any) -> list[int]:
    return look.records[:, RECORD_INDEX["step"]].tolist()


@pytest.fixture
def ring(make_ring):
    return make_ring()


@pytest.fixture
def reader(ring: FakeRing):
    reader = RingFile(ring.path, 0)
    yield reader
    reader.close()


def test_each_record_is_read_once_and_in_order(ring: FakeRing, reader: RingFile):
    """What is written between two looks comes with the next one, over the ring's end too."""
    seen: list[int] = []
    for first in range(0, 60, 12):
        for step in range(first, first + 12):
            ring.write(record(step))
        seen += steps(reader.look(100))
    assert seen == list(range(60))
    assert reader.look(100).lapped == 0


def test_a_look_is_bounded(ring: FakeRing, reader: RingFile):
    """A look reads at most what it is allowed, the next one goes on there."""
    for step in range(10):
        ring.write(record(step))
    assert steps(reader.look(4)) == [0, 1, 2, 3]
    assert steps(reader.look(100)) == list(range(4, 10))


def test_a_lapped_reader_counts_what_was_overwritten(ring: FakeRing, reader: RingFile):
    """A reader that was away longer than the ring holds gets the rest and knows how many it missed."""
    for step in range(40):
        ring.write(record(step))
    look = reader.look(100)
    assert look.lapped == 40 - 16
    assert steps(look) == list(range(24, 40))


def test_a_record_overwritten_while_it_is_read_counts_as_lapped(ring: FakeRing, reader: RingFile):
    """A slot that already holds a later record is not taken for the one that was expected."""
    for step in range(4):
        ring.write(record(step))
    ring.slot(16, record(16))  # the writer is a lap ahead of its head
    look = reader.look(100)
    assert (look.lapped, steps(look)) == (1, [1, 2, 3])


def test_a_torn_record_costs_itself_only(ring: FakeRing, reader: RingFile):
    """A torn slot gets a second look, is counted then, and the records behind it are read."""
    ring.write(record(0))
    ring.slot(1, record(1), torn=True)
    ring.head = 2
    ring.write(record(2))
    first, second = reader.look(100), reader.look(100)
    assert (steps(first), first.torn) == ([0], 0)
    assert (steps(second), second.torn) == ([2], 1)


def test_a_store_that_becomes_visible_late_is_not_lost(ring: FakeRing, reader: RingFile):
    """A slot that is whole at the second look counts as a record, not as torn."""
    ring.slot(0, record(0), torn=True)
    ring.head = 1
    ring.word(layout.WORD_HEAD, 1)
    assert steps(reader.look(100)) == []
    ring.slot(0, record(0))
    look = reader.look(100)
    assert (steps(look), look.torn) == ([0], 0)


@pytest.mark.parametrize("size", [0, 600, layout.SLOTS_OFFSET + 10])
def test_a_file_cut_under_the_reader_is_an_error_and_not_a_crash(ring: FakeRing, reader: RingFile, size: int):
    """Truncation ends in a named error; nothing was consumed, so nothing is counted twice when the file is whole again."""
    ring.write(record(0))
    os.ftruncate(ring.file, size)
    with pytest.raises(MalformedError, match="ring size"):
        reader.look(100)
    assert reader.next_index == 0


def test_a_wrong_head_is_not_believed(ring: FakeRing, reader: RingFile):
    """A head far ahead of the newest slot, or behind what was read, is an error instead of a million lost records."""
    ring.write(record(0))
    reader.look(100)
    ring.word(layout.WORD_HEAD, 1 << 60)
    with pytest.raises(MalformedError, match="head"):
        reader.look(100)
    ring.word(layout.WORD_HEAD, 0)
    with pytest.raises(MalformedError, match="head"):
        reader.look(100)
    assert reader.next_index == 1


def test_an_answer_is_seen_once(ring: FakeRing, reader: RingFile):
    """A new answer comes with the next look and not again."""
    answer = OrderAnswer(request_id=7, state="running")
    ring.answer(answer_to_json(answer))
    assert reader.look(1).answer == answer
    assert reader.look(1).answer is None


def test_a_reader_goes_on_where_another_stopped(ring: FakeRing, reader: RingFile):
    """Index and answer generation of one reader make the next one read nothing twice."""
    ring.write(record(0))
    ring.answer(answer_to_json(OrderAnswer(request_id=7, state="done")))
    reader.look(100)
    ring.write(record(1))
    again = RingFile(ring.path, 0)
    last = again.resume(reader.next_index, reader.answer_generation)
    assert last[:, RECORD_INDEX["step"]].tolist() == [0]
    look = again.look(100)
    again.close()
    assert (steps(look), look.answer) == ([1], None)


def test_a_position_beyond_the_ring_is_not_used(ring: FakeRing, reader: RingFile):
    """A saved position that this file cannot have reached is ignored."""
    ring.write(record(0))
    assert len(reader.resume(50, 3)) == 0
    assert steps(reader.look(100)) == [0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"request_id": 1},
        answer_to_json(OrderAnswer(request_id=1, state="unheard of")),
        answer_to_json(OrderAnswer(request_id=-1, state="done")),
        answer_to_json(OrderAnswer(request_id=1, state="done", cost_ns=-5)),
    ],
)
def test_a_malformed_answer_is_reported_once(ring: FakeRing, reader: RingFile, value: Any):
    """An answer that is none is an error beside the records, which are read all the same."""
    ring.write(record(0))
    ring.answer(value)
    look = reader.look(100)
    assert (steps(look), look.answer, len(look.errors)) == ([0], None, 1)
    assert reader.look(100).errors == ()


def test_an_answer_nested_without_end_is_refused(ring: FakeRing, reader: RingFile):
    """JSON that would exhaust the decoder's stack is an error like any other."""
    deep = b"[" * 3000
    region = bytearray(layout.ANSWER_BYTES)
    crc = blob.zlib.crc32(deep, blob.zlib.crc32(blob._SEED.pack(1, len(deep))))
    region[:HEAD_BYTES] = blob._HEAD.pack(1, len(deep), crc)
    region[HEAD_BYTES : HEAD_BYTES + len(deep)] = deep
    os.pwrite(ring.file, region, layout.ANSWER_OFFSET)
    assert len(reader.look(1).errors) == 1


def test_groups_come_when_they_change(ring: FakeRing, reader: RingFile):
    """The groups region is read once per change."""
    ring.groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}])
    assert reader.look(1).groups == [{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}]
    assert reader.look(1).groups is None


def test_facts_come_when_they_change(ring: FakeRing, reader: RingFile):
    """The facts region is read once per change, and a region in the middle of being written is left for later."""
    assert reader.look(1).facts is None
    ring.facts({"device": "cpu"})
    assert reader.look(1).facts == {"device": "cpu"}
    assert reader.look(1).facts is None
    os.pwrite(ring.file, (9).to_bytes(8, "little"), layout.FACTS_OFFSET)
    assert reader.look(1).facts is None


def test_what_is_no_ring_is_refused_by_name(root: Path, make_ring):
    """Foreign, older, mislabelled files, links and pipes end in an error that names the path, never in a hang."""
    ring = make_ring(rank=1)
    directory = ring.path.parent
    (directory / "2.ring").write_bytes(b"x" * layout.SLOTS_OFFSET)
    (directory / "3.ring").symlink_to(ring.path)
    os.mkfifo(directory / "4.ring")
    (directory / "5.ring").hardlink_to(ring.path)
    (directory / "6.ring").write_bytes(b"")
    (directory / "8.ring").mkdir()
    for rank in (2, 4, 5, 6, 8):
        with pytest.raises(MalformedError, match=f"/{rank}.ring"):
            RingFile(directory / f"{rank}.ring", rank)
    with pytest.raises(OSError, match=r"3\.ring"):
        RingFile(directory / "3.ring", 3)
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
        (layout.WORD_HEAD, "head", 1 << 63),
        (layout.WORD_HEAD, "head", (1 << 64) - 1),
        (layout.WORD_HEARTBEAT, "heartbeat", (1 << 61) + 1),
        (layout.WORD_HEARTBEAT, "heartbeat", 1 << 63),
        (layout.WORD_HEARTBEAT, "heartbeat", (1 << 64) - 1),
        (layout.WORD_STATE, "state", 4),
        (layout.WORD_STATE, "state", (1 << 64) - 1),
    ],
)
def test_a_word_that_no_rank_writes_is_refused_by_name(ring: FakeRing, reader: RingFile, word: int, what: str, value):
    """Each word is checked before anything is computed with it, and nothing is consumed."""
    ring.write(record(0))
    ring.word(word, value)
    for look in (lambda: reader.look(10), reader.heartbeat_ns, lambda: reader.resume(0, 0)):
        with pytest.raises(MalformedError, match=f"^{what} in .*0.ring: got {value}, expected 0 to "):
            look()
    assert reader.next_index == 0


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
def test_issues_that_no_rank_counts_are_refused_by_name(ring: FakeRing, reader: RingFile, word: int, what: str, value):
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


def test_the_largest_words_of_a_rank_make_a_message(ring: FakeRing, reader: RingFile):
    """Sums of clocks at the ends of their ranges are unix times that a message holds."""
    ring.word(layout.WORD_HEARTBEAT, 1 << 61)
    ring.answer(answer_to_json(OrderAnswer(request_id=(1 << 63) - 1, state="done", reason="\ud800 in a file name")))
    look = reader.look(10)
    assert look.answer is not None
    assert look.answer.reason == "? in a file name"
    answer = ProfileAnswer(run="r", node="n", rank=0, **answer_to_json(look.answer))
    assert decode(topics.run_topic("r", topics.ANSWER, "n"), encode(answer)) == answer
