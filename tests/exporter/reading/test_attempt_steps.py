"""Blocks of one attempt to records: bounded reads, restarts within a step, faults of the accounting."""

import tracemalloc

import msgspec
import pytest

from exporter.reading.attempt_steps import RECORDS_PER_READ, AttemptSteps
from exporter.reading.read_offsets import ReadOffset
from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.bounds import STEP_MAX
from lockstep.contracts.capture import STEP, StepBoundary
from lockstep.contracts.marks import BLOCK_BYTES, BLOCK_MARKS, MarkKind, pack_block, pack_call_site, pack_issue
from lockstep.contracts.records import MISSING, RECORD_INDEX
from tests.exporter.conftest import MS, record
from tests.support.mark_ring import BlockMaker, StepMarks

COUNT = 64
ALL = 1000


class Slots:
    """A ring of blocks in memory."""

    def __init__(self):
        self.steps, self.maker = StepMarks(), BlockMaker()
        self.data = bytearray(COUNT * BLOCK_BYTES)
        self.fetches = 0

    def write(self, marks):
        for block in self.maker.blocks(marks):
            at = block.sequence % COUNT * BLOCK_BYTES
            data = pack_block(block)
            self.data[at : at + len(data)] = data

    def step(self, **values):
        self.write(self.steps.marks(record(self.steps.step, **values)))

    def fetch(self, first, count):
        self.fetches += 1
        return bytes(self.data[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES])


@pytest.fixture
def slots() -> Slots:
    return Slots()


def steps_of(read) -> list[int]:
    return read.records[:, RECORD_INDEX["step"]].tolist()


def restarted(steps: AttemptSteps) -> AttemptSteps:
    """Return what another process makes of the offset that was saved."""
    saved = msgspec.json.encode(steps.offset(attempt=1, answer_generation=0))
    return AttemptSteps(COUNT, msgspec.json.decode(saved, type=ReadOffset))


def test_a_read_is_bounded_by_records_too(slots: Slots):
    """A block whose marks are all ends of steps costs no more than others in one read; the rest comes with the next."""
    end = (9, MarkKind.STEP_END, 0, 0, MISSING)
    slots.write([(5, MarkKind.BEGIN, 0, 0, 0), *[end] * (30 * BLOCK_MARKS - 1)])
    reader = AttemptSteps(COUNT)
    first = reader.read(slots.fetch, ALL)
    assert RECORDS_PER_READ <= len(first.records) <= RECORDS_PER_READ + BLOCK_MARKS
    fetches = slots.fetches
    second = reader.read(slots.fetch, ALL)
    assert slots.fetches == fetches  # nothing more is read before what is there is accounted for
    assert steps_of(first) + steps_of(second) == list(range(len(first.records) + len(second.records)))
    assert reader.drop_pending() > 0
    assert reader.drop_pending() == 0


def test_a_restart_within_a_step_changes_no_record(slots: Slots):
    """The running step goes on from the state, whichever block is the first that the next process reads."""
    whole = AttemptSteps(COUNT)
    marks = [mark for step in range(20) for mark in slots.steps.marks(record(step))]
    parts = [marks[at : at + 5] for at in range(0, len(marks), 5)]
    reader, records, expected = AttemptSteps(COUNT), [], []
    for number, part in enumerate(parts):
        slots.write(part)
        expected += whole.read(slots.fetch, ALL).records.tolist()
        records += reader.read(slots.fetch, ALL).records.tolist()
        if number % 3 == 0:
            reader = restarted(reader)
    assert records == expected
    assert [each[RECORD_INDEX["step"]] for each in records] == list(range(20))


def test_an_old_offset_brings_no_step_twice(slots: Slots):
    """The state may be older than the last step that was handed on."""
    reader = AttemptSteps(COUNT)
    slots.step()
    reader.read(slots.fetch, ALL)
    offset = reader.offset(1, 0)
    slots.step()
    slots.step()
    reader.read(slots.fetch, ALL)
    later = AttemptSteps(COUNT, offset._replace(last_step=2))
    assert steps_of(later.read(slots.fetch, ALL)) == []
    slots.step()
    assert steps_of(later.read(slots.fetch, ALL)) == [3]


