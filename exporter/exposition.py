"""Which text format a scraper gets, and the text itself.

prometheus_client chooses by itself too, but answers a version 2.0.0 whose syntax no specification defines yet; here
OpenMetrics ends at 1.0.0.
"""

from typing import Literal

from prometheus_client.exposition import generate_latest as render_text
from prometheus_client.openmetrics.exposition import generate_latest as render_openmetrics

from exporter.collector import SnapshotCollector
from exporter.snapshot import NodeSnapshot

Form = Literal["text", "openmetrics"]

CONTENT_TYPES: dict[Form, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_ACCEPT_MAX = 4096  # characters; Prometheus sends 200


def choose_form(accept: str) -> Form:
    """Return the best form that an Accept header asks for; text where it asks for nothing that we have."""
    best: tuple[float, Form] = (0.0, "text")
    for part in accept[:_ACCEPT_MAX].split(","):
        media, *parameters = (word.strip() for word in part.lower().split(";"))
        values = dict(word.split("=", 1) for word in parameters if "=" in word)
        form = _form_of(media, values.get("version"))
        quality = _quality(values.get("q", "1"))
        if form is not None and quality > best[0]:
            best = (quality, form)
    return best[1]


def _form_of(media: str, version: str | None) -> Form | None:
    if media == "application/openmetrics-text" and version in (None, "1.0.0"):
        return "openmetrics"
    if media in ("text/plain", "text/*", "*/*") and version in (None, "0.0.4"):
        return "text"
    return None


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0


def render(snapshot: NodeSnapshot, form: Form) -> bytes:
    """Return the exposition; about 15 us per series, so never on the event loop."""
    collector = SnapshotCollector(snapshot)
    rendered: bytes = render_openmetrics(collector) if form == "openmetrics" else render_text(collector)
    return rendered


class Page:
    """Renders the snapshot it was last given, once per form at most.

    Called from worker threads; two of them may render the same text at once, which costs time and nothing else.
    """

    def __init__(self) -> None:
        self._rendered: dict[Form, tuple[NodeSnapshot, bytes]] = {}

    def text(self, snapshot: NodeSnapshot, form: Form) -> bytes:
        """Return the exposition of `snapshot`."""
        last = self._rendered.get(form)
        if last is None or last[0] is not snapshot:
            last = (snapshot, render(snapshot, form))
            self._rendered[form] = last
        return last[1]
