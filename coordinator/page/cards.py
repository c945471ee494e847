"""Renders an incident as a card: culprit, cause, time, cost, advice, and links."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.decide.explain import history
from coordinator.decide.incidents import BY_MODEL, BY_RECORDS, CLOSED
from coordinator.detect.anomalies import (
    CRASH,
    FLUCTUATION,
    HANG,
    KINDS,
    MEMORY_GROWTH,
    SLOW_LINK,
    SLOW_RANK,
    UNSYNCHRONISED_GC,
)
from coordinator.page.layout import format_seconds, link, moment_ns
from coordinator.page.machine_evidence import render_machine_evidence
from coordinator.page.stack_tree import draw_stacks
from lockstep.html.markup import Html, code, escaped, folded, items, join, muted, tag
from lockstep.html.units import counted, format_ranks, format_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.decide.incidents import Incident
    from coordinator.settings.config import CoordinatorConfig

DASHBOARD = "lockstep-run"
"""The uid of the dashboard for one run (dashboards/run)."""
TITLES = dict(
    zip(
        KINDS,
        (
            "Slow rank",
            "Slow link",
            "Slower than its own history",
            "Unsynchronised pauses",
            "Hang",
            "Crash",
            "Memory growth",
        ),
        strict=True,
    )
)
RUNBOOKS = {
    SLOW_RANK: "LockstepSlowDeviceFound",
    SLOW_LINK: "LockstepLinkSlow",
    FLUCTUATION: "LockstepRunSlow",
    UNSYNCHRONISED_GC: "LockstepRunSlow",
    HANG: "LockstepRunHung",
    CRASH: "LockstepRunCrashed",
    MEMORY_GROWTH: "LockstepMemoryRunsOut",
}
"""The alert, and thereby the page of alerts/runbooks, for each kind of incident."""
_NOWHERE: "Mapping[str, str]" = MappingProxyType({})
_STEPS_MAX = 8  # samples of an incident that are shown
_CHANGES_MAX = 8  # changes of an incident that are shown


def card(incident: "Incident", config: "CoordinatorConfig", *, with_run: bool, host: str = "") -> Html:
    """Return the card of an incident; `with_run` shows its run, for lists of incidents of several runs.

    `host` is where its ranks run now, empty if unknown. For a closed incident, details that need no action are folded.
    """
    title = title_of(incident)
    is_closed = incident.state == CLOSED
    badge = tag("span", incident.state, class_="badge")
    details: tuple[Html, ...] = (
        _titled("Evidence", (*incident.evidence, *incident.profile_evidence)),
        render_machine_evidence(incident),
        _titled("Earlier incidents", incident.history),
        _stacks(incident),
        _gain(incident),
        _advice(incident),
        _why(incident),
    )
    if is_closed:
        details = (tag("details", tag("summary", "Evidence and advice"), *details, id=f"details-{incident.id}"),)
    return tag(
        "article",
        tag("h3", title, " ", badge),
        facts(incident, with_run=with_run, host=host),
        *details,
        tag("p", *_links(incident, config), class_="links"),
        class_="card closed" if is_closed else "card",
        id=f"incident-{incident.id}",
        tabindex=-1,
        aria_label=title,
    )


def where_of(incident: "Incident") -> str:
    """Return the culprit of an incident as text."""
    ranks = format_ranks(incident.ranks)
    if incident.scope == "rank":
        return f"rank {ranks}"
    if incident.scope == "node":
        return f"a node, ranks {ranks}"
    return " ".join(incident.domain or ()) or "the whole run"


def details_of(incident: "Incident") -> Html:
    """Return all details of an incident for a self-contained document: nothing folded, no links."""
    parts = (
        _titled("Evidence", (*incident.evidence, *incident.profile_evidence)),
        render_machine_evidence(incident),
        _titled("Earlier incidents", incident.history),
        _stacks(incident),
        _gain(incident),
        _advice(incident),
        _titled("History", tuple(_change_text(each) for each in history(incident))),
    )
    return join(parts)


def facts(incident: "Incident", *, with_run: bool, host: str) -> Html:
    """Return run, host, cause, time and cost as a description list."""
    run_link = link(f"/runs/{quote(incident.run, safe='')}", incident.run)
    confidence = f" ({incident.confidence} confidence)" if incident.confidence else ""
    rows: list[tuple[str, str]] = [("Run", run_link)] if with_run else []
    if host:
        rows.append(("Host", host))
    rows.append(("Cause", f"{incident.cause.replace('_', ' ')}{confidence}"))
    if incident.root_cause:
        rows.append(("Root cause", incident.root_cause.replace("_", " ")))
    if incident.function:
        rows.append(("Function", code(incident.function)))
    if incident.operator:
        rows.append(("Operator", code(incident.operator)))
    rows.append(("When", _span(incident)))
    if incident.kind != CRASH:
        rows.append(extent_of(incident))
    if incident.lost_device_seconds:
        lost = "Lost" if incident.state == CLOSED else "Lost so far"
        rows.append((lost, f"{format_seconds(incident.lost_device_seconds)} of device time"))
    return tag("dl", *(join((tag("dt", name), tag("dd", value))) for name, value in rows))


def _span(incident: "Incident") -> Html:
    """Return the steps of onset, detection and closing, with times if known."""
    began = f"began at {format_step(incident.onset_step)}, found at {format_step(incident.detected_step)} ("
    text = [began, moment_ns(incident.opened_unix_ns), ")"]
    if incident.closed_step is not None:
        text.append(f", closed at step {incident.closed_step}")
        text += [" (", moment_ns(incident.closed_unix_ns), ")"] if incident.closed_unix_ns is not None else []
    return join(text)


def extent_of(incident: "Incident") -> tuple[str, str]:
    """Return name and value of the extent: slowdown, or time without a step for a hang, or growth of memory."""
    if incident.kind == MEMORY_GROWTH:
        grows = f"{incident.numbers.get('bytes_per_step', 0.0) / (1 << 20):.3g} MiB a step"
        remaining_s = incident.numbers.get("remaining_seconds")
        return "Grows by", grows if remaining_s is None else f"{grows}; its limit is {format_seconds(remaining_s)} away"
    if incident.kind != HANG:
        return "Longer by", f"{incident.slowdown_ratio:.0%}, {format_seconds(incident.excess_seconds)} a step"
    usual = f", as long as {incident.slowdown_ratio:,.0f} steps" if incident.slowdown_ratio else ""
    return "No step for", f"{format_seconds(incident.excess_seconds)}{usual}"


def _titled(title: str, lines: tuple[str, ...]) -> Html:
    return join((tag("h4", title), items(lines))) if lines else Html()


def _stacks(incident: "Incident") -> Html:
    """Return the merged stacks of a hang; each line lists the ranks that are in its frames."""
    if not incident.stacks:
        return Html()
    lines = Html("\n".join(map(escaped, incident.stacks)))  # escaping a whole text would drop its line breaks
    drawn = draw_stacks(incident.stacks, incident.ranks)
    return join((tag("h4", "Stacks of the ranks"), drawn, tag("pre", lines, tabindex=0)))


def _gain(incident: "Incident") -> Html:
    gain = incident.predicted_gain
    if gain is None:
        return Html()
    ratio, source = gain
    text = incident.prediction
    if source != BY_MODEL or text is None:
        by = "the step records" if source == BY_RECORDS else "the breakdown of the capture"
        return tag("p", f"Predicted gain: {ratio:.0%} of a step, by {by}.", class_="gain")
    return tag(
        "p",
        f"The model of the job expects {text.gain_ratio:.0%} of the step back from the repair: "
        f"{format_seconds(text.faulty_step_seconds)} to {format_seconds(text.repaired_step_seconds)}.",
        class_="gain",
    )


def _advice(incident: "Incident") -> Html:
    rows = []
    for item in incident.advice:
        gain = f" Predicted gain: {item.predicted_gain_ratio:.0%} of a step." if item.predicted_gain_ratio else ""
        text = tag("span", f"({item.source})", class_="soft")
        rows.append(join((tag("strong", item.suggestion), f": {item.how}.{gain} ", text)))
    return join((tag("h4", "What to do"), items(rows))) if rows else Html()


def basis(explanation: dict[str, Any]) -> Html:
    """Return the reference of an incident's samples, their noise, and the rule."""
    noise = explanation.get("noise", {}).get("sigma_ratio")
    compared = f"Compared with {explanation['reference']['how']}."
    text = compared + ("" if noise is None else f" Noise is {noise:.2%} a step.")
    return join((tag("p", text), tag("p", f"Rule: {explanation['rule']}.")))


