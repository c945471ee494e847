"""The classic roofline from kernels, their operators and shapes."""

import json

import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.roofline import classic
from lockstep.diagnosis.roofline.classic import Rooflines, by_operator, operator_rooflines
from lockstep.diagnosis.roofline.classic_rules import evaluate_rooflines
from lockstep.trace.columns import KERNEL, OPERATOR, RUNTIME, Occupancy, TraceMetadata
from tests.trace.made import columns_of, made

H100 = TraceMetadata(vendor="nvidia", devices=("NVIDIA H100 80GB HBM3",))


def shapes(*dims, kind="c10::BFloat16") -> str:
    return json.dumps([list(dims), [kind] * len(dims)])


def call(name, text, start_ns, device_ns, external, *, kernel="kernel", **more) -> list:
    """Return an operator and its kernel."""
    return [
        made(name, OPERATOR, 1, start_ns, 50, shapes=text, external=external),
        made(kernel, KERNEL, (0, 7), start_ns + 100, device_ns, stream=7, external=external, **more),
    ]


def gemm(device_ns, count=1, number="c10::BFloat16") -> list:
    """Return products of 4096 x 4096 x 4096: 137.4 GFLOP each, 138.9 us at an H100's peak."""
    text = shapes([4096, 4096], [4096, 4096], kind=number)
    return [each for at in range(count) for each in call("aten::mm", text, at * 10**7, device_ns, at + 1)]


def test_the_figures_of_a_long_language_model_step():
    """1125 addmm at 571 TFLOP/s and 365 bmm at 57.5 TFLOP/s are underutilised on an H100 (threshold 0.8)."""
    m, k, n, batch, side, width = 4096, 4096, 4096, 32, 512, 128
    addmm_ns = round(2 * m * k * n / 571e12 * 1e9)
    bmm_ns = round(2 * batch * side * side * width / 57.5e12 * 1e9)
    events = []
    for at in range(1125):
        events += call("aten::addmm", shapes([n], [m, k], [k, n]), at * 10**6, addmm_ns, at + 1)
    for at in range(365):
        text = shapes([batch, side, width], [batch, width, side])
        events += call("aten::bmm", text, 2 * 10**9 + at * 10**6, bmm_ns, at + 2000)
    rooflines = operator_rooflines(columns_of(events, metadata=H100))
    addmm, bmm = by_operator(rooflines.points)
    assert (addmm.operator, addmm.calls, bmm.operator, bmm.calls) == ("aten::addmm", 1125, "aten::bmm", 365)
    assert addmm.flops_per_second == pytest.approx(571e12, rel=1e-3)
    assert bmm.flops_per_second == pytest.approx(57.5e12, rel=1e-3)
    assert {addmm.verdict, bmm.verdict} == {classic.UNDERUTILISED}


def test_calls_of_two_roofs_are_two_points():
    """Of two fp32 products one is beyond the fp32 roof, so tf32: neither is held against the other's roof."""
    slow, fast = shapes([1024, 1024], [1024, 1024], kind="float"), shapes([4096, 4096], [4096, 4096], kind="float")
    # 2.1 GFLOP in 53.7 us are 40 TFLOP/s, below fp32's 67; 137.4 GFLOP in 600 us are 229, below 80 % of tf32's 495.
    events = [*call("aten::mm", slow, 0, 53_700, 1), *call("aten::mm", fast, 10**7, 600_000, 2)]
    points = by_operator(operator_rooflines(columns_of(events, metadata=H100)).points)
    assert [(point.roof.number_format, point.verdict) for point in points] == [
        ("tf32", classic.UNDERUTILISED),
        ("fp32", classic.UNDERUTILISED),
    ]
    assert all(point.flops_per_second < point.roof.flops_per_second for point in points)


