"""How computing divides between products of matrices and all else: as modelled, as captured, as fitted."""

from dataclasses import replace

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import CallNode, TraceSummary
from lockstep.simulator.calibration.measured import OperatorTimes, mean_times, operator_times
from lockstep.simulator.calibration.online import Setup, computing, fit
from lockstep.simulator.calibration.operator_split import operator_split
from lockstep.simulator.spec import load_spec
from lockstep.trace.patterns import FunctionClass, Pattern, PatternSummary, table_of
from tests.simulator.calibration.test_online import DECLARED, SPEC, measure

IDEAL = replace(
    DECLARED, cluster=DECLARED.cluster.with_device(matrix_efficiency=1.0, memory_efficiency=1.0, launch_s=0.0)
)
REAL = replace(IDEAL, cluster=IDEAL.cluster.with_device(matrix_efficiency=0.6, memory_efficiency=0.25))
"""Products are a little slower than declared, all else a lot: step records alone cannot know."""


def split_of(setup, ranks=()):
    return operator_split(setup.tree, setup.cluster.device, batch=setup.batch, ranks=ranks)


def share_of(times):
    return times.matrix_seconds / (times.matrix_seconds + times.other_seconds)


def summary_of(times, *, rank=0, steps=2, patterns=None, scale=1.0, error=""):
    """Return a capture of so many steps in which a rank's training thread computed so."""
    parts = (
        ("train.py: step", "python", 5e-3),
        ("aten::addmm", "operator", 0.7 * times.matrix_seconds),
        ("aten::bmm", "operator", 0.3 * times.matrix_seconds),
        ("aten::native_layer_norm", "operator", 0.6 * times.other_seconds),
        ("aten::_to_copy", "operator", 0.4 * times.other_seconds),
        ("c10d::allreduce_", "communication", 4e-3),
    )
    tree = [
        CallNode(parent=-1, name=name, kind=kind, total_ns=ns, self_ns=ns, count=steps)
        for name, kind, ns in ((name, kind, round(scale * seconds * steps * 1e9)) for name, kind, seconds in parts)
    ]
    return TraceSummary(
        run="job", node="n", rank=rank, request_id=1, window_ns=10**9, steps=steps, trace_bytes=1, event_count=9,
        tree=[] if error else tree, patterns=patterns, error=error,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        "tp: 2, dp: 4, pp: 2, micro_batches: 2",
        "tp: 2, dp: 4, pp: 2, micro_batches: 4, zero: 1, recompute: full",
        "tp: 4, dp: 4, recompute: selective",
    ],
)
def test_the_parts_of_computing_sum_to_it(words):
    """What operators take one by one is what the mean rank computes in the forecast of the step."""
    setup = Setup.of(load_spec(SPEC.replace("tp: 2, dp: 4, pp: 2, micro_batches: 2", words), "spec.yaml"))
    setup = replace(setup, cluster=setup.cluster.with_device(overlap_factor=0.0))  # one by one, next to nothing
    own = split_of(setup)
    assert own.matrix_seconds + own.other_seconds == pytest.approx(computing(setup.forecast()), rel=1e-6)
    assert 0.1 < share_of(own) < 0.9
    first, last = split_of(setup, (0,)), split_of(setup, (15,))
    both = mean_times([first, last])
    assert both.matrix_seconds == pytest.approx(own.matrix_seconds)  # of two stages, or of one
    assert both.ranks == (0, 15)


def test_a_capture_brings_the_fitted_split_near_the_truth():
    """From the same noisy records: with a capture's operators the share of products is right, without it is not."""
    window, truth = measure(REAL), share_of(split_of(REAL))
    captured = operator_times(summary_of(split_of(REAL, (3,)), rank=3))
    assert captured.ranks == (3,)
    without, model = fit(IDEAL, window), fit(IDEAL, window, operators=captured)
    off_without, off_with = (abs(share_of(each.operator_seconds) - truth) for each in (without, model))
    assert off_without > 0.10
    assert off_with < 0.02
    assert model.parameters["matrix_efficiency"] == pytest.approx(0.6, rel=0.05)
    assert model.parameters["memory_efficiency"] == pytest.approx(0.25, rel=0.05)
    assert without.parameters["memory_efficiency"] == without.parameters["matrix_efficiency"]
    assert model.compute_seconds == pytest.approx(without.compute_seconds, rel=0.01)
    assert model.error_band_ratio == without.error_band_ratio  # of held-out steps, as ever
    assert (without.captured_ranks, model.captured_ranks) == ((), (3,))


def test_kernels_of_a_device_count_before_the_threads_that_launch_them():
    """Their time on the critical path, products by the names that libraries give them."""
    kernels = (
        ("ampere_bf16_s16816gemm_bf16_128x64", FunctionClass.COMPUTE, 0.3),
        ("void cudnn::detail::dgrad_engine<float>", FunctionClass.COMPUTE, 0.1),
        ("void at::native::vectorized_elementwise_kernel", FunctionClass.COMPUTE, 0.15),
        ("void cudnn::ops::convertTensor_kernel<float>", FunctionClass.COMPUTE, 0.05),
        ("Memcpy HtoD", FunctionClass.MEMORY, 0.1),
        ("aten::mm", FunctionClass.HOST, 0.2),
    )
    patterns = tuple(Pattern(function=name, kind=kind, beta=beta) for name, kind, beta in kernels)
    table = table_of(PatternSummary(window_ns=2 * 10**9, patterns=patterns), len(patterns))
    summary = summary_of(OperatorTimes(matrix_seconds=1.0, other_seconds=9.0), patterns=table, steps=4)
    found = operator_times(summary)
    assert (found.matrix_seconds, found.other_seconds) == pytest.approx((0.2, 0.1), rel=1e-3)
    without = operator_times(replace(summary, patterns=None))
    assert (without.matrix_seconds, without.other_seconds) == pytest.approx((1.0, 9.0))


@pytest.mark.parametrize(
    "more",
    [{"error": "no trace"}, {"steps": 0}, {"scale": 0.0}],
)
def test_a_capture_without_operators_changes_nothing(more):
    """Failed, of no step, of no time, or of one sort so far above the other that it is no model's step."""
    assert operator_times(summary_of(OperatorTimes(matrix_seconds=1.0, other_seconds=1.0), **more)) is None
    assert operator_times(summary_of(OperatorTimes(matrix_seconds=5000.0, other_seconds=1.0))) is None


def test_operator_times_that_the_records_contradict_are_refused():
    """Another job's capture, or threads that only launch: not near what is computed by the records."""
    window, own = measure(REAL), split_of(REAL)
    for scale in (0.2, 4.0):
        times = OperatorTimes(matrix_seconds=scale * own.matrix_seconds, other_seconds=scale * own.other_seconds)
        with pytest.raises(ConfigError, match="operator times of a capture"):
            fit(DECLARED, window, operators=times)
    total_s = own.matrix_seconds + own.other_seconds
    with pytest.raises(ConfigError, match="times the peak"):  # products in no time at all
        fit(DECLARED, window, operators=OperatorTimes(matrix_seconds=0.02 * total_s, other_seconds=0.98 * total_s))
