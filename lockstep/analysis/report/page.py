"""The document: a headline that answers, then the evidence. One file, nothing is fetched."""

from typing import Any

from lockstep.analysis.pictures import Pictures
from lockstep.analysis.report.sections.behaviour import behaviour
from lockstep.analysis.report.sections.breakdown import breakdown
from lockstep.analysis.report.sections.gaps import definitions, not_evaluated, skipped
from lockstep.analysis.report.sections.localisation import localisation
from lockstep.analysis.report.sections.path import critical_path
from lockstep.analysis.report.sections.remedies import advice, findings
from lockstep.analysis.report.sections.rooflines import rooflines
from lockstep.analysis.report.sections.timeline import flame, timeline
from lockstep.analysis.report.sections.verdict import facts, verdict
from lockstep.analysis.report.sections.waiting import waiting
from lockstep.analysis.report.style import POLICY, SCRIPT, STYLE
from lockstep.analysis.report.view import view_of
from lockstep.html.markup import Html, join, tag

SECTIONS = {
    "advice": ("what to do", advice),
    "findings": ("findings", findings),
    "timeline": ("timeline", timeline),
    "flame": ("culprit against a peer", flame),
    "breakdown": ("step breakdown", breakdown),
    "critical-path": ("critical path", critical_path),
    "waiting": ("waiting", waiting),
    "rooflines": ("rooflines", rooflines),
    "patterns": ("patterns", behaviour),
    "localisation": ("localisation", localisation),
    "not-evaluated": ("not evaluated", not_evaluated),
    "skipped": ("skipped", skipped),
    "definitions": ("definitions", definitions),
}
"""By id: how the page's list of contents calls a section, and what makes it."""


def render(summary: dict[str, Any], pictures: Pictures | None = None) -> str:
    """Return the report of a JSON summary (`lockstep analyze --json`) as one HTML file.

    `pictures` are what `pictures_of` drew from the traces themselves: the timeline and the flame graphs.

    Raises nothing on a summary that lacks parts or has wrong ones: what is missing leaves its section out, in words. Of
    more ranks than a picture has room for, those are shown that findings name and that differ most, and a note states
    it. All texts are escaped.
    """
    view = view_of(summary, pictures)
    links = tag("nav", *(tag("a", name, href=f"#{key}") for key, (name, _) in SECTIONS.items()), aria_label="contents")
    body = [
        tag("h1", "Lockstep analysis"),
        facts(view),
        verdict(view),
        links,
        *(make(view) for _, make in SECTIONS.values()),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=Html(POLICY.replace('"', "&quot;"))),
        tag("link", rel="icon", href="data:,"),
        tag("title", _title(view.top.title if view.top else "nothing found")),
        tag("style", Html(STYLE)),
    ]
    page = tag("html", tag("head", *head), tag("body", *body, tag("script", Html(SCRIPT))), lang="en")
    return str(join([Html("<!DOCTYPE html>\n"), page, Html("\n")]))


def _title(found: str) -> str:
    return f"Lockstep analysis: {found}"
