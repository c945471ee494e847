"""Gradients of a step from a trace: which, when they are ready, and what the link takes; and the plans made of them."""

import numpy as np
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.diagnosis.fusion_plans import plans_of
from lockstep.diagnosis.gradient_fusion import StepGradients, SummingLink, fit_link, gradients_of
from lockstep.trace.kineto.load import load_trace
from tests.trace.traces import RECORDING, document, event, write

US = 1000
LINK = SummingLink(latency_s=1e-3, bytes_per_second=1e9, source="test")


def kernel(name, start_us, duration_us, correlation, stream, **arguments):
    args = {"device": 0, "stream": stream, "correlation": correlation, **arguments}
    return event(name, start_us * US, duration_us * US, cat="kernel", tid=stream, args=args)


def launch(start_us, correlation):
    return event("cudaLaunchKernel", start_us * US, US, cat="cuda_runtime", args={"correlation": correlation})


def summed(start_us, duration_us, correlation, elements, group="0"):
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        start_us,
        duration_us,
        correlation,
        20,
        **{
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "dtype": "Float",
            "Group size": 4,
            "Process Group Name": group,
        },
    )


def step(number, begin_us):
    """Return a step: the host launches at once; kernels end at 100 and 300 us, sums wait behind each other until 620."""
    at, ids = begin_us, number * 10
    return [
        event(f"ProfilerStep#{number}", at * US, 900 * US, cat="user_annotation"),
        *(launch(at + 1 + place, ids + place) for place in range(5)),
        kernel("backward1", at + 10, 90, ids, 7),
        summed(at + 110, 200, ids + 1, 250_000),
        kernel("backward2", at + 100, 200, ids + 2, 7),
        summed(at + 310, 300, ids + 3, 500_000),
        summed(at + 615, 5, ids + 4, 1, group="loss"),
    ]


@pytest.fixture
def columns(tmp_path):
    events = [each for number in range(4) for each in step(number + 1, number * 1000)]
    return load_trace(write(tmp_path, document(events)))


def test_ddp_gradients_on_a_device(columns):
    """Sizes in bytes, ready when the kernel launched before has ended, the small sums of another group left out."""
    found = gradients_of(columns, where="trace")
    assert found.volume_bytes == (1e6, 2e6)
    assert found.ready_s == pytest.approx((100e-6, 300e-6))
    assert found.end_s == pytest.approx(610e-6)
    assert found.steps >= 2
    assert found.link.latency_s == pytest.approx(100e-6)
    assert found.link.bytes_per_second == pytest.approx(1e10)


def test_the_plans_agree_with_the_trace(columns):
    """Each sum by itself, as the trace had it, ends when it does in the trace, but for its gaps."""
    found = gradients_of(columns, where="trace")
    plans = plans_of(found, found.link, bucket_bytes=25 * 2**20)
    ends = {plan.name: plan.end_s for plan in plans.plans}
    assert ends["unfused"] == pytest.approx(600e-6)
    assert ends["one bucket"] == pytest.approx(700e-6)
    assert plans.best.end_s == ends["exact"] == pytest.approx(600e-6)


def test_gloo_gradients_of_a_recording():
    """On a host backend: five all-reduces a step, whose sizes are too alike to separate latency from bandwidth."""
    found = gradients_of(load_trace(RECORDING), where="recording")
    assert len(found.volume_bytes) == 5
    assert sum(found.volume_bytes) == pytest.approx(680e3, rel=0.01)
    assert list(found.ready_s) == sorted(found.ready_s)
    assert found.ready_s[-1] < found.end_s
    assert found.link is None
    assert "cannot distinguish latency from bandwidth" in found.why


def test_a_trace_without_sizes_is_refused(tmp_path):
    """No all-reduce, or none whose bytes are known: reported, with what would help."""
    plain = load_trace(write(tmp_path, document([kernel("gemm", 0, 100, 1, 7), launch(0, 1)])))
    with pytest.raises(MalformedError, match="got 0 all-reduces"):
        gradients_of(plain, where="trace")
    unsized = [kernel("ncclDevKernel_AllReduce", 0, 100, 1, 20), launch(0, 1)]
    with pytest.raises(MalformedError, match="record_shapes"):
        gradients_of(load_trace(write(tmp_path, document(unsized))), where="trace")


def test_a_link_is_fitted_to_the_shortest_times():
    """Waiting lengthens some of the sums; the shortest of each size give latency and bandwidth."""
    rng = np.random.default_rng(7)
    sizes = np.repeat([1e5, 1e6, 1e7, 1e8], 5)
    waits = np.tile([0.0, *rng.uniform(1e-4, 1e-2, 4)], 4)
    found = fit_link(sizes, 2e-4 + sizes / 5e9 + waits, "test")
    assert found.latency_s == pytest.approx(2e-4, rel=1e-6)
    assert found.bytes_per_second == pytest.approx(5e9, rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([], []), ([1e6], [1e-3]), ([1e6, 1.2e6], [1e-3, 2e-3]), ([1e6, 1e8], [1e-3, 1e-6])],
    ids=["nothing", "one size", "alike", "larger is quicker"],
)
def test_a_link_that_cannot_be_determined(sizes, seconds):
    """Sizes too alike, or larger messages that are quicker, identify no link: none is invented."""
    assert fit_link(sizes, seconds, "test") is None


def test_plans_of_a_known_case():
    """Four gradients at once and 1 ms of latency: together is best, as the greedy search finds."""
    gradients = StepGradients(ready_s=(0.010, 0.010, 0.010, 0.010), volume_bytes=(1e6,) * 4)
    plans = plans_of(gradients, LINK, bucket_bytes=2e6)
    ends = [plan.end_s for plan in plans.plans]
    assert ends == pytest.approx([0.018, 0.015, 0.016, 0.015, 0.015])
    assert plans.best.buckets_bytes == (4e6,)
    assert plans.cap_end_s == pytest.approx(0.015)
    assert plans.cap_mib == 5  # the least that holds all


def test_of_plans_that_end_alike_the_fewest_buckets_are_suggested():
    """A second gradient long after the first: fusing the early ones costs nothing and saves calls."""
    gradients = StepGradients(ready_s=(0.001, 0.002, 0.1), volume_bytes=(1e6, 1e6, 1e6))
    plans = plans_of(gradients, LINK, bucket_bytes=1.0)
    assert len(plans.best.buckets_bytes) == 2
    assert plans.best.end_s == pytest.approx(min(plan.end_s for plan in plans.plans))
