"""Findings of the classic roofline: the operators that hold the device, and which line holds them."""

from lockstep.contracts.finding import COMPUTE, HIGH, MEDIUM, Finding, NotJudged
from lockstep.diagnosis.roofline.classic import (
    COMPUTE_BOUND,
    MEMORY_BOUND,
    RULE,
    UNDERUTILISED,
    OperatorPoint,
    Rooflines,
    by_operator,
)
from lockstep.diagnosis.roofline.formulas import ELEMENTWISE
from lockstep.diagnosis.roofline.roofline_limits import FINDINGS, OPERATOR_SHARE, UTILISATION

_SHAPES_CHARS = 120
_TERA = 1e12


def judge_rooflines(rooflines: Rooflines | NotJudged, rank: int) -> list[Finding] | NotJudged:
    """Return a finding for each operator with a worthwhile share of the device's compute time, longest first.

    Memory and compute bound operators are findings too: their remedies are others (fusion, quantisation, frequency).
    `lost_ns` is what an underutilised operator would give back at the threshold; a bound one gives nothing back by
    itself.
    """
    if isinstance(rooflines, NotJudged):
        return rooflines
    if not any(point.verdict for point in rooflines.points):
        return NotJudged(rule=RULE, reason=_why_not(rooflines))
    worth = [
        point
        for point in by_operator(rooflines.points)
        if point.verdict and point.device_ns >= OPERATOR_SHARE.value * rooflines.device_ns
    ]
    return [_finding(point, rooflines, rank) for point in worth[: int(FINDINGS.value)]]


def _why_not(rooflines: Rooflines) -> str:
    if rooflines.points:
        return f"no vendor's peaks are known for the device {rooflines.device!r} in the formats of its operators"
    parts = sorted(rooflines.unjudged_ns.items(), key=lambda each: -each[1])
    return "; ".join(f"{ns / rooflines.device_ns:.0%} of the device's compute time: {why}" for why, ns in parts)


def _finding(point: OperatorPoint, rooflines: Rooflines, rank: int) -> Finding:
    roof = point.roof
    assert roof is not None  # a verdict has its roof
    share = point.device_ns / rooflines.device_ns
    flops, moved = point.flops_per_second, point.bytes_per_second
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
            (
                f"it reaches {flops / _TERA:.1f} of {roof.flops_per_second / _TERA:.1f} TFLOP/s "
                f"({flops / roof.flops_per_second:.0%}) and {moved / _TERA:.2f} of "
                f"{roof.bytes_per_second / _TERA:.2f} TB/s ({moved / roof.bytes_per_second:.0%}) of {roof.device}; "
                f"the threshold is {UTILISATION.value:.0%}"
            ),
            (
                f"its intensity is {point.intensity:.1f} FLOP per byte, the device's ridge {roof.ridge:.1f}: "
                f"{_SENTENCES[point.verdict]}"
            ),
            f"longest shapes: {point.shapes[:_SHAPES_CHARS]}",
        ),
        lost_ns=max(int(point.device_ns - best_ns), 0) if point.verdict == UNDERUTILISED else None,
        confidence=MEDIUM if point.kind == ELEMENTWISE else HIGH,
        context=(f"{point.kind} in {point.number_format}",),
    )


_SENTENCES = {
    MEMORY_BOUND: "the memory holds it",
    COMPUTE_BOUND: "arithmetic holds it",
    UNDERUTILISED: "neither line holds it",
}
