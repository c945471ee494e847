"""How a process sees its steps begin: what a capture request needs, from the ends that the blocks count."""

from itertools import pairwise
from random import Random

import pytest

from lockstep.accounting.iteration import REPEATS
from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.capture import BACKWARD, NEXT_STEP, OPTIMIZER, STEP
from lockstep.contracts.marks import MarkKind
from tests.accounting.jobs import KINDS, Job
from tests.accounting.played import PlayedTraining
from tests.accounting.test_lost_marks import block_of, in_blocks_of

END_KINDS = {"fused": BACKWARD, "explicit": STEP, "phases": STEP}


def step_begins(blocks, builder, kind):
    """Return (step, count of ends of `kind` at its beginning) for steps that begin in `blocks`, and their boundaries."""
    begins, boundaries = [], []
    for block, following in pairwise(blocks):
        builder.add(block)
        if not begins or begins[-1][0] != builder.step:
            begins.append((builder.step, getattr(following, f"{kind}_ends")))
            boundaries.append(builder.boundary(NEXT_STEP))
    return begins, boundaries


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "closure"])
def test_a_boundary_foresees_every_later_step(kind):
    """Once the steps are learnt, and for steps that the training names at once, every boundary gives the same steps."""
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(2)).steady(kind).run(40)
        end_kind = END_KINDS.get(kind, OPTIMIZER)
        begins, boundaries = step_begins(in_blocks_of(training.blocks(), 1), StepBuilder(), end_kind)
    known = [(at, boundary) for at, boundary in enumerate(boundaries) if boundary is not None]
    assert len(known) > 10
    assert known[0][0] >= REPEATS or end_kind == STEP
    for at, boundary in known:
        assert boundary.end_kind == end_kind
        for step, ends in begins[at:]:
            assert boundary.step_after(ends) == step


def test_a_boundary_names_the_step_that_was_asked_for():
    """A step to come, or the running one where that is past."""
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(2)).steady("gan").run(40)
        builder = StepBuilder()
        for block in training.blocks():
            builder.add(block)
    running = builder.boundary(builder.step)
    assert (running.ends_per_step, running.first_step) == (2, builder.step)
    later = builder.boundary(builder.step + 5)
    assert (later.first_step, later.first_end) == (builder.step + 5, running.first_end + 10)
    assert builder.boundary(3) == builder.boundary(NEXT_STEP) == running


def test_there_is_no_boundary_where_steps_are_not_numbered():
    """Before an attempt begins, before its steps are learnt, and after lost marks that cannot be numbered."""
    assert StepBuilder().boundary(NEXT_STEP) is None
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(3)).steady("closure").run(60)
        blocks = in_blocks_of(training.blocks(), 7)
        builder = StepBuilder()
        builder.add(blocks[0])
        assert builder.is_aligned
        assert builder.boundary(NEXT_STEP) is None
        for block in blocks[1:100] + blocks[140:]:
            builder.add(block)
        assert builder.boundary(NEXT_STEP) is None


def test_steps_that_differ_in_their_ends_have_no_boundary():
    """Accumulation that changes from step to step: nothing states how many ends the next one has."""
    marks = [(1, MarkKind.BEGIN, 0, 0, 0)]
    for at in range(10, 400, 10):
        marks += [(at, MarkKind.OPTIMIZER_BEGIN, 0, 1, 0), (at + 1, MarkKind.OPTIMIZER_END, 0, 0, 0)]
        if at % 30 == 0:
            marks += [(at + 2, MarkKind.BACKWARD_BEGIN, 0, 0, 0), (at + 3, MarkKind.BACKWARD_END, 0, 0, 0)]
    builder = StepBuilder()
    builder.add(block_of(marks))
    assert builder.step > 10
    assert builder.boundary(NEXT_STEP) is None
