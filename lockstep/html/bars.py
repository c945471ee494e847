"""Bar charts: stacked bars, and a ranking."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.html.markup import Html, tag
from lockstep.html.scales import Axis
from lockstep.html.svg import axis_across, box, line, percent, picture, svg_text
from lockstep.html.units import format_ns, format_share

_ROW = 22
_BAR = 16
_MIDDLE = 13  # baseline of a text next to a bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stacked bar of `parts` (class, value); `label` is left of it, `total` right.

    `title` prefixes the parts' tooltips.
    """

    label: str
    title: str
    parts: Sequence[tuple[str, float]]
    total: str
    is_named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a ranking: `share` of the full width, with `label` above it on the left and `figure` on the right."""

    label: str
    figure: str
    share: float
    kind: str


def stacked(stacks: Sequence[Stack], axis: Axis, description: str, *, in_ns: bool = True) -> Html:
    """Return stacked bars; the tooltip of each part gives its share of its bar."""
    height = _ROW * len(stacks)
    shapes = axis_across(axis, height)
    for row, stack in enumerate(stacks):
        top = row * _ROW + (_ROW - _BAR) // 2
        middle = top + _MIDDLE
        kind = "named" if stack.is_named else "ink"
        shapes.append(svg_text(stack.label, 0, middle, anchor="end", right=-8, kind=kind))
        shapes += _parts(stack, axis, top, in_ns=in_ns)
        shapes.append(svg_text(stack.total, 1, middle, right=8))
    return tag("div", picture(height, description, *shapes), class_="rows")


def _parts(stack: Stack, axis: Axis, top: int, *, in_ns: bool) -> list[Html]:
    total = sum(value for _, value in stack.parts)
    shapes, left = [], 0.0
    for kind, value in stack.parts:
        if value <= 0:
            continue
        figure = f"{format_ns(value)}, {format_share(value / total)}" if in_ns else format_share(value)
        width = value / axis.high
        title = f"{stack.title}: {kind} {figure}"
        shapes.append(box(left, top, width, _BAR, kind=kind, title=title))
        left += width
    return shapes


def ranking(bars: Sequence[Bar], description: str, *, limit: float | None = None) -> Html:
    """Return a list of bars, each below its label; `limit` (share of the width) is drawn as a dashed line."""
    rows = []
    for bar in bars:
        shapes = [
            box(0, 0, 1, 10, kind="track"),
            box(0, 0, min(bar.share, 1.0), 10, kind=bar.kind),
        ]
        if limit is not None:
            shapes.append(line((limit, -2), (limit, 12), kind="limit"))
        drawn = tag("svg", *shapes, height=10, role="img", aria_label=percent(bar.share)[:-4] + "%")
        rows.append(tag("li", tag("div", bar.label, tag("span", bar.figure, class_="figure")), drawn))
    return tag("ul", *rows, class_="bars", aria_label=description)
