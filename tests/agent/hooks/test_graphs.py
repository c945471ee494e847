"""The hook of CUDA graphs: captures keep the agent off the device, and replays leave the waits of what they hold missing."""

from threading import Thread

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from lockstep.agent.device.graphs import GRAPHS
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from tests.agent.rings import unaccounted_ns

pytestmark = pytest.mark.torch


class Graph:
    """What the hook needs of a CUDA graph, where there is no device to make one; `fails` is one whose capture cannot begin."""

    fails = False

    def __init__(self):
        self.calls = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert GRAPHS.captures
        if self.fails:
            raise RuntimeError("capture failed")
        self.calls.append(("capture_begin", pool, capture_error_mode))

    def capture_end(self):
        assert GRAPHS.captures
        self.calls.append(("capture_end",))

    def replay(self):
        self.calls.append(("replay",))

    def reset(self):
        self.calls.append(("reset",))


@pytest.fixture
def graph_type(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    methods = dict(vars(Graph))
    yield Graph
    assert dict(vars(Graph)) == methods
    assert not GRAPHS.captures


@pytest.fixture
def watched_graphs(graph_type, watched):
    """Install the agent after the graphs, so that its hooks are on them and off again before they are checked."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield watched
    dist.destroy_process_group()


def reduce_():
    dist.all_reduce(torch.ones(16, device="meta"))


def capture(graph, times):
    graph.capture_begin(capture_error_mode="thread_local")
    for _ in range(times):
        reduce_()
    graph.capture_end()


def train(steps, during=lambda: None):
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        during()
        (weight * 2).sum().backward()
        optimizer.step()


def traffic(records):
    """Return wait, count and bytes of the one kind in use, of each record."""
    (kind,) = [kind for kind in DOMAIN_KINDS if records[-1][f"{kind}_count"] != MISSING]
    return [tuple(record[f"{kind}_{name}"] for name in ("wait_ns", "count", "bytes")) for record in records]


def test_replays_count_what_was_captured_and_leave_its_wait_missing(watched_graphs):
    """Nothing is dispatched in a replay: its collectives count, and their wait is missing rather than 0."""
    train(1)
    graph = Graph()
    train(1, lambda: capture(graph, 3))
    train(2, graph.replay)
    records = watched_graphs.ring().records
    assert traffic(records)[2:] == [(MISSING, 3, 3 * 64)] * 2
    assert [unaccounted_ns(record) for record in records] == [0] * 4
    assert [call[0] for call in graph.calls] == ["capture_begin", "capture_end", "replay", "replay"]
    assert graph.calls[0][1:] == (None, "thread_local")


def test_replay_of_a_graph_without_collectives_leaves_waits_as_they_are(watched_graphs):
    """A graph of computation alone hides no wait: a step without a collective has waited 0."""
    train(1)
    graph, other = Graph(), Graph()
    train(1, lambda: (capture(graph, 0), capture(other, 1)))
    train(1, graph.replay)
    assert traffic(watched_graphs.ring().records)[-1] == (0, 0, 0)


def test_graph_that_another_thread_captured_hides_any_wait(watched_graphs):
    """What another thread dispatched in its capture no one saw: no wait is known in a step that replays it."""
    train(1)
    train(1, reduce_)
    graph = Graph()
    thread = Thread(target=capture, args=(graph, 2))
    thread.start()
    thread.join()
    train(1, graph.replay)
    assert traffic(watched_graphs.ring().records)[-1] == (MISSING, 0, 0)


def test_replay_of_another_thread_is_not_the_trainings(watched_graphs):
    """A thread that replays next to the training leaves its step alone."""
    train(1)
    graph = Graph()
    train(1, lambda: capture(graph, 2))
    thread = Thread(target=graph.replay)
    thread.start()
    thread.join()
    train(1)
    assert traffic(watched_graphs.ring().records)[-1] == (0, 0, 0)


def test_capture_that_fails_or_is_given_up(watched_graphs):
    """The user's exception passes, and the agent looks at the device again."""
    graph = Graph()
    graph.fails = True
    with pytest.raises(RuntimeError, match="capture failed"):
        graph.capture_begin()
    assert not GRAPHS.captures
    graph.fails = False
    graph.capture_begin()
    assert GRAPHS.captures
    graph.reset()
    assert not GRAPHS.captures
