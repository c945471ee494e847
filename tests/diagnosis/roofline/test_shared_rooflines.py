"""Rooflines of real recordings next to the checkout."""

import numpy as np
import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.roofline.classic import NO_SHAPES, by_operator, operator_rooflines
from lockstep.diagnosis.roofline.component_rules import evaluate_components, shares
from lockstep.diagnosis.roofline.components import Bound, classify
from lockstep.diagnosis.roofline.kernel_counters import component_table_of, kernel_counters_of
from lockstep.trace.ascend.kernels import load_kernels
from lockstep.trace.kineto.load import load_trace
from tests.trace.traces import SHARED

pytestmark = pytest.mark.shared

ASCEND = SHARED.parent / "ascend" / "msprof-analyze"


def test_h100_language_model():
    """Products run at 58 to 65 % of the peak, flash attention at 18 %, no operator passes the device."""
    rooflines = operator_rooflines(load_trace(SHARED / "tracelens" / "h100_qwen.json.gz"))
    found = {(point.operator, point.number_format): point for point in by_operator(rooflines.points)}
    mm, addmm = found["aten::mm", "bf16"], found["aten::addmm", "bf16"]
    assert (mm.calls, addmm.calls) == (96, 72)
    assert mm.flops_per_second == pytest.approx(632e12, rel=0.01)
    assert addmm.flops_per_second == pytest.approx(596e12, rel=0.01)
    assert found["aten::_flash_attention_forward", "bf16"].flops_per_second == pytest.approx(180.5e12, rel=0.01)
    for point in rooflines.points:
        assert point.roof.seconds(point.flops, point.moved_bytes) * 1e9 <= 1.05 * point.device_ns


def test_mi300_convolutions_forward_and_backward():
    """All 117 forward convolutions find their output in the backward; the two directions run alike."""
    rooflines = operator_rooflines(load_trace(SHARED / "tracelens" / "mi300_resnet_act_checkpoint.json.gz"))
    found = {point.operator: point for point in by_operator(rooflines.points)}
    assert found["aten::miopen_convolution"].calls == 117
    assert found["aten::convolution_backward"].calls == 60
    assert found["aten::miopen_convolution"].flops_per_second == pytest.approx(44.4e12, rel=0.01)
    assert found["aten::convolution_backward"].flops_per_second == pytest.approx(41.0e12, rel=0.01)


def test_a_trace_without_shapes_is_reported_as_such():
    """The NCCL recording has no shapes: all of its compute time is excluded for that reason."""
    rooflines = operator_rooflines(load_trace(SHARED / "hta" / "nccl_data.json.gz"))
    assert rooflines.points == ()
    assert rooflines.excluded_ns == {NO_SHAPES: rooflines.device_ns}


def test_matrix_products_with_counted_work():
    """All 13 products of the PanGu-like capture are compute bound: 80 to 88 % of the cube."""
    kernels = kernel_counters_of(load_kernels(ASCEND / "kernel_details_arithmeticutil_591rows.csv"))
    table = component_table_of(kernels)
    products = np.array(["MatMul" in kind for kind in kernels.types])
    assert products.sum() == 13
    assert (classify(table).bound[products] == Bound.COMPUTE_BOUND).all()
    assert {each.cause for each in evaluate_components(kernels, table, 0)} == {"compute_bound"}


def test_queue_times_alone():
    """Of the capture with queue times, 30 % of the time is insufficient parallelism; the rest is busy and open."""
    kernels = kernel_counters_of(load_kernels(ASCEND / "kernel_details_pipeutil_29rows.csv"))
    parts = shares(kernels, classify(component_table_of(kernels)))
    assert parts[Bound.INSUFFICIENT_PARALLELISM] == pytest.approx(0.303, abs=0.001)
    assert parts[Bound.UNDECIDED] == pytest.approx(0.697, abs=0.001)
    level0 = SHARED.parent / "ascend/msinsight/level0/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"
    bare = kernel_counters_of(load_kernels(level0))
    assert isinstance(evaluate_components(bare, component_table_of(bare), 0), NotEvaluated)
