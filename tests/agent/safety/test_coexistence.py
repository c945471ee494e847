"""What training code does to torch and to Python in the presence of the agent, which takes none of it away."""

import copy
import gc
import io
import os
import pickle
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from lockstep.agent import bootstrap
from lockstep.agent.agent import Agent
from lockstep.agent.lineage import OWNER_VARIABLE
from lockstep.contracts.marks import BLOCK_MARKS
from lockstep.contracts.records import Flag
from tests.agent.rings import unaccounted_ns

pytestmark = pytest.mark.torch


class Odd(torch.optim.SGD):
    """An optimizer that answers to attributes it has not got, steps itself again and returns what it likes."""

    def __getattr__(self, name):
        if name.startswith("__") or name in ("grad_scale", "found_inf"):
            raise AttributeError(name)
        return lambda *_: name

    def step(self, closure=None):
        super().step(closure)
        return "odd"


def make(optimizer=torch.optim.SGD):
    model = torch.nn.Linear(4, 1)
    return model, optimizer(model.parameters(), lr=0.1)


def steps(model, optimizer, count=3):
    for batch in torch.utils.data.DataLoader(torch.ones(count * 2, 4), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def test_objects_are_copied_and_pickled_without_the_agent(watched):
    """Optimizers, loaders, scalers and the patched functions themselves travel as they would, and mention nothing of ours."""
    model, optimizer = make()
    steps(model, optimizer)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2))
    scaler = torch.amp.GradScaler("cpu")
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    for thing in (
        optimizer,
        loader,
        scaler,
        torch.save,
        iterator.__next__,
        torch.amp.GradScaler.step,
        torch.Tensor.backward,
    ):
        data = pickle.dumps(thing)
        assert b"lockstep" not in data
        pickle.loads(data)
        copy.deepcopy(thing)
    twin_model, twin = copy.deepcopy((model, optimizer))
    steps(twin_model, twin)
    assert watched.ring().step_count == 6
    written = io.BytesIO()
    torch.save(optimizer.state_dict(), written)
    assert b"lockstep" not in written.getvalue()


def _child(queue):
    installed = bootstrap.install()
    steps(*make())
    queue.put((OWNER_VARIABLE in os.environ, installed, bootstrap._agent.alive))


def test_spawned_children_train_next_to_the_rank(watched):
    """A spawned process inherits RANK, trains and is not that rank."""
    steps(*make())
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get() == (True, True, False)
    child.join()
    assert child.exitcode == 0
    steps(*make())
    assert watched.ring().step_count == 6


def test_monkeypatches_and_odd_optimizers_keep_their_way(watched, monkeypatch):
    """Somebody's own backward and somebody's odd optimizer do and return what they did, and steps are seen."""
    calls = []
    original = torch.Tensor.backward

    def backward(self, *args, **kwargs):
        calls.append(self.shape)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    model, optimizer = make(Odd)
    model(torch.ones(2, 4)).sum().backward()
    assert optimizer.step() == "odd"
    steps(model, optimizer)
    assert len(calls) == 4
    found = watched.ring()
    assert found.step_count == 4
    assert all(record["backward_ns"] > 0 for record in found.records)


def test_steps_of_the_wall_clock_are_not_seen(watched, monkeypatch):
    """A clock that is set back and forth between two steps changes neither records nor heartbeat."""
    steps(*make(), 1)
    offset = watched.ring().header.clock_offset_ns
    real = time.time_ns
    for shift_s in (-86_400, 86_400):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda shift_s=shift_s: real() + shift_s * 10**9)
            patch.setattr(time, "time", lambda shift_s=shift_s: (real() + shift_s * 10**9) / 1e9)
            steps(*make(), 2)
    found = watched.ring()
    assert found.header.clock_offset_ns == offset
    times = [at for record in found.records for at in (record["start_ns"], record["end_ns"])]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic_ns()
    assert 0 <= time.monotonic_ns() - found.heartbeat_ns < 60 * 10**9


