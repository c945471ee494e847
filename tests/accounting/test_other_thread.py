"""Marks of other threads, and what marks do not show of threads.

Communication of autograd's threads belongs to the backward that the training thread is in. That a thread works for
autograd is known in the process alone, so what it writes there is taken.
"""

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import MARK_STRUCT, OTHER_THREAD, MarkBlock, MarkKind, pack_call_site, pack_issue
from lockstep.contracts.records import MISSING, Flag
from tests.accounting.twin import Twin, named

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


def test_an_optimizer_that_autograds_thread_steps_ends_no_step():
    """Today it ends the step with the backward. That happens on devices, which marks do not cover: writers drop it."""
    with Twin() as twin:
        twin.recorder.in_graph_task = lambda: True
        twin.backward_begin()
        for side in (twin.recorder, twin.buffer):
            side.thread += 1  # the calling thread is another one for a moment
        twin.optimizer_begin(0)
        twin.optimizer_end()
        for side in (twin.recorder, twin.buffer):
            side.thread -= 1
        twin.sleep(10)
        twin.backward_end()
        assert (len(twin.records), twin.built()) == (1, [])


def test_a_change_of_the_training_thread_is_not_seen():
    """No mark shows it: today's agent drops what the former thread did in that step. Steps after it are equal."""
    with Twin() as twin:
        for changes in (False, True, False):
            twin.backward_begin()
            twin.sleep(100)
            twin.backward_end()
            if changes:
                twin.recorder.change_thread()
            twin.sleep(60)
            twin.step_end()
        ours, theirs = list(map(named, twin.built())), list(map(named, twin.records))
        assert (ours[0], ours[2]) == (theirs[0], theirs[2])
        assert (ours[1]["start_ns"], ours[1]["end_ns"]) == (theirs[1]["start_ns"], theirs[1]["end_ns"])
        assert (ours[1]["backward_ns"], ours[1]["flags"], ours[1]["cpu_ns"]) == (100, 0, 80)
        assert (theirs[1]["backward_ns"], theirs[1]["flags"], theirs[1]["cpu_ns"]) == (0, Flag.WARM_UP, 30)


def test_the_cpu_time_of_two_threads_is_not_known():
    """A thread's clock behind that of the one before gives no negative time, as today; nor does it bound a cost."""
    began, cost, end = (
        (100, MarkKind.BEGIN, 0, 0, 50),
        (150, MarkKind.AGENT_COST, 0, 0, 7),
        (200, MarkKind.STEP_END, 0, 0, 20),
    )
    (step,) = StepBuilder().add(
        MarkBlock(0, 0, 0, 0, 0, b"".join(MARK_STRUCT.pack(*mark) for mark in (began, cost, end)))
    )
    assert (named(step.record)["cpu_ns"], named(step.record)["agent_ns"]) == (MISSING, 7)
