"""Findings of the classic roofline: the operators that limit the device, and which line limits them."""

from collections import Counter

from lockstep.contracts.finding import COMPUTE, HIGH, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.roofline.classic import (
    COMPUTE_BOUND,
    MEMORY_BOUND,
    RULE,
    UNDERUTILISED,
    OperatorPoint,
    Rooflines,
    by_operator,
)
from lockstep.diagnosis.roofline.devices import Roof
from lockstep.diagnosis.roofline.formulas import ELEMENTWISE
from lockstep.diagnosis.roofline.roofline_limits import FINDINGS, OPERATOR_SHARE, UTILISATION, WORTH_FIXING

_SHAPES_CHARS = 120
_TERA = 1e12
_WITH_DECIMAL_FROM = 100


def evaluate_rooflines(rooflines: Rooflines | NotEvaluated, rank: int) -> list[Finding] | NotEvaluated:
    """Return a finding for each operator with a relevant share of the device's compute time, longest first.

    Memory and compute bound operators are findings too, with other remedies (fusion, quantisation, frequency).
    `lost_ns` is what an underutilised operator would save at the threshold; what a bound one can save is unknown and at
    most its time. If all operators bound by one line take less than `WORTH_FIXING`, none of them is a finding.
    """
    if isinstance(rooflines, NotEvaluated):
        return rooflines
    if not any(point.verdict for point in rooflines.points):
        return NotEvaluated(rule=RULE, reason=_why_not(rooflines))
    worth = [
        point
        for point in by_operator(rooflines.points)
        if point.verdict and point.device_ns >= OPERATOR_SHARE.value * rooflines.device_ns
    ]
    worth = worth[: int(FINDINGS.value)]
    held_ns = Counter[str]()
    for point in worth:
        held_ns[point.verdict] += point.device_ns
    least_ns = WORTH_FIXING.value * rooflines.device_ns
    worth = [point for point in worth if point.verdict == UNDERUTILISED or held_ns[point.verdict] >= least_ns]
    return [_finding(point, rooflines, rank) for point in worth]


def _why_not(rooflines: Rooflines) -> str:
    if rooflines.points:
        return f"no vendor's peaks are known for the device {rooflines.device!r} in the formats of its operators"
    parts = sorted(rooflines.excluded_ns.items(), key=lambda each: -each[1])
    return "; ".join(f"{ns / rooflines.device_ns:.0%} of the device's compute time: {why}" for why, ns in parts)


def _finding(point: OperatorPoint, rooflines: Rooflines, rank: int) -> Finding:
    roof = point.roof
    assert roof is not None  # a verdict has its roof
    share = point.device_ns / rooflines.device_ns
    best_ns = roof.seconds(point.flops, point.moved_bytes) * 1e9 / UTILISATION.value
    return Finding(
        bottleneck=COMPUTE,
        cause=point.verdict,
        ranks=(rank,),
        subject=point.operator,
        evidence=(
            (
                f"{point.operator} ({roof.number_format}) holds {share:.1%} of the device's compute time: "
                f"{point.calls} calls, {point.device_ns / 1e6:.3f} ms"
            ),
            f"it reaches {_reached(point, roof)} of {roof.device}; the threshold is {UTILISATION.value:.0%}",
            *_use_sentence(point),
            (
                f"its intensity is {point.intensity:.1f} FLOP per byte, the device's ridge {roof.ridge:.1f}: "
                f"{_SENTENCES[point.verdict]}"
            ),
            f"longest shapes: {point.shapes[:_SHAPES_CHARS]}",
        ),
        lost_ns=max(int(point.device_ns - best_ns), 0) if point.verdict == UNDERUTILISED else None,
        confidence=MEDIUM if point.kind == ELEMENTWISE else HIGH,
        context=(f"{point.kind} in {roof.number_format if point.is_on_tensor_cores else point.number_format}",),
    )


def _use_sentence(point: OperatorPoint) -> list[str]:
    """Describe how its kernels use the device, if the trace has CUPTI's estimates."""
    use = point.use
    if not use.known_ns:
        return []
    cores = (
        "" if point.kind == ELEMENTWISE else f"; {use.tensor_ns / point.device_ns:.0%} of their time is on tensor cores"
    )
    sentence = (
        f"its kernels have work for {use.filled_ns / use.known_ns:.0%} of the multiprocessors, and "
        f"{use.resident_ns / use.known_ns:.0%} of the warps that fit (occupancy, CUPTI's estimate)"
    )
    return [sentence + cores]


def _reached(point: OperatorPoint, roof: Roof) -> str:
    """Format an operator's rate relative to the line above it: the memory's to the left of the ridge."""
    if point.intensity <= roof.ridge:
        reached, peak, unit = point.bytes_per_second, roof.bytes_per_second, "TB/s"
    else:
        reached, peak, unit = point.flops_per_second, roof.flops_per_second, "TFLOP/s"
    return f"{_digits(reached / _TERA)} of {_digits(peak / _TERA)} {unit} ({reached / peak:.0%})"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < _WITH_DECIMAL_FROM else f"{value:.1f}"


_SENTENCES = {
    MEMORY_BOUND: "the memory holds it",
    COMPUTE_BOUND: "arithmetic holds it",
    UNDERUTILISED: "neither line holds it",
}