def test_an_id_that_contradicts_the_launch_names_no_operator():
    """Ids of kernels are another count in traces of 2021: the operator around the launch is the kernel's."""
    text = shapes([4096, 4096], [4096, 4096])
    events = [
        made("aten::add", OPERATOR, 1, 0, 50, shapes=text, external=2),
        made("cudaLaunchKernel", RUNTIME, 1, 10, 10, correlation=7, external=1),
        made("aten::mul", OPERATOR, 1, 100, 50, shapes=text, external=1),
        made("kernel", KERNEL, (0, 7), 30, 100_000, stream=7, external=1, correlation=7),
    ]
    (point,) = operator_rooflines(columns_of(events, metadata=H100)).points
    assert point.operator == "aten::add"
    handed_over = [events[0], events[1]._replace(thread=2, start_ns=200), *events[2:]]
    (point,) = operator_rooflines(columns_of(handed_over, metadata=H100)).points  # by a thread that launches for others
    assert point.operator == "aten::mul"
    too_late = [events[0], events[1]._replace(thread=2), *events[2:]]
    assert operator_rooflines(columns_of(too_late, metadata=H100)).points == ()  # aten::mul begins after the launch


def test_fp32_products_in_tf32_kernels_are_held_against_tf32():
    """2.1 GFLOP in 53.7 us are 40 TFLOP/s: below either roof, and on tensor cores by the kernel's name alone."""
    text = shapes([1024, 1024], [1024, 1024], kind="float")
    for kernel, number in (("cutlass_80_tensorop_s1688gemm_64x64", "tf32"), ("cutlass_80_simt_sgemm_128x32", "fp32")):
        events = call("aten::mm", text, 0, 53_700, 1, kernel=kernel)
        rooflines = operator_rooflines(columns_of(events, metadata=H100))
        (finding,) = evaluate_rooflines(rooflines, 0)
        assert rooflines.points[0].roof.number_format == number
        assert finding.context == (f"matrix in {number}",)  # advice to use tensor cores is for fp32


def test_a_finding_states_how_its_kernels_use_the_device():
    """Weighted by their time: 3 us with half of the SMs and a quarter of the warps, 1 us with all; one is unknown."""
    text = shapes([64, 64], [64, 64])
    events = [
        *call("aten::mm", text, 0, 3000, 1, kernel="sm90_xmma_gemm_bf16bf16_bf16f32", occupancy=Occupancy(0.5, 0.25)),
        *call("aten::mm", text, 10**6, 1000, 2, kernel="nvjet_tst_64x8", occupancy=Occupancy(9, 1)),
        *call("aten::mm", text, 2 * 10**6, 1000, 3),
    ]
    (finding,) = evaluate_rooflines(operator_rooflines(columns_of(events, metadata=H100)), 0)
    assert finding.evidence[2] == (
        "its kernels have work for 62% of the multiprocessors, and 44% of the warps that fit (occupancy, CUPTI's "
        "estimate); 80% of their time is on tensor cores"
    )


def test_an_operator_is_held_against_the_line_above_it():
    """Left of the ridge the memory's, right of it that of arithmetic: a copy has no FLOP/s to speak of."""
    text = shapes([4096, 4096], [4096, 4096])
    (added,) = evaluate_rooflines(
        operator_rooflines(columns_of(call("aten::add", text, 0, 100_000, 1), metadata=H100)), 0
    )
    assert added.evidence[1].startswith("it reaches 1.01 of 3.35 TB/s (30%) of NVIDIA H100")
    (product,) = evaluate_rooflines(operator_rooflines(columns_of(gemm(250_000), metadata=H100)), 0)
    assert product.evidence[1].startswith("it reaches 549.8 of 989.5 TFLOP/s (56%) of NVIDIA H100")


@pytest.mark.parametrize(("device_ns", "named"), [(1_400_000, True), (1_500_000, False)])
def test_what_a_line_binds_is_no_finding_below_what_is_worth_fixing(device_ns, named):
    """What it would give back is unknown, and at most its time: 74 us of 1.47 or 1.57 ms, 5 % between them."""
    added = call("aten::add", shapes([8192, 4096], [8192, 4096]), 0, 74_000, 1)
    events = [*added, *call("aten::mm", shapes([64, 64], [64, 64]), 10**7, device_ns, 2)]
    found = evaluate_rooflines(operator_rooflines(columns_of(events, metadata=H100)), 0)
    assert ("memory_bound" in {each.cause for each in found}) is named


