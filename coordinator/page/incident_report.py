"""The report of one incident, open or closed: a self-contained file to send or archive.

Pure: an incident in, a document out. The style is inline, and there is no script.
"""

from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.page.assets import BODIES
from coordinator.page.cards import basis, dashboard, details_of, facts, runbook, title_of
from coordinator.page.layout import format_seconds, link, moment_ns
from coordinator.page.node_commands import node_commands, render_commands
from lockstep.html.markup import Html, code, join, muted, table, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.incidents import Incident
    from coordinator.settings.config import CoordinatorConfig

STYLE = BODIES["page.css"].decode()
_DIGEST = b64encode(sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the document: only this style, nothing else."""


def render_report(
    incident: "Incident", config: "CoordinatorConfig", host: str = "", nodes: "Sequence[str]" = ()
) -> str:
    """Return the document; every text in it is escaped.

    `host` is where its ranks run, empty if unknown; `nodes` are the names of the exporters there.
    """
    title = title_of(incident)
    body = (
        tag("header", tag("h1", title, " ", tag("span", incident.state, class_="badge"))),
        tag(
            "main",
            _when(incident),
            facts(incident, with_run=False, host=host),
            details_of(incident),
            render_commands(node_commands(incident, nodes)),
            _why(incident),
            tag("p", *_links(incident, config), class_="links"),
        ),
    )
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} - {incident.run} - Lockstep"),
        Html(f"<style>{STYLE}</style>"),
    )
    return f"<!DOCTYPE html>{tag('html', tag('head', *head), tag('body', *body), lang='en')}"


def _links(incident: "Incident", config: "CoordinatorConfig") -> list[Html]:
    """Return links for a reader who follows a notification; the link to the run works only on this server."""
    run = link(f"/runs/{quote(incident.run, safe='')}", "run")
    return [run, *dashboard(incident, config), *runbook(incident, config)]


def _when(incident: "Incident") -> Html:
    text = [f"Run {incident.run}, incident {incident.id}, opened ", moment_ns(incident.opened_unix_ns)]
    return muted(*text, *(() if incident.closed_unix_ns is None else (", closed ", moment_ns(incident.closed_unix_ns))))


def _why(incident: "Incident") -> Html:
    """Return the explanation: samples, peers, thresholds, the detector's numbers."""
    text = incident.explanation
    if not text:
        return Html()
    samples: dict[str, list[float | None]] = text["samples"]
    heads = [name.replace("_", " ") for name in samples]
    rows = [[_cell(value) for value in row] for row in zip(*samples.values(), strict=True)]
    peers = text["reference"].get("peers", [])
    quantity = text["quantity"]
    parts = [_table("Step by step", heads, rows)]
    if peers:
        who = [[_cell(each.get("rank", each.get("domain"))), _cell(each.get("hostname", "")),
                format_seconds(each["median_seconds"])] for each in peers]  # fmt: skip
        parts.append(_table("Peers, over these steps", ("peer", "host", "median"), who))
    parts += [
        _table(name.capitalize(), (name[:-1], "value"), _listed(text[name]))
        for name in ("numbers", "thresholds")
        if text.get(name)
    ]
    compared = tag("p", f"{quantity[:1].upper()}{quantity[1:]}.")
    return join((tag("h2", "Basis of the decision"), compared, basis(text), tag("div", *parts, class_="columns")))


def _table(title: str, heads: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> Html:
    return tag("section", tag("h4", title), table(heads, rows))


def _listed(values: dict[str, Any]) -> list[list[str]]:
    return [[code(key), _cell(value)] for key, value in values.items()]


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    is_figure = isinstance(value, int | float) and not isinstance(value, bool)
    return tag("span", f"{value:.6g}" if is_figure else str(value))
