"""What an exporter exports at each level, and which panels and runbooks need what a level omits."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from alerts import rules
from dashboards import catalogue
from dashboards.builders import every_panel
from dashboards.levels import families_of, level_of
from lockstep.contracts.metric import LEVELS, Form, Level, Metric
from lockstep.contracts.metrics import CATALOGUE

HEADINGS = ("family", *LEVELS[:-1], "panels by the level that they need", "runbooks")


def rows() -> Sequence[tuple[str, ...]]:
    """Return (family, its form at each level but the last, panels, runbooks) for the page.

    Covers the exporter's families that some level omits or exports in another form.
    """
    panels = list(_panels())
    return [
        (
            f"`{metric.name}`",
            *(_form(metric, level) for level in LEVELS[:-1]),
            _shown(metric, panels),
            _runbooks(metric),
        )
        for metric in CATALOGUE
        if metric.source != "coordinator" and any(not _is_whole(metric, level) for level in LEVELS)
    ]


def _is_whole(metric: Metric, level: Level) -> bool:
    return metric.form(level) == "whole" and metric.values_at(level) == metric.values


def _form(metric: Metric, level: Level) -> str:
    if metric.form(level) == "whole" and metric.full_values:
        return f"without {', '.join(metric.full_values)}" if level != LEVELS[-1] else "yes"
    forms: dict[Form, str] = {
        "whole": "yes",
        "absent": "-",
        "node": {"sum": "sum of a node", "min": "minimum of a node", "max": "maximum of a node"}.get(metric.below, ""),
        "zeros": "where it is 0",
    }
    return forms[metric.form(level)]


def _panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for text in catalogue.render().values():
        board = json.loads(text)
        title = board["title"].rpartition(" / ")[2]
        yield from ((f"{title}: {panel['title']}", panel) for panel in every_panel(board) if panel.get("targets"))


def _shown(metric: Metric, panels: Sequence[tuple[str, dict[str, Any]]]) -> str:
    found = []
    for title, panel in panels:
        levels = {level_of(t["expr"]) for t in panel["targets"] if metric.name in families_of(t["expr"])}
        level = max(levels, key=LEVELS.index, default=LEVELS[0])
        if level != LEVELS[0]:
            found.append(f"{title} ({level})")
    return ", ".join(found) or "none"


def _runbooks(metric: Metric) -> str:
    pages = [page for page in sorted(rules.RUNBOOKS.glob("*.md")) if metric.name in families_of(page.read_text())]
    return ", ".join(f"[{page.stem}](../alerts/runbooks/{page.name})" for page in pages) or "none"
