"""Marks of other threads, and what marks do not show of threads.

Communication of autograd's threads belongs to the backward that the training thread is in. That a thread works for
autograd is known in the process alone, so what it writes there is taken.
"""

from random import Random

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import MARK_STRUCT, OTHER_THREAD, MarkBlock, MarkKind, pack_call_site, pack_issue
from lockstep.contracts.records import MISSING, Flag
from tests.accounting.jobs import Job
from tests.accounting.played import PlayedTraining, named

DETAIL, ARGUMENT = pack_issue(pack_call_site("allreduce_", synchronous=True, domain=3, slot=0, group_size=2), 64)
OTHER = OTHER_THREAD


def record_of(*marks):
    begin, end = (100, MarkKind.BEGIN, 0, 0, 0), (200, MarkKind.STEP_END, 0, 0, 50)
    content = b"".join(MARK_STRUCT.pack(*mark) for mark in (begin, *marks, end))
    (step,) = StepBuilder().add(MarkBlock(0, 0, 0, 0, 0, content))
    return named(step.record)


ISSUED_AND_AWAITED = (
    (120, MarkKind.ISSUE | OTHER, DETAIL, 0, ARGUMENT),
    (121, MarkKind.EXPECT | OTHER, 0, 0, 0),
    (122, MarkKind.WAIT_BEGIN | OTHER, 0, 0, 0),
    (125, MarkKind.AGENT_COST | OTHER, 0, 0, 5),
    (130, MarkKind.WAIT_END | OTHER, 0, 0, 0),
)


def test_inside_a_backward_it_is_the_steps():
    """A backward on a device issues from autograd's own thread."""
    record = record_of(
        (110, MarkKind.BACKWARD_BEGIN, 0, 0, 0), *ISSUED_AND_AWAITED, (140, MarkKind.BACKWARD_END, 0, 0, 0)
    )
    assert (record["dp_count"], record["dp_wait_ns"], record["agent_ns"]) == (1, 10, 5)


def test_outside_of_one_it_is_not():
    """A thread that writes checkpoints has collectives of its own."""
    record = record_of(*ISSUED_AND_AWAITED)
    assert record["dp_count"] == record_of()["dp_count"]
    assert record["agent_ns"] == 0
    assert record["host_ns"] == 100


def test_waits_of_two_threads_do_not_mix():
    """Each thread ends the wait that it began."""
    record = record_of(
        (110, MarkKind.BACKWARD_BEGIN, 0, 0, 0),
        (120, MarkKind.ISSUE, DETAIL, 0, ARGUMENT),
        (121, MarkKind.WAIT_BEGIN, 0, 0, 0),
        (125, MarkKind.WAIT_BEGIN | OTHER, 0, 0, 0),
        (126, MarkKind.WAIT_END, 0, 0, 0),
        (140, MarkKind.WAIT_END | OTHER, 0, 0, 0),
        (150, MarkKind.BACKWARD_END, 0, 0, 0),
    )
    assert record["dp_wait_ns"] == (126 - 121) + (140 - 126)


def test_an_optimizer_that_autograds_thread_steps_ends_the_step_with_the_backward():
    """It is fused into a backward on a device. Outside of a backward it is no training's."""
    with PlayedTraining() as training:
        for _ in range(2):
            training.backward_begin()
            training.fused_step()
            training.sleep(10)
            training.backward_end()
            training.fused_step()
        assert [record["backward_ns"] for record in training.records] == [10, 10]


def test_fused_steps_count_as_ends_of_optimizers():
    """So does the process in the headers of its blocks: steps of such a training are numbered over a gap."""
    step = ((MarkKind.BACKWARD_BEGIN, 0), (MarkKind.FUSED_STEP | OTHER, 0), (MarkKind.BACKWARD_END, 0))
    kinds = [(MarkKind.BEGIN, 0), *step * 40]
    blocks = []
    for at, (kind, argument) in enumerate(kinds):
        done = [each for each, _ in kinds[:at]]
        ends = (done.count(MarkKind.BACKWARD_END), done.count(MarkKind.FUSED_STEP | OTHER), 0)
        blocks.append(MarkBlock(at, at, *ends, MARK_STRUCT.pack(at, kind, 0, 0, argument)))
    builder = StepBuilder()
    steps = [named(step.record) for block in blocks[:50] + blocks[65:] for step in builder.add(block)]
    assert builder.is_aligned
    assert all(record["end_ns"] == 3 * (record["step"] + 1) for record in steps)
    assert steps[-1]["step"] == 39


def test_a_changed_training_thread_begins_the_step_again():
    """What the former thread did in that step is forgotten, and the step is a warm-up; steps after it are whole."""
    with PlayedTraining() as training:
        for changes in (False, True, False):
            training.backward_begin()
            training.issue(0, 3, 2, 64, synchronous=True)
            training.sleep(100)
            training.backward_end()
            if changes:
                training.change_thread()
            training.sleep(60)
            training.step_end()
        first, second, third = training.records
        assert (first["backward_ns"], third["backward_ns"], second["backward_ns"]) == (100, 100, 0)
        assert (second["flags"], second["cpu_ns"], second["dp_count"]) == (Flag.WARM_UP, 30, 0)
        assert second["end_ns"] - second["start_ns"] == 160


def test_a_thread_that_changes_in_lost_marks_leaves_learnt_steps_without_number():
    """Several ends a step are learnt again, so that steps before that is done have other numbers; one end is not."""
    for kind, is_numbered in (("plain", True), ("gan", False)):
        with PlayedTraining() as training:
            job = Job(training, Random(3)).steady(kind)
            job.run(25)
            lost = len(training.blocks())
            training.change_thread()
            job.run(25)
            truth = training.records
            builder = StepBuilder()
            blocks = training.blocks()
            steps = [named(step.record) for block in blocks[: lost - 1] + blocks[lost:] for step in builder.add(block)]
            assert builder.is_aligned == is_numbered
            assert all(record["end_ns"] == truth[record["step"]]["end_ns"] for record in steps)


def test_the_cpu_time_of_two_threads_is_not_known():
    """A thread's clock behind that of the one before gives no negative time; nor does it bound a cost."""
    began, cost, end = (
        (100, MarkKind.BEGIN, 0, 0, 50),
        (150, MarkKind.AGENT_COST, 0, 0, 7),
        (200, MarkKind.STEP_END, 0, 0, 20),
    )
    (step,) = StepBuilder().add(
        MarkBlock(0, 0, 0, 0, 0, b"".join(MARK_STRUCT.pack(*mark) for mark in (began, cost, end)))
    )
    assert (named(step.record)["cpu_ns"], named(step.record)["agent_ns"]) == (MISSING, 7)
