"""The page at `/fleet`: nodes, devices and links that incidents named, those named most of late first. Pure."""

from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from coordinator.fleet.history import RECENT_DAYS
from coordinator.page.layout import bar, document, link, live, moment
from lockstep.html.markup import Html, cell, join, soft, table

if TYPE_CHECKING:
    from coordinator.fleet.history import SubjectRecord
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import Snapshot

SHOWN_MAX = 200
_RUNS_SHOWN = 8


def render_fleet(records: "list[SubjectRecord]", snapshot: "Snapshot", config: "CoordinatorConfig") -> str:
    """Return the document; every text in it is escaped."""
    heads = ("what", "name", f"in {RECENT_DAYS} days", "in 90 days", "last", "for", "runs")
    rows = [_row(record) for record in records[:SHOWN_MAX]]
    more = soft(f"{len(records) - SHOWN_MAX} more: see /api/v1/fleet.") if len(records) > SHOWN_MAX else Html()
    body = table(heads, rows) if rows else soft("No incident has named a node, a device or a link yet.")
    return document(
        "Fleet - Lockstep", bar(snapshot, config, crumb="fleet"), (live("fleet", "Named by incidents", body, more),)
    )


def _row(record: "SubjectRecord") -> tuple[str, ...]:
    causes = Counter(f"{each.incident_kind} by {each.cause}".replace("_", " ") for each in record.sightings)
    last = record.sightings[0]
    when = link(f"/incidents/{quote(last.incident_id, safe='')}", "incident")
    runs = record.runs[:_RUNS_SHOWN]
    return (
        record.subject.kind,
        record.subject.name,
        cell(str(record.recent), is_number=True),
        cell(str(len(record.sightings)), is_number=True),
        join((moment(last.opened_unix_s), " ", when)),
        ", ".join(f"{count} x {what}" for what, count in causes.most_common()),
        ", ".join(runs) + (" and others" if len(record.runs) > len(runs) else ""),
    )
