"""The adapter to torch's device modules: what it calls exists in this torch, and it initialises nothing."""

import gc
import inspect
import os
import subprocess
import sys
from threading import Thread, get_ident

import pytest
import torch

from lockstep.agent import device
from lockstep.agent.device import make_event_queue
from lockstep.agent.device.device_streams import NPU_VARIABLE, TorchStream, find_stream
from lockstep.agent.device.graphs import Graphs
from tests.agent.device.marked import MarkedScene

pytestmark = pytest.mark.torch


class Module:
    """The part of a device module of torch that is used, with events that count how often they were recorded."""

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            self.recorded = []

        def record(self, stream):
            self.recorded.append(stream)

        def query(self):
            return len(self.recorded) > 1

        def elapsed_time(self, other):
            return 1.5 * (len(other.recorded) - len(self.recorded))

    class Stream:
        stream_id = 7

    def __init__(self):
        self.capturing = False
        self.initialised = True

    def is_initialized(self):
        return self.initialised

    def current_device(self):
        return 3

    def current_stream(self, device):
        assert device == 3
        return self.Stream()

    def is_current_stream_capturing(self):
        return self.capturing


def test_events_are_recorded_on_the_current_stream_and_pooled():
    """An event given back is the next one used; times are ns."""
    module = Module()
    stream = TorchStream(module)
    first, second = stream.record(), stream.record()
    assert first.stream == 7
    assert not stream.ready(first)
    stream.reuse([first])
    assert stream.record() is first
    assert stream.ready(first)
    assert stream.elapsed_ns(second, first) == 1_500_000
    assert stream.elapsed_ns(first, second) == -1_500_000


def test_no_event_while_a_graph_is_captured():
    """A capture in progress gets no event and no query; a module that cannot capture is never asked."""
    module = Module()
    stream = TorchStream(module)
    module.capturing = True
    assert stream.record() is None
    assert not stream.usable()
    plain = type("Plain", (), {name: getattr(module, name) for name in ("current_device", "current_stream", "Event")})
    assert TorchStream(plain).usable()


def test_no_event_while_another_thread_captures_a_graph(monkeypatch):
    """A capture of any thread fails where another one asks the device: nothing is recorded or asked until it ends."""
    module = Module()
    stream = TorchStream(module)
    graphs = Graphs()
    stream._captures = graphs.captures
    monkeypatch.setattr(module, "current_stream", None)
    graph = Module()
    thread = Thread(target=graphs.begin, args=(graph,))
    thread.start()
    thread.join()
    assert stream.record() is None
    assert not stream.usable()
    graphs.end(graph, get_ident())
    assert stream.usable()
    assert graphs.traffic(graph) is None


def test_capture_that_never_ends_is_over_with_its_graph():
    """A graph that is let go of in mid-capture leaves nothing behind."""
    graphs = Graphs()
    graphs.begin(Module())
    gc.collect()
    assert not graphs.captures


def test_ascend_only_when_asked(monkeypatch, capsys):
    """Reading times on Ascend waits for its launch thread, so it needs a word of the operator; CUDA does not."""
    monkeypatch.setattr(torch, "npu", Module(), raising=False)
    assert find_stream({}) is None
    assert isinstance(find_stream({NPU_VARIABLE: "1"}), TorchStream)
    for text in ("", "0"):
        assert find_stream({NPU_VARIABLE: text}) is None
    assert capsys.readouterr().err == ""
    assert find_stream({NPU_VARIABLE: "true"}) is None
    assert "LOCKSTEP_NPU_EVENTS: got 'true', expected 1 or 0" in capsys.readouterr().err
    torch.npu.initialised = False
    assert find_stream({NPU_VARIABLE: "1"}) is None


def test_no_device_no_events():
    """A process that has initialised no device queues no events, and asking initialises none."""
    assert make_event_queue(None, None) is None
    assert not torch.cuda.is_initialized()
    script = "from lockstep.agent.device import make_event_queue; import sys; assert make_event_queue(None, None) is None; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=os.environ)


@pytest.mark.parametrize(
    ("owner", "name", "arguments"),
    [
        (torch.cuda, "is_initialized", ()),
        (torch.cuda, "current_device", ()),
        (torch.cuda, "current_stream", (0,)),
        (torch.cuda, "is_current_stream_capturing", ()),
        (torch.cuda.Event, "record", (None, None)),
        (torch.cuda.Event, "query", (None,)),
        (torch.cuda.Event, "elapsed_time", (None, None)),
        (torch.cuda.Stream, "wait_event", (None, None)),
        (torch.cuda.CUDAGraph, "capture_begin", (None,)),
        (torch.cuda.CUDAGraph, "capture_end", (None,)),
        (torch.cuda.CUDAGraph, "replay", (None,)),
        (torch.cuda.CUDAGraph, "reset", (None,)),
    ],
)
def test_calls_fit_this_torch(owner, name, arguments):
    """Every function of torch.cuda that is called exists and takes what it is given."""
    assert inspect.signature(getattr(owner, name)).bind(*arguments).args == arguments


def test_events_take_their_options_by_these_names():
    """Events are asked for with timing, by keyword."""
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters


def test_check_of_a_device_names_its_absence():
    """Where there is no CUDA device the check states that it checked nothing, with an exit code of its own."""
    command = [sys.executable, "-m", "benchmarks.device_check"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment, check=False)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr


def test_the_device_of_the_process(monkeypatch):
    """The stream that is found is used behind the marks, through the guard."""
    scene = MarkedScene()
    monkeypatch.setattr(device, "find_stream", lambda _environ: scene.device)
    guarded = []
    queue = make_event_queue(scene.buffer, lambda function: guarded.append(function) or function)
    assert guarded == [queue.at_mark]
    assert scene.buffer.device == queue.at_mark
    scene.device.capturing = True
    assert make_event_queue(scene.buffer, guarded.append) is None