def test_collector_may_be_off_or_frozen(watched):
    """Without collections there is nothing to count, and freezing what lives changes nothing."""
    gc.disable()
    try:
        steps(*make())
    finally:
        gc.enable()
    gc.freeze()
    gc.collect()
    steps(*make())
    found = watched.ring().records
    assert [record["gc_count"] for record in found[1:3]] == [0, 0]
    assert found[3]["gc_full_count"] == 1
    assert all(unaccounted_ns(record) == 0 for record in found)


def test_an_agent_that_cannot_be_taken_out_whole_leaves_the_training_alone(rank_environment, monkeypatch, capsys):
    """What fails then is named, everything else is taken off, and nothing is raised."""
    taken_off = []

    def stuck(_agent):
        def remove():
            raise AttributeError("someone replaced it")

        return remove

    agent = Agent(
        [lambda _agent: lambda: taken_off.append("first"), stuck, lambda _agent: lambda: taken_off.append("last")]
    )
    monkeypatch.setattr(bootstrap, "_agent", agent)
    monkeypatch.setattr(agent, "finish", stuck(agent))
    bootstrap.uninstall()
    assert bootstrap._agent is None
    assert taken_off == ["last", "first"]
    assert "someone replaced it" in capsys.readouterr().err


def nested(depth, call):
    return nested(depth - 1, call) if depth else call()


def outcome(depth, call):
    """Return what `call` comes to at the end of `depth` nested calls."""
    try:
        return nested(depth, call)
    except RecursionError:
        return "too deep"


def test_recursion_limit_is_the_trainings(rank_environment):
    """At any depth a backward either works as without the agent or meets the limit, at most a few calls earlier."""

    def call():
        weight = torch.ones(1, requires_grad=True)
        weight.sum().backward()
        return "done"

    def deepest():
        limit = sys.getrecursionlimit()
        found = [depth for depth in range(limit - 250, limit) if outcome(depth, call) == "done"]
        assert found == list(range(limit - 250, found[-1] + 1))
        return found[-1]

    bare = deepest()
    assert bootstrap.install()
    steps(*make())
    watched_depth = deepest()
    bootstrap.uninstall()
    assert bare - 12 <= watched_depth <= bare


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_process_that_never_steps_does_not_fill_memory(watched, group, monkeypatch):
    """Marks of hours without a step are bounded; the step that ends after all is whole and kept out of the baselines."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lockstep.accounting.") and hasattr(module, "EVENTS_MAX"):
            monkeypatch.setattr(module, "EVENTS_MAX", 5 * BLOCK_MARKS)  # a block counts whole for the running step
    model, optimizer = make()
    steps(model, optimizer, 1)
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(torch.ones(500, 4), batch_size=2):
            model(batch)
            dist.all_reduce(torch.ones(2))
            gc.collect(0)
    steps(model, optimizer, 2)
    records = watched.ring().records
    assert len(records) == 3
    assert 0 < records[1]["world_count"] <= 5 * BLOCK_MARKS
    assert [bool(record["flags"] & Flag.EVALUATION) for record in records] == [False, True, False]
    assert [unaccounted_ns(record) for record in records] == [0, 0, 0]


def test_kernels_of_the_training_are_left_alone(rank_environment, group):
    """A kernel that training has put in front of a collective goes on being called; the others are watched."""
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    seen = []

    def theirs(keyset, *args, **kwargs):
        seen.append(args[0])
        return torch.ops.c10d.allreduce_.default.redispatch(keyset & after, *args, **kwargs)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", theirs, "BackendSelect", with_keyset=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bootstrap.install()
    model, optimizer = make()
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(torch.ones(2))
    dist.broadcast(torch.ones(2), 0)
    optimizer.step()
    bootstrap.uninstall()
    dist.all_reduce(torch.ones(2))
    library._destroy()
    assert len(seen) == 2
