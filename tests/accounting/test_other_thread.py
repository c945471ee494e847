"""Communication of another thread: autograd's belongs to the backward that the training thread is in."""

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import MARK_STRUCT, OTHER_THREAD, MarkBlock, MarkKind, pack_call_site, pack_issue
from tests.accounting.twin import named

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
