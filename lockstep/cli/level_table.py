"""What an exporter at level minimal leaves out, and which panels and runbooks ask for it."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from alerts import rules
from dashboards import catalogue
from dashboards.builders import every_panel
from lockstep.contracts.metrics import CATALOGUE


def rows() -> Sequence[tuple[str, str, str]]:
    """Return (family, panels, runbooks) for the page."""
    details = [metric.name for metric in CATALOGUE if metric.detail]
    panels = [(name, panel) for name, panel in _panels() if _names(panel) & set(details)]
    return [(f"`{name}`", _shown(name, panels, set(details)), _runbooks(name)) for name in details]


def _panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for text in catalogue.render().values():
        board = json.loads(text)
        title = board["title"].rpartition(" / ")[2]
        yield from ((f"{title}: {panel['title']}", panel) for panel in every_panel(board) if panel.get("targets"))


def _names(panel: dict[str, Any]) -> set[str]:
    """Return the families that a panel's queries name."""
    return {name for target in panel["targets"] for name in _families(target["expr"])}


def _families(text: str) -> set[str]:
    return set(re.findall(r"\blockstep_\w+", re.sub(r"_bucket\b", "", text)))


def _shown(name: str, panels: Sequence[tuple[str, dict[str, Any]]], details: set[str]) -> str:
    found = []
    for title, panel in panels:
        if name in _names(panel):
            is_all = all(_families(target["expr"]) & details for target in panel["targets"])
            found.append(title if is_all else f"{title} (in part)")
    return ", ".join(found) or "none"


def _runbooks(name: str) -> str:
    pages = [page for page in sorted(rules.RUNBOOKS.glob("*.md")) if name in _families(page.read_text())]
    return ", ".join(f"[{page.stem}](../alerts/runbooks/{page.name})" for page in pages) or "none"
