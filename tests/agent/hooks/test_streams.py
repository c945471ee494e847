"""The hook of `Stream.wait_event`: it sees waits for streams that communicate, and passes everything on."""

from threading import get_ident

import pytest
import torch

from lockstep.agent.boundary import FailureGuard
from lockstep.agent.hooks import streams
from tests.agent.device.marked import MarkedScene
from tests.agent.device.simulated import ASIDE, HOME, MS

pytestmark = pytest.mark.torch


class Agent:
    """What a hook needs of the agent."""

    def __init__(self, scene):
        self.device = scene.timeline
        self.marks = scene.buffer
        self.boundary = FailureGuard(lambda _failures: None)
        self.guard = self.boundary.guard

    def mark(self, name):
        return self.guard(getattr(self.marks, name))

    def records_here(self):
        return get_ident() == self.marks.thread


class Waiting:
    """What `Stream.wait_event` needs of a stream, where there is no device to make one."""

    def __init__(self, device, number):
        self.device = device
        self.stream_id = number

    def wait_event(self, event):
        return torch.cuda.Stream.wait_event(self, event)


class Event:
    """An event on the stream that communicates."""

    def __init__(self):
        self.waits = 0

    def wait(self, stream):
        self.waits += 1
        stream.device.wait(stream.stream_id, ASIDE)
        stream.device.host(1)


@pytest.fixture
def scene():
    scene = MarkedScene()
    agent = scene.agent = Agent(scene)
    former = torch.cuda.Stream.wait_event
    remove = streams.install(agent)
    yield scene
    remove()
    assert torch.cuda.Stream.wait_event is former
    assert agent.boundary.failures == 0
    scene.check()


def step(scene, waiting, event):
    """Run a step of FSDP's kind: parameters come in on a stream of their own and are waited for."""
    scene.data(MS)
    with scene.device.on(ASIDE):
        scene.device.wait(ASIDE, HOME)
        scene.collective(30 * MS, synchronous=True)
    scene.forward(MS, 20 * MS)
    waiting.wait_event(event)
    with scene.backward():
        scene.forward(MS, 40 * MS)
    scene.optimize(MS, 5 * MS)


def test_wait_of_the_training_stream(scene):
    """It is counted, for the kind that was done when it ended, and the wait takes place."""
    event = Event()
    for _ in range(3):
        step(scene, Waiting(scene.device, HOME), event)
    scene.finish()
    assert event.waits == 3
    assert scene.records[2]["dp_wait_ns"] == 10 * MS


def test_waits_that_communication_is_not_behind(scene):
    """Those of other streams, and those of steps without communication aside, are not looked at."""
    event = Event()
    Waiting(scene.device, HOME).wait_event(event)
    step(scene, Waiting(scene.device, ASIDE), event)
    scene.agent.device = None
    Waiting(scene.device, HOME).wait_event(event)
    scene.agent.device = scene.timeline
    scene.finish()
    assert event.waits == 3
    assert scene.records[0]["dp_wait_ns"] == 0
    assert scene.records[0]["dp_comm_ns"] == 30 * MS


def test_failure_of_the_wait_itself(scene):
    """The user's exception passes unchanged."""

    class Broken(Event):
        def wait(self, _stream):
            raise ValueError("the user's")

    scene.data(MS)
    with scene.device.on(ASIDE):
        scene.collective(MS, synchronous=True)
    with pytest.raises(ValueError, match="the user's"):
        Waiting(scene.device, HOME).wait_event(Broken())
