"""The rules on the recordings next to the checkout: what must be named there, and what must not."""

from functools import cache

import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.host_causes import HostView, evaluate_host, view_host
from lockstep.diagnosis.host_causes.data import PROCESSING, evaluate_loader
from lockstep.diagnosis.host_causes.dispatch import evaluate_dispatch, launch_waits, small_kernels
from lockstep.diagnosis.host_causes.fusible import fusible_sequences
from lockstep.diagnosis.remedies import advise_finding
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.steps import find_steps
from tests.trace.traces import SHARED_TRACES

pytestmark = pytest.mark.shared


@cache
def _view(part: str) -> HostView:
    (path,) = (path for path in SHARED_TRACES if part in f"{path.parent.name}/{path.name}")
    columns = load_trace(path)
    steps = find_steps(columns)
    return view_host(columns, (int(steps.start_ns[0]), int(steps.end_ns[-1])), steps=steps)


def test_the_vendors_loader_bottleneck_is_processing():
    """ResNet50 without workers: 46 ms a step in the loader, 35 of them with an idle device."""
    view = _view("num_workers_0")
    (finding,) = evaluate_loader(view)
    assert finding.cause == PROCESSING
    assert 34e6 < finding.lost_ns / view.steps < 37e6
    advised = advise_finding(finding, view.length_ns)
    assert "worker processes" in advised.advice[0].suggestion
    assert advised.predicted_gain_ratio == pytest.approx(0.232, abs=0.003)


def test_the_vendors_fix_leaves_no_loader_bottleneck():
    """With four workers: the processing is gone, and no other cause of I/O takes its place."""
    found = evaluate_host(_view("num_workers_4"))
    assert "io" not in {finding.bottleneck for finding in found.findings}
    assert evaluate_loader(_view("num_workers_4")) == []


def test_the_small_kernels_of_the_nccl_recording():
    """43 % of its kernels are shorter than 10 us and hold 4 % of the kernels' time; it waits for launches half the time."""
    view = _view("nccl_data")
    small = small_kernels(view)
    assert small.count_ratio == pytest.approx(0.43, abs=0.005)
    assert small.time_ratio == pytest.approx(0.04, abs=0.005)
    assert view.share(launch_waits(view).measure_ns()) > 0.5
    (finding,) = evaluate_dispatch(view)
    assert finding.lost_ns > 0.5 * view.length_ns


def test_the_pair_of_elementwise_kernels_of_the_nccl_recording():
    """162 occurrences with 25.0 ms between the two (reference: 159 and 24.6 ms), in 21.2 of them no stream works."""
    pairs = fusible_sequences(_view("nccl_data"), longest=2)
    (pair,) = (pair for pair in pairs if all("AUnaryFunctor" in name for name in pair.kernels))
    assert 159 <= pair.count <= 162
    assert pair.wall_ns - pair.kernel_ns == pytest.approx(24.8e6, abs=0.3e6)
    assert pair.idle_ns == pytest.approx(21.2e6, abs=0.3e6)


@pytest.mark.parametrize("part", ["torch_cpu/healthy/rank0", "healthy/rank1", "healthy/rank2", "healthy/rank3"])
def test_healthy_ranks_have_no_findings(part):
    """Four ranks of a healthy run on CPUs: none of the host's rules fires."""
    part = part.removeprefix("torch_cpu/")
    found = evaluate_host(_view(part), noted=[])
    assert found.findings == ()
    assert "synchronisation" in {each.rule for each in found.not_evaluated}


@pytest.mark.parametrize("part", ["mi300_resnet", "ns_resolution", "hta/test"])
def test_recordings_that_the_device_holds_up_have_no_cause_on_the_host(part):
    """Their devices are busy for 96 % of the time and more: whatever the host does costs nothing."""
    view = _view(part)
    assert view.share(view.busy.measure_ns()) > 0.95
    assert evaluate_host(view, noted=[]).findings == ()


def test_the_wait_of_the_harness_is_no_loss():
    """h100: the profiling script waits for the device, which has its work, and at the end, when there is none left."""
    assert evaluate_host(_view("h100_qwen"), noted=[]).findings == ()


@pytest.mark.parametrize("path", SHARED_TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_recording_is_evaluated(path):
    """Old and new, CPU and GPU: no rule fails, and losses fit the window."""
    view = _view(f"{path.parent.name}/{path.name}")
    answer = evaluate_host(view)
    assert all(isinstance(each, NotEvaluated) and each.reason for each in answer.not_evaluated)
    for finding in answer.findings:
        assert finding.lost_ns is None or 0 < finding.lost_ns <= view.length_ns
        assert finding.evidence
        assert advise_finding(finding, view.length_ns).advice
