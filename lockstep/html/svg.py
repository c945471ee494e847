"""SVG shapes: horizontal positions in percent of the width, vertical ones in pixels.

A picture can therefore have any width, while its text keeps the size of the page's text. Every mark has a `<title>`,
which browsers show as a tooltip and screen readers read aloud.
"""

from collections.abc import Iterable

from lockstep.html.markup import Html, tag
from lockstep.html.scales import Axis

_TICK_BELOW = 16
_TITLE_BELOW = 33
_MARK_RADIUS_PX = 5


def percent(ratio: float) -> str:
    """Return a horizontal position in percent, precise enough that parts of a bar add up to a thousandth of a pixel."""
    return f"{ratio * 100:.5f}%"


def picture(height: int, description: str, *shapes: str, class_: str = "plot") -> Html:
    """Return a picture `height` pixels high; `description` is its accessible name."""
    drawn = tag("svg", *shapes, role="img", aria_label=description, height=height)
    return tag("div", drawn, class_=class_)


def box(left: float, top: int, width: float, height: int, *, kind: str, title: str = "") -> Html:
    """Return a rectangle with `left` and `width` as shares of the picture."""
    titles = [tag("title", title)] if title else []
    return tag("rect", *titles, x=percent(left), y=top, width=percent(width), height=height, class_=kind)


def line(start: tuple[float, float], end: tuple[float, float], *, kind: str, title: str = "") -> Html:
    """Return a line between two points (share of the width, pixels from the top)."""
    titles = [tag("title", title)] if title else []
    return tag("line", *titles, x1=percent(start[0]), y1=start[1], x2=percent(end[0]), y2=end[1], class_=kind)


def svg_text(text: str, across: float, down: float, *, anchor: str = "start", right: int = 0, kind: str = "") -> Html:
    """Return a text, shifted by `right` pixels from its position."""
    return tag("text", text, x=percent(across), y=down, dx=right or None, text_anchor=anchor, class_=kind or None)


def mark(across: float, down: float, *, kind: str, title: str, is_flagged: bool) -> Html:
    """Return a point: a circle, or if it is flagged, a diamond in the warning colour."""
    titles = tag("title", title)
    if not is_flagged:
        return tag("circle", titles, cx=percent(across), cy=down, r=_MARK_RADIUS_PX, class_=f"mark {kind}")
    shape = tag("path", titles, d="M0-8L8 0L0 8L-8 0Z", class_="mark flagged")
    return tag("svg", shape, x=percent(across), y=down, width=1, height=1, overflow="visible")


def sample(kind: str, *, is_line: bool = False, is_flagged: bool = False) -> Html:
    """Return a sample shape for a legend."""
    if is_line:
        shape = tag("line", x1=0, y1=6, x2=18, y2=6, class_=kind)
    elif is_flagged:
        shape = tag("path", d="M9-1L16 6L9 13L2 6Z", class_="mark flagged")
    else:
        shape = tag("rect", x=2, y=0, width=12, height=12, class_=kind)
    return tag("svg", shape, aria_hidden="true")


def legend(entries: Iterable[tuple[Html, str]]) -> Html:
    """Return a legend: samples with their meanings."""
    return tag("ul", *(tag("li", shape, meaning) for shape, meaning in entries), class_="legend")


def axis_across(axis: Axis, height: int) -> list[Html]:
    """Return grid lines, ticks and title of the horizontal axis below a plot."""
    shapes = []
    for value, text in axis.ticks:
        at = axis.at(value)
        shapes.append(line((at, 0), (at, height), kind="grid"))
        shapes.append(svg_text(text, at, height + _TICK_BELOW, anchor="middle"))
    shapes.append(line((0, height), (1, height), kind="edge"))
    return [*shapes, svg_text(axis.title, 0.5, height + _TITLE_BELOW, anchor="middle")]


def axis_down(axis: Axis, height: int) -> list[Html]:
    """Return grid lines and ticks of the vertical axis left of a plot; its title is shown above the plot."""
    shapes = []
    for value, text in axis.ticks:
        down = height * (1 - axis.at(value))
        shapes.append(line((0, down), (1, down), kind="grid"))
        shapes.append(svg_text(text, 0, down + 4, anchor="end", right=-6))
    return [*shapes, line((0, 0), (0, height), kind="edge")]
