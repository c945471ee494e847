"""Equality with HTA on every recording, and what makes the difference where there is one."""

import numpy as np
import pytest

from benchmarks.hta_view import device_pieces, launched_in_trace, view_device
from lockstep.trace.critical_path.path import PathClass
from lockstep.trace.critical_path.walk import PathFinder
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.prepared import prepare
from tests.trace.hta.comparison import EXPECTED, cut_to_us, ns, same_figures, types_of
from tests.trace.traces import SHARED

pytestmark = pytest.mark.shared

EQUAL = ["control", "h100_qwen", "nccl", "resnet50_workers_0", "resnet50_workers_4", "sampled_rank_0", "sampled_rank_1"]
DROPPED = {"difftest": 614, "mi300": 968}
"""Ops of the device that HTA drops: launched before the trace began."""
_FLOAT_STEP_NS = 250  # of a float64 that holds us since 1970, as HTA holds this recording's times


def _columns(name):
    return load_trace(SHARED / EXPECTED[name]["path"])


@pytest.mark.parametrize("name", EQUAL)
def test_all_figures_are_equal(name):
    """Idle and compute time to the ns, the overlap to the digits that HTA prints, and the time of every combination."""
    columns = _columns(name)
    same_figures(view_device(columns), EXPECTED[name])
    assert cut_to_us(device_pieces(columns, columns.on_device)) == types_of(EXPECTED[name])
    assert np.count_nonzero(columns.on_device) == EXPECTED[name]["device_events"]


@pytest.mark.parametrize("name", DROPPED)
def test_hta_drops_what_was_launched_before_the_trace(name):
    """Without those ops all figures are equal; with them the device computes more, and that is what it did."""
    columns = _columns(name)
    kept = launched_in_trace(columns)
    assert np.count_nonzero(columns.on_device & ~kept) == DROPPED[name]
    same_figures(view_device(columns, kept), EXPECTED[name])
    assert cut_to_us(device_pieces(columns, kept)) == types_of(EXPECTED[name])
    assert view_device(columns).compute_ns > 1.05 * ns(EXPECTED[name]["compute_us"])


def test_hta_reads_times_since_1970_with_decimals_as_float64():
    """There its window is wrong by up to a step of float64 at each end; sums of durations are equal."""
    columns, expected = _columns("ns_resolution"), EXPECTED["ns_resolution"]
    view = view_device(columns)
    same_figures(view, expected, within_ns=2 * _FLOAT_STEP_NS)
    assert view.window_ns != ns(expected["kernel_us"])
    assert view.compute_ns == ns(expected["compute_us"])
    assert cut_to_us(device_pieces(columns, columns.on_device)) == types_of(expected)


def test_hta_cuts_each_piece_to_whole_us_in_its_kernel_breakdown():
    """On a trace in ns it loses 1.2 ms of 108.3 ms of computation that way; its own temporal breakdown has all of it."""
    columns, expected = _columns("nccl"), EXPECTED["nccl"]
    ours = view_device(columns).kernel_type_ns
    computing_ns = sum(time_ns for name, time_ns in ours.items() if "COMPUTATION" in name)
    assert computing_ns == ns(expected["compute_us"])
    cut_ns = sum(ns(us) for name, us in expected["kernel_type_us"].items() if "COMPUTATION" in name)
    assert 1.2e6 < computing_ns - cut_ns < 1.4e6


def _path(name):
    trace = prepare(_columns(name))
    steps = trace.steps
    step = EXPECTED[name]["critical_path"]["step"]
    return PathFinder(trace).find(int(steps.start_ns[step]), int(steps.end_ns[step]))


def test_critical_path_is_bound_by_the_same():
    """Both find the device in the one step and the host in the other; HTA's shares are of its path, ours of the step."""
    us = EXPECTED["ns_resolution"]["critical_path"]["us"]
    computing = us["gpu_compute_bound"] / sum(us.values())
    path = _path("ns_resolution")
    found = path.by_class()
    on_device_ns = found[PathClass.COMPUTE] + found[PathClass.MEMORY]
    assert on_device_ns / (path.window_ns[1] - path.window_ns[0]) == pytest.approx(computing, abs=0.02)
    assert set(EXPECTED["nccl"]["critical_path"]["us"]) == {"cpu_bound"}
    by_class = _path("nccl").by_class()
    # Where the thread shows nothing and the device works, the path is the device's: 2.2 % here.
    assert by_class[PathClass.HOST] + by_class[PathClass.IDLE] > 0.97 * sum(by_class.values())


def test_critical_path_covers_what_hta_leaves_out():
    """HTA's path through the second step of the NCCL recording is 102 ms of a step of 220 ms; ours is all of it."""
    path = _path("nccl")
    assert sum(path.by_class().values()) == path.window_ns[1] - path.window_ns[0]
    hta_ns = ns(sum(EXPECTED["nccl"]["critical_path"]["us"].values()))
    assert hta_ns < 0.5 * (path.window_ns[1] - path.window_ns[0])
