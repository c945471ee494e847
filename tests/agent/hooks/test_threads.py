"""Which thread is the training thread, on real torch: the one that trains, not one that works for its backward."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread, get_ident

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import CheckpointFunction

from lockstep.agent.agent import VACANT
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.hooks import nested_job
from tests.agent.hooks.nested_job import Nested
from tests.agent.rings import read_ring, unaccounted_ns
from tests.agent.safety.processes import run, watched_environment

pytestmark = pytest.mark.torch


def run_in_thread(function, *arguments):
    """Run `function` to its end on a thread of its own, and raise here what it raises."""
    caught = []

    def run():
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001  (raised again below)
            caught.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


class RecomputeElsewhere(CheckpointFunction):
    """Activation checkpointing whose inner backward runs on another thread, as it does on autograd's for a device."""

    @staticmethod
    def backward(context, *gradients):
        found = []
        run_in_thread(lambda: found.append(CheckpointFunction.backward(context, *gradients)))
        return found[0]


def checkpointed(function, layer, value):
    return function.apply(layer, False, value)


class Training:
    """A model of checkpointed layers and its loop."""

    def __init__(self, function=RecomputeElsewhere, layers=3):
        torch.manual_seed(3)
        self.function = function
        self.layers = [torch.nn.Linear(16, 16) for _ in range(layers)]
        self.optimizer = torch.optim.SGD([weight for layer in self.layers for weight in layer.parameters()], lr=0.01)

    def step(self):
        self.optimizer.zero_grad()
        value = torch.ones(4, 16, requires_grad=True)
        for layer in self.layers:
            value = checkpointed(self.function, layer, value)
        value.sum().backward()
        self.optimizer.step()

    def run(self, steps):
        for _ in range(steps):
            self.step()


def nested_step(optimizer, weight, work):
    """Run a step that calls `work` in its backward."""
    optimizer.zero_grad()
    Nested.apply(weight, 0, work).backward()
    optimizer.step()


@pytest.fixture
def group():
    """Make a gloo group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def counts(record):
    """Return how many collectives each kind in use has."""
    return [record[f"{kind}_count"] for kind in DOMAIN_KINDS if record[f"{kind}_count"] != MISSING]


def check(records):
    assert [unaccounted_ns(record) for record in records] == [0] * len(records)
    assert [record["step"] for record in records] == list(range(len(records)))
    assert all(record["backward_ns"] > 0 for record in records)


def test_recomputation_on_another_thread_does_not_take_the_recording_over(watched):
    """From step 0 on, each step is the training thread's, though inner backwards run on other threads."""
    Training().run(4)
    records = watched.ring().records
    assert len(records) == 4
    assert watched.agent.marks.thread == get_ident()
    check(records)


@pytest.fixture(scope="module")
def nested_rings(tmp_path_factory):
    """Run two real ranks whose backwards run on threads of autograd's: a process with such threads cannot fork."""
    root = tmp_path_factory.mktemp("shm")
    environ = watched_environment(root, PYTHONWARNINGS="ignore")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*torchrun, nested_job.__file__], environ)
    assert done.returncode == 0, done.stderr
    assert "lockstep: " not in done.stderr
    return [read_ring(root / "job" / f"{rank}.ring") for rank in (0, 1)]


def test_autograds_own_threads_work_for_the_training_thread(nested_rings):
    """They never take the recording over, and the collectives that they issue, theirs alone, are its steps'."""
    for ring in nested_rings:
        records = ring.records
        assert (len(records), ring.failures, ring.state) == (nested_job.STEPS + nested_job.FUSED, 0, STATE_FINISHED)
        check(records)
        assert [counts(record) for record in records] == [[nested_job.OWN]] * len(records)
        assert all(record["world_wait_ns"] > 0 for record in records)


def test_optimizer_that_autograds_own_thread_steps_ends_the_step(nested_rings):
    """An optimizer fused into a backward on another thread ends the step where the backward ends."""
    for ring in nested_rings:
        for record in ring.records[-nested_job.FUSED + 1 :]:
            assert record["backward_ns"] > 0
            assert record["optimizer_ns"] == 0
            assert record["end_ns"] - record["start_ns"] >= record["backward_ns"]


def test_collectives_of_other_threads_during_a_backward_are_not_the_trainings(watched, group):
    """A thread that saves a checkpoint meets its peers while the training thread is in its backward: not counted."""

    def save():
        dist.all_reduce(torch.ones(1))
        dist.Work.wait(dist.all_reduce(torch.ones(1), async_op=True))

    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
        nested_step(optimizer, weight, lambda: run_in_thread(save))
    records = watched.ring().records
    assert [counts(record) for record in records[1:]] == [[1], [1]]


def test_thread_that_warmed_up_and_ended_gives_the_recording_up(watched):
    """A thread that ran whole steps and ended is followed by the thread that trains; its first step is a warm-up."""
    warm_up = Training(CheckpointFunction)
    run_in_thread(warm_up.run, 2)
    training = Training(CheckpointFunction)
    training.run(4)
    records = watched.ring().records
    assert watched.agent.marks.thread == get_ident()
    assert [bool(record["flags"] & Flag.WARM_UP) for record in records] == [True, False, True, False, False, False]
    check(records)
    assert all(record["cpu_ns"] >= 0 for record in records)  # one thread's clock, never the difference of two