def test_elementwise_kernels_have_no_use_for_tensor_cores():
    """Without an estimate nothing is stated; with one, tensor cores are left out where products are not computed."""
    text = shapes([64, 64], [64, 64])
    (one,) = evaluate_rooflines(operator_rooflines(columns_of(call("aten::add", text, 0, 3000, 1), metadata=H100)), 0)
    events = call("aten::add", text, 0, 3000, 1, occupancy=Occupancy(2, 0.5))
    (other,) = evaluate_rooflines(operator_rooflines(columns_of(events, metadata=H100)), 0)
    assert len(other.evidence) == len(one.evidence) + 1
    assert not any("tensor" in sentence for sentence in other.evidence)


@pytest.mark.parametrize(
    ("device_ns", "verdict"),
    [(138_900, classic.COMPUTE_BOUND), (173_600, classic.COMPUTE_BOUND), (173_700, classic.UNDERUTILISED)],
)
def test_compute_bound_up_to_the_threshold(device_ns, verdict):
    """137.44 GFLOP in 173.62 us are 80 % of 989.5 TFLOP/s: just there it is bound, just beyond it is not."""
    (point,) = operator_rooflines(columns_of(gemm(device_ns), metadata=H100)).points
    assert point.verdict == verdict
    assert point.intensity == pytest.approx(4096 / 3)


@pytest.mark.parametrize(("device_ns", "verdict"), [(74_000, classic.MEMORY_BOUND), (76_000, classic.UNDERUTILISED)])
def test_memory_bound_up_to_the_threshold(device_ns, verdict):
    """An addition that moves 201 MB needs 75.1 us at 80 % of 3.35 TB/s."""
    text = shapes([8192, 4096], [8192, 4096])
    (point,) = operator_rooflines(columns_of(call("aten::add", text, 0, device_ns, 1), metadata=H100)).points
    assert point.moved_bytes == 3 * 8192 * 4096 * 2
    assert point.verdict == verdict


def test_fp32_on_tensor_cores_is_evaluated_as_tf32():
    """A product faster than fp32's peak can only be tf32, whatever the inputs' format."""
    (slow,) = operator_rooflines(columns_of(gemm(4_000_000, number="float"), metadata=H100)).points
    (fast,) = operator_rooflines(columns_of(gemm(400_000, number="float"), metadata=H100)).points
    assert (slow.roof.number_format, fast.roof.number_format) == ("fp32", "tf32")


def test_what_cannot_be_evaluated_is_counted_by_its_reason():
    """Kernels without operator, operators without shapes or formula, and impossible speeds are named with their time."""
    events = [
        *gemm(1_000_000),
        *call("aten::mystery", shapes([4]), 10**8, 30_000, 100),
        made("aten::mm", OPERATOR, 1, 2 * 10**8, 50, external=101),
        made("kernel", KERNEL, (0, 7), 2 * 10**8, 20_000, stream=7, external=101),
        made("orphan", KERNEL, (0, 7), 3 * 10**8, 10_000, stream=7),
        *call("aten::mm", shapes([4096, 4096], [4096, 4096]), 4 * 10**8, 50_000, 102),
        *call("aten::mm", shapes([4096, 4096], [17, 4096]), 5 * 10**8, 5_000, 103),
    ]
    rooflines = operator_rooflines(columns_of(events, metadata=H100))
    assert rooflines.excluded_ns == {
        classic.NO_FORMULA: 30_000,
        classic.NO_SHAPES: 20_000,
        classic.NO_OPERATOR: 10_000,
        classic.UNFIT_SHAPES: 5_000,
    }
    assert [point.calls for point in rooflines.points] == [2]
    alone = operator_rooflines(columns_of(gemm(50_000), metadata=H100))
    assert alone.excluded_ns == {classic.IMPLAUSIBLE: 50_000}
    for part in (rooflines, alone):
        assert sum(part.excluded_ns.values()) + sum(point.device_ns for point in part.points) == part.device_ns


