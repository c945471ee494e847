"""A simulated step as an SVG picture: one strip for each queue of each class of ranks, time from left to right.

The file is self-contained and follows the reader's light or dark scheme. Spans narrower than a pixel are joined with
neighbours of the same colour, so that the file grows with the picture and not with the job.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.cli.simulation.chrome import title_of
from lockstep.html.markup import Html, cut, tag
from lockstep.html.scales import times
from lockstep.html.units import format_ns
from lockstep.simulator.step_timeline import BACKWARD_PASS, FORWARD_PASS, UPDATE, Lane, Row, Span

ROWS_MAX = 24
"""Classes drawn: more would be unreadable; the trace has all."""
_WIDTH = 1120
_LEFT = 250
_RIGHT = 40
_PLOT = _WIDTH - _LEFT - _RIGHT
_TOP = 76
_STRIP = 12
_STRIP_GAP = 2
_ROW_GAP = 12
_ROW_LEAST = 26
_BELOW = 52
_LEAST_PX = 0.7
_POINTED_PX = 4.0
_NS = 1e9
_TITLE_CHARS = 70
_LABEL_CHARS = 34
_LEGEND_PX = 156

_KINDS = {FORWARD_PASS: "forward", BACKWARD_PASS: "backward", UPDATE: "optimizer"}
"""Classes of the picture by the name of a computation; collectives are classified by their queue."""
_CAPTIONS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "feature": "blocking collective",
    "gradient": "gradient collective",
    "send": "send",
}
# The colours of the report's style sheet, distinguishable with any kind of colour vision.
_STYLE = """
svg { --ink: #1b1f24; --soft: #57606a; --grid: #e7ebef; --back: #fff; --forward: #0a3fb5; --backward: #3cb4ee;
  --optimizer: #a3439b; --feature: #dd6a10; --gradient: #2b8b5b; --send: #5a4233; background: var(--back); }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #9aa5b1; --grid: #1f252d; --back: #0d1117;
  --forward: #2aa3fa; --backward: #c4ecff; --optimizer: #cf9fc0; --feature: #eb9a10; --gradient: #2a8350;
  --send: #d9c7a8; } }
text { font: 12px system-ui, sans-serif; fill: var(--soft); } .ink { fill: var(--ink); }
.head { font-size: 15px; font-weight: 600; fill: var(--ink); }
.back { fill: var(--back); } .track { fill: var(--grid); } .grid { stroke: var(--grid); } .edge { stroke: var(--soft); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .optimizer { fill: var(--optimizer); }
.feature { fill: var(--feature); } .gradient { fill: var(--gradient); } .send { fill: var(--send); }
"""


def timeline_picture(rows: list[Row], step_s: float, name: str) -> str:
    """Return the picture of a step of `step_s` seconds; `name` is the job's."""
    shown = rows[:ROWS_MAX]
    shapes: list[Html] = []
    down = _TOP
    for row in shown:
        shapes += _row(row, down, step_s)
        down += _height(row) + _ROW_GAP
    grid = _grid(down, step_s)
    title = f"{cut(name, _TITLE_CHARS)}: one step of {format_ns(step_s * _NS)}"
    more = f"{len(rows) - ROWS_MAX} more classes of ranks are in the trace" if len(rows) > ROWS_MAX else ""
    height = down + _BELOW + (18 if more else 0)
    return tag(
        "svg",
        tag("title", title),
        Html(f"<style>{_STYLE}</style>"),
        tag("rect", width=_WIDTH, height=height, class_="back"),
        tag("text", title, x=16, y=28, class_="head"),
        *_legend(rows),
        *grid,
        *shapes,
        *([tag("text", more, x=16, y=height - 12)] if more else []),
        xmlns="http://www.w3.org/2000/svg",
        width=_WIDTH,
        height=height,
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=title,
    )


def _height(row: Row) -> int:
    return max(_ROW_LEAST, len(_filled(row)) * (_STRIP + _STRIP_GAP))


def _filled(row: Row) -> list[Lane]:
    return [lane for lane in row.lanes if lane.spans]


def _row(row: Row, down: int, step_s: float) -> Iterator[Html]:
    label = title_of(row)
    yield tag("text", tag("title", label), cut(label, _LABEL_CHARS), x=16, y=down + _STRIP - 1, class_="ink")
    for place, lane in enumerate(_filled(row)):
        top = down + place * (_STRIP + _STRIP_GAP)
        yield tag("rect", x=_LEFT, y=top, width=_PLOT, height=_STRIP, class_="track")
        yield from _strip(lane, top, step_s)


def _strip(lane: Lane, top: int, step_s: float) -> Iterator[Html]:
    """Yield the marks of a lane: spans wide enough to point at have their own, the rest form one path per colour."""
    narrow: dict[str, list[str]] = {}
    for mark in _joined(lane, _PLOT / step_s):
        if mark.right - mark.left >= _POINTED_PX:
            yield _box(mark, top)
        else:
            width = max(mark.right - mark.left, _LEAST_PX)
            shape = f"M{_LEFT + mark.left:.1f} {top}h{width:.1f}v{_STRIP}h-{width:.1f}z"
            narrow.setdefault(mark.kind, []).append(shape)
    for kind, shapes in narrow.items():
        yield tag("path", d=Html("".join(shapes)), class_=kind)


@dataclass(slots=True)
class _Mark:
    """A rectangle of one colour, in pixels from the left of the plot; `first` of `count` spans."""

    kind: str
    left: float
    right: float
    first: Span
    count: int = 1


def _joined(lane: Lane, scale: float) -> Iterator[_Mark]:
    """Yield marks; neighbours of one colour that would be too narrow to distinguish are joined."""
    mark: _Mark | None = None
    for span in lane.spans:
        kind = _KINDS.get(span.name, lane.queue)
        left, right = span.start_s * scale, span.end_s * scale
        if mark and kind == mark.kind and left - mark.right < _LEAST_PX and right - mark.left < 2 * _LEAST_PX:
            mark.right, mark.count = right, mark.count + 1
            continue
        if mark:
            yield mark
        mark = _Mark(kind, left, right, span)
    if mark:
        yield mark


def _box(mark: _Mark, top: int) -> Html:
    span = mark.first
    micro = f", micro-batch {span.micro_batch}" if span.micro_batch >= 0 else ""
    tooltip = f"{span.name}{micro}: {format_ns((span.end_s - span.start_s) * _NS)}"
    width = mark.right - mark.left
    return tag("rect", tag("title", tooltip), x=_LEFT + mark.left, y=top, width=width, height=_STRIP, class_=mark.kind)


def _legend(rows: list[Row]) -> Iterator[Html]:
    used = {_KINDS.get(span.name, lane.queue) for row in rows for lane in row.lanes for span in lane.spans[:_LEGEND_PX]}
    used |= {_KINDS[UPDATE]}
    for place, kind in enumerate(kind for kind in _CAPTIONS if kind in used):
        across = 16 + place * _LEGEND_PX
        yield tag("rect", x=across, y=44, width=12, height=12, class_=kind)
        yield tag("text", _CAPTIONS[kind], x=across + 18, y=54)


def _grid(down: int, step_s: float) -> Iterator[Html]:
    axis = times("time in the step", step_s * _NS)
    for value, text in axis.ticks:
        across = _LEFT + axis.at(value) * _PLOT
        yield tag("line", x1=across, y1=_TOP - 6, x2=across, y2=down, class_="grid")
        yield tag("text", text, x=across, y=down + 16, text_anchor="middle")
    yield tag("line", x1=_LEFT, y1=down, x2=_LEFT + _PLOT, y2=down, class_="edge")
    yield tag("text", axis.title, x=_LEFT + _PLOT / 2, y=down + 36, text_anchor="middle")
