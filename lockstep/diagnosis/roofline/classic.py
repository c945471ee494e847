"""The classic roofline of every operator with a known formula (Hermes, appendix B, equation 3).

Arithmetic intensity AI = FLOPs / bytes, achieved FLOP/s and bytes/s are those over the operator's time on the device:

    memory bound     AI <= P_peak / B_peak and B >= U_th B_peak
    compute bound    AI >  P_peak / B_peak and P >= U_th P_peak
    underutilised    otherwise
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.roofline.convolutions import convolution_outputs
from lockstep.diagnosis.roofline.devices import Roof, roof_of
from lockstep.diagnosis.roofline.formulas import has_formula, work_of
from lockstep.diagnosis.roofline.kernel_use import UNKNOWN_USE, KernelUse
from lockstep.diagnosis.roofline.launches import launched_groups
from lockstep.diagnosis.roofline.operands import parse_operands
from lockstep.diagnosis.roofline.roofline_limits import PLAUSIBLE, UTILISATION
from lockstep.trace.columns import ABSENT, TraceColumns

RULE = "classic roofline"
MEMORY_BOUND, COMPUTE_BOUND, UNDERUTILISED = ("memory_bound", "compute_bound", "underutilised")

NO_OPERATOR = "kernels whose operator the trace does not record"
NO_SHAPES = "operators without recorded shapes"
NO_FORMULA = "operators without a formula"
UNFIT_SHAPES = "operators whose shapes do not fit their formula, or lack a scalar that it needs"
IMPLAUSIBLE = "operators that seem to pass the device's peak: served by a cache, counted wrong or cut off"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """Calls of one operator with one set of shapes, or with several sets merged (`by_operator`).

    `flops` and `moved_bytes` are totals over `calls`, `device_ns` is the time of their kernels, `use` how these use the
    device. `verdict` is one of VERDICTS, empty if the device's roof is unknown.
    """

    operator: str
    kind: str
    number_format: str
    shapes: str
    calls: int
    device_ns: int
    flops: int
    moved_bytes: int
    use: KernelUse = UNKNOWN_USE
    roof: Roof | None = None
    verdict: str = ""

    @property
    def intensity(self) -> float:
        """Return AI in FLOP per byte."""
        return self.flops / self.moved_bytes

    @property
    def is_on_tensor_cores(self) -> bool:
        """Whether most of its kernels' time is on tensor cores, by their names."""
        return self.use.tensor_ns > self.device_ns / 2

    @property
    def flops_per_second(self) -> float:
        """Return P_actual."""
        return self.flops / self.device_ns * 1e9

    @property
    def bytes_per_second(self) -> float:
        """Return B_actual."""
        return self.moved_bytes / self.device_ns * 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooflines:
    """Points of one rank, longest first. `excluded_ns` is device time by the reason why it has no point."""

    device: str
    points: tuple[OperatorPoint, ...]
    device_ns: int
    excluded_ns: Mapping[str, int] = field(default_factory=dict)


def classify(point: OperatorPoint, roof: Roof, utilisation: float) -> str:
    """Return the verdict of equation 3."""
    if point.intensity <= roof.ridge:
        return MEMORY_BOUND if point.bytes_per_second >= utilisation * roof.bytes_per_second else UNDERUTILISED
    return COMPUTE_BOUND if point.flops_per_second >= utilisation * roof.flops_per_second else UNDERUTILISED


