"""Formats a notification for a Slack incoming webhook: text for the pop-up, blocks for the channel. Pure.

All text that comes from a training job is escaped, so a run or function name cannot mention a channel or forge a link.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from coordinator.decide.incidents import CLOSED
from coordinator.detect.anomalies import CRASH
from coordinator.notify.notification import ENDED, UPDATED
from coordinator.page.cards import extent_of, title_of, where_of
from coordinator.page.layout import format_seconds

if TYPE_CHECKING:
    from coordinator.notify.notification import IncidentLinks, Notification

_HEADER_CHARS, _FIELD_CHARS, _EVIDENCE_CHARS = 150, 500, 500
"""Slack's limits are 150, 2,000 and 3,000 characters; longer fields do not help in a channel."""
_MARKS = {UPDATED: "Function found", ENDED: "Closed"}


def slack_message(notification: "Notification", links: "IncidentLinks") -> bytes:
    """Return the message as JSON: culprit, host, cause, cost and links."""
    incident = notification.incident
    mark = _MARKS.get(notification.stage, "")
    title = f"{mark}: {title_of(incident)}" if mark else title_of(incident)
    function = f", {incident.function}" if incident.function else ""
    summary = f"{title} of run {incident.run}, cause {incident.cause.replace('_', ' ')}{function}"
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(title, _HEADER_CHARS), "emoji": False}},
        {"type": "section", "fields": [_field(name, value) for name, value in _facts(notification) if value]},
    ]
    if incident.evidence:
        blocks.append({"type": "section", "text": _markdown(_escaped(incident.evidence[0], _EVIDENCE_CHARS))})
    ways = [f"<{_escaped(url, _FIELD_CHARS)}|{name}>" for name, url in asdict(links).items() if url]
    footer = " · ".join((*ways, _escaped(incident.id, _FIELD_CHARS)))
    blocks.append({"type": "context", "elements": [_markdown(footer)]})
    return json.dumps({"text": _escaped(summary, _EVIDENCE_CHARS), "blocks": blocks}).encode()


def _facts(notification: "Notification") -> tuple[tuple[str, str], ...]:
    incident = notification.incident
    confidence = f" ({incident.confidence} confidence)" if incident.confidence else ""
    lost = notification.devices_lost
    costs = [extent_of(incident)] if incident.kind != CRASH else []
    texts = [f"{name.lower()} {value}" for name, value in costs]
    if lost is not None and incident.state != CLOSED:
        texts.append(f"{lost:.3g} devices lost")
    if incident.lost_device_seconds:
        texts.append(f"{format_seconds(incident.lost_device_seconds)} of device time lost")
    return (
        ("Run", incident.run),
        ("Where", where_of(incident)),
        ("Host", notification.host),
        ("Cause", incident.cause.replace("_", " ") + confidence),
        ("Function", incident.function),
        ("Costs", ", ".join(texts)),
    )


def _field(name: str, value: str) -> dict[str, Any]:
    return _markdown(f"*{name}*\n{_escaped(value, _FIELD_CHARS)}")


def _markdown(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text}


def _escaped(text: str, chars: int) -> str:
    """Return text escaped for Slack, which requires exactly three characters to be escaped."""
    return _cut(text, chars).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
