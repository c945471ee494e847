"""The page at `/`: runs, their states, and what is known of incidents. One document, nothing else is fetched."""

from html import escape
from typing import TYPE_CHECKING, Any

from coordinator.findings import KINDS

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from coordinator.incidents import Incident
    from coordinator.snapshot import RunSnapshot, Snapshot

CLOSED_MAX = 20
"""Closed incidents shown, the youngest."""
_STEPS_MAX = 8  # samples shown of an incident
_NO_RUN = '<p class="soft">No run yet. Start one with <code>lockstep run -- torchrun train.py</code></p>'
_TITLES = dict(
    zip(
        KINDS,
        ("Slow rank", "Slow link", "Slower than its own history", "Unsynchronised pauses", "Hang"),
        strict=True,
    )
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #fff; --bad: #b42318; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #30363d; --back: #0d1117; --bad: #ff7b72; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 0 0 .3rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); } th { color: var(--soft); font-weight: 600; }
article { border: 1px solid var(--line); border-left: 4px solid var(--bad); border-radius: 6px; padding: .8rem 1rem;
  margin: .8rem 0; } article.closed { border-left-color: var(--line); }
.soft { color: var(--soft); } code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
details { margin: .3rem 0; } summary { cursor: pointer; color: var(--soft); }
ul { margin: .3rem 0; padding-left: 1.2rem; } a { color: inherit; }
"""


def render_page(snapshot: "Snapshot", closed: "list[Incident]", config: "CoordinatorConfig") -> str:
    """Return the document; every text in it is escaped."""
    open_incidents = [incident for run in snapshot.runs for incident in run.incidents]
    broker = "connected to" if snapshot.is_connected else "not connected to"
    links = [("/metrics", "metrics"), ("/api/v1/runs", "runs"), ("/api/v1/incidents", "incidents")]
    links += [(config.dashboard_base_url, "dashboards")] if config.dashboard_base_url else []
    links += [(config.runbook_base_url, "runbooks")] if config.runbook_base_url else []
    anchors = " · ".join(f'<a href="{escape(url)}">{escape(text)}</a>' for url, text in links)
    rows = "".join(_run_row(run) for run in snapshot.runs)
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta http-equiv="refresh" content="5">',
        f"<title>Lockstep</title><style>{_STYLE}</style></head><body>",
        f"<h1>Lockstep coordinator {escape(snapshot.version)}</h1>",
        f'<p class="soft">{broker} the broker, exporters alive: {snapshot.nodes_alive} · {anchors}</p>',
        "<h2>Runs</h2>",
        f"<table><tr>{''.join(f'<th>{name}</th>' for name in _COLUMNS)}</tr>{rows}</table>" if rows else _NO_RUN,
        "<h2>Open incidents</h2>",
        "".join(map(_article, open_incidents)) or '<p class="soft">None.</p>',
        "<h2>Closed incidents</h2>",
        "".join(map(_article, closed[:CLOSED_MAX])) or '<p class="soft">None.</p>',
        "</body></html>",
    ]
    return "".join(parts)


_COLUMNS = ("run", "state", "step", "step time", "healthy", "ranks", "slow ranks")


def _run_row(run: "RunSnapshot") -> str:
    slow = ", ".join(str(suspect.rank) for suspect in run.suspects)
    more = run.slow_ranks - len(run.suspects)
    cells = (
        f'<a href="/api/v1/runs/{escape(run.run)}">{escape(run.run)}</a>',
        escape(run.state),
        "-" if run.step is None else str(run.step),
        _ms(run.recent_step_seconds),
        _ms(run.baseline_step_seconds),
        f"{run.ranks_reporting} of {run.world_size}",
        escape(slow + (f" and {more} more" if more else "")) or "-",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _root(incident: "Incident") -> str:
    return f" ({escape(incident.root_cause.replace('_', ' '))})" if incident.root_cause else ""


def _article(incident: "Incident") -> str:
    ranks = ", ".join(map(str, incident.ranks[:16])) + (" ..." if len(incident.ranks) > 16 else "")  # noqa: PLR2004  (a line)
    where = " ".join(incident.domain or ()) or "the whole run"
    if incident.scope in ("rank", "node"):
        where = f"rank {ranks}" if incident.scope == "rank" else f"a node, ranks {ranks}"
    function = f"<p>in <code>{escape(incident.function)}</code>" if incident.function else "<p>"
    operator = f", operator <code>{escape(incident.operator)}</code>" if incident.operator else ""
    evidence = "".join(f"<li>{escape(line)}</li>" for line in (*incident.evidence, *incident.profile_evidence))
    advice = "".join(
        f"<li>{escape(item.suggestion)}: {escape(item.how)}."
        + (f" Predicted gain: {item.predicted_gain_ratio:.0%} of a step." if item.predicted_gain_ratio else "")
        + f' <span class="soft">({escape(item.source)})</span></li>'
        for item in incident.advice
    )
    closed = "" if incident.closed_step is None else f", closed at step {incident.closed_step}"
    return (
        f'<article class="{incident.state}"><h3>{_TITLES.get(incident.kind, "Incident")}: {escape(where)}, '
        f"cause {escape(incident.cause)}{_root(incident)}, {incident.slowdown_ratio:+.0%}</h3>"
        f'<p class="soft">run {escape(incident.run)} · began at step {incident.onset_step}, found at step '
        f"{incident.detected_step}{closed} · {incident.lost_device_seconds:.1f} device seconds lost · "
        f'<a href="/api/v1/incidents/{escape(incident.id)}">{escape(incident.id)}</a></p>'
        f"{function}{operator}</p><ul>{evidence}</ul>{_why(incident.explanation)}"
        + (f"<p>What to do</p><ul>{advice}</ul>" if advice else "")
    ) + "</article>"


def _why(explanation: "dict[str, Any]") -> str:
    """Return what the incident was decided from, folded away."""
    if not explanation:
        return ""
    told = explanation["samples"]
    names = list(told)
    steps = list(zip(*(told[name][-_STEPS_MAX:] for name in names), strict=True))
    heads = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(_figure(value))}</td>' for value in row)}</tr>" for row in steps)
    noise = explanation.get("noise", {}).get("sigma_ratio")
    return (
        f"<details><summary>Why: {escape(explanation['quantity'])}</summary>"
        f"<p>Compared with {escape(explanation['reference']['how'])}."
        + ("" if noise is None else f" Noise is {noise:.2%} a step.")
        + f"</p><p>Rule: {escape(explanation['rule'])}.</p><table><tr>{heads}</tr>{rows}</table></details>"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"
