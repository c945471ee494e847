"""Every event has the call stack that a plain reading of the thread gives it."""

import numpy as np
import pytest

from lockstep.trace.patterns import call_stacks as stacks
from lockstep.trace.patterns.call_stacks import ROOT, nest, own_time


def _events(*rows):
    start_ns, end_ns, name = np.array(rows, np.int64).T
    return nest(start_ns, end_ns, name)


def _read_plainly(start_ns, end_ns, name):
    """Return the stack of names of each event, in order."""
    found, open_events = [], []
    for start, end, each in zip(start_ns.tolist(), end_ns.tolist(), name.tolist(), strict=True):
        while open_events and open_events[-1][0] <= start:
            open_events.pop()
        cut = min(end, open_events[-1][0]) if open_events else end
        open_events.append((cut, each))
        found.append([called for _, called in open_events])
    return found


def test_calls_of_one_stack_are_one_node():
    """The same name under another caller is another node; nodes are numbered as they are first met."""
    nested = _events((0, 10, 7), (1, 4, 8), (2, 3, 9), (5, 6, 8), (10, 20, 8), (11, 12, 9))
    assert nested.node.tolist() == [1, 2, 3, 2, 4, 5]
    assert nested.stacks.parent == [ROOT, ROOT, 1, 2, ROOT, 4]
    assert nested.stacks.name == [-1, 7, 8, 9, 8, 9]
    assert nested.caller.tolist() == [-1, 0, 1, 0, -1, 4]


def test_own_time_is_without_callees():
    """Node by node; the root has none."""
    nested = _events((0, 10, 7), (1, 4, 8), (2, 3, 9), (5, 6, 8))
    assert own_time(nested, nested.end_ns - [0, 1, 2, 5]).tolist() == [0, 6, 3, 1]


def test_what_nests_too_deep_is_left_to_its_caller(monkeypatch):
    """It has no node, and its caller keeps its time."""
    monkeypatch.setattr(stacks, "DEPTH_MAX", 2)
    nested = _events((0, 10, 7), (1, 9, 8), (2, 8, 9), (3, 4, 9))
    assert nested.node.tolist() == [1, 2, ROOT, ROOT]
    assert own_time(nested, np.array([10, 8, 6, 1])).tolist() == [0, 2, 8]


def test_a_thread_without_events_has_the_root_alone():
    """No event, no node."""
    nothing = np.zeros(0, np.int64)
    nested = nest(nothing, nothing, nothing)
    assert (len(nested.node), len(nested.stacks)) == (0, 1)


@pytest.mark.parametrize("seed", range(100))
def test_stacks_are_those_of_a_plain_reading(seed):
    """Crossing and equal spans among them; and parents stand before their children."""
    random = np.random.default_rng(seed)
    start_ns, name = random.integers(0, 40, 25), random.integers(0, 3, 25)
    end_ns = start_ns + random.integers(1, 25, 25)
    order = np.lexsort((-end_ns, start_ns))
    start_ns, end_ns, name = start_ns[order], end_ns[order], name[order]
    nested = nest(start_ns, end_ns, name)
    assert [nested.stacks.path(node) for node in nested.node.tolist()] == _read_plainly(start_ns, end_ns, name)
    assert all(parent < node for node, parent in enumerate(nested.stacks.parent[1:], 1))
    first_met = dict.fromkeys(nested.node.tolist())
    assert list(first_met) == list(range(1, len(nested.stacks)))
