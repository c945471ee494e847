"""Marks that are lost, torn, or of no agent: the step is flagged or missing, never guessed."""

import dataclasses
import json
import struct
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import BLOCK_MARKS, MARK_BYTES, MARK_STRUCT, OTHER_THREAD, MarkBlock, MarkKind
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, Flag
from tests.accounting.jobs import KINDS, Job
from tests.accounting.played import PlayedTraining, named

MEASURES = RECORD_FIELDS[RECORD_FIELDS.index("flags") + 1 :]
LOST_WITH_THE_BEGINNING = ("recompilations", "model_flops", "agent_ns")
"""Written once, or counted from then on."""
UNKNOWN_AFTER_A_GAP = (*LOST_WITH_THE_BEGINNING, *(f"{kind}_" for kind in DOMAIN_KINDS))


def job_of(training, kind, seed):
    return Job(training, Random(seed)).steady(kind)


def build(blocks, builder=None):
    builder = builder or StepBuilder()
    return [step for block in blocks for step in builder.add(block)], builder


def in_blocks_of(blocks, count):
    """Cut the marks of `blocks` again, `count` to a block, as a writer with smaller blocks writes them."""
    marks = b"".join(block.marks for block in blocks)
    cut = []
    position = backwards = optimizers = steps = 0
    for sequence, at in enumerate(range(0, len(marks), count * MARK_BYTES)):
        part = marks[at : at + count * MARK_BYTES]
        block = MarkBlock(sequence, position, backwards, optimizers, steps, part)
        kinds = [mark[1] for mark in MARK_STRUCT.iter_unpack(part)]
        position += len(kinds)
        backwards += kinds.count(MarkKind.BACKWARD_END)
        optimizers += kinds.count(MarkKind.OPTIMIZER_END) + kinds.count(MarkKind.SCALER_END)
        steps += kinds.count(MarkKind.STEP_END)
        cut.append(block)
    return cut


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_every_record_after_a_gap_is_right(kind, share):
    """After any gap in a steady job, what is built is flagged or equal to the record of the same number without that gap."""
    for seed in range(3):
        with PlayedTraining(block_count=2048) as training:
            job_of(training, kind, seed).run(60)
            truth = training.records
            blocks = in_blocks_of(training.blocks(), 7)
            first, gap = len(blocks) // 2, 1 + int(len(blocks) * share)
            steps, builder = build(blocks[:first] + blocks[first + gap :])
            found = [(named(step.record), step.is_incomplete) for step in steps]
            assert builder.counts.lost_marks == sum(block.count for block in blocks[first : first + gap])
            for record, is_incomplete in found:
                true = truth[record["step"]]
                if is_incomplete:
                    assert (record["start_ns"], record["end_ns"]) == (true["start_ns"], true["end_ns"])
                    assert record["flags"] & Flag.WARM_UP
                    assert all(record[name] == MISSING for name in MEASURES)
                else:
                    assert agree(record, true)
            numbers = [record["step"] for record, _ in found]
            assert numbers == sorted(set(numbers))
            if kind != "closure":  # whose evaluations differ from step to step, so that no stride numbers them
                assert builder.is_aligned
                assert numbers[-1] == len(truth) - 1
                assert len(truth) - len(numbers) == builder.counts.lost_steps


def agree(record, true):
    """Compare what is known: compilations are not until they are counted again, nor that a domain was ever used."""
    unknown = [name for name in MEASURES if record[name] == MISSING and name.startswith(UNKNOWN_AFTER_A_GAP)]
    return {**record, **{name: true[name] for name in unknown}} == true and all(
        name in LOST_WITH_THE_BEGINNING or true[name] in (0, MISSING) for name in unknown
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    lost=st.sets(st.integers(0, 199), max_size=12),
    size=st.integers(1, BLOCK_MARKS),
)
def test_what_is_complete_is_right_whatever_is_lost(seed, kind, lost, size):
    """A record that is not flagged is the true one, whichever blocks are lost, the first ones included."""
    with PlayedTraining(block_count=2048) as training:
        job_of(training, kind, seed).run(40)
        truth = training.records
        blocks = in_blocks_of(training.blocks(), size)
        steps, _ = build(block for block in blocks if block.sequence not in lost)
        for step in steps:
            record = named(step.record)
            true = truth[record["step"]]
            assert (record["start_ns"], record["end_ns"]) == (true["start_ns"], true["end_ns"])
            assert step.is_incomplete or agree(record, true)


