"""Both writers of marks: the same bytes, and what a reader can make of them whatever happens to the writer."""

import gc
import os
import sys
import time
import zlib
from tempfile import TemporaryDirectory
from threading import Thread, get_ident
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.agent import mark_writer
from lockstep.agent.garbage import CollectionLog
from lockstep.contracts import marks
from lockstep.contracts.errors import LocalError
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_MARKS, FLUSH_EVENT_NS, FLUSH_INTERVAL_NS, MarkKind
from lockstep.contracts.records import MISSING
from tests.agent.mark_buffers import WRITERS, Ring, extension

OBJECTS = [object() for _ in range(3)]
CALL_SITE = marks.pack_call_site("allreduce_", synchronous=True, domain=3, slot=5, group_size=64)
INT64 = st.integers(-(2**63), 2**63 - 1)
ORDINAL = st.integers(0, 2**32 - 1)
THING = st.sampled_from(OBJECTS)
NO_ARGUMENTS = (
    *("begin", "data_begin", "data_end", "batch_evaluated", "backward_begin", "backward_end", "optimizer_end"),
    *("closure_begin", "closure_end", "begin_explicit", "step_end", "wait_begin", "wait_end", "flush"),
)
CALLS = st.one_of(
    st.sampled_from(NO_ARGUMENTS).map(lambda name: (name,)),
    st.tuples(st.sampled_from(("optimizer_begin", "scaler_end")), THING),
    st.tuples(st.just("scaler_begin"), THING, THING),
    st.tuples(st.sampled_from(("phase_begin", "phase_end")), st.integers(0, 3)),
    st.tuples(st.just("issue"), st.integers(0, marks.CALL_SITE_MAX), st.integers(0, marks.PAYLOAD_BYTES_MAX)),
    st.tuples(st.just("clear_issues"), st.integers(0, 127)),
    st.tuples(st.sampled_from(("done", "done_unknown", "expect")), ORDINAL),
    st.tuples(st.just("collect"), st.sampled_from(("start", "stop")), st.builds(dict, generation=st.integers(0, 2))),
    st.tuples(st.just("batch"), *[INT64 | st.just(MISSING)] * 3),
    st.tuples(st.just("annotate"), st.integers(0, 3), INT64),
    st.tuples(st.sampled_from(("flag", "compiled", "spend")), INT64),
)
ELSEWHERE = st.one_of(
    st.tuples(st.sampled_from(("optimizer_begin", "scaler_end")), THING),
    st.tuples(st.just("scaler_begin"), THING, THING),
    st.sampled_from(("optimizer_end", "data_begin", "backward_begin", "backward_end")).map(lambda name: (name,)),
)
CALLS |= ELSEWHERE.map(lambda call: ("elsewhere", *call))
TIMED = st.lists(st.tuples(st.sampled_from((0, 1, 700, FLUSH_EVENT_NS, FLUSH_INTERVAL_NS)), CALLS), max_size=150)


@pytest.fixture(params=WRITERS)
def ring(request, tmp_path):
    made = Ring(tmp_path, request.param)
    yield made
    made.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=TIMED, last=st.sampled_from((("finish",), ("fail", 3), ("flush",))))
def test_both_writers_write_the_same_bytes(calls, last):
    """Any sequence of calls gives the same file, the same results and the same reads of the clocks."""
    found = []
    with TemporaryDirectory() as directory:
        for name in WRITERS:
            ring = Ring(directory, name, claim_thread=lambda steps: 3 * steps)
            results = []
            for passed_ns, (method, *arguments) in [(0, ("begin",)), *calls, (0, last)]:
                ring.now += passed_ns
                results.append(ring.call(method, *arguments))
            found.append((ring.bytes(), results, ring.reads, ring.buffer.failures, ring.buffer.thread))
            ring.close()
    assert found[0] == found[1]


