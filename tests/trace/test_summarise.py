import pytest

from lockstep.contracts import limits, topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import LocalError
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.summarise import NODE_MIN_RATIO, summarise_columns, summarise_trace
from lockstep.trace.tree import ROOT
from tests.trace.traces import RECORDING, document, event, write

_MS = 1_000_000


def summary_of(path, **more):
    """Return the summary of a trace as rank 2's exporter would make it."""
    return summarise_trace(path, **{"run": "job", "node": "n1", "rank": 2, "request_id": 5, "steps": 2, **more})


def _check(summary):
    """Assert what every summary promises."""
    children_ns = [0] * len(summary.tree)
    for index, node in enumerate(summary.tree):
        assert node.parent < index
        if node.parent != ROOT:
            children_ns[node.parent] += node.total_ns
    for node, below_ns in zip(summary.tree, children_ns, strict=True):
        assert node.total_ns == node.self_ns + below_ns
        assert node.self_ns >= 0
        assert node.total_ns >= NODE_MIN_RATIO * summary.window_ns
    assert len(summary.tree) <= limits.SUMMARY_NODES_MAX


def test_recording_becomes_kilobytes_that_travel():
    """A real trace of 2.7 MB is less than 10 KB on the wire, comes back equal, and keeps the slow function."""
    summary = summary_of(RECORDING)
    _check(summary)
    wire = encode(summary)
    assert len(wire) < limits.SUMMARY_WIRE_MAX_BYTES
    assert decode(topics.run_topic("job", topics.SUMMARY, "n1"), wire) == summary
    sleep = next(node for node in summary.tree if node.name == "<built-in function sleep>")
    assert summary.tree[sleep.parent].name == "train.py(20): forward"
    assert (summary.steps, summary.event_count, summary.error) == (2, 7840, "")
    assert summary.omitted_nodes == 851 - len(summary.tree)
    assert summary.collectives == {"gloo:all_reduce": [10, 120_882_466, 1_818_415]}


def test_nodes_at_the_share_stay_and_below_it_go(tmp_path):
    """0.5 % of the window is kept, less is left out and counted, its time in the caller's self time."""
    events = [event("main", 0, 100 * _MS), event("at", 0, _MS // 2), event("below", 10 * _MS, _MS // 2 - 1)]
    summary = summary_of(write(tmp_path, document(events)))
    assert [(node.name, node.self_ns) for node in summary.tree] == [("main", 100 * _MS - _MS // 2), ("at", _MS // 2)]
    assert summary.omitted_nodes == 1


def test_a_deep_tree_is_cut_to_its_outermost_nodes(tmp_path):
    """However many nodes pass the share, a message holds 512 of them, callers before callees."""
    events = [event(f"{i:03d}", i, 100_000 - 2 * i) for i in range(600)]
    summary = summary_of(write(tmp_path, document(events)))
    _check(summary)
    assert [node.name for node in summary.tree] == [f"{i:03d}" for i in range(limits.SUMMARY_NODES_MAX)]


def test_frames_that_only_wait_take_no_place(tmp_path):
    """Communication is a callee of the nearest frame with work of its own, which it leaves as it is."""
    waits = ["torch/b.py(1): call", "torch/c.py(1): call", "c10d::_allgather_base_"]
    events = [event("step", 0, 100 * _MS), event("torch/a.py(1): call", 10 * _MS, 60 * _MS)]
    events += [event(name, 20 * _MS + i, 20 * _MS - 2 * i) for i, name in enumerate(waits)]
    summary = summary_of(write(tmp_path, document(events)))
    _check(summary)
    assert [node.name for node in summary.tree] == ["step", "torch/a.py(1): call", "c10d::_allgather_base_"]


def test_launcher_frames_are_taken_off_the_roots(tmp_path):
    """Ranks started in different ways have the same roots, and user frames called like a launcher stay."""
    started = ["runpy.py(196): _run_module_as_main", "torch/distributed/run.py(900): main", "train.py(1): <module>"]
    events = [event(name, i, 100 - 2 * i) for i, name in enumerate([*started, "runpy.py(1): user"])]
    summary = summary_of(write(tmp_path, document(events)))
    _check(summary)
    assert [(node.name, node.parent) for node in summary.tree] == [(started[-1], ROOT), ("runpy.py(1): user", 0)]


def test_step_marks_overrule_the_caller(tmp_path):
    """The trace itself knows best how many steps it covers."""
    marks = [event(f"lockstep.step#{i}", i * 100, 1, cat="user_annotation") for i in range(4)]
    summary = summary_of(write(tmp_path, document([event("main", 0, 400), *marks])), steps=9)
    assert (summary.steps, summary.window_ns) == (3, 300)


@pytest.mark.parametrize("content", [b"", b"{}", b"[{]", document([event()])[:-5]])
def test_an_unusable_trace_is_a_summary_that_states_it(tmp_path, content):
    """Who asked for the capture learns why there is none."""
    path = write(tmp_path, content)
    summary = summary_of(path)
    assert summary.tree == []
    assert str(path) in summary.error
    assert decode(topics.run_topic("job", topics.SUMMARY, "n1"), encode(summary)) == summary


def test_the_size_limit_reaches_the_reader():
    """A trace above the request's limit is refused before it is read."""
    assert "trace size" in summary_of(RECORDING, max_bytes=1000).error


def test_no_steps_is_the_callers_mistake():
    """Nothing can be counted per step without steps."""
    with pytest.raises(LocalError, match="got 0"):
        summary_of(RECORDING, steps=0)


def _with_marks(*events):
    return [*(event(f"lockstep.step#{step}", 100 * step, 1, cat="user_annotation") for step in range(4)), *events]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (_with_marks(event("f", 10, 50), event("g", 210, 30)), [[50, 0, 0], [0, 0, 30]]),
        (_with_marks(), []),
        ([event("k", 5, 9, cat="kernel", tid=7)], []),
        ([event("f", 10, 50)], [[]]),
    ],
)
def test_totals_by_step_are_those_of_the_nodes_sent(tmp_path, events, expected):
    """Each node has its total in each marked step, without marks none."""
    columns = load_trace(write(tmp_path, document(events)))
    summary = summarise_columns(columns, run="job", node="n1", rank=0, request_id=1, steps=1)
    assert [each.by_step_ns for each in summary.tree] == expected
    assert summary.step_ns == ([100] * 3 if events[0]["name"].startswith("lockstep.step") else [])