def test_an_irregular_job_has_no_number_after_a_gap():
    """Where steps do not repeat, nothing states how many were lost: no record is built until the next attempt."""
    with PlayedTraining(block_count=2048) as training:
        job_of(training, "closure", 3).run(60)
        blocks = in_blocks_of(training.blocks(), 7)
        first = len(blocks) // 2
        before, builder = build(blocks[:first])
        after, _ = build(blocks[first + 30 :], builder)
        assert before
        assert (after, builder.is_numbered) == ([], False)


LATE_KINDS = ("plain", "fused", "bare", "nested", "phases")
"""Jobs whose iterations have one event, or named steps."""


@pytest.mark.parametrize("kind", LATE_KINDS)
def test_a_reader_that_comes_late_numbers_its_steps_by_all_ends_of_the_attempt(kind):
    """Ten steps alike, and counts of ends that are as many times theirs: from there on records are the true ones."""
    with PlayedTraining(block_count=2048) as training:
        job_of(training, kind, 1).run(60)
        truth = training.records
        blocks = in_blocks_of(training.blocks(), 7)
        steps, builder = build(blocks[len(blocks) // 3 :])
    records = [named(step.record) for step in steps]
    assert builder.is_numbered
    assert [record["step"] for record in records] == list(range(records[0]["step"], 60))
    assert len(records) > 60 - 20 - 14
    assert all(agree(record, truth[record["step"]]) for record in records)


@pytest.mark.parametrize("kind", ["gan", "groups"])
def test_a_late_reader_of_a_longer_sequence_has_no_number(kind):
    """When it was learnt, and how many steps there were before, is not known."""
    with PlayedTraining(block_count=2048) as training:
        job_of(training, kind, 1).run(60)
        blocks = in_blocks_of(training.blocks(), 7)
        steps, builder = build(blocks[len(blocks) // 3 :])
    assert steps == []
    assert not builder.is_numbered
    assert builder.boundary(0) is None


def test_a_late_reader_of_steps_that_were_not_all_alike_has_no_number():
    """One backward more than the steps account for, before the reader came."""
    with PlayedTraining(block_count=2048) as training:
        job = job_of(training, "plain", 1)
        job.run(5)
        job.backward()
        job.run(50)
        blocks = in_blocks_of(training.blocks(), 7)
        steps, builder = build(blocks[len(blocks) // 3 :])
    assert (steps, builder.is_numbered) == ([], False)


def test_a_gap_before_the_iteration_is_learnt_is_like_a_late_start():
    """Records before it stay, and those of later steps have their numbers."""
    with PlayedTraining(block_count=2048) as training:
        job_of(training, "plain", 1).run(40)
        truth = training.records
        blocks = in_blocks_of(training.blocks(), 7)
        steps, builder = build(blocks[:10] + blocks[12:])
    numbers = [named(step.record)["step"] for step in steps]
    assert builder.is_numbered
    assert numbers[0] == 0
    assert numbers[-1] == 39
    assert len(numbers) == 40 - builder.counts.lost_steps
    assert all(truth[named(step.record)["step"]]["end_ns"] == named(step.record)["end_ns"] for step in steps)


@pytest.mark.parametrize("odd", [1, 12, 30])
@pytest.mark.parametrize("gap", [1, 12])
def test_a_gap_behind_a_step_unlike_the_others_costs_no_numbers(odd, gap):
    """The last step of an epoch has fewer micro-batches: what follows is numbered from the last number that was known."""
    with PlayedTraining(block_count=2048) as training:
        job = job_of(training, "plain", 1)
        job.run(odd)
        job.backward()
        job.run(60 - odd)
        truth = training.records
        blocks = in_blocks_of(training.blocks(), 7)
        first = next(block.sequence for block in blocks if block.optimizer_ends == odd + 3)
        steps, builder = build(blocks[:first] + blocks[first + gap :])
    records = [named(step.record) for step in steps]
    assert builder.is_numbered
    assert records[-1]["step"] == 59
    assert len(truth) - len(records) == builder.counts.lost_steps
    assert all((truth[each["step"]]["end_ns"]) == each["end_ns"] for each in records)


def test_a_late_reader_goes_on_after_a_restart_of_its_own():
    """Whether its numbers are known is part of its state."""
    with PlayedTraining(block_count=2048) as training:
        job_of(training, "plain", 1).run(60)
        blocks = in_blocks_of(training.blocks(), 7)[20:]
    whole, _ = build(blocks)
    for cut in range(1, len(blocks), 9):
        before, builder = build(blocks[:cut])
        after, _ = build(blocks[cut:], StepBuilder.from_state(json.loads(json.dumps(builder.state())), where="test"))
        assert before + after == whole


def test_named_steps_are_counted_over_a_gap_unless_it_hides_the_first():
    """Steps that the training names have the counter of the blocks; since when they are named must be known."""
    with PlayedTraining() as training:
        job = job_of(training, "plain", 5)
        job.run(20)
        named_from = len(in_blocks_of(training.blocks(), 7))
        job.kind = "phases"
        job.run(20)
        truth = training.records
        blocks = in_blocks_of(training.blocks(), 7)
        seen = named_from + 20
        steps, builder = build(blocks[:seen] + blocks[seen + 5 :])
        assert builder.is_aligned
        assert named(steps[-1].record)["step"] == len(truth) - 1
        steps, builder = build(blocks[: named_from - 5] + blocks[seen:])
        assert not builder.is_aligned
        assert all(named(step.record)["end_ns"] == truth[named(step.record)["step"]]["end_ns"] for step in steps)


def test_a_mark_that_no_agent_writes_flags_its_step():
    """Unknown kinds, values out of range, spans of other threads: counted, and the step is incomplete."""
    wrong = [
        (1, 99, 0, 0, 0),
        (1, MarkKind.DATA_BEGIN | OTHER_THREAD, 0, 0, 0),
        (1 << 63, MarkKind.DATA_BEGIN, 0, 0, 0),
        (1, MarkKind.PHASE_BEGIN, 4, 0, 0),
        (1, MarkKind.PHASE_END, 9, 0, 0),
        (1, MarkKind.ANNOTATION, 4, 0, 0),
        (1, MarkKind.FLAGS, 0, 0, -1),
        (1, MarkKind.ISSUE, 31, 0, 1),
        (1, MarkKind.ISSUE, 7 << 6, 0, 1),
        (1, MarkKind.ISSUE, 0, 0, -1),
        (1, MarkKind.THREAD | OTHER_THREAD, 0, 0, 0),
        (1, MarkKind.UNMEASURED, len(DOMAIN_KINDS), 1, 1),
        (1, MarkKind.UNMEASURED, 0, 1, -1),
        (1, MarkKind.UNMEASURED_BUS, 0, 0, -1),
    ]
    for mark in wrong:
        marks = [(5, MarkKind.BEGIN, 0, 0, 0), mark, (9, MarkKind.STEP_END, 0, 0, 4), (12, MarkKind.STEP_END, 0, 0, 5)]
        (one, two), builder = build([block_of(marks)])
        assert (one.is_incomplete, two.is_incomplete, builder.counts.malformed_marks) == (True, False, 1)
        assert (named(two.record)["start_ns"], named(two.record)["cpu_ns"]) == (9, 1)


def block_of(marks):
    packed = b"".join(MARK_STRUCT.pack(*mark) for mark in marks)
    return MarkBlock(
        **dict.fromkeys(("sequence", "position", "backward_ends", "optimizer_ends", "step_ends"), 0), marks=packed
    )


def test_counts_beyond_64_bits_leave_the_step_incomplete():
    """Sums that no record holds."""
    annotation = (6, MarkKind.ANNOTATION, 0, 0, 2**62)
    marks = [(5, MarkKind.BEGIN, 0, 0, 0), annotation, annotation, (9, MarkKind.STEP_END, 0, 0, 4)]
    (step,), _ = build([block_of(marks)])
    assert step.is_incomplete


def test_counts_of_ends_beyond_every_training_number_no_step():
    """Whatever a block's header claims, no record bears a number that a message cannot hold."""
    end = (9, MarkKind.STEP_END, 0, 0, 4)
    begin = block_of([(5, MarkKind.BEGIN, 0, 0, 0), end])
    later = dataclasses.replace(block_of([end, end]), sequence=9, position=99, step_ends=(1 << 64) - 4)
    steps, builder = build([begin, later])
    assert [named(step.record)["step"] for step in steps] == [0]
    assert (builder.is_aligned, builder.counts.lost_steps) == (False, 0)


def test_marks_that_did_not_fit_in_the_process_are_counted():
    """What the running step waited for is not known then; the next one is whole."""
    lost = (6, MarkKind.MARKS_LOST, 0, 0, 7)
    marks = [(5, MarkKind.BEGIN, 0, 0, 0), lost, (9, MarkKind.STEP_END, 0, 0, 4), (12, MarkKind.STEP_END, 0, 0, 5)]
    (one, two), builder = build([block_of(marks)])
    assert (one.is_incomplete, two.is_incomplete, builder.counts.lost_marks) == (True, False, 7)


def test_waits_inside_waits_without_end_are_refused():
    """A writer that begins waits for ever fills no memory."""
    marks = (
        [(5, MarkKind.BEGIN, 0, 0, 0)] + [(6, MarkKind.WAIT_BEGIN, 0, 0, 0)] * 65 + [(9, MarkKind.STEP_END, 0, 0, 4)]
    )
    (step,), builder = build([block_of(marks)])
    assert step.is_incomplete
    assert builder.counts.malformed_marks == 1


MARK = st.tuples(
    st.integers(0, 2**64 - 1) | st.integers(0, 100),
    st.sampled_from([int(kind) for kind in MarkKind]) | st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1) | st.integers(0, 5),
    st.integers(0, 2**32 - 1) | st.integers(0, 3),
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9),
)


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.tuples(
            st.lists(MARK, min_size=1, max_size=BLOCK_MARKS),
            st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
        ),
        max_size=5,
    ),
    begins=st.booleans(),
)
def test_marks_of_any_content_raise_nothing(parts, begins):
    """A checksum is no proof: whatever a block holds, the builder goes on."""
    builder = StepBuilder()
    if begins:
        builder.add(block_of([(0, MarkKind.BEGIN, 0, 0, 0)]))
    for marks, header in parts:
        content = b"".join(struct.pack("<QHHIq", *mark) for mark in marks)
        for step in builder.add(MarkBlock(*header, content)):
            assert len(step.record) == 8 * len(RECORD_FIELDS)


def test_an_attempt_reports_how_it_ended():
    """A failure of the agent, or its end."""
    _, builder = build([block_of([(5, MarkKind.BEGIN, 0, 0, 0), (6, MarkKind.FAILURE, 0, 0, 2)])])
    assert (builder.failures, builder.has_finished) == (2, False)
    _, builder = build([block_of([(5, MarkKind.BEGIN, 0, 0, 0), (6, MarkKind.FINISH, 0, 0, 0)])])
    assert (builder.failures, builder.has_finished) == (0, True)
    assert dataclasses.asdict(builder.counts) == {"lost_marks": 0, "lost_steps": 0, "malformed_marks": 0}


def test_steps_named_after_a_gap_for_the_first_time_have_no_number():
    """Whether the training named its steps in what is lost already is not known: no record from there on."""
    with PlayedTraining() as training:
        job = job_of(training, "plain", 5)
        job.run(30)
        named_from = len(training.records)
        before = len(in_blocks_of(training.blocks(), 7))
        job.kind = "phases"
        job.run(20)
        truth = training.records
        blocks = in_blocks_of(training.blocks(), 7)
        lost = before * 2 // 3
        steps, builder = build(blocks[:lost] + blocks[lost + 2 :])
        records = [named(step.record) for step in steps]
        assert not builder.is_aligned
        assert named_from - 3 < len(records) <= named_from
        assert all(record["end_ns"] == truth[record["step"]]["end_ns"] for record in records)


def test_an_attempt_that_begins_twice_loses_no_step():
    """Steps that ended before, in the same block, are built all the same."""
    first, second = (5, MarkKind.BEGIN, 0, 0, 0), (20, MarkKind.BEGIN, 0, 0, 0)
    end, other_end = (9, MarkKind.STEP_END, 0, 0, 4), (31, MarkKind.STEP_END, 0, 0, 5)
    steps, _ = build([block_of([first, end, second, other_end])])
    assert [(named(step.record)["step"], named(step.record)["end_ns"]) for step in steps] == [(0, 9), (0, 31)]
