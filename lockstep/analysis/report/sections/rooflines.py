"""What operators reach of what the device can do: the classic roofline, and what holds operators by component."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.analysis.report import reading
from lockstep.analysis.report.parts import Rank
from lockstep.analysis.report.view import ReportView
from lockstep.diagnosis.roofline.roofline_limits import UTILISATION
from lockstep.html.bars import Stack, stacked
from lockstep.html.markup import Html, cell, code, cut, folded, left_out, muted, section, table, tag
from lockstep.html.scales import decades, shares
from lockstep.html.scatter import Line, Point, scatter
from lockstep.html.svg import legend, sample
from lockstep.html.units import counted, format_ns, format_number, format_rate, format_share

NAME, TITLE = "rooflines", "Rooflines"
DEVICES_MAX = 4
POINTS_MAX = 40
_RANKS = 2
_DASHES = 4
_BOUNDS = {"memory_bound": "memory", "compute_bound": "compute", "underutilised": "communication"}
_HELD = {
    "compute_bound": "compute",
    "mte_bound": "memory",
    "insufficient_parallelism": "communication",
    "inefficient_compute": "host",
    "inefficient_mte": "overlap",
    "undecided": "free",
}
"""Colours; of what is underutilised, that of a warning."""


@dataclass(frozen=True, slots=True)
class _Roof:
    name: str
    flops_per_second: float
    bytes_per_second: float

    @property
    def ridge(self) -> float:
        return self.flops_per_second / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class _Operator:
    rank: Rank
    name: str
    intensity: float
    flops_per_second: float
    bytes_per_second: float | None
    time_ns: int
    bound: str


def rooflines(view: ReportView) -> Html:
    """Return a picture for each device, and the component roofline where the vendor counts components."""
    by_device: dict[str, list[Rank]] = defaultdict(list)
    for rank in view.summary.ranks:
        if reading.records(rank.roofline.get("points")):
            by_device[reading.text(rank.roofline.get("device")) or "unnamed device"].append(rank)
    drawn = [part for device, ranks in list(by_device.items())[:DEVICES_MAX] if (part := _device(device, ranks, view))]
    components = _components(view)
    if not drawn and not components:
        return left_out(
            NAME, TITLE, "No operator has a known amount of work (shapes recorded, a formula, device time)."
        )
    more = f"{DEVICES_MAX} of {len(by_device)} kinds of device are shown." if len(by_device) > DEVICES_MAX else ""
    note = (
        "An operator on a roof does what the device can. Below the dashed line (",
        format_share(UTILISATION.value),
        " of the roof) neither memory nor arithmetic is used up. ",
        more,
    )
    return section(
        NAME,
        TITLE,
        *([muted(*note)] if drawn else [muted("No operator has a known amount of work.")]),
        *drawn,
        *components,
    )


def _device(device: str, ranks: list[Rank], view: ReportView) -> Html | None:
    shown = view.focus(ranks, _RANKS)
    operators = [each for rank in shown for each in _operators(rank)[:POINTS_MAX]]
    if not operators:
        return None
    operators.sort(key=lambda each: -each.time_ns)
    roofs = _roofs(shown)
    numbered = {name: at for at, name in enumerate(dict.fromkeys(each.name for each in operators), start=1)}
    longest = {each.name: each for each in reversed(operators)}
    points = [_point(numbered[each.name], each, view, is_numbered=each is longest[each.name]) for each in operators]
    corners = [roof.ridge for roof in roofs]
    across = decades("FLOP per byte", [*(each.x for each in points), *corners])
    down = decades(
        "FLOP/s", [*(each.y for each in points), *(roof.flops_per_second for roof in roofs)], has_prefix=True
    )
    lines = [line for at, roof in enumerate(roofs) for line in _lines(at, roof, across.low, across.high, down.low)]
    whose = " and ".join(rank.label for rank in shown)
    of = f"Operators of {whose}, of {counted(len(ranks), 'rank')}"
    return tag(
        "figure",
        tag("h3", device),
        tag("figcaption", of, "; numbers are those of the table."),
        _legend(roofs, points),
        scatter(points, across, down, f"roofline of {device}", lines=lines),
        folded("Figures", _figures(operators, numbered)),
    )


def _operators(rank: Rank) -> list[_Operator]:
    found = []
    for each in reading.records(rank.roofline.get("points")):
        intensity, achieved = reading.rate(each.get("intensity")), reading.rate(each.get("flops_per_second"))
        if intensity is None or achieved is None:
            continue
        found.append(
            _Operator(
                rank,
                reading.text(each.get("name")),
                intensity,
                achieved,
                reading.rate(each.get("bytes_per_second")),
                reading.nanoseconds(each.get("time_ns")) or 0,
                reading.text(each.get("bound")),
            )
        )
    return sorted(found, key=lambda each: -each.time_ns)


def _roofs(ranks: Sequence[Rank]) -> list[_Roof]:
    """Return the roofs by number format; a device with one roof has none."""
    found: dict[str, _Roof] = {}
    for rank in ranks:
        stored = reading.record(rank.roofline.get("roofs"))
        rows = {"": stored} if "flops_per_second" in stored else stored
        for name, row in rows.items():
            flops, moved = (
                reading.rate(reading.record(row).get(key)) for key in ("flops_per_second", "bytes_per_second")
            )
            if flops and moved:
                found.setdefault(name, _Roof(cut(name, 40), flops, moved))
    return sorted(found.values(), key=lambda roof: -roof.flops_per_second)[:_DASHES]


def _lines(at: int, roof: _Roof, low: float, high: float, bottom: float) -> list[Line]:
    """Return the roof from the left or the lower edge, whichever it leaves first, and its threshold."""
    lines = []
    for scale, kind in ((1.0, f"roof dash{at}"), (UTILISATION.value, "limit")):
        top, slope = roof.flops_per_second * scale, roof.bytes_per_second * scale
        left = max(low, bottom / slope)
        title = f"{_roof_title(roof)}, {scale:.0%}"
        lines.append(
            Line(places=((left, left * slope), (roof.ridge, top), (max(high, roof.ridge), top)), kind=kind, title=title)
        )
    return lines


def _roof_title(roof: _Roof) -> str:
    peak = f"{format_rate(roof.flops_per_second, 'FLOP/s')}, {format_rate(roof.bytes_per_second, 'B/s')}"
    return f"roof of {roof.name}: {peak}" if roof.name else f"roof: {peak}"


def _point(at: int, operator: _Operator, view: ReportView, *, is_numbered: bool) -> Point:
    title = (
        f"{at}. {cut(operator.name)}, {operator.rank.title}: {format_number(operator.intensity)} FLOP per byte, "
        f"{format_rate(operator.flops_per_second, 'FLOP/s')}, {format_ns(operator.time_ns)}, "
        f"{operator.bound.replace('_', ' ') or 'not evaluated'}"
    )
    return Point(
        x=operator.intensity,
        y=operator.flops_per_second,
        kind=_BOUNDS.get(operator.bound, "other"),
        title=title,
        label=str(at) if is_numbered and at <= 99 else "",  # noqa: PLR2004  (two digits have room next to a mark)
        is_flagged=operator.rank.number in view.first,
    )


def _legend(roofs: Sequence[_Roof], points: Sequence[Point]) -> Html:
    used = {each.kind for each in points if not each.is_flagged}
    entries = [(sample(f"roof dash{at}", is_line=True), _roof_title(roof)) for at, roof in enumerate(roofs)]
    entries += [(sample(kind), name.replace("_", " ")) for name, kind in _BOUNDS.items() if kind in used]
    entries += [(sample("other"), "not evaluated")] if "other" in used else []
    if any(each.is_flagged for each in points):
        entries.append((sample("", is_flagged=True), "a rank of the headline"))
    return legend(entries)


def _figures(operators: Sequence[_Operator], numbered: Mapping[str, int]) -> Html:
    heads = ("no.", "operator", "rank", "time", "FLOP per byte", "FLOP/s", "bytes/s", "verdict")
    rows = [
        (
            cell(str(numbered[each.name]), value=numbered[each.name]),
            code(each.name),
            cell(str(each.rank.number), value=each.rank.number),
            cell(format_ns(each.time_ns), value=each.time_ns),
            cell(format_number(each.intensity), value=each.intensity),
            cell(format_rate(each.flops_per_second, "FLOP/s"), value=each.flops_per_second),
            cell(format_rate(each.bytes_per_second, "B/s"), value=each.bytes_per_second, is_number=True),
            each.bound.replace("_", " ") or "not evaluated",
        )
        for each in operators
    ]
    return table(heads, rows)


def _components(view: ReportView) -> list[Html]:
    """Return the share of the kernels' time by what holds them (ASPLOS 2025, figure 13a)."""
    held = [(rank, shares_) for rank in view.summary.ranks if (shares_ := _held(rank.components))]
    if not held:
        return []
    by_number = {rank.number: shares_ for rank, shares_ in held}
    shown = view.focus([rank for rank, _ in held], 16)
    stacks = [
        Stack(
            label=rank.label,
            title=rank.title,
            parts=[(_HELD.get(name, "other"), ratio) for name, ratio in by_number[rank.number]],
            total="",
            is_named=rank.number in view.first,
        )
        for rank in shown
    ]
    used = {name for shares_ in by_number.values() for name, _ in shares_}
    entries = [(sample(kind), name.replace("_", " ")) for name, kind in _HELD.items() if name in used]
    widest = max(math.fsum(ratio for _, ratio in each.parts) for each in stacks)
    return [
        tag("h3", "Components"),
        muted(f"Kernels' time by what holds them, {len(shown)} of {counted(len(held), 'rank')} with counters."),
        tag(
            "figure",
            legend(entries),
            stacked(stacks, shares("share of the kernels' time", widest), "components", in_ns=False),
        ),
    ]


def _held(stored: Any) -> list[tuple[str, float]]:
    """Return the shares by bound, given as an object or as rows."""
    if isinstance(stored, dict):
        pairs = [(name, reading.share(ratio)) for name, ratio in stored.items()]
    else:
        pairs = [
            (reading.text(each.get("bound")), reading.share(each.get("share"))) for each in reading.records(stored)
        ]
    order = [*_HELD]
    known = [(name, ratio) for name, ratio in pairs if name in _HELD and ratio]
    return sorted(known, key=lambda pair: order.index(pair[0]))
