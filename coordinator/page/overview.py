"""The page at `/`: all runs, open incidents, and recently closed ones."""

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
"""Number of closed incidents shown, the newest ones."""
OPEN_MAX = 50
"""Number of open incidents shown; the pages of the runs show the others."""
_NO_RUN = tag("p", "No run yet. Start one with ", code("lockstep run -- torchrun train.py"), class_="soft")
_SUSPECTS_SHOWN = 8
_STILL = (State.HUNG, State.LOST)
_LEAST_SHOWN = 0.005  # of the step; less would be shown as +0 %


def render_page(
    snapshot: "Snapshot", closed: "list[Incident]", config: "CoordinatorConfig", hosts: "Mapping[str, str]"
) -> str:
    """Return the document; every text in it is escaped. `hosts` gives the hosts of open incidents, by incident id."""
    found = [incident for run in snapshot.runs for incident in run.incidents]
    shown = sorted(found, key=lambda incident: -incident.lost_device_seconds)[:OPEN_MAX]
    left = len(found) - len(shown)
    more = tag("p", f"{left} more: see the pages of the runs.", class_="soft") if left else Html()
    return document(
        f"({len(found)}) Lockstep" if found else "Lockstep",
        bar(snapshot, config),
        (
            search_bar("run, rank, host, cause"),
            # Above the runs: an on-call engineer must not have to scroll past twenty healthy runs first.
            live("open", "Open incidents", cards(shown, config, with_run=True, hosts=hosts), more),
            live("runs", "Runs", runs_table(snapshot.runs) if snapshot.runs else _NO_RUN),
            live("closed", "Recently closed", cards(closed[:CLOSED_MAX], config, with_run=True)),
        ),
        scripts=("table.js",),
    )


def runs_table(runs: "tuple[RunSnapshot, ...]") -> Html:
    """Return the table of runs: those with most open incidents first, then those that are stalled."""
    ordered = sorted(runs, key=lambda run: (-len(run.incidents), run.state not in _STILL, run.run))
    return sorted_table([_cells(run) for run in ordered])


def _cells(run: "RunSnapshot") -> list[tuple[str, str, str | None]]:
    """Return name, text and sort key of each column; without a key, the text is the key."""
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
    """Return the sort key of a figure; unknown figures come last in descending order."""
    return "-1" if value is None else f"{value:.12g}"


def step_time(run: "RunSnapshot") -> Html:
    """Return the recent step time and its deviation from a healthy step."""
    recent, healthy = run.recent_step_seconds, run.baseline_step_seconds
    if not recent or not healthy:
        return join((format_seconds(recent),))
    more = recent / healthy - 1
    if abs(more) < _LEAST_SHOWN:
        return join((format_seconds(recent),))
    kind = "bad" if more > 0 and (run.fluctuating or run.incidents) else "soft"
    return join((format_seconds(recent), " ", tag("span", f"{more:+.0%}", class_=kind)))


def expected(run: "RunSnapshot") -> str:
    """Return the step time that the model of the job expects."""
    if run.expected_step_seconds is None:
        return "-"
    return f"{format_seconds(run.expected_step_seconds)} ± {run.expected_error_ratio or 0.0:.0%}"


def suspects(run: "RunSnapshot") -> str:
    """Return the slow ranks as text, with the word "rank": a bare number would read as their count."""
    shown = run.suspects[:_SUSPECTS_SHOWN]
    more = max(run.slow_ranks - len(shown), 0)
    if not shown:
        return f"{more}" if more else "-"
    named = ", ".join(str(suspect.rank) for suspect in shown)
    return f"{'rank' if len(shown) + more == 1 else 'ranks'} {named}{f' and {more} more' if more else ''}"


def lost(run: "RunSnapshot") -> str:
    """Return the number of devices whose work is lost now, by the run's healthy step, and the total loss."""
    recent, healthy = run.recent_step_seconds, run.baseline_step_seconds
    now = run.world_size * (1 - healthy / recent) if run.incidents and recent and healthy else 0.0
    now_lost = f"{now:.1f} of {run.world_size} now" if now > 0 else ""
    cost = f"{format_seconds(run.lost_device_seconds)} in all" if run.lost_device_seconds else ""
    return ", ".join(filter(None, (now_lost, cost))) or "-"
