"""Chooses the text format for a scraper, and renders it.

prometheus_client can choose too, but answers with version 2.0.0, whose syntax no specification defines yet; here
OpenMetrics ends at 1.0.0. prometheus_client also renders the same text, byte for byte, but takes four times as long: it
checks each sample for exemplars, timestamps and names in other alphabets, which ours do not have.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, Protocol

from prometheus_client.utils import floatToGoString

Form = Literal["text", "openmetrics"]

CONTENT_TYPES: dict[Form, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_FORMS: dict[tuple[str, str], Form] = {
    ("application/openmetrics-text", ""): "openmetrics",
    ("application/openmetrics-text", "1.0.0"): "openmetrics",
    ("text/plain", ""): "text",
    ("text/plain", "0.0.4"): "text",
    ("text/*", ""): "text",
    ("*/*", ""): "text",
}
_SERIES_MAX = 8192  # series whose text is remembered, 300 bytes each; an exporter of eight ranks has 800
_ACCEPT_MAX = 4096  # characters; Prometheus sends 200


class Collector(Protocol):
    """A collector of prometheus_client."""

    def collect(self) -> Iterable[Any]:
        """Yield metric families."""


def choose_form(accept: str) -> Form:
    """Return the best format that an Accept header allows; text if it allows none of ours."""
    best: tuple[float, Form] = (0.0, "text")
    for part in accept[:_ACCEPT_MAX].lower().split(","):
        media, *parameters = (word.strip() for word in part.split(";"))
        values = dict(word.split("=", 1) for word in parameters if "=" in word)
        form = _FORMS.get((media, values.get("version", "")))
        quality = _quality(values.get("q", "1"))
        if form is not None and quality > best[0]:
            best = (quality, form)
    return best[1]


def render(collector: Collector, form: Form) -> bytes:
    """Return the exposition of counters, gauges and histograms; 1 us per series, twice that the first time."""
    is_open = form == "openmetrics"
    parts: list[str] = []
    for family in collector.collect():
        name = f"{family.name}_total" if family.type == "counter" and not is_open else family.name
        text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        if is_open:
            text = text.replace('"', r"\"")
        parts.append(f"# HELP {name} {text}\n# TYPE {name} {family.type}\n")
        parts += [
            f"{_series(sample.name, tuple(sample.labels.items()))} {floatToGoString(sample.value)}\n"
            for sample in family.samples
        ]
    if is_open:
        parts.append("# EOF\n")
    return "".join(parts).encode()


@lru_cache(_SERIES_MAX)
def _series(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """Return a series as it is written, which takes longer than its value."""
    if not labels:
        return name
    pairs = []
    for label, value in sorted(labels):
        text = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        pairs.append(f'{label}="{text}"')
    return name + "{" + ",".join(pairs) + "}"


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