@pytest.mark.parametrize("builder", [{}, {"version": 1}, {"version": 99}])
def test_a_state_of_another_version_is_left_out(slots: Slots, builder, caplog):
    """The ring is read from its oldest block on then, and steps that were handed on do not come again."""
    for _ in range(3):
        slots.step()
    reader = AttemptSteps(COUNT, ReadOffset(1, next_sequence=2, last_step=1, last_end_ns=5, builder=builder))
    assert steps_of(reader.read(slots.fetch, ALL)) == [2]
    assert len(caplog.records) == 1


def test_a_fault_of_the_accounting_costs_the_steps_of_that_read(slots: Slots, monkeypatch: pytest.MonkeyPatch):
    """The next read goes on behind it, with the right numbers."""
    reader = AttemptSteps(COUNT)
    slots.step()
    assert steps_of(reader.read(slots.fetch, ALL)) == [0]
    reader.offset(1, 0)
    slots.step()
    with monkeypatch.context() as patch:
        patch.setattr(StepBuilder, "take", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reader.read(slots.fetch, ALL)
    for _ in range(3):
        slots.step()
    assert steps_of(reader.read(slots.fetch, ALL)) == [3, 4]


def test_a_process_that_never_ends_a_step_fills_no_memory(slots: Slots):
    """Hours of collectives, waits and collections without an optimizer: what is held of them is bounded."""
    detail, argument = pack_issue(pack_call_site("send", synchronous=True, domain=4, slot=1, group_size=2), 8)
    reader, held = AttemptSteps(COUNT), []
    slots.write([(5, MarkKind.BEGIN, 0, 0, 0)])
    tracemalloc.start()
    for number in range(6_000):
        at = 1_000 * number
        kinds = (MarkKind.WAIT_BEGIN, MarkKind.WAIT_END, MarkKind.DATA_BEGIN, MarkKind.DATA_END, MarkKind.GC_BEGIN)
        marks = [(at + index, kind, 0, 0, MISSING) for index, kind in enumerate((*kinds, MarkKind.GC_END))]
        slots.write([(at, MarkKind.ISSUE, detail, number, argument), *marks] * 5)
        reader.read(slots.fetch, ALL)
        if number % 3_000 == 2_999:
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[1] < held[0] + (1 << 20) < 32 << 20


def test_what_malformed_marks_and_losses_come_to_is_counted_by_read(slots: Slots):
    """Each read has its own."""
    reader = AttemptSteps(COUNT)
    slots.step()
    slots.write([(1_150 * MS, 0x7FFF, 0, 0, 0)])
    slots.step()
    read = reader.read(slots.fetch, ALL)
    assert (steps_of(read), read.malformed_marks, read.incomplete) == ([0, 1], 1, 1)
    slots.step()
    read = reader.read(slots.fetch, ALL)
    assert (steps_of(read), read.malformed_marks, read.incomplete) == ([2], 0, 0)


def test_the_boundary_of_a_step_is_in_the_counts_of_the_process(slots: Slots):
    """Of a later step, of the running one where the asked one is past, and of none that no order can name."""
    reader = AttemptSteps(COUNT)
    assert reader.boundary(-1) is None
    for _ in range(3):
        slots.step()
    reader.read(slots.fetch, ALL)
    assert reader.boundary(-1) == reader.boundary(1) == StepBoundary(STEP, 1, 3, 3)
    assert reader.boundary(7) == StepBoundary(STEP, 1, 7, 7)
    assert reader.boundary(STEP_MAX + 1) is None


def test_a_rank_without_numbers_is_known(slots: Slots):
    """There are marks, and a named step does not show how many there were when the names began late."""
    reader = AttemptSteps(COUNT)
    assert not reader.is_unnumbered
    slots.steps.marks(record(0))
    slots.maker.blocks([(7, MarkKind.OPTIMIZER_END, 0, 0, 0)] * 3)
    for _ in range(20):
        slots.step()
    assert steps_of(reader.read(slots.fetch, ALL)) == []
    assert reader.is_unnumbered
    assert reader.offset(1, 0).builder is None
