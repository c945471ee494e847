"""The hooks of a real training, with a device that is the host: its stream is done with everything at once."""

import gc
import signal
from itertools import pairwise
from time import monotonic_ns

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

from lockstep.agent import device
from lockstep.agent.device.device_streams import Stamp
from lockstep.agent.device.event_queue import EventQueue
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.rings import unaccounted_ns

pytestmark = pytest.mark.torch


class HostStream:
    """A stream that does what is queued before the call that queues it returns; `stuck` is one that never does."""

    stuck = False

    def record(self):
        return Stamp(monotonic_ns(), 0)

    def usable(self):
        return True

    def ready(self, _stamp):
        return not self.stuck

    def elapsed_ns(self, earlier, later):
        return later.event - earlier.event

    def reuse(self, stamps):
        pass


def use(agent, stream):
    """Make `stream` the device that the agent has found."""
    agent.device = EventQueue(stream, agent.marks, stream.record())
    agent.marks.device = agent.guard(agent.device.at_mark)


def ring_of(watched):
    """Return the ring with all that is recorded so far."""
    watched.agent.marks.flush()
    return watched.ring()


@pytest.fixture
def group():
    """Make a group of two whose other rank is only thought of: torch's own backend for tests, which takes any tensor."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def train(steps, during=lambda: None):
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (weight @ weight).sum()
        during()
        loss.backward()
        optimizer.step()


def test_steps_collectives_and_collections_of_a_device(watched, group):
    """Collectives of device tensors are counted, their waits seen, what is not known is missing, and all adds up."""
    elsewhere = torch.ones(16, device="meta")

    def communicate():
        work = dist.all_reduce(elsewhere, async_op=True)
        dist.all_reduce(elsewhere)
        gc.collect()
        dist.Work.wait(work)  # this backend's Work has a method of its own, other backends' have not

    train(1)
    stream = HostStream()
    use(watched.agent, stream)
    train(4, communicate)
    records = ring_of(watched).records
    assert len(records) == 5
    assert [unaccounted_ns(record) for record in records] == [0] * 5
    kinds = [kind for kind in DOMAIN_KINDS if records[2][f"{kind}_count"] != MISSING]
    assert len(kinds) == 1
    for former, record in pairwise(records[1:]):
        assert record["start_ns"] == former["end_ns"]
        assert record["device_step_ns"] == pytest.approx(record["end_ns"] - record["start_ns"], rel=0.002)
        assert record[f"{kinds[0]}_count"] == 2
        assert record[f"{kinds[0]}_bytes"] == 128
        assert record[f"{kinds[0]}_wait_ns"] > 0
        assert record[f"{kinds[0]}_comm_ns"] == record["device_comm_ns"] == MISSING
        assert record["gc_full_count"] == 1
        assert record["gc_ns"] > 0
        assert record["backward_ns"] > 0
        assert record["host_lead_ns"] >= 0


def test_without_a_timeline_waits_on_a_device_are_missing(watched, group):
    """Nothing is made up of host times where no one can see the device."""
    train(2, lambda: dist.all_reduce(torch.ones(16, device="meta")))
    record = ring_of(watched).records[1]
    (kind,) = [kind for kind in DOMAIN_KINDS if record[f"{kind}_count"] != MISSING]
    assert record[f"{kind}_count"] == 1
    assert record[f"{kind}_wait_ns"] == record[f"{kind}_comm_ns"] == MISSING


@pytest.mark.parametrize("phase", ["data", "backward"])
def test_signal_handler_that_raises_where_a_span_begins(watched, phase):
    """The training gets what its handler raised there, and the span that had begun does not hide later steps."""

    class HandlerError(Exception):
        pass

    def handle(_number, _frame):
        raise HandlerError

    class Interrupted(HostStream):
        due = False

        def record(self):
            if self.due:
                self.due = False
                signal.raise_signal(signal.SIGUSR1)
            return super().record()

    train(1)
    stream = Interrupted()
    use(watched.agent, stream)
    train(1)
    former = signal.signal(signal.SIGUSR1, handle)
    try:
        stream.due = True
        with pytest.raises(HandlerError):
            next(iter(DataLoader([1]))) if phase == "data" else torch.ones(1, requires_grad=True).sum().backward()
    finally:
        signal.signal(signal.SIGUSR1, former)
    train(2)
    assert ring_of(watched).step_count == 4


def test_the_device_is_found_where_a_step_begins(watched, monkeypatch):
    """At the first end of an optimizer's step after the process has initialised it; from the next step on it measures."""
    found = []
    monkeypatch.setattr(device, "find_stream", lambda _environ: found[0] if found else None)
    train(2)
    found.append(HostStream())
    train(4)
    watched.agent.finish()
    records = watched.ring().records
    assert [record["device_step_ns"] != MISSING for record in records] == [False] * 3 + [True] * 3
    assert [unaccounted_ns(record) for record in records] == [0] * 6
    for former, record in pairwise(records):
        assert record["start_ns"] == former["end_ns"] or record["flags"]
    assert watched.agent.boundary.failures == 0


@pytest.mark.parametrize("ended_well", [True, False])
def test_end_with_steps_on_their_way(watched, ended_well):
    """The process ends while the device is done with nothing: its steps are written, also after an exception."""
    train(1)
    stream = HostStream()
    stream.stuck = True
    use(watched.agent, stream)
    train(3)
    assert len(ring_of(watched).records) == 1
    watched.agent.finish(None if ended_well else ValueError())
    ring = watched.ring()
    assert [record["device_step_ns"] for record in ring.records[1:]] == [MISSING] * 3
    assert [unaccounted_ns(record) for record in ring.records] == [0] * 4
    assert (ring.state == STATE_FINISHED) == ended_well
