from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.messages import CallNode
from lockstep.trace.breakdown import break_down
from lockstep.trace.names import KINDS
from lockstep.trace.summarise import summarise_trace
from tests.trace.traces import RECORDING


def _node(parent, kind, self_ns):
    return CallNode(parent=parent, name="n", kind=kind, total_ns=0, self_ns=self_ns, count=1)


@given(st.lists(st.tuples(st.integers(-1, 30), st.sampled_from(KINDS), st.integers(0, 1000))), st.integers(0, 10**6))
def test_classes_sum_to_the_window(shape, idle_ns):
    """Every ns of the window is in exactly one class."""
    tree = [_node(min(parent, index - 1), kind, self_ns) for index, (parent, kind, self_ns) in enumerate(shape)]
    window_ns = sum(node.self_ns for node in tree) + idle_ns
    classes = break_down(tree, window_ns)
    assert sum(classes.values()) == window_ns
    assert classes["idle"] == idle_ns


def test_what_runs_for_the_loader_is_data_and_collection_is_gc():
    """User code and operators below the loader are data; a collection stays gc wherever it strikes."""
    tree = [
        _node(-1, "python", 1),
        _node(0, "data", 2),
        _node(1, "python", 4),
        _node(2, "operator", 8),
        _node(2, "gc", 16),
        _node(4, "python", 32),
        _node(0, "operator", 64),
        _node(0, "communication", 128),
    ]
    expected = {"python": 1, "operator": 64, "data": 14, "communication": 128, "gc": 48, "idle": 45}
    assert break_down(tree, 300) == expected


def test_recording_sleeps_and_waits():
    """The recorded rank sleeps 60 ms, which is Python's, and waits 54 ms for collectives; nothing is idle."""
    summary = summarise_trace(RECORDING, run="r", node="n", rank=2, request_id=1, steps=2)
    classes = break_down(summary.tree, summary.window_ns)
    assert classes["idle"] == 0
    assert 60e6 < classes["python"] < 80e6
    assert 54e6 < classes["communication"] < 60e6
    assert 0 < classes["data"] < 0.05 * summary.window_ns
