"""Renders the evidence from other exporters' series, for an incident's card and report. Pure."""

from html import escape
from typing import TYPE_CHECKING

from coordinator.page.layout import moment_ns
from lockstep.html.markup import Html, items, join, muted, tag

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.decide.machine_evidence import MachineDeviation


def render_machine_evidence(incident: "Incident") -> Html:
    """Return the deviations with figures, advice and graph, and what was compared; empty if nothing was read."""
    machine = incident.machine
    if machine is None:
        return Html()
    read = muted(machine.note, "; read ", moment_ns(machine.read_unix_ns))
    return join((tag("h4", "Evidence from the machine"), items(map(_deviation, machine.deviations)), read))


def _deviation(deviation: "MachineDeviation") -> Html:
    has_link = deviation.link.startswith(("http://", "https://"))
    # The URL of a graph exceeds the length limit of texts, so it is escaped here; `urlencode` made it safe otherwise.
    graph = (" ", tag("a", "graph", href=Html(escape(deviation.link)))) if has_link else ()
    source = tag("span", f"({deviation.source})", class_="soft")
    return join((tag("strong", deviation.title), f". {deviation.text}. {deviation.advice}. ", source, *graph))
