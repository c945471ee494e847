"""Communication read at once gives the records that it gives mark by mark, whatever the marks."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting import breakdown_arrays, communication_layout, communication_marks
from lockstep.accounting.step_builder import StepBuilder
from lockstep.accounting.step_record import built_steps
from lockstep.contracts.marks import (
    BLOCK_MARKS,
    MARK_STRUCT,
    ORDINAL_MASK,
    OTHER_THREAD,
    MarkBlock,
    MarkKind,
    pack_call_site,
    pack_issue,
)
from lockstep.contracts.records import MISSING
from tests.accounting.jobs import Job
from tests.accounting.played import PlayedTraining, named
from tests.accounting.test_lost_marks import in_blocks_of

NEVER = 1 << 40


def build(blocks, arrays_from):
    """Return (steps, state behind the last block, for each step that was tried whether it was read at once)."""
    at_once = []
    read = communication_marks.read_arrays
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(communication_marks, "ARRAYS_FROM", arrays_from)
        patch.setattr(communication_marks, "read_arrays", lambda *given: at_once.append(read(*given)) or at_once[-1])
        builder = StepBuilder()
        steps = built_steps([step for block in blocks for step in builder.take(block)])
    return steps, builder.state(), [arrays is not None for arrays in at_once]


def agree(blocks):
    """Hold that both ways agree; return which of the steps that were tried were read at once."""
    expected, state, _ = build(blocks, NEVER)
    steps, state_at_once, at_once = build(blocks, 1)
    for ours, theirs in zip(steps, expected, strict=True):
        assert named(ours.record) == named(theirs.record)
    assert steps == expected
    assert state_at_once == state
    return at_once


@pytest.mark.parametrize("seed", range(120))
def test_jobs_of_all_kinds(seed):
    """As test_jobs has them, and with lost blocks."""
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(seed)).run(30)
        blocks = in_blocks_of(training.blocks(), 1 + seed % BLOCK_MARKS)
    agree(blocks)
    agree(blocks[: len(blocks) // 3] + blocks[len(blocks) // 3 + 2 :])


def marks_of(kinds, first_ns, gap_ns):
    """Return the marks of a step with such kinds of collectives and waits, a gap apart."""
    marks, now = [], first_ns
    for kind, detail, subject, argument in kinds:
        now += gap_ns
        marks.append((now, int(kind), detail, subject, argument))
    return marks


@pytest.mark.parametrize("hours", [1, 5, 50_000])
def test_long_steps_next_to_short_ones(hours):
    """Steps of hours, and times that no step has, change neither their own records nor those of others."""
    (detail, argument), (other, more) = SITES[1], SITES[6]
    step = [
        (MarkKind.BACKWARD_BEGIN, 0, 0, 0),
        *((MarkKind.ISSUE, detail, ordinal, argument) for ordinal in range(4)),
        (MarkKind.ISSUE, other, 9, more),
        (MarkKind.DONE, 0, 1, 0),
        (MarkKind.WAIT_BEGIN, 0, 0, 0),
        (MarkKind.DONE, 0, 2, 0),
        (MarkKind.GC_BEGIN, 2, 0, 0),
        (MarkKind.GC_END, 2, 0, 0),
        (MarkKind.WAIT_END, 0, 0, 0),
        (MarkKind.BACKWARD_END, 0, 0, MISSING),
        (MarkKind.STEP_END, 0, 0, MISSING),
    ]
    marks = [(1000, int(MarkKind.BEGIN), 7, 3, 0)]
    for number, gap_ns in enumerate((10, 10, hours * 3600 * 10**9 // len(step), 10, 10, hours * 10**9, 10)):
        kinds = [(kind, of, subject + 10 * number, value) for kind, of, subject, value in step]
        marks += marks_of(kinds, marks[-1][0], gap_ns)
    content = b"".join(MARK_STRUCT.pack(*mark) for mark in marks)
    assert agree(in_blocks_of([MarkBlock(0, 0, 0, 0, 0, content)], 7))[1:] == [True] * 6


def test_steps_of_many_ranks_are_built_at_once():
    """The record of each is the one that it has alone, whatever the others are, in any number."""
    ended, alone = [], []
    for seed in range(24):
        with PlayedTraining(block_count=2048) as training:
            Job(training, Random(1_000 + seed)).run(20)
            blocks = training.blocks()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(communication_marks, "ARRAYS_FROM", 1)
            builder, one_by_one = StepBuilder(), StepBuilder()
            ended += [step for block in blocks for step in builder.take(block)]
            alone += [step for block in blocks for step in one_by_one.add(block)]
    assert len(ended) > breakdown_arrays.STEPS_MAX
    Random(5).shuffle(order := list(range(len(ended))))
    assert built_steps([ended[at] for at in order]) == [alone[at] for at in order]


def test_most_steps_of_the_jobs_are_read_at_once():
    """What is read mark by mark are exceptions."""
    at_once = []
    for seed in range(30):
        with PlayedTraining(block_count=2048) as training:
            job = Job(training, Random(seed))
            job.has_graphs = False
            job.run(30)
            at_once += agree(training.blocks())
    assert sum(at_once) > 0.95 * len(at_once)


def test_steps_that_are_alike_share_a_layout(monkeypatch):
    """Whatever their times, and where ordinals begin again at 0; a step with another order of ends has its own."""
    made = []
    make = communication_layout._make_layout
    monkeypatch.setattr(communication_layout, "_make_layout", lambda *given: made.append(make(*given)) or made[-1])
    random, now, marks = Random(3), 1000, [(1000, int(MarkKind.BEGIN), 7, 3, 0)]
    (detail, argument), (first, second) = SITES[0], (MarkKind.DONE, MarkKind.DONE_UNKNOWN)
    for ordinal, ends in ((ORDINAL_MASK - 1, (1, 2)), (5, (1, 2)), (ORDINAL_MASK, (1, 2)), (2000, (2, 1))):
        kinds = [(MarkKind.ISSUE, detail, ordinal + at, argument) for at in range(3)]
        kinds += [(MarkKind.EXPECT, 0, ordinal, 0), (MarkKind.WAIT_BEGIN, 0, 0, 0), (MarkKind.WAIT_END, 0, 0, 0)]
        kinds += [(first, 0, ordinal + ends[0], 0), (second, 0, ordinal + ends[1], 0), (MarkKind.STEP_END, 0, 0, 0)]
        for kind, of_kind, subject, value in kinds:
            now += random.randrange(1, 100)
            marks.append((now, int(kind), of_kind, subject & ORDINAL_MASK, value))
    content = b"".join(MARK_STRUCT.pack(*mark) for mark in marks)
    assert agree(in_blocks_of([MarkBlock(0, 0, 0, 0, 0, content)], 1)) == [True] * 4
    assert len(made) == 2


SITES = [
    pack_issue(pack_call_site(operator, synchronous=synchronous, domain=domain, slot=0, group_size=4), 1 << domain)
    for operator in ("allreduce_", "send")
    for synchronous in (False, True)
    for domain in (0, 3)
]
THREAD = st.sampled_from((0, 0, 0, OTHER_THREAD))
ORDINAL = st.integers(0, 6)
PLAIN = st.tuples(
    st.sampled_from(
        (
            *(MarkKind.DATA_BEGIN, MarkKind.DATA_END, MarkKind.BACKWARD_BEGIN, MarkKind.BACKWARD_END),
            *(MarkKind.OPTIMIZER_BEGIN, MarkKind.OPTIMIZER_END, MarkKind.STEP_END, MarkKind.GC_BEGIN, MarkKind.GC_END),
            *(MarkKind.THREAD, MarkKind.MODEL_FLOPS),
        )
    ).map(int),
    st.just(0),
    st.just(0),
    st.just(0),
)
COMMUNICATION = st.tuples(
    st.builds(
        int.__or__,
        st.sampled_from(
            (
                *(MarkKind.DONE, MarkKind.DONE_UNKNOWN, MarkKind.EXPECT, MarkKind.WAIT_BEGIN, MarkKind.WAIT_END),
                *(MarkKind.EXPECT, MarkKind.WAIT_BEGIN, MarkKind.WAIT_END),
            )
        ).map(int),
        THREAD,
    ),
    st.just(0),
    ORDINAL,
    st.just(0),
)
ODD = st.tuples(
    st.sampled_from((MarkKind.UNMEASURED, MarkKind.UNMEASURED_BUS, MarkKind.ISSUE_BUS)).map(int),
    st.sampled_from((0, 3, 9)),
    ORDINAL,
    st.integers(-1, 9),
)
ISSUE = st.tuples(st.just("issue"), THREAD, st.sampled_from(SITES), st.sampled_from((1, 1, 1, 1, 1, 0)))
GAP_NS = st.sampled_from((0, 1, 1, 3, 50, -7))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    marks=st.lists(
        st.tuples(GAP_NS, ISSUE | ISSUE | COMMUNICATION | COMMUNICATION | COMMUNICATION | PLAIN), max_size=150
    ),
    odd=st.lists(st.tuples(st.integers(0, 149), ODD), max_size=2),
    size=st.integers(1, BLOCK_MARKS),
)
def test_marks_in_any_order(marks, odd, size):
    """Two threads, waits inside waits, ends of anything at any time, clocks that run backwards."""
    for at, mark in odd:
        marks.insert(min(at, len(marks)), (1, mark))
    now, ordinal = 1000, 0
    packed = [(now, int(MarkKind.BEGIN), 7, 3, 0)]
    for gap_ns, mark in marks:
        now = max(now + gap_ns, 0)
        if mark[0] == "issue":
            _, thread, (detail, argument), more = mark
            ordinal += more
            packed.append((now, MarkKind.ISSUE | thread, detail, ordinal, argument))
        else:
            packed.append((now, *mark))
    packed.append((now + 5, MarkKind.STEP_END, 0, 0, 10_000))
    content = b"".join(MARK_STRUCT.pack(*mark) for mark in packed)
    agree(in_blocks_of([MarkBlock(0, 0, 0, 0, 0, content)], size))
