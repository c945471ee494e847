"""The hooks on real torch in this process: what a training loop leaves in the ring."""

import gc
import os
import signal
import warnings
from itertools import pairwise
from threading import Event, Thread

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep.agent import bootstrap
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from lockstep.contracts.ring import STATE_RUNNING
from tests.agent.rings import unaccounted_ns

pytestmark = pytest.mark.torch


def make_loader(batches=6, workers=0):
    tokens = torch.arange(batches * 4 * 16).reshape(batches * 4, 16) % 50
    return DataLoader(TensorDataset(tokens, tokens[:, 0]), batch_size=4, num_workers=workers)


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Flatten(), torch.nn.Linear(128, 50))


def train(loader, model=None, optimizer=None, after_batch=lambda: None):
    """Run a plain loop and return its losses."""
    model = model or make_model()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for tokens, target in loader:
        after_batch()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_each_step_is_one_exact_record(watched):
    """Six batches are six records whose parts sum to the step, with batch sizes and warm-up recorded."""
    train(make_loader())
    records = watched.ring().records
    assert [record["step"] for record in records] == list(range(6))
    assert [unaccounted_ns(record) for record in records] == [0] * 6
    assert [record["flags"] for record in records] == [Flag.WARM_UP] + [0] * 5
    for former, record in pairwise(records):
        assert record["start_ns"] == former["end_ns"]
        assert (record["samples"], record["tokens"]) == (4, 64)
        for name in ("data_ns", "forward_ns", "backward_ns", "optimizer_ns", "cpu_ns", "agent_ns"):
            assert record[name] > 0
        assert record["forward_ns"] + record["backward_ns"] + record["optimizer_ns"] == record["compute_ns"]
        assert record["agent_ns"] <= record["cpu_ns"]
        assert all(record[f"{kind}_wait_ns"] == MISSING for kind in DOMAIN_KINDS)


class Opaque(torch.Tensor):
    """A tensor that refuses every question about itself."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Refuse."""
        raise RuntimeError(f"{function} of an opaque tensor")


def test_a_batch_that_cannot_be_read_costs_its_counts_only(watched, capsys):
    """Objects of the training's own may fail when they are looked at; the steps are recorded all the same."""
    loader = DataLoader(range(6), batch_size=1, collate_fn=lambda _: torch.zeros(4).as_subclass(Opaque))
    model = torch.nn.Linear(3, 2)
    model.unused = torch.nn.LazyLinear(2)  # its parameters have no size until it is called
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in loader:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    records = watched.ring().records
    assert [record["step"] for record in records] == list(range(6))
    assert [(record["samples"], record["tokens"]) for record in records] == [(MISSING, MISSING)] * 6
    assert watched.agent.boundary.failures == 0
    assert capsys.readouterr().err.count("reading failed") == 2


def test_ring_appears_with_the_first_backward(watched):
    """A process that only imports torch, loads data or computes leaves no file: it is not a rank yet."""
    for tokens, _ in make_loader():
        make_model()(tokens)
    assert not watched.directory.exists()
    make_model()(tokens).sum().backward()
    assert watched.ring().state == STATE_RUNNING


def test_process_started_by_a_rank_is_not_that_rank(watched, monkeypatch):
    """Compile and data workers inherit RANK; the mark in their environment keeps them out."""
    monkeypatch.setenv(OWNER_VARIABLE, "1")
    train(make_loader())
    assert not watched.directory.exists()
    assert not watched.agent.alive


def test_data_workers_are_seen_and_stay_out(watched):
    """With forked workers the fetches are measured, and only the training process writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads alive is the DataLoader's way
        train(make_loader())
        before = watched.ring()
        train(make_loader(workers=2))
    found = watched.ring()
    assert found.header.pid == os.getpid()
    assert found.step_count == before.step_count + 6
    assert all(record["data_ns"] > 0 for record in found.records[1:])


def test_forked_child_of_a_rank_is_inert(watched):
    """A fork that trains on its own adds nothing to its parent's ring and ends as it would."""
    train(make_loader())
    before = watched.ring()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            train(make_loader())
            status = int(watched.agent.alive)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert watched.ring().step_count == before.step_count == 6
    train(make_loader())
    assert watched.ring().step_count == 12


def test_training_thread_is_the_one_that_trains(watched):
    """A job that trains in a thread is recorded; training in the main thread meanwhile is not, and is afterwards."""
    first_done, resume = Event(), Event()

    def train_twice():
        train(make_loader())
        first_done.set()
        resume.wait(60)
        train(make_loader(batches=2))

    thread = Thread(target=train_twice)
    thread.start()
    assert first_done.wait(60)
    assert watched.ring().step_count == 6
    train(make_loader())
    assert watched.ring().step_count == 6
    resume.set()
    thread.join()
    assert watched.ring().step_count == 8
    train(make_loader())
    assert watched.ring().step_count == 14


def test_collection_is_measured_inside_its_phase(watched):
    """A collection in the loop is counted and timed and leaves the rest of the account exact."""
    train(make_loader(), after_batch=gc.collect)
    for record in watched.ring().records[1:]:
        assert record["gc_count"] >= 1
        assert record["gc_ns"] > 0
        phases = record["forward_ns"] + record["backward_ns"] + record["optimizer_ns"]
        assert phases == record["compute_ns"]