def test_thread_that_warmed_up_a_backward_alone_and_ended(watched):
    """The same where no step was complete, whatever it had begun."""
    run_in_thread(lambda: watched.agent.marks.phase_begin(1))
    run_in_thread(lambda: torch.ones(1, requires_grad=True).sum().backward())
    Training(CheckpointFunction).run(3)
    records = watched.ring().records
    assert len(records) == 3
    check(records)


def test_thread_id_that_is_used_again_is_not_the_training_thread(watched, group):
    """The system gives an ended thread's id to a later one, which is not the training thread for that."""
    former, found = set(), set()

    def warm_up():
        former.add(get_ident())
        Training(CheckpointFunction).run(2)

    def communicate():
        found.add(get_ident())
        dist.all_reduce(torch.ones(1))
        watched.agent.marks.data_begin()
        watched.agent.marks.data_end()

    run_in_thread(warm_up)
    assert watched.agent.marks.thread == VACANT
    for _ in range(1000):
        run_in_thread(communicate)
        if former & found:
            break
    assert former & found
    Training(CheckpointFunction).run(2)
    records = watched.ring().records
    assert [counts(record) for record in records] == [[]] * 4
    assert records[2]["data_ns"] == 0


def test_provisional_thread_gives_way_after_a_change_too(watched):
    """After the training thread ended, one that only runs a backward gives way to one that trains."""
    run_in_thread(Training(CheckpointFunction).run, 2)
    leave = Event()
    began = Event()

    def warm_up():
        torch.ones(1, requires_grad=True).sum().backward()
        began.set()
        leave.wait(60)

    thread = Thread(target=warm_up)
    thread.start()
    began.wait(60)
    Training(CheckpointFunction).run(2)
    leave.set()
    thread.join()
    assert watched.ring().step_count == 4
    assert watched.agent.marks.thread == get_ident()


@contextmanager
def backward_under_way():
    """Hold another thread inside its backward."""
    inside, leave = Event(), Event()

    def work():
        inside.set()
        leave.wait(60)

    thread = Thread(target=lambda: Nested.apply(torch.ones(1, requires_grad=True), 0, work).backward())
    thread.start()
    inside.wait(60)
    yield
    leave.set()
    thread.join()


def test_backward_of_a_warm_up_that_overlaps_the_first_step(watched):
    """A warm-up whose backward is open when the training's first runs delays the change to the next mark."""
    training = Training(CheckpointFunction)
    with backward_under_way():
        training.step()
    training.run(3)
    records = watched.ring().records
    assert len(records) == 3
    assert watched.agent.marks.thread == get_ident()


def train_with(submit, steps, batches=None):
    """Run a loop whose optimizer `submit(step)` runs on a thread of its own choice."""
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(steps):
        if batches is not None:
            next(batches)
        (weight @ weight).sum().backward()
        submit(optimizer.step)


def check_steps_of(watched, expected):
    assert watched.agent.marks.thread == get_ident()
    watched.agent.finish()
    records = watched.ring().records
    assert len(records) == expected
    check(records)
    assert all(record["cpu_ns"] > 0 for record in records)


@pytest.mark.parametrize("has_batches", [False, True])
@pytest.mark.parametrize("lives_on", [False, True])
def test_optimizer_on_a_thread_of_its_own_ends_the_step(watched, lives_on, has_batches):
    """Frameworks that offload step the optimizer on a pool's thread, or a new one each time; the loop is the training."""
    batches = iter(torch.utils.data.DataLoader(torch.ones(20, 4))) if has_batches else None
    with ThreadPoolExecutor(1) as pool:
        train_with((lambda step: pool.submit(step).result()) if lives_on else run_in_thread, 6, batches)
        check_steps_of(watched, 6)


@pytest.mark.parametrize("has_batches", [False, True])
def test_optimizer_that_overlaps_with_the_next_step_ends_one_each(watched, has_batches):
    """The next forward and backward run while the optimizer does; a step ends for each of its steps all the same."""
    batches = iter(torch.utils.data.DataLoader(torch.ones(20, 4))) if has_batches else None
    began, go_on, pending = Event(), Event(), []

    def overlap(*_):
        began.set()
        assert go_on.wait(60)
        go_on.clear()

    handle = register_optimizer_step_pre_hook(overlap)
    with ThreadPoolExecutor(1) as pool:

        def submit(step):
            if pending:
                go_on.set()
                pending.pop().result()
            pending.append(pool.submit(step))
            assert began.wait(60)
            began.clear()

        train_with(submit, 12, batches)
        go_on.set()
    handle.remove()
    check_steps_of(watched, 12)


def test_scaled_optimizers_on_a_thread_of_their_own_end_one_step(watched):
    """So does a scaler with its optimizer inside, and several optimizers one after the other."""
    weight = torch.ones(8, requires_grad=True)
    optimizers = [torch.optim.SGD([weight], lr=0.01) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu")

    def step():
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

    for _ in range(4):
        scaler.scale(weight.sum()).backward()
        run_in_thread(step)
    check_steps_of(watched, 4)


def test_backward_on_a_thread_of_its_own_is_the_training(watched):
    """Where the loop's thread steps the optimizer and another one runs the backwards, theirs is the training thread."""
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            pool.submit(lambda: weight.sum().backward()).result()
            optimizer.step()
        assert watched.ring().step_count >= 2
        check(watched.ring().records)
