"""What sequences of marks become: spans, and steps that end."""

from threading import Thread

from lockstep.contracts.records import MISSING, Flag
from tests.accounting.scene import BACKWARD, DATA, OPTIMIZER, STEP


def test_plain_step(scene):
    """Data, forward up to backward, backward, optimizer; what is between is host."""
    scene.run(*DATA, *BACKWARD, *STEP)
    (record,) = scene.records
    assert (record["start_ns"], record["end_ns"]) == (100, 178)
    assert record["data_ns"] == 10
    assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (20, 40, 5)
    assert record["compute_ns"] == 65
    assert record["host_ns"] == 3
    assert record["cpu_ns"] == 39
    assert record["flags"] == Flag.WARM_UP


def test_accumulation_is_one_step(scene):
    """Several batches and backwards until the optimizer steps are one step; each forward begins where its own does."""
    scene.run(*DATA, *BACKWARD, *DATA, *BACKWARD, *STEP)
    (record,) = scene.records
    assert record["data_ns"] == 20
    assert (record["forward_ns"], record["backward_ns"]) == (40, 80)


def test_second_optimizer_without_training_between_ends_no_step(scene):
    """DeepSpeed steps once per parameter group: one step, and the rest of the time is the next step's."""
    scene.run(*DATA, *BACKWARD, *STEP, ("optimizer_begin", 0, object()), ("optimizer_end", 5))
    assert len(scene.records) == 1
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records[1]["optimizer_ns"] == 10


def test_optimizer_alone_ends_a_step_where_nothing_else_is_ever_seen(scene):
    """Without a data loader and a visible backward, each optimizer step is the only sign of a training step."""
    scene.run(*STEP, *STEP)
    assert len(scene.records) == 2
    assert scene.records[1]["backward_ns"] == MISSING


def test_nested_optimizers_and_backwards_count_once(scene):
    """A container around optimizers and torch.autograd.backward inside Tensor.backward are one span each."""
    inner = (("optimizer_begin", 1, object()), ("optimizer_end", 3))
    scene.run(
        *DATA,
        ("backward_begin", 20),
        ("backward_begin", 1),
        ("backward_end", 30),
        ("backward_end", 1),
        ("optimizer_begin", 1, OPTIMIZER),
        *inner,
        *inner,
        ("optimizer_end", 1),
    )
    (record,) = scene.records
    assert (record["backward_ns"], record["optimizer_ns"]) == (32, 9)


def test_backward_inside_optimizer_is_a_backward(scene):
    """A closure's backward splits the optimizer's span."""
    scene.run(*DATA, ("optimizer_begin", 1, OPTIMIZER), *BACKWARD, ("optimizer_end", 7))
    (record,) = scene.records
    assert (record["optimizer_ns"], record["backward_ns"]) == (20 + 7, 40)


def test_optimizers_fused_into_backward_end_the_step_with_it(scene):
    """Optimizers that step inside backward belong to it, and the step ends where it does."""
    scene.run(*DATA, ("backward_begin", 20), *STEP, *STEP, ("backward_end", 10))
    (record,) = scene.records
    assert record["backward_ns"] == 24
    assert record["end_ns"] == scene.now


def test_optimizer_that_raised_does_not_hide_later_steps(scene):
    """An optimizer step that raised never left; the next one of the same optimizer starts over."""
    scene.run(*DATA, *BACKWARD, ("optimizer_begin", 1, OPTIMIZER))
    scene.run(*DATA, *BACKWARD, *STEP)
    assert len(scene.records) == 1
    scene.run(*DATA, *BACKWARD, *STEP)
    assert len(scene.records) == 2
    assert scene.records[1]["optimizer_ns"] == 5


def test_other_threads_are_ignored(scene):
    """Marks of a thread that is not the training thread leave nothing behind; it claims to be the training thread in vain."""
    thread = Thread(target=scene.run, args=(*DATA, *BACKWARD, *STEP))
    thread.start()
    thread.join()
    assert scene.records == []
    assert scene.claims == 2
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records[0]["data_ns"] == 10


