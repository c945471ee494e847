"""The page at `/fleet`: nodes, devices and links that incidents named, those named most often recently first.

The table can be searched and sorted. Pure.
"""

from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from coordinator.fleet.history import RECENT_DAYS
from coordinator.page.layout import bar, document, link, live, moment, search_bar, sorted_table
from lockstep.html.markup import Html, join, muted

if TYPE_CHECKING:
    from coordinator.fleet.history import SubjectRecord
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import Snapshot

SHOWN_MAX = 200
_RUNS_SHOWN = 8


def render_fleet(records: "list[SubjectRecord]", snapshot: "Snapshot", config: "CoordinatorConfig") -> str:
    """Return the document; every text in it is escaped."""
    rows = [_cells(record) for record in records[:SHOWN_MAX]]
    more = muted(f"{len(records) - SHOWN_MAX} more: see /api/v1/fleet.") if len(records) > SHOWN_MAX else Html()
    body = sorted_table(rows) if rows else muted("No incident has named a node, a device or a link yet.")
    return document(
        "Fleet - Lockstep",
        bar(snapshot, config, crumb="fleet"),
        (search_bar("node, device, link, cause, run"), live("fleet", "Named by incidents", body, more)),
        scripts=("table.js",),
    )


def _cells(record: "SubjectRecord") -> list[tuple[str, str, str | None]]:
    """Return name, text and sort key of each column; without a key, the text is the key."""
    causes = Counter(f"{each.incident_kind} by {each.cause}".replace("_", " ") for each in record.sightings)
    last = record.sightings[0]
    when = link(f"/incidents/{quote(last.incident_id, safe='')}", "incident")
    runs = record.runs[:_RUNS_SHOWN]
    named = len(record.sightings)
    return [
        ("what", record.subject.kind, None),
        ("name", record.subject.name, None),
        (f"in {RECENT_DAYS} days", str(record.recent), str(record.recent)),
        ("in 90 days", str(named), str(named)),
        ("last", join((moment(last.opened_unix_s), " ", when)), f"{last.opened_unix_s:.0f}"),
        ("for", ", ".join(f"{count} x {what}" for what, count in causes.most_common()), None),
        ("runs", ", ".join(runs) + (" and others" if len(record.runs) > len(runs) else ""), None),
    ]
