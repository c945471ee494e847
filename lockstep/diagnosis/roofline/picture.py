"""The classic roofline as a report draws it (Hermes, figure 6): points, two solid lines, two dashed ones."""

from dataclasses import dataclass

from lockstep.diagnosis.roofline.classic import Rooflines, by_operator
from lockstep.diagnosis.roofline.devices import Roof
from lockstep.diagnosis.roofline.roofline_limits import UTILISATION


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """One operator: x in FLOP per byte, y in FLOP/s, `share` of the device's compute time; `verdict` may be empty."""

    label: str
    number_format: str
    intensity: float
    flops_per_second: float
    share: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineLine:
    """A polyline of (FLOP per byte, FLOP/s) for logarithmic axes; `dashed` marks the thresholds."""

    number_format: str
    dashed: bool
    corners: tuple[tuple[float, float], ...]


def points(rooflines: Rooflines) -> list[RooflinePoint]:
    """Return one point for each operator, format and verdict, longest first; copies (no FLOP) have no place on it."""
    return [
        RooflinePoint(
            label=point.operator,
            number_format=point.roof.number_format if point.roof else point.number_format,
            intensity=point.intensity,
            flops_per_second=point.flops_per_second,
            share=point.device_ns / rooflines.device_ns,
            verdict=point.verdict,
        )
        for point in by_operator(rooflines.points)
        if point.flops
    ]


def lines(rooflines: Rooflines, *, lowest: float = 0.01, highest: float = 10_000.0) -> list[RooflineLine]:
    """Return the roofs of the formats that have points, from the intensity `lowest` to `highest`."""
    roofs = {point.roof.number_format: point.roof for point in rooflines.points if point.roof is not None}
    return [
        RooflineLine(number_format=name, dashed=scale < 1, corners=_corners(roof, scale, lowest, highest))
        for name, roof in sorted(roofs.items())
        for scale in (1.0, UTILISATION.value)
    ]


def _corners(roof: Roof, scale: float, lowest: float, highest: float) -> tuple[tuple[float, float], ...]:
    top = roof.flops_per_second * scale
    return ((lowest, lowest * roof.bytes_per_second * scale), (roof.ridge, top), (max(highest, roof.ridge), top))
