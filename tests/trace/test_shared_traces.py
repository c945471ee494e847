"""Every recording next to the checkout: old and new Kineto, CPU and GPU, with and without stacks."""

import pytest

from lockstep.contracts.codec import encode
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.trace.calls import build_calls
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.summarise import summarise_trace
from lockstep.trace.tree import ROOT
from tests.trace.class_times import break_down
from tests.trace.traces import SHARED_TRACES, without_children_ns

pytestmark = pytest.mark.shared

_NAMES = [f"{path.parent.name}/{path.name}" for path in SHARED_TRACES]
_LONGEST_S = 60  # the AlexNet recording spans 43 s, all others less than 4 s
_YEAR_2020_NS, _YEAR_2030_NS = 1_577_836_800_000_000_000, 1_893_456_000_000_000_000


@pytest.mark.parametrize("path", SHARED_TRACES, ids=_NAMES)
def test_recording_loads(path):
    """Every event is read, none is dropped, and the window lies in this decade and lasts what a capture lasts."""
    columns = load_trace(path)
    assert columns.dropped_count == 0
    assert 800 < len(columns) <= columns.event_count
    assert columns.start_ns.min() > _YEAR_2020_NS
    assert columns.end_ns.max() < _YEAR_2030_NS
    assert 10e6 < columns.end_ns.max() - columns.start_ns.min() < _LONGEST_S * 1e9


@pytest.mark.parametrize("path", SHARED_TRACES, ids=_NAMES)
def test_recording_keeps_the_account(path):
    """Self times sum to the roots, which fit the window, and none is negative."""
    tree = build_calls(load_trace(path))
    roots_ns = sum(total for total, parent in zip(tree.total_ns, tree.parent, strict=True) if parent == ROOT)
    assert len(tree) > 10
    own_ns = without_children_ns(tree)
    assert min(own_ns) >= 0
    assert sum(own_ns) == roots_ns <= tree.window_ns[1] - tree.window_ns[0]


@pytest.mark.parametrize("path", SHARED_TRACES, ids=_NAMES)
def test_recording_is_summarised(path):
    """The summary is small and its classes sum to the window."""
    summary = summarise_trace(path, run="r", node="n", rank=0, request_id=1, steps=2)
    assert summary.error == ""
    assert len(encode(summary)) < SUMMARY_WIRE_MAX_BYTES
    classes = break_down(summary.tree, summary.window_ns)
    assert sum(classes.values()) == summary.window_ns
    assert min(classes.values()) >= 0


def test_the_loader_bottleneck_and_its_fix_are_visible():
    """The vendor's pair: 46 ms a step in the loader without workers, nearly nothing with four."""
    loading = {}
    for workers in (0, 4):
        (path,) = (path for path in SHARED_TRACES if f"num_workers_{workers}" in path.name)
        summary = summarise_trace(path, run="r", node="n", rank=0, request_id=1, steps=1)
        loading[workers] = break_down(summary.tree, summary.window_ns)["data"] / summary.steps
    assert 40e6 < loading[0] < 50e6
    assert loading[4] < 3e6
