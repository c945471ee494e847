"""Marks that are made without the interpreter lock: where they end up, and what becomes of them when no one reads."""

import os
from threading import Barrier, Thread

import pytest

from lockstep.contracts import marks
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_MARKS, MarkKind
from tests.agent.channels import INERT, OTHER_THREAD, TRAINING_THREAD, Channel
from tests.agent.mark_buffers import Ring

CALL_SITE = marks.pack_call_site("allreduce_", synchronous=True, domain=3, slot=5, group_size=64)
QUEUE_MARKS = 4096
DONE, EXPECT = int(MarkKind.DONE), int(MarkKind.EXPECT)


@pytest.fixture
def ring(tmp_path):
    made = Ring(tmp_path, "C", block_count=4096, real_clock=True)
    yield made
    made.close()


@pytest.fixture
def channel(ring):
    ring.buffer.begin()
    made = Channel(ring.buffer)
    yield made
    made.release()


def in_thread(function):
    thread = Thread(target=function)
    thread.start()
    thread.join()


def test_marks_of_the_channel_precede_the_next_mark(ring, channel):
    """They lie in the block in the order they were made, with ordinals that the buffer's own issues share."""
    assert channel.role() == TRAINING_THREAD
    assert channel.issue(CALL_SITE, 4096) == 0
    channel.note(EXPECT, 0)
    assert ring.buffer.issue(CALL_SITE, 8) == 1
    assert channel.issue(CALL_SITE, 12) == 2
    ring.buffer.flush()
    found = ring.marks()
    assert [(mark.kind, mark.subject) for mark in found[1:]] == [
        *((MarkKind.ISSUE, 0), (MarkKind.EXPECT, 0), (MarkKind.ISSUE, 1), (MarkKind.ISSUE, 2)),
    ]
    issues = [marks.unpack_issue(mark.detail, mark.argument) for mark in found if mark.kind == MarkKind.ISSUE]
    assert [issue.payload_bytes for issue in issues] == [4096, 8, 12]
    assert {(issue.slot, issue.synchronous, issue.group_size) for issue in issues} == {(5, True, 64)}
    assert [mark.time_ns for mark in found] == sorted(mark.time_ns for mark in found)


def test_a_thread_of_the_backend_is_another_thread(ring, channel):
    """Its marks bear OTHER_THREAD, as those that Python makes there."""
    roles = []
    channel.issue(CALL_SITE, 1)
    in_thread(lambda: (roles.append(channel.role()), channel.note(DONE, 0)))
    ring.buffer.flush()
    assert roles == [OTHER_THREAD]
    assert ring.marks()[-1].kind == MarkKind.DONE | marks.OTHER_THREAD


def test_an_issue_is_counted_in_the_file_at_once(ring, channel):
    """A rank that hangs inside C++ makes no further mark: its counts of issues are there all the same."""
    channel.issue(CALL_SITE, 1)
    ring.buffer.issue(CALL_SITE, 1)
    channel.issue(CALL_SITE, 1)
    words = memoryview(ring.bytes()[ring.block_count * BLOCK_BYTES :]).cast("Q")
    assert words[10] == 3
    ring.buffer.clear_issues(5)
    assert not any(memoryview(ring.bytes()[ring.block_count * BLOCK_BYTES :]).cast("Q"))


def test_a_full_queue_counts_what_is_lost(ring, channel):
    """No one waits for room, and the count is in the ring behind the marks that found some."""
    for ordinal in range(QUEUE_MARKS + 7):
        channel.note(DONE, ordinal)
    ring.buffer.data_begin()
    channel.note(DONE, 9999)
    ring.buffer.flush()
    found = ring.marks()[1:]
    assert [mark.subject for mark in found[:QUEUE_MARKS]] == list(range(QUEUE_MARKS))
    rest = [(mark.kind, mark.subject, mark.argument) for mark in found[QUEUE_MARKS:]]
    assert rest == [(MarkKind.MARKS_LOST, 0, 7), (MarkKind.DATA_BEGIN, 0, 0), (MarkKind.DONE, 9999, 0)]


def test_threads_lose_and_repeat_nothing(ring, channel):
    """Four threads leave marks while the training thread drains them: each arrives once, in its thread's order."""
    each, threads = 900, 4
    start = Barrier(threads + 1)

    def produce(first):
        start.wait()
        for ordinal in range(first, first + each):
            channel.note(DONE, ordinal)

    producers = [Thread(target=produce, args=(index * each,)) for index in range(threads)]
    for producer in producers:
        producer.start()
    start.wait()
    while any(producer.is_alive() for producer in producers):
        ring.buffer.flush()
    for producer in producers:
        producer.join()
    ring.buffer.flush()
    done = [mark.subject for mark in ring.marks() if mark.kind & marks.KIND_MASK == MarkKind.DONE]
    assert sorted(done) == list(range(threads * each))
    for index in range(threads):
        own = [ordinal for ordinal in done if ordinal // each == index]
        assert own == sorted(own)


@pytest.mark.parametrize("end", ["backward", "optimizer", "step"])
def test_an_end_is_counted_behind_the_marks_drained_before_it(ring, channel, end):
    """A block stored while the queue is drained does not count an end that lies in the next one."""
    ring.buffer.flush()
    for ordinal in range(BLOCK_MARKS):
        channel.note(DONE, ordinal)
    if end == "backward":
        ring.buffer.backward_begin()
        for ordinal in range(BLOCK_MARKS - 1):
            channel.note(DONE, ordinal)
    getattr(ring.buffer, f"{end}_end")()
    ring.buffer.flush()
    blocks = ring.blocks()
    assert len(blocks) >= 3
    assert [(block.backward_ends, block.optimizer_ends, block.step_ends) for block in blocks] == [(0, 0, 0)] * len(
        blocks
    )


def test_a_channel_is_inert_outside_an_attempt(ring):
    """Before an attempt, and after its end, nothing is recorded and nothing is written."""
    channel = Channel(ring.buffer)
    assert (channel.role(), channel.issue(CALL_SITE, 1)) == (INERT, -1)
    ring.buffer.begin()
    ring.buffer.finish()
    before = ring.bytes()
    channel.note(DONE, 0)
    assert (channel.role(), channel.issue(CALL_SITE, 1)) == (INERT, -1)
    assert ring.bytes() == before
    channel.release()


def test_a_channel_outlives_its_buffer(ring):
    """The callback of a collective that ends last finds it alive and inert."""
    ring.buffer.begin()
    channel = Channel(ring.buffer)
    del ring.buffer
    channel.note(DONE, 0)
    assert (channel.role(), channel.issue(CALL_SITE, 1)) == (INERT, -1)
    channel.release()


def test_a_forked_child_is_inert_at_once(ring, channel):
    """Also where Python's own hooks for a fork did not run: its parent goes on writing."""
    before = ring.bytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if (channel.role(), channel.issue(CALL_SITE, 1)) == (INERT, -1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ring.bytes() == before
    assert channel.role() == TRAINING_THREAD