def test_an_inert_buffer_records_nothing(scene):
    """Thread 0 is no one."""
    scene.marks.thread = 0
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records == []


def test_a_gan_is_one_step_once_it_is_learnt(scene):
    """Two optimizers that step in turn end a step each, flagged, until ten repeats; then one for both."""
    first, second = object(), object()
    one = (*DATA, *BACKWARD, ("optimizer_begin", 2, first), ("optimizer_end", 5))
    other = (*BACKWARD, ("optimizer_begin", 2, second), ("optimizer_end", 5))
    scene.run(*(one + other) * 10)
    assert len(scene.records) == 20
    assert {record["flags"] for record in scene.records[1:]} == {Flag.WARM_UP}
    scene.run(*(one + other) * 5)
    assert len(scene.records) == 25
    assert [(record["flags"], record["backward_ns"]) for record in scene.records[20:]] == [(0, 80)] * 5


def test_several_steps_of_one_optimizer_are_one_step_once_learnt(scene):
    """An optimizer called per parameter group ends a step at its last call, not at the first."""
    again = (("optimizer_begin", 1, OPTIMIZER), ("optimizer_end", 5))
    iteration = (*DATA, *BACKWARD, *STEP, *again, *again)
    scene.run(*iteration * 13)
    assert len(scene.records) == 13
    assert [record["optimizer_ns"] for record in scene.records[11:]] == [15, 15]
    assert scene.records[-1]["end_ns"] == scene.now


def test_a_skipped_optimizer_ends_a_flagged_step(scene):
    """A scaler that met an overflow calls no optimizer: the iteration is a step, and is flagged as such."""
    scaler = object()
    enter, leave = ("scaler_begin", 2, scaler, OPTIMIZER), ("scaler_end", 5, scaler)
    inner = (("optimizer_begin", 1, OPTIMIZER), ("optimizer_end", 3))
    for skipped in (False, True, False):
        scene.run(*DATA, *BACKWARD, enter, *(() if skipped else inner), leave)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, Flag.SKIPPED_OPTIMIZER, 0]
    assert [record["optimizer_ns"] for record in scene.records] == [9, 5, 9]


def test_steps_end_where_the_training_marks_it(scene):
    """After the first explicit end no optimizer ends a step, and each explicit one does."""
    scene.run(("step_end", 10), *DATA, *BACKWARD, *STEP, *DATA, *BACKWARD, *STEP, ("step_end", 7))
    assert [record["step"] for record in scene.records] == [0, 1]
    assert (scene.records[1]["backward_ns"], scene.records[1]["end_ns"]) == (80, scene.now)


def test_named_phases_fill_the_account(scene):
    """Phases that the training names are spans; an outer one wins."""
    scene.run(("phase_begin", 1, 0), ("phase_end", 9, 0), ("phase_begin", 1, 1), ("phase_begin", 1, 2))
    scene.run(("phase_end", 5, 2), ("phase_end", 6, 1), ("phase_begin", 1, 2), ("phase_end", 8, 2))
    scene.run(("step_end", 3))
    (record,) = scene.records
    assert (record["data_ns"], record["forward_ns"], record["backward_ns"]) == (9, 12, 8)
    assert (record["compute_ns"], record["host_ns"]) == (20, 6)


def test_closure_is_forward_and_backward(scene):
    """What an optimizer calls to evaluate the model is forward and backward, as often as it does; the rest is its own."""
    evaluation = (("closure_begin", 3), *BACKWARD, ("closure_end", 1))
    scene.run(*DATA, ("optimizer_begin", 2, OPTIMIZER), *evaluation, *evaluation, ("optimizer_end", 5))
    (record,) = scene.records
    assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (42, 80, 11)