def test_a_step_is_stored_with_its_end(ring):
    """The end of an optimizer's step stores all marks before it, in order, with times, identities and CPU time."""
    buffer = ring.buffer
    buffer.begin()
    ring.now += FLUSH_EVENT_NS
    for method, *arguments in (("data_begin",), ("data_end",), ("backward_begin",), ("backward_end",)):
        ring.now += 10
        getattr(buffer, method)(*arguments)
    buffer.optimizer_begin(OBJECTS[0])
    assert len(ring.marks()) == 1
    ring.now += 5
    buffer.optimizer_end()
    found = ring.marks()
    assert ring.kinds() == [
        *(MarkKind.BEGIN, MarkKind.DATA_BEGIN, MarkKind.DATA_END, MarkKind.BACKWARD_BEGIN, MarkKind.BACKWARD_END),
        *(MarkKind.OPTIMIZER_BEGIN, MarkKind.OPTIMIZER_END),
    ]
    assert [mark.time_ns - found[1].time_ns for mark in found[1:]] == [0, 10, 20, 30, 30, 35]
    assert (found[4].argument, found[6].argument) == (MISSING, ring.now // 2)
    assert found[5].subject == id(OBJECTS[0]) >> 4 & 0xFFFFFFFF


def test_a_wait_is_stored_before_it_blocks(ring):
    """A rank that hangs in a wait has stored that it began."""
    ring.buffer.begin()
    ring.now += FLUSH_EVENT_NS
    ring.buffer.wait_begin()
    assert ring.kinds()[-1] == MarkKind.WAIT_BEGIN


def test_an_issue_is_counted_in_the_file_at_once(ring):
    """A hang inside C++ leaves no later mark: the count of issues is in the file before the collective runs."""
    ring.buffer.begin()
    ring.now += 3
    assert (ring.buffer.issue(CALL_SITE, 4096), ring.buffer.issue(CALL_SITE, 0)) == (0, 1)
    words = memoryview(ring.bytes()[ring.block_count * BLOCK_BYTES :]).cast("Q")
    assert words[10:12].tolist() == [2, 1003]
    ring.buffer.clear_issues(5)
    assert not any(memoryview(ring.bytes()[ring.block_count * BLOCK_BYTES :]).cast("Q"))
    ring.buffer.flush()
    issue = marks.unpack_issue(ring.marks()[1].detail, ring.marks()[1].argument)
    assert issue == marks.Issue(operator=0, synchronous=True, domain=3, slot=5, group_size=64, payload_bytes=4096)


def test_blocks_are_stored_seldom(ring):
    """A full block, 100 ms since the last store, a wait 10 ms after it, or an end 10 ms after the last: nothing else is."""
    ring.buffer.begin()
    for _ in range(BLOCK_MARKS):
        ring.buffer.data_begin()
        ring.buffer.optimizer_end()
        if len(ring.blocks()) > 2:
            break
    assert [block.count for block in ring.blocks()] == [1, 2, BLOCK_MARKS]
    ring.now += FLUSH_INTERVAL_NS - 1
    ring.buffer.data_begin()
    assert len(ring.blocks()) == 3
    ring.now += 1
    ring.buffer.data_begin()
    assert [block.count for block in ring.blocks()][3:] == [2]


def test_a_writer_killed_at_any_byte_costs_the_block_that_it_wrote(ring):
    """The prefix of a store over an older lap is torn, as long as it changes anything; all other blocks stay."""
    ring.buffer.begin()
    for _ in range(8 * BLOCK_MARKS + 4):
        ring.now += 7
        ring.buffer.data_begin()
    before = ring.bytes()
    ring.buffer.flush()
    after = ring.bytes()
    at = 9 % ring.block_count * BLOCK_BYTES
    size = marks.BLOCK_HEADER_BYTES + 5 * marks.MARK_BYTES
    assert before[:at] == after[:at]
    assert before[at + size :] == after[at + size :]
    for cut in range(1, size):
        torn = after[at : at + cut] + before[at + cut : at + BLOCK_BYTES]
        block = marks.unpack_block(torn)
        assert block is None or torn == before[at : at + BLOCK_BYTES] or torn == after[at : at + BLOCK_BYTES]
    assert marks.unpack_block(after[at : at + BLOCK_BYTES]).sequence == 9


def test_the_header_counts_what_came_before(ring):
    """Position and ends of a block are those before its first mark, the mark that filled the block before included."""
    ring.buffer.begin()
    for _ in range(30):
        ring.buffer.backward_end()
        ring.buffer.optimizer_end()
        ring.buffer.step_end()
    ring.buffer.flush()
    position = ends = 0
    for block in ring.blocks():
        assert (block.position, block.backward_ends + block.optimizer_ends + block.step_ends) == (position, ends)
        position += block.count
        ends += block.count - (block.sequence == 0)


def test_collections_that_fill_a_block_leave_its_counts_right(tmp_path):
    """They go before the end that was met with them, and so into a block that does not count it yet."""
    ring = Ring(tmp_path, "Python", block_count=64)
    buffer = ring.buffer
    buffer.garbage = log = CollectionLog()
    buffer.begin()
    for _ in range(5):
        for _ in range(BLOCK_MARKS):
            ring.now += 10
            log.events.append((ring.now, get_ident(), True, None))
            log.events.append((ring.now, get_ident(), False, None))
        buffer.optimizer_begin(OBJECTS[0])
        buffer.optimizer_end()
        buffer.step_end()
    buffer.flush()
    optimizers = steps = 0
    for block in ring.blocks():
        assert (block.optimizer_ends, block.step_ends) == (optimizers, steps)
        kinds = [mark[1] for mark in marks.MARK_STRUCT.iter_unpack(block.marks)]
        optimizers += kinds.count(MarkKind.OPTIMIZER_END)
        steps += kinds.count(MarkKind.STEP_END)
    assert (optimizers, steps) == (5, 5)
    ring.close()


def test_the_end_of_a_step_is_stored_although_a_wait_was_stored_just_before(ring):
    """A rank that sleeps behind it leaves no mark, and its last step would be unknown."""
    ring.buffer.begin()
    for _ in range(3):
        ring.now += 2 * FLUSH_EVENT_NS
        ring.buffer.wait_begin()
        ring.buffer.wait_end()
        ring.now += 1_000
        ring.buffer.optimizer_begin(OBJECTS[0])
        ring.buffer.optimizer_end()
        assert ring.kinds()[-1] == MarkKind.OPTIMIZER_END


def test_marks_of_other_threads(ring):
    """Spans of other threads are dropped; what may belong to a backward there, or be reported anywhere, is marked so."""
    ring.buffer.begin()

    def other():
        for method in ("data_begin", "data_end", "backward_begin", "backward_end", "optimizer_end", "step_end"):
            getattr(ring.buffer, method)()
        ring.buffer.optimizer_begin(OBJECTS[0])
        ring.buffer.collect("start", {"generation": 0})
        ring.buffer.wait_begin()
        ring.buffer.issue(CALL_SITE, 8)
        ring.buffer.done(0)
        ring.buffer.flag(2)

    thread = Thread(target=other)
    thread.start()
    thread.join()
    ring.buffer.flush()
    assert [mark.kind for mark in ring.marks()[1:]] == [
        kind | marks.OTHER_THREAD for kind in (MarkKind.WAIT_BEGIN, MarkKind.ISSUE, MarkKind.DONE, MarkKind.FLAGS)
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_a_thread_that_trains_may_become_the_training_thread(name, tmp_path):
    """The owner of the buffer decides whether a thread that trains is the training thread from now on."""
    answers = [False, True]

    def claim_thread(_steps):
        claim = answers.pop(0)
        if claim:
            ring.buffer.thread = get_ident()
        return claim

    ring = Ring(tmp_path, name, claim_thread=claim_thread)
    ring.buffer.begin()
    ring.buffer.thread = 1
    ring.buffer.backward_begin()
    ring.buffer.backward_begin()
    ring.buffer.backward_end()
    ring.buffer.flush()
    assert ring.kinds()[1:] == [MarkKind.BACKWARD_BEGIN, MarkKind.BACKWARD_END]
    assert not answers
    ring.close()


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_signal_handler_raises_in_a_claim_passes(name, tmp_path):
    """An exception of the training that arrives while `claim_thread` runs is not swallowed."""

    def claim_thread(_steps):
        raise KeyboardInterrupt

    ring = Ring(tmp_path, name, claim_thread=claim_thread)
    with pytest.raises(KeyboardInterrupt):
        ring.buffer.backward_begin()
    ring.close()


def test_the_cpu_clock_is_read_where_a_step_can_end(ring):
    """A system call: at the end of an optimizer, and of a backward only if an optimizer stepped inside."""
    ring.buffer.begin()
    ring.reads.clear()
    ring.buffer.backward_begin()
    ring.buffer.backward_end()
    assert "cpu" not in ring.reads
    ring.buffer.backward_begin()
    ring.buffer.optimizer_begin(OBJECTS[0])
    ring.buffer.optimizer_end()
    ring.buffer.backward_begin()
    ring.buffer.backward_end()
    ring.buffer.backward_end()
    ring.buffer.flush()
    assert [mark.argument for mark in ring.marks() if mark.kind == MarkKind.BACKWARD_END] == [MISSING, 500, 500]


@pytest.mark.parametrize("last", ["finish", "fail"])
def test_nothing_is_written_after_the_end(ring, last):
    """After `finish` and `fail`, and before `begin`, every method is inert and raises nothing."""
    for _ in range(2):
        ring.buffer.data_begin()
        ring.buffer.optimizer_begin(OBJECTS[0])
        ring.buffer.wait_begin()
        ring.buffer.flush()
        assert ring.buffer.issue(CALL_SITE, 1) is None
        assert ring.buffer.thread == 0
        if not ring.marks():
            ring.buffer.begin()
            ring.buffer.finish() if last == "finish" else ring.buffer.fail(2)
    assert ring.kinds() == [MarkKind.BEGIN, MarkKind.FINISH if last == "finish" else MarkKind.FAILURE]


def test_a_store_that_fails_is_counted_and_nothing_else(ring):
    """A descriptor that the training closed costs the blocks, whose numbers are left out."""
    ring.buffer.begin()
    spare = os.dup(ring.file)
    os.close(ring.file)
    for _ in range(BLOCK_MARKS):
        ring.buffer.data_begin()
    ring.buffer.issue(CALL_SITE, 1)
    os.dup2(spare, ring.file)
    os.close(spare)
    ring.buffer.flush()
    assert ring.buffer.failures == 2
    assert [block.sequence for block in ring.blocks()] == [0, 2]
    assert ring.blocks()[1].position == BLOCK_MARKS + 1


def test_wrong_arguments_are_refused(ring):
    """What and expected are named; nothing is appended."""
    ring.buffer.begin()
    with pytest.raises(ValueError, match=r"issue: got call site -1 and 5 bytes, expected 0 to"):
        ring.buffer.issue(-1, 5)
    with pytest.raises(ValueError, match=r"got call site 0 and 549755813888 bytes"):
        ring.buffer.issue(0, 1 << 39)
    with pytest.raises(ValueError, match=r"issue slot: got 128, expected 0 to 127"):
        ring.buffer.clear_issues(128)
    with pytest.raises(ValueError, match=r"ring of marks: got 0 blocks at offset 0"):
        type(ring.buffer)(ring.file, 0, 0)
    with pytest.raises(TypeError):
        ring.buffer.issue(1)
    ring.buffer.flush()
    assert len(ring.marks()) == 1


@pytest.mark.parametrize("name", WRITERS)
def test_clocks_and_collections_of_the_process(name, tmp_path):
    """Without clocks of a test, times are CLOCK_MONOTONIC and the thread's CPU time; the collector calls `collect`."""
    ring = Ring(tmp_path, name, real_clock=True)
    before = time.monotonic_ns(), time.thread_time_ns()
    ring.buffer.begin()
    gc.callbacks.append(ring.buffer.collect)
    gc.collect(2)
    gc.callbacks.remove(ring.buffer.collect)
    ring.buffer.optimizer_end()
    after = time.monotonic_ns(), time.thread_time_ns()
    ring.buffer.flush()
    found = ring.marks()
    assert ring.kinds() == [MarkKind.BEGIN, MarkKind.GC_BEGIN, MarkKind.GC_END, MarkKind.OPTIMIZER_END]
    assert [mark.detail for mark in found[1:3]] == [2, 2]
    times = [before[0], *(mark.time_ns for mark in found), after[0]]
    assert times == sorted(times)
    cpu = [before[1], found[0].argument, found[-1].argument, after[1]]
    assert cpu == sorted(cpu)
    ring.close()


def test_a_mark_of_the_extension_allocates_nothing(tmp_path):
    """Marks without a result leave the allocator alone."""
    ring = Ring(tmp_path, "C", real_clock=True)
    methods = [getattr(ring.buffer, name) for name in ("data_begin", "data_end", "backward_begin", "backward_end")]
    optimizer_begin, optimizer_end, optimizer = ring.buffer.optimizer_begin, ring.buffer.optimizer_end, OBJECTS[0]
    ring.buffer.begin()
    before = after = sys.getallocatedblocks()
    for _ in range(3):  # the first turn specialises bytecode
        before = sys.getallocatedblocks()
        for method in methods:
            method()
        optimizer_begin(optimizer)
        optimizer_end()
        after = sys.getallocatedblocks()
    assert after - before == 0
    ring.close()


def test_the_extension_collects_its_own_garbage(tmp_path):
    """A buffer that is part of a cycle, by its clock, is freed."""
    ring = Ring(tmp_path, "C")
    gc.collect()
    counts = []
    for _ in range(2):
        holder = []
        holder.append(extension().MarkBuffer(ring.file, 0, 1, clock=holder.pop))
        del holder
        gc.collect()
        counts.append(sum(type(found).__name__ == "MarkBuffer" for found in gc.get_objects()))
    assert counts[0] == counts[1]
    ring.close()


def test_the_writer_is_chosen_by_what_can_be_loaded(monkeypatch):
    """The extension where it is, Python where it is not or was built of older sources."""
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", extension())
    assert mark_writer.mark_buffer_type() == (extension().MarkBuffer, mark_writer.C_EXTENSION)
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", None)
    assert mark_writer.mark_buffer_type()[1] == mark_writer.PURE_PYTHON
    older = SimpleNamespace(MarkBuffer=extension().MarkBuffer)
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", older)
    assert mark_writer.mark_buffer_type()[1] == mark_writer.PURE_PYTHON


def test_a_call_site_that_does_not_fit_is_refused():
    """What, got, expected."""
    good = {"operator": "send", "synchronous": False, "domain": 4, "slot": 0, "group_size": 2}
    assert marks.pack_call_site(**good) <= marks.CALL_SITE_MAX
    for bad in ({"operator": "none"}, {"domain": 6}, {"slot": 128}, {"group_size": 0}, {"group_size": (1 << 20) + 1}):
        with pytest.raises(LocalError, match=r"of a collective: got .* expected"):
            marks.pack_call_site(**{**good, **bad})


@given(
    operator=st.sampled_from(marks.OPERATORS),
    synchronous=st.booleans(),
    domain=st.integers(0, 5),
    slot=st.integers(0, 127),
    group_size=st.integers(1, 1 << 20),
    payload_bytes=st.integers(0, marks.PAYLOAD_BYTES_MAX),
)
def test_an_issue_mark_holds_what_it_was_given(*, operator, synchronous, domain, slot, group_size, payload_bytes):
    """Packing loses nothing, and fits the mark's integers."""
    site = marks.pack_call_site(operator, synchronous=synchronous, domain=domain, slot=slot, group_size=group_size)
    detail, argument = marks.pack_issue(site, payload_bytes)
    marks.MARK_STRUCT.pack(0, MarkKind.ISSUE, detail, 0, argument)
    assert marks.unpack_issue(detail, argument) == marks.Issue(
        marks.OPERATOR_INDEX[operator], synchronous, domain, slot, group_size, payload_bytes
    )


@given(
    numbers=st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
    content=st.integers(1, BLOCK_MARKS).flatmap(lambda n: st.binary(min_size=n * 24, max_size=n * 24)),
    flip=st.integers(0, 2**16),
)
def test_a_block_survives_packing_and_no_flipped_bit(numbers, content, flip):
    """A block is read as it was packed; with any bit of it flipped it is torn."""
    block = marks.MarkBlock(*numbers, content)
    packed = marks.pack_block(block)
    assert marks.unpack_block(packed.ljust(BLOCK_BYTES, b"x")) == block
    torn = bytearray(packed)
    torn[flip // 8 % len(packed)] ^= 1 << flip % 8
    assert marks.unpack_block(bytes(torn).ljust(BLOCK_BYTES, b"x")) is None


def test_what_is_no_block_is_none():
    """An empty slot, another version, a count beyond the slot, even with a right checksum."""
    packed = marks.pack_block(marks.MarkBlock(0, 0, 0, 0, 0, bytes(24)))
    assert marks.unpack_block(bytes(BLOCK_BYTES)) is None
    for change in (
        packed[4:6] + (marks.MARKS_VERSION + 1).to_bytes(2, "little") + packed[8:],
        (BLOCK_MARKS + 1).to_bytes(2, "little") + packed[6:].ljust(BLOCK_BYTES - 6, b"\0"),
        bytes(2) + packed[6:48],
    ):
        other = zlib.crc32(change).to_bytes(4, "little") + change
        assert marks.unpack_block(other.ljust(BLOCK_BYTES, b"\0")) is None


EVENT_MARKS = (
    (MarkKind.DATA_BEGIN, "data_begin"),
    (MarkKind.DATA_END, "data_end"),
    (MarkKind.BACKWARD_BEGIN, "backward_begin"),
    (MarkKind.BACKWARD_END, "backward_end"),
    (MarkKind.OPTIMIZER_BEGIN, "optimizer_begin", "an optimizer"),
    (MarkKind.CLOSURE_BEGIN, "closure_begin"),
    (MarkKind.CLOSURE_END, "closure_end"),
    (MarkKind.OPTIMIZER_END, "optimizer_end"),
    (MarkKind.SCALER_BEGIN, "scaler_begin", "a scaler", "an optimizer"),
    (MarkKind.SCALER_END, "scaler_end", "a scaler"),
    (MarkKind.WAIT_BEGIN, "wait_begin"),
    (MarkKind.WAIT_END, "wait_end"),
    (MarkKind.STEP_END, "step_end"),
)


@pytest.mark.parametrize("name", WRITERS)
def test_a_device_is_called_behind_the_marks_that_it_has_events_of(tmp_path, name):
    """Each with its ordinal, also where the mark filled its block; other marks call nothing."""
    ring = Ring(tmp_path, name)
    buffer = ring.buffer
    buffer.begin()
    called = []
    buffer.device = lambda *arguments: called.append(arguments)
    for _ in range(9):
        for _, method, *arguments in EVENT_MARKS:
            getattr(buffer, method)(*arguments)
        buffer.compiled(1)
        buffer.batch_evaluated()
    buffer.flush()
    kinds = [mark.kind for mark in ring.marks()]
    assert [kind for kind, *_ in called] == [int(kind) for kind, *_ in EVENT_MARKS] * 9
    assert [kinds[ordinal] for *_, ordinal in called] == [kind for kind, *_ in called]
    buffer.device = None
    buffer.data_begin()
    assert len(called) == 9 * len(EVENT_MARKS)
    assert buffer.device is None
    ring.close()


@pytest.mark.parametrize("name", WRITERS)
def test_a_device_is_given_what_an_issue_is_of(tmp_path, name):
    """Its detail and the collective's ordinal; and whether a backward may end the step."""
    ring = Ring(tmp_path, name)
    buffer = ring.buffer
    buffer.begin()
    called = []
    buffer.device = lambda kind, detail, subject, ordinal: called.append((kind, detail, subject, ordinal))
    site = marks.pack_call_site("allreduce_", synchronous=True, domain=3, slot=5, group_size=8)
    detail, _ = marks.pack_issue(site, 64)
    assert [buffer.issue(site, 64), buffer.issue(site, 64)] == [0, 1]
    buffer.backward_begin()
    assert buffer.backward_depth == 1
    buffer.optimizer_begin("an optimizer")
    buffer.optimizer_end()
    buffer.backward_end()
    assert called[:2] == [(MarkKind.ISSUE, detail, 0, 1), (MarkKind.ISSUE, detail, 1, 2)]
    assert called[-1] == (MarkKind.BACKWARD_END, 1, 0, 6)
    ring.close()


@pytest.mark.parametrize("name", WRITERS)
def test_marks_of_a_device(tmp_path, name):
    """They are appended with what they hold, and an inert buffer has none."""
    ring = Ring(tmp_path, name)
    buffer = ring.buffer
    assert buffer.device_mark(MarkKind.DEVICE_EVENT, 1, 2, -3) == -1
    buffer.begin()
    assert buffer.device_mark(MarkKind.DEVICE_EVENT, 1, (1 << 32) - 1, -3) == 1
    buffer.flush()
    mark = ring.marks()[1]
    assert (mark.kind, mark.detail, mark.subject, mark.argument) == (MarkKind.DEVICE_EVENT, 1, (1 << 32) - 1, -3)
    ring.close()


@pytest.mark.parametrize("name", WRITERS)
def test_an_exception_in_a_device_is_the_callers(tmp_path, name):
    """A signal handler of the training may raise there; the mark is made."""
    ring = Ring(tmp_path, name)
    buffer = ring.buffer
    buffer.begin()

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    buffer.device = interrupted
    for method in (buffer.data_begin, buffer.backward_begin, lambda: buffer.issue(1 << 16, 0)):
        with pytest.raises(KeyboardInterrupt):
            method()
    buffer.device = None
    buffer.flush()
    assert ring.kinds()[1:] == [MarkKind.DATA_BEGIN, MarkKind.BACKWARD_BEGIN, MarkKind.ISSUE]
    ring.close()
