"""The page at `/`: all runs, what is open, and what was closed of late."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from coordinator.decide.transitions import State
from coordinator.page.cards import cards
from coordinator.page.layout import bar, document, format_seconds, link, live, search_bar, sorted_table
from lockstep.html.markup import Html, code, join, tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.decide.incidents import Incident
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import RunSnapshot, Snapshot

CLOSED_MAX = 20
"""Closed incidents shown, the youngest."""
OPEN_MAX = 50
"""Open ones shown; the pages of the runs have the others."""
_NO_RUN = tag("p", "No run yet. Start one with ", code("lockstep run -- torchrun train.py"), class_="soft")
_SUSPECTS_SHOWN = 8
_STILL = (State.HUNG, State.LOST)
_LEAST_SHOWN = 0.005  # of the step; less would read as +0 %


def render_page(
    snapshot: "Snapshot", closed: "list[Incident]", config: "CoordinatorConfig", hosts: "Mapping[str, str]"
) -> str:
    """Return the document; every text in it is escaped. `hosts` are by open incident, where its ranks run."""
    found = [incident for run in snapshot.runs for incident in run.incidents]
    shown = sorted(found, key=lambda incident: -incident.lost_device_seconds)[:OPEN_MAX]
    left = len(found) - len(shown)
    more = tag("p", f"{left} more: see the pages of the runs.", class_="soft") if left else Html()
    return document(
        f"({len(found)}) Lockstep" if found else "Lockstep",
        bar(snapshot, config),
        (
            search_bar("run, rank, host, cause"),
            # Before the runs: who was paged must not pass twenty healthy ones first.
            live("open", "Open incidents", cards(shown, config, with_run=True, hosts=hosts), more),
            live("runs", "Runs", runs_table(snapshot.runs) if snapshot.runs else _NO_RUN),
            live("closed", "Recently closed", cards(closed[:CLOSED_MAX], config, with_run=True)),
        ),
        scripts=("table.js",),
    )


def runs_table(runs: "tuple[RunSnapshot, ...]") -> Html:
    """Return the runs, those with most open first, then those that stand still; on a narrow screen a card each."""
    ordered = sorted(runs, key=lambda run: (-len(run.incidents), run.state not in _STILL, run.run))
    return sorted_table([_cells(run) for run in ordered])


def _cells(run: "RunSnapshot") -> list[tuple[str, str, str | None]]:
    """Return name, text and sort key of each column; without a key it is sorted by its text."""
    return [
        ("run", link(f"/runs/{quote(run.run, safe='')}", run.run), None),
        ("state", tag("span", run.state, class_=f"badge {run.state}"), None),
        ("step", "-" if run.step is None else str(run.step), _key(run.step)),
        ("step time", step_time(run), _key(run.recent_step_seconds)),
        ("healthy", format_seconds(run.baseline_step_seconds), _key(run.baseline_step_seconds)),
        ("expected", expected(run), _key(run.expected_step_seconds)),
        ("ranks", f"{run.ranks_reporting} of {run.world_size}", _key(run.world_size)),
        ("slow ranks", suspects(run), _key(run.slow_ranks)),
        ("devices lost", lost(run), _key(run.lost_device_seconds)),
        ("open", str(len(run.incidents)) if run.incidents else "-", _key(len(run.incidents))),
    ]


def _key(value: float | None) -> str:
    """Return what a figure is sorted by: what is not known goes last where the largest come first."""
    return "-1" if value is None else f"{value:.12g}"


def step_time(run: "RunSnapshot") -> Html:
    """Return the recent step, and how far it is from a healthy one."""
    recent, healthy = run.recent_step_seconds, run.baseline_step_seconds
    if not recent or not healthy:
        return join((format_seconds(recent),))
    more = recent / healthy - 1
    if abs(more) < _LEAST_SHOWN:
        return join((format_seconds(recent),))
    kind = "bad" if more > 0 and (run.fluctuating or run.incidents) else "soft"
    return join((format_seconds(recent), " ", tag("span", f"{more:+.0%}", class_=kind)))


def expected(run: "RunSnapshot") -> str:
    """Return what the model of the job expects."""
    if run.expected_step_seconds is None:
        return "-"
    return f"{format_seconds(run.expected_step_seconds)} ± {run.expected_error_ratio or 0.0:.0%}"


def suspects(run: "RunSnapshot") -> str:
    """Return the slow ranks, called ranks: a bare number would read as how many there are."""
    shown = run.suspects[:_SUSPECTS_SHOWN]
    more = max(run.slow_ranks - len(shown), 0)
    if not shown:
        return f"{more}" if more else "-"
    named = ", ".join(str(suspect.rank) for suspect in shown)
    return f"{'rank' if len(shown) + more == 1 else 'ranks'} {named}{f' and {more} more' if more else ''}"


def lost(run: "RunSnapshot") -> str:
    """Return how many devices' work the run does not do now, by its own healthy step, and what all has cost."""
    recent, healthy = run.recent_step_seconds, run.baseline_step_seconds
    now = run.world_size * (1 - healthy / recent) if run.incidents and recent and healthy else 0.0
    now_lost = f"{now:.1f} of {run.world_size} now" if now > 0 else ""
    cost = f"{format_seconds(run.lost_device_seconds)} in all" if run.lost_device_seconds else ""
    return ", ".join(filter(None, (now_lost, cost))) or "-"