def test_a_kernel_finds_its_operator_through_its_launch():
    """Without an external id the launch's is taken, and without that the operator around the launch."""
    text = shapes([4096, 4096], [4096, 4096])
    events = [
        made("aten::linear", OPERATOR, 1, 0, 900, shapes='[[[1]],["float"]]', external=1),
        made("aten::mm", OPERATOR, 1, 100, 500, shapes=text, external=2),
        made("cudaLaunchKernel", RUNTIME, 1, 200, 20, correlation=5, external=2),
        made("cudaLaunchKernel", RUNTIME, 1, 300, 20, correlation=6),
        made("cudaLaunchKernel", RUNTIME, 2, 300, 20, correlation=7),
        made("gemm", KERNEL, (0, 7), 1000, 300_000, stream=7, correlation=5),
        made("gemm", KERNEL, (0, 7), 400_000, 300_000, stream=7, correlation=6),
        made("gemm", KERNEL, (0, 7), 800_000, 50_000, stream=7, correlation=7),
    ]
    rooflines = operator_rooflines(columns_of(events, metadata=H100))
    (point,) = rooflines.points
    assert (point.operator, point.calls, point.device_ns) == ("aten::mm", 1, 600_000)
    assert rooflines.excluded_ns == {classic.NO_OPERATOR: 50_000}


def test_forward_convolutions_take_their_output_from_the_backward():
    """The sequence number joins both; the backward's first input has the output's shape."""
    forward, backward = (
        shapes([10, 256, 14, 14], [512, 256, 3, 3]),
        shapes([10, 512, 7, 7], [10, 256, 14, 14], [512, 256, 3, 3]),
    )
    events = [
        made("aten::convolution", OPERATOR, 1, 0, 100, shapes=forward, external=1, sequence=930),
        made("aten::cudnn_convolution", OPERATOR, 1, 10, 50, shapes=forward, external=2),
        made("ConvolutionBackward0", OPERATOR, 2, 1000, 100, external=3, sequence=930),
        made("aten::convolution_backward", OPERATOR, 2, 1010, 50, shapes=backward, external=4),
        made("conv", KERNEL, (0, 7), 200, 100_000, stream=7, external=2),
        made("dgrad", KERNEL, (0, 7), 200_000, 200_000, stream=7, external=4),
    ]
    back, fore = operator_rooflines(columns_of(events, metadata=H100)).points
    assert (fore.operator, fore.flops) == ("aten::cudnn_convolution", 2 * 10 * 512 * 49 * 256 * 9)
    assert back.flops == 2 * fore.flops
    without = operator_rooflines(columns_of(events[:2] + events[4:5], metadata=H100))
    assert without.excluded_ns == {classic.UNFIT_SHAPES: 100_000}


def test_findings_name_the_heavy_operators_with_numbers():
    """A product at 34 % of the peak is underutilised; what it would give back at the threshold is the loss."""
    columns = columns_of(
        [*gemm(400_000, count=10), *call("aten::add", shapes([64], [64]), 10**9, 2_000, 50)], metadata=H100
    )
    (finding,) = evaluate_rooflines(operator_rooflines(columns), 3)
    assert (finding.cause, finding.subject, finding.ranks) == ("underutilised", "aten::mm", (3,))
    assert "343.6 of 989.5 TFLOP/s (35%)" in finding.evidence[1]
    assert finding.lost_ns == pytest.approx(4_000_000 - 10 * 138_900 / 0.8, rel=1e-3)
    (bound,) = evaluate_rooflines(operator_rooflines(columns_of(gemm(140_000), metadata=H100)), 0)
    assert (bound.cause, bound.lost_ns) == ("compute_bound", None)


def test_an_unknown_device_has_points_and_no_verdict():
    """What was achieved is reported; whether it is much is not."""
    rooflines = operator_rooflines(columns_of(gemm(400_000)), device="Some GPU")
    assert isinstance(rooflines, Rooflines)
    assert rooflines.points[0].flops_per_second == pytest.approx(343.6e12, rel=1e-3)
    answer = evaluate_rooflines(rooflines, 0)
    assert isinstance(answer, NotEvaluated)
    assert "Some GPU" in answer.reason


def test_a_trace_without_device_or_shapes_is_not_evaluated():
    """Both state why."""
    nothing = operator_rooflines(columns_of([made("aten::mm")]))
    assert isinstance(nothing, NotEvaluated)
    assert evaluate_rooflines(nothing, 0) is nothing
    bare = [made("aten::mm", external=1), made("k", KERNEL, (0, 7), 0, 100, stream=7, external=1)]
    answer = evaluate_rooflines(operator_rooflines(columns_of(bare, metadata=H100)), 0)
    assert answer.reason == "100% of the device's compute time: operators without recorded shapes"
