"""Scatter plots with lines and point labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lockstep.html.markup import Html, tag
from lockstep.html.scales import Axis
from lockstep.html.svg import axis_across, axis_down, line, mark, picture, svg_text

HEIGHT = 300
"""Height of a plot in pixels; plots in a row of several use `SMALL`."""
SMALL = 130
_NARROW = 290.0  # pixels of a plot on a narrow screen: labels that do not touch there never touch
_SIDES = ((10, 4, "start"), (-10, 4, "end"), (0, -10, "middle"), (0, 18, "middle"))
_WIDTH, _TALL = 16.0, 13.0  # size of a two-digit number in pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point at (x, y) in values of the axes; `label` is short or empty."""

    x: float
    y: float
    kind: str
    title: str
    label: str = ""
    is_flagged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through `places`, points in values of the axes."""

    places: tuple[tuple[float, float], ...]
    kind: str
    title: str = ""


def scatter(
    points: Sequence[Point],
    across: Axis,
    down: Axis,
    description: str,
    *,
    lines: Sequence[Line] = (),
    height: int = HEIGHT,
) -> Html:
    """Return the picture; flagged points are drawn last, on top of the others.

    A label that would touch an earlier one on a narrow screen is moved around its point; if there is no room, it is
    omitted, and only the tooltip has the name.
    """
    shapes = [*axis_across(across, height), *axis_down(down, height)]
    for each in lines:
        ends = [(across.at(x), height * (1 - down.at(y))) for x, y in each.places]
        shapes += [line(start, end, kind=each.kind, title=each.title) for start, end in pairwise(ends)]
    for point in sorted(points, key=lambda point: point.is_flagged):
        at = across.at(point.x), height * (1 - down.at(point.y))
        shapes.append(mark(*at, kind=point.kind, title=point.title, is_flagged=point.is_flagged))
    shapes += _labels(points, across, down, height)
    drawn = picture(height, description, *shapes)
    if height < HEIGHT:
        return drawn
    return Html(tag("p", down.title, " (up), ", across.title, " (right)", class_="soft axes") + drawn)


def _labels(points: Sequence[Point], across: Axis, down: Axis, height: int) -> list[Html]:
    marks = [(across.at(each.x) * _NARROW, height * (1 - down.at(each.y))) for each in points]
    taken: list[tuple[float, float]] = []
    shapes = []
    for each, (x, y) in zip(points, marks, strict=True):
        if not each.label:
            continue
        for right, below, anchor in _SIDES:
            middle = x + right * 1.8, y + below - 4
            if 0 < middle[0] < _NARROW and not _touches(middle, taken) and not _covers(middle, marks):
                taken.append(middle)
                shapes.append(
                    svg_text(each.label, across.at(each.x), y + below, anchor=anchor, right=right, kind="ink")
                )
                break
    return shapes


def _touches(middle: tuple[float, float], taken: list[tuple[float, float]]) -> bool:
    return any(abs(middle[0] - x) < _WIDTH and abs(middle[1] - y) < _TALL for x, y in taken)


def _covers(middle: tuple[float, float], marks: list[tuple[float, float]]) -> bool:
    return any(abs(middle[0] - x) < _WIDTH - 4 and abs(middle[1] - y) < _TALL - 2 for x, y in marks)
