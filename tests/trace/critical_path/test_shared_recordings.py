"""Steps, breakdown and path of every recording next to the checkout, and what is known about some of them."""

import pytest

from lockstep.trace.critical_path.path import DependencyKind, PathClass, ranked
from lockstep.trace.critical_path.walk import PathFinder
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.prepared import prepare
from lockstep.trace.step_breakdown import break_down_steps
from lockstep.trace.steps import windows_of
from tests.trace.traces import SHARED, SHARED_TRACES

pytestmark = pytest.mark.shared

_NAMES = [f"{path.parent.name}/{path.name}" for path in SHARED_TRACES]


def _prepared(path):
    return prepare(load_trace(SHARED / path))


def _path(trace, step):
    windows = windows_of(trace.columns, trace.steps)
    return PathFinder(trace).find(int(windows.start_ns[step]), int(windows.end_ns[step]))


def _ratios(path):
    return {kind: ns / (path.window_ns[1] - path.window_ns[0]) for kind, ns in path.by_class().items()}


@pytest.mark.parametrize("path", SHARED_TRACES, ids=_NAMES)
def test_every_account_covers_its_window(path):
    """The parts of each step sum to its window, and so do the segments of a path, without a gap or an overlap."""
    trace = _prepared(path)
    found = break_down_steps(trace)
    lengths_ns = found.windows.end_ns - found.windows.start_ns
    assert [step.window_ns for step in found.per_step] == lengths_ns.tolist()
    middle = len(found.per_step) // 2
    start_ns, end_ns = int(found.windows.start_ns[middle]), int(found.windows.end_ns[middle])
    edges = [start_ns]
    for segment in PathFinder(trace).find(start_ns, end_ns).segments:
        assert segment.start_ns == edges[-1]
        edges.append(segment.end_ns)
    assert edges[-1] == end_ns


def test_a_device_that_is_always_busy_is_the_path():
    """97.9 % kernels, 0.9 % copies and fills, the rest gaps between them; the host, 0.9 of a step ahead, is nowhere."""
    found = _ratios(_path(_prepared("hta/ns_resolution.json.gz"), 1))
    assert found[PathClass.COMPUTE] == pytest.approx(0.979, abs=0.001)
    assert found[PathClass.MEMORY] == pytest.approx(0.009, abs=0.001)
    assert found[PathClass.HOST] == found[PathClass.IDLE] == 0


def test_a_host_that_cannot_keep_up_is_the_path():
    """86.5 % operators and calls, 13.5 % in which the thread shows nothing: Python, for 2.2 % of it parallel to the device."""
    found = _ratios(_path(_prepared("hta/nccl_data.json.gz"), 1))
    assert found[PathClass.HOST] == pytest.approx(0.865, abs=0.002)
    assert found[PathClass.IDLE] == pytest.approx(0.113, abs=0.002)
    assert found[PathClass.COMPUTE] + found[PathClass.COMMUNICATION] == pytest.approx(0.022, abs=0.002)


def test_collectives_that_all_wait_for_are_the_path():
    """Three quarters of the step; copies begin 14 to 18 us after a collective ends, so it is a guess that they waited."""
    path = _path(_prepared("tracelens/mi300_resnet_act_checkpoint.json.gz"), 1)
    assert _ratios(path)[PathClass.COMMUNICATION] > 0.75
    assert path.guessed_ns() > 0.4 * (path.window_ns[1] - path.window_ns[0])
    assert any(each.why is DependencyKind.ALIGNMENT for each in path.segments)


def test_the_loader_is_on_the_path_without_workers_and_gone_with_four():
    """The vendor's pair; part of the 46 ms that the loader takes hides behind the device's work for the step before."""
    held_ns = {}
    for workers in (0, 4):
        (path,) = (path for path in SHARED_TRACES if f"num_workers_{workers}" in path.name)
        shares = ranked(_path(_prepared(path), 2))
        held_ns[workers] = sum(share.ns for share in shares if share.name.startswith("enumerate(DataLoader)"))
    assert 30e6 < held_ns[0] < 50e6
    assert held_ns[4] < 3e6


def test_the_first_step_of_a_capture_that_carries_work_is_partial():
    """The MI300 had a third of its recorded work launched before the trace began; the NCCL recording had none."""
    assert _prepared("tracelens/mi300_resnet_act_checkpoint.json.gz").steps.partial.tolist() == [True, False, False]
    assert not _prepared("hta/nccl_data.json.gz").steps.partial.any()


def test_the_rank_that_sleeps_has_it_on_its_path_and_the_others_wait():
    """Rank 2 sleeps 30 ms a step; on its peers' paths the collectives that wait for it have most of the time."""
    for rank in range(4):
        first = ranked(_path(_prepared(f"torch_cpu/slow_forward_rank2_with_stack/rank{rank}.json.gz"), 0))[0]
        expected = "<built-in function sleep>" if rank == 2 else "gloo:all_reduce"
        assert first.name == expected
