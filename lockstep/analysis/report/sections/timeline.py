"""Pictures of the traces themselves: a timeline that a script draws, and flame graphs that need none."""

import json
from typing import Any

from lockstep.analysis.pictures import FlameFrame, FlameGraph
from lockstep.analysis.report.view import ReportView
from lockstep.html.markup import Html, cut, join, left_out, muted, section, tag
from lockstep.html.svg import legend, percent, sample
from lockstep.html.units import format_ns, format_ranks
from lockstep.trace import names

_ROW_PX = 18
_KINDS = {
    names.PYTHON_KIND: "host",
    names.OPERATOR_KIND: "compute",
    names.DATA_KIND: "memory",
    names.COMMUNICATION_KIND: "communication",
    names.GC_KIND: "gap",
}
_KEYS = (("+", "zoom in"), ("-", "zoom out"), ("ArrowLeft", "left"), ("ArrowRight", "right"), ("0", "all"))
_NAMES_MAX = 120


def timeline(view: ReportView) -> Html:
    """Return the timeline of a few ranks: its data as JSON, the controls, and the canvas that the script draws on."""
    title = "Timeline"
    if view.pictures is None:
        return left_out("timeline", title, "It is drawn from the traces, which this report was made without.")
    data = view.pictures.timeline
    ranks = format_ranks(each["rank"] for each in data["ranks"])
    hidden = sum(lane["left_out"] for rank in data["ranks"] for lane in rank["lanes"])
    note = f" {hidden:,} short or deeply nested events are left out; --perfetto writes all of them." if hidden else ""
    how = "Drag to move, Ctrl and wheel or + and - to zoom, double-click a slice to fill the width with it."
    buttons = [tag("button", text, type="button", data_key=key) for key, text in _KEYS]
    canvas = tag("canvas", tabindex=0, role="img", aria_label=f"timeline of ranks {ranks}")
    return section(
        "timeline",
        title,
        muted(f"Ranks {ranks}, those that findings name first: host threads, then device streams. {how}{note}"),
        legend((sample(kind), kind) for kind in data["kinds"][1:]),
        tag("div", *buttons, class_="controls"),
        tag("p", class_="readout soft", aria_live="polite"),
        tag("div", canvas, class_="timeline"),
        tag("noscript", muted("The timeline needs JavaScript; everything else on this page does not.")),
        tag("script", _embedded(data), type="application/json", id="timeline-data"),
    )


def _embedded(data: dict[str, Any]) -> Html:
    """Return JSON that cannot end the element that it stands in, with its names cut."""
    shown = data | {"names": [cut(name, _NAMES_MAX) for name in data["names"]]}
    text = json.dumps(shown, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def flame(view: ReportView) -> Html:
    """Return the calls of the culprit's training thread above a peer's, on one scale."""
    title = "Culprit against a peer"
    graphs = view.pictures.flames if view.pictures is not None else ()
    if not graphs:
        return left_out("flame", title, "No finding names a rank whose calls are in a trace.")
    culprit = graphs[0]
    peer = f" above rank {graphs[1].rank}'s" if graphs[1:] else ", compared with no other rank"
    kinds = [(sample(kind), name) for name, kind in _KINDS.items()]
    return section(
        "flame",
        title,
        muted(
            f"Calls of rank {culprit.rank}'s training thread{peer}, callers above callees, widths on one scale. A red "
            "frame takes longer than the peer's, and most of that is in nothing that it calls."
        ),
        legend([*kinds, (sample("bad"), "longer than the peer's")]),
        *(tag("figure", tag("figcaption", _caption(graph)), _graph(graph)) for graph in graphs),
    )


def _caption(graph: FlameGraph) -> str:
    return f"rank {graph.rank}, window {format_ns(graph.window_ns)}"


def _graph(graph: FlameGraph) -> Html:
    depth = max((frame.depth for frame in graph.frames), default=0) + 1
    return tag("div", *map(_frame, graph.frames), class_="flame", style=f"height:{depth * _ROW_PX}px")


def _frame(frame: FlameFrame) -> Html:
    peer = "" if frame.peer_ns is None else f", {format_ns(frame.peer_ns)} on the other rank"
    place = f"left:{percent(frame.left)};width:{percent(frame.width)};top:{frame.depth * _ROW_PX}px"
    kind = "bad" if frame.is_culprit else _KINDS.get(frame.kind, "other")
    title = join([cut(frame.name), f": {format_ns(frame.total_ns)}{peer}"])
    return tag("span", cut(frame.name), class_=kind, style=place, title=title)


def place_link(view: ReportView, ranks: tuple[int, ...], subject: str) -> Html:
    """Return the link from a finding to its place in the timeline, nothing where it has none."""
    places = view.pictures.places if view.pictures is not None else frozenset()
    rank = next((each for each in ranks if (each, subject) in places), None)
    if rank is None:
        return Html()
    return tag("p", tag("a", f"show on rank {rank}'s timeline", href="#timeline", data_place=f"{rank}|{subject}"))