def _why(incident: "Incident") -> Html:
    """Return the explanation of the incident, folded."""
    explanation = incident.explanation
    if not explanation:
        return Html()
    samples: dict[str, list[float | None]] = explanation["samples"]
    names = list(samples)
    steps = list(zip(*(samples[name][-_STEPS_MAX:] for name in names), strict=True))
    heads = tag("tr", *(tag("th", name.replace("_", " "), scope="col", class_="number") for name in names))
    rows = [tag("tr", *(tag("td", _figure(value), class_="number") for value in row)) for row in steps]
    return tag(
        "details",
        tag("summary", f"Why: {explanation['quantity']}"),
        basis(explanation),
        tag("div", tag("table", tag("thead", heads), tag("tbody", *rows)), class_="scroll"),
        folded("History", items(_change_text(each) for each in history(incident)[:_CHANGES_MAX])),
        id=f"why-{incident.id}",
    )


def _change_text(change: dict[str, Any]) -> str:
    cause = f": {change['cause'].replace('_', ' ')}" if change.get("cause") else ""
    ranks = f" on {counted(change['rank_count'], 'rank')}" if change.get("rank_count") else ""
    return f"{format_step(change['step'])}, {change['what']}{cause}{ranks}"


def _links(incident: "Incident", config: "CoordinatorConfig") -> list[Html]:
    run = quote(incident.run, safe="")
    name = quote(incident.id, safe="")
    made = [link(f"/incidents/{name}", "report")]
    if incident.state != CLOSED:  # the steps of a closed one are no longer in memory
        made.append(link(f"/api/v1/runs/{run}/trace?incident={name}", "steps as a trace (Perfetto)"))
    made.append(link(f"/api/v1/incidents/{name}", "as JSON"))
    made += [*runbook(incident, config), *dashboard(incident, config)]
    if incident.profile is not None:
        made.append(link(f"/api/v1/runs/{run}/profile", f"capture {incident.profile.request_id}"))
    made.append(soft_id(incident))
    return made


