"""Dashboards as one self-contained HTML page."""

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dashboards.preview.ask import TimeWindow, fill, narrowed
from dashboards.preview.panel import draw

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --back: #f6f8fa; --panel: #fff;
  --c0: #2f6fb7; --c1: #c8640f; --c2: #3d8a4a; --c3: #8256b8; --c4: #b3323f; --c5: #12808a; --c6: #96740a;
  --c7: #b0458f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #30363d; --back: #0d1117;
  --panel: #161b22; --c0: #6ea8fe; --c1: #ffa657; --c2: #7ee787; --c3: #d2a8ff; --c4: #ff7b72; --c5: #56d4dd; --c6:
  #e3b341; --c7: #f778ba; } }
body { font: 13px/1.4 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 1rem; }
a { color: inherit; }
h1 { font-size: 1.25rem; margin: 1.5rem 0 0; } p { margin: .2rem 0 .5rem; }
.soft, .none { color: var(--soft); } .bad { color: var(--c4); }
main { display: grid; grid-template-columns: repeat(24, minmax(0, 1fr)); gap: 6px; }
h2 { font-size: 1rem; margin: 4px 0 0; align-self: end; } h3 { font-size: .85rem; margin: 0 0 4px; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: 8px; min-width: 0;
  overflow-x: auto; }
svg { width: 100%; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .e { text-anchor: end; } svg .m { text-anchor: middle; } svg .g { stroke: var(--line); }
svg .l { fill: none; stroke-width: 1.6; } svg .dash { stroke-dasharray: 6 4; }
svg rect { shape-rendering: crispEdges; } small { color: var(--soft); white-space: normal; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: 2px 8px 2px 0;
  white-space: nowrap; border-bottom: 1px solid var(--line); } td.w { min-width: 6rem; }
th { color: var(--soft); font-weight: 600; }
td.n { font-variant-numeric: tabular-nums; } td.w { white-space: normal; overflow-wrap: anywhere; }
.legend { display: grid; column-gap: 24px; } .legend p { display: flex; gap: 6px; margin: 0; }
.legend span { flex: 1; overflow-wrap: anywhere; } .legend b { font-weight: 400; white-space: nowrap; }
.k { display: inline-block; width: 10px; height: 3px; margin-right: 6px; vertical-align: middle; }
.stat { font-size: 1.7rem; font-weight: 600; margin: .3rem 0; text-align: center; }
.stat.name { color: #fff; border-radius: 4px; padding: .2rem; }
.bar { display: grid; grid-template-columns: 9rem 1fr 5rem; gap: 6px; align-items: center; margin: 3px 0; }
.bar i { background: var(--c0); height: 12px; border-radius: 2px; } .bar b { text-align: right; font-weight: 600; }
"""


def render(boards: Sequence[dict[str, Any]], window: TimeWindow, chosen: Mapping[str, str]) -> str:
    """Return the page with one dashboard below the other.

    Raises
    ------
    OSError
        Prometheus does not answer.
    ValueError
        It refuses to look up the values of a variable, or the address is invalid.
    """
    links = " · ".join(f'<a href="#{board["uid"]}">{escape(_name(board))}</a>' for board in boards)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Lockstep, preview of dashboards</title><style>{_STYLE}</style></head><body>"
        f'<p class="soft">A preview, drawn by Lockstep from Prometheus; Grafana draws more. {links}</p>'
        f"{''.join(_board(board, window, chosen) for board in boards)}</body></html>"
    )


def _board(board: dict[str, Any], window: TimeWindow, chosen: Mapping[str, str]) -> str:
    values = fill(board, window, chosen)
    seen = narrowed(window, values)
    shown = (
        (name, "all" if value in (".+", ".*") else value) for name, value in values.items() if name != "coordinator"
    )
    variables = "".join(f" · {escape(name)}: <b>{escape(value)}</b>" for name, value in shown)
    shown_panels = _unfolded(board["panels"])
    tops = sorted({panel["gridPos"]["y"] for panel in shown_panels})
    panels = "".join(draw(panel, seen, values, tops) for panel in shown_panels)
    heading = f'<h1 id="{board["uid"]}">{escape(board["title"])}</h1>'
    heading_text = f"{escape(board['description'])} {_moment(seen.begin_s)} to {_moment(seen.end_s)} UTC{variables}"
    return f'{heading}<p class="soft">{heading_text}</p><main>{panels}</main>'


def _unfolded(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all panels from top to bottom; those of a folded row are drawn below it and move what follows down."""
    made: list[dict[str, Any]] = []
    pushed = 0
    for panel in panels:
        inside = panel.get("panels", ())
        made += [_pushed(each, pushed) for each in (panel, *inside)]
        bottom = max(
            (each["gridPos"]["y"] + each["gridPos"]["h"] for each in inside), default=panel["gridPos"]["y"] + 1
        )
        pushed += bottom - panel["gridPos"]["y"] - 1 if inside else 0
    return made


def _pushed(panel: dict[str, Any], rows: int) -> dict[str, Any]:
    return {**panel, "gridPos": {**panel["gridPos"], "y": panel["gridPos"]["y"] + rows}}


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))


def _name(board: Mapping[str, Any]) -> str:
    return str(board["title"]).removeprefix("Lockstep / ")