def operator_rooflines(
    columns: TraceColumns, *, device: str = "", utilisation: float = UTILISATION.value
) -> Rooflines | NotEvaluated:
    """Return the roofline point of every operator whose work is known.

    `device` overrides the name in the trace. For an unknown device the points have achieved rates but no verdict.
    """
    groups = launched_groups(columns)
    if not groups.total_ns:
        return NotEvaluated(rule=RULE, reason="the trace has no compute kernel on a device")
    device = device or (columns.metadata.devices[0] if columns.metadata.devices else "")
    excluded: dict[str, int] = defaultdict(int)
    if groups.unattributed_ns:
        excluded[NO_OPERATOR] = groups.unattributed_ns
    outputs = convolution_outputs(columns)
    points = []
    rows = zip(
        groups.name.tolist(), groups.shapes.tolist(), groups.calls.tolist(), groups.device_ns.tolist(), strict=True
    )
    for (name, shapes, calls, device_ns), use in zip(rows, groups.use, strict=True):
        text = "" if shapes == ABSENT else columns.shape_texts[shapes]
        point = _point(columns.names[name], text, outputs.get((name, shapes)), (calls, device_ns))
        point = point if isinstance(point, str) else _classified(replace(point, use=use), device, utilisation)
        if isinstance(point, str):
            excluded[point] += device_ns
        else:
            points.append(point)
    points.sort(key=lambda each: -each.device_ns)
    return Rooflines(device=device, points=tuple(points), device_ns=groups.total_ns, excluded_ns=dict(excluded))


def by_operator(points: Iterable[OperatorPoint]) -> list[OperatorPoint]:
    """Return one point for each operator, format, roof and verdict, longest first.

    `shapes` are those of the longest part. fp32 products that only tensor cores can reach have another roof than slower
    ones, and are not merged with them.
    """
    parts: dict[tuple[str, str, str, str], list[OperatorPoint]] = defaultdict(list)
    for point in points:
        roof = "" if point.roof is None else point.roof.number_format
        parts[point.operator, point.number_format, roof, point.verdict].append(point)
    joined = [
        replace(
            max(part, key=lambda each: each.device_ns),
            calls=sum(each.calls for each in part),
            device_ns=sum(each.device_ns for each in part),
            flops=sum(each.flops for each in part),
            moved_bytes=sum(each.moved_bytes for each in part),
            use=reduce(KernelUse.plus, (each.use for each in part)),
        )
        for part in parts.values()
    ]
    return sorted(joined, key=lambda each: -each.device_ns)


def _point(operator: str, shapes: str, output: tuple[int, ...] | None, spent: tuple[int, int]) -> OperatorPoint | str:
    """Return the point without its roof, or why there is none; `spent` is calls and their device time."""
    calls, device_ns = spent
    if not shapes:
        return NO_SHAPES
    if not has_formula(operator):
        return NO_FORMULA
    operands = parse_operands(shapes)
    work = None if operands is None else work_of(operator, replace(operands, output=output))
    if work is None or not device_ns:
        return UNFIT_SHAPES
    return OperatorPoint(
        operator=operator,
        kind=work.kind,
        number_format=work.number_format,
        shapes=shapes,
        calls=calls,
        device_ns=device_ns,
        flops=work.flops * calls,
        moved_bytes=work.moved_bytes * calls,
    )


def _classified(point: OperatorPoint, device: str, utilisation: float) -> OperatorPoint | str:
    roof = _roof_for(point, device)
    if roof is None:
        return point
    if roof.seconds(point.flops, point.moved_bytes) * 1e9 > PLAUSIBLE.value * point.device_ns:
        return IMPLAUSIBLE
    return replace(point, roof=roof, verdict=classify(point, roof, utilisation))


def _roof_for(point: OperatorPoint, device: str) -> Roof | None:
    """Return the roof of the point's format; fp32 products on tensor cores, by kernel name or speed, count as tf32.

    Formats without a figure (integers, fp64) have the memory line of any other: elementwise work reaches no other line.
    """
    roof = roof_of(device, point.number_format)
    faster = roof_of(device, "tf32") if point.number_format == "fp32" else None
    if (
        roof is not None
        and faster is not None
        and (point.flops_per_second > roof.flops_per_second or point.is_on_tensor_cores)
    ):
        return faster
    if roof is None and point.kind == "elementwise":
        return roof_of(device, "fp32") or roof_of(device, "fp16")
    return roof