def runbook(incident: "Incident", config: "CoordinatorConfig") -> list[Html]:
    """Return the link to an incident's runbook, if there is one."""
    url = runbook_url(incident, config)
    return [link(url, "runbook")] if url else []


def runbook_url(incident: "Incident", config: "CoordinatorConfig") -> str:
    """Return the URL of an incident's runbook; empty if there is none."""
    if not config.runbook_base_url or incident.kind not in RUNBOOKS:
        return ""
    return f"{config.runbook_base_url.rstrip('/')}/{RUNBOOKS[incident.kind]}.md"


def dashboard(incident: "Incident", config: "CoordinatorConfig") -> list[Html]:
    """Return the link to the dashboard of an incident's run, if Grafana is configured."""
    url = dashboard_url(incident, config)
    return [link(url, "dashboard")] if url else []


def dashboard_url(incident: "Incident", config: "CoordinatorConfig") -> str:
    """Return the URL of the dashboard of an incident's run; empty if Grafana is not configured."""
    if not config.dashboard_base_url:
        return ""
    query = f"var-run={quote(incident.run, safe='')}"
    return f"{config.dashboard_base_url.rstrip('/')}/d/{DASHBOARD}?{query}"


def title_of(incident: "Incident") -> str:
    """Return kind and culprit as a title."""
    return f"{TITLES.get(incident.kind, 'Incident')}: {where_of(incident)}"


def soft_id(incident: "Incident") -> Html:
    """Return the incident's id, as used in logs and alerts."""
    return tag("span", incident.id, class_="soft")


def cards(
    incidents: "list[Incident]", config: "CoordinatorConfig", *, with_run: bool, hosts: "Mapping[str, str]" = _NOWHERE
) -> Html:
    """Return the cards of incidents, or "None."; `hosts` are by incident id."""
    made = [card(each, config, with_run=with_run, host=hosts.get(each.id, "")) for each in incidents]
    return tag("div", *made, class_="cards") if made else muted("None.")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