def test_full_collections_are_those_of_the_step(watched):
    """A full collection is counted in its step; those before training began are no step's."""
    gc.collect()
    gc.collect()
    train(make_loader(batches=3))
    gc.collect()
    gc.disable()
    try:
        train(make_loader(batches=2))
    finally:
        gc.enable()
    records = watched.ring().records
    assert [record["gc_full_count"] for record in records[1:]] == [0, 0, 1, 0]
    assert records[3]["gc_count"] >= 1
    assert records[0]["gc_full_count"] == 0


def test_evaluation_is_flagged(watched):
    """Batches fetched without gradients mark the step and are not counted as training samples."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(make_loader(), model, optimizer)
    with torch.no_grad():
        for tokens, _ in make_loader():
            model(tokens)
    train(make_loader(batches=2), model, optimizer)
    records = watched.ring().records
    assert [record["flags"] for record in records[5:]] == [0, Flag.EVALUATION, 0]
    assert records[6]["samples"] == 4


def test_users_exceptions_pass_unchanged(watched):
    """What a dataset, a backward or an optimizer raises arrives as it was, and recording goes on."""

    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise KeyError("row 7")

    model = make_model()
    train(make_loader(batches=2), model)
    with pytest.raises(KeyError, match="row 7"):
        next(iter(DataLoader(Broken())))
    with pytest.raises(StopIteration):
        next(iter(DataLoader([])))
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    train(make_loader(batches=2), model)
    assert watched.ring().step_count == 4


def test_closure_optimizer_is_one_step(watched):
    """LBFGS calls backward inside its step, many times: still one step each."""
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for tokens, target in make_loader(batches=3):

        def closure(tokens=tokens, target=target):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens), target)
            loss.backward()
            return loss

        optimizer.step(closure)
    records = watched.ring().records
    assert len(records) == 3
    assert all(unaccounted_ns(record) == 0 for record in records)
    assert all(record["backward_ns"] > 0 and record["optimizer_ns"] > 0 for record in records)


def test_every_way_into_backward_is_seen(watched):
    """Tensor.backward, autograd.backward, autograd.grad and the engine itself are backward, each once."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ways = (
        lambda loss: loss.backward(),
        torch.autograd.backward,
        lambda loss: torch.autograd.grad(loss, weight),
        lambda loss: torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True
        ),
    )
    for way in ways:
        way((weight * 2).sum())
        optimizer.step()
    records = watched.ring().records
    assert len(records) == len(ways)
    assert all(record["backward_ns"] > 0 for record in records)


def test_gan_becomes_one_step(watched):
    """A generator and a discriminator are one step per iteration once ten iterations are seen."""
    losses, steps = [], 14
    first, second = make_model(), make_model()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    for tokens, target in make_loader(batches=steps):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    records = watched.ring().records
    assert len(records) == 20 + steps - 10
    assert [record["flags"] for record in records[20:]] == [0] * (steps - 10)
    assert all(record["samples"] == 4 for record in records[20:])


def test_checkpoint_is_flagged(watched, tmp_path):
    """A step in which something is saved is flagged, whatever thread saves it, and the next one does not."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(make_loader(batches=2), model, optimizer)
    torch.save(model.state_dict(), tmp_path / "here.pt")
    train(make_loader(batches=2), model, optimizer)
    thread = Thread(target=torch.save, args=(model.state_dict(), tmp_path / "there.pt"))
    thread.start()
    thread.join()
    train(make_loader(batches=2), model, optimizer)
    flags = [record["flags"] for record in watched.ring().records]
    assert flags == [Flag.WARM_UP, 0, Flag.CHECKPOINT, 0, Flag.CHECKPOINT, 0]


def test_skipped_optimizer_is_flagged(watched):
    """A gradient scaler that meets an overflow ends a step without an optimizer, which is flagged."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [record["flags"] for record in watched.ring().records] == [Flag.WARM_UP, Flag.SKIPPED_OPTIMIZER, 0]


def test_failing_hook_leaves_training_as_it_was(watched, capsys, monkeypatch):
    """A hook that raises costs the agent, not training: same losses bit for bit, and the ring states what happened."""
    expected = train(make_loader())
    steps = watched.ring().step_count

    class Broken:
        @property
        def is_measuring(self):
            raise RuntimeError("disk on fire")

    with monkeypatch.context() as patch:
        patch.setattr(watched.agent.attempt_facts, "flops", Broken())
        assert train(make_loader()) == expected
    found = watched.ring()
    assert (found.step_count, found.failures, found.state) == (steps, 1, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert "RuntimeError: disk on fire; training goes on" in line
    assert train(make_loader()) == expected
    assert watched.ring().step_count == steps
    watched.agent.boundary.failures = 0  # this one was wanted


def test_watched_losses_equal_unwatched_ones(rank_environment):
    """The agent changes no number of the training."""
    expected = train(make_loader())
    assert bootstrap.install()
    assert train(make_loader()) == expected
    bootstrap.uninstall()
    assert train(make_loader()) == expected


def test_interrupted_backward_is_closed(watched):
    """A signal handler's exception out of backward passes, and the next step is whole."""
    before = signal.getsignal(signal.SIGINT)

    class Interrupting(torch.autograd.Function):
        @staticmethod
        def forward(_context, value):
            return value.clone()

        @staticmethod
        def backward(_context, _gradient):
            raise TimeoutError("signal")

    with pytest.raises(TimeoutError):
        Interrupting.apply(torch.ones(1, requires_grad=True)).backward()
    train(make_loader(batches=2))
    assert watched.ring().step_count == 2
    assert signal.getsignal(signal.SIGINT) is before
