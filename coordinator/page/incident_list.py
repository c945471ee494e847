"""The page at `/incidents`: open and closed incidents of all runs, searchable and sortable. Pure."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from coordinator.decide.incidents import CLOSED
from coordinator.page.cards import title_of
from coordinator.page.layout import bar, document, format_seconds, link, live, moment_ns, search_bar, sorted_table
from lockstep.html.markup import Html, muted, tag

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import Snapshot

SHOWN_MAX = 300
"""Incidents shown: the open ones first, then the newest. The API lists more."""
_NS = 1e-9


def render_incidents(incidents: "list[Incident]", snapshot: "Snapshot", config: "CoordinatorConfig") -> str:
    """Return the document; every text in it is escaped."""
    ordered = sorted(incidents, key=lambda each: (each.state == CLOSED, -each.opened_unix_ns, each.id))
    left = len(ordered) - SHOWN_MAX
    more = muted(f"{left} more: see /api/v1/incidents.") if left > 0 else Html()
    body = sorted_table([_cells(each) for each in ordered[:SHOWN_MAX]]) if ordered else muted("No incident yet.")
    return document(
        "Incidents - Lockstep",
        bar(snapshot, config, crumb="incidents"),
        (search_bar("run, rank, cause, function"), live("incidents", "Incidents", body, more)),
        scripts=("table.js",),
    )


def _cells(incident: "Incident") -> list[tuple[str, str, str | None]]:
    """Return name, text and sort key of each column; without a key, the text is the key."""
    closed_ns = incident.closed_unix_ns
    lasted_s = None if closed_ns is None else (closed_ns - incident.opened_unix_ns) * _NS
    return [
        ("incident", link(f"/incidents/{quote(incident.id, safe='')}", title_of(incident)), None),
        ("run", link(f"/runs/{quote(incident.run, safe='')}", incident.run), None),
        ("state", tag("span", incident.state, class_="badge"), None),
        ("cause", (incident.root_cause or incident.cause).replace("_", " "), None),
        ("function", incident.function or "-", None),
        ("opened", moment_ns(incident.opened_unix_ns), str(incident.opened_unix_ns // 1_000_000)),
        (
            "lasted",
            "open" if lasted_s is None else format_seconds(lasted_s),
            f"{1e12 if lasted_s is None else lasted_s:.6g}",
        ),
        (
            "lost",
            format_seconds(incident.lost_device_seconds or None),
            f"{incident.lost_device_seconds:.6g}",
        ),
    ]
