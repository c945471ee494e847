"""The page at `/runs/NAME`: the state of a run, its incidents, and its figures by step and rank."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.decide.transitions import OVER, State
from coordinator.page.cards import DASHBOARD, cards
from coordinator.page.layout import bar, document, format_seconds, link, live, moment
from coordinator.page.overview import expected, lost, step_time, suspects
from coordinator.record.earlier_attempts import NAME, NOTABLE_RATIO
from lockstep.contracts.limits import PROFILE_RANKS_MAX, PROFILE_STEPS_MAX
from lockstep.html.markup import Html, join, muted, tag
from lockstep.html.units import counted

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.record.earlier_attempts import EarlierAttempts
    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import RunSnapshot, Snapshot

CLOSED_MAX = 10
"""Number of closed incidents of the run shown, the newest ones."""
OPEN_MAX = 50
CAPTURES_SHOWN = 4
_SUSPECTS_ASKED = 4  # slow ranks that are preset in the profile form
_STILL = (*OVER, State.HUNG, State.LOST)
_SPANS = (("everything", 0), ("the last 15 minutes", 900), ("the last hour", 3600), ("the last 6 hours", 21_600))
_STRIP_STEP = 6  # pixels
_STRIP_HEIGHT = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The content of the page of one run: plain values, read on the event loop or from immutable rows.

    `slowest` is in the form of `heat.worst`. `domains` lists name and ranks (as text) by kind, `domain_counts` their
    number. `captures` are in the form of the API. `hosts` gives the hosts of open incidents, by incident id.
    """

    run: "RunSnapshot"
    slowest: list[dict[str, Any]]
    kinds: list[str]
    domains: dict[str, list[tuple[str, str]]]
    domain_counts: dict[str, int]
    captures: list[dict[str, Any]]
    closed: "list[Incident]"
    profile_steps: int
    hosts: dict[str, str]


def render_run(view: RunView, snapshot: "Snapshot", config: "CoordinatorConfig") -> str:
    """Return the document; every text in it is escaped."""
    run = view.run
    found = sorted(run.incidents, key=lambda incident: -incident.lost_device_seconds)
    left = len(found) - OPEN_MAX
    more = muted(f"{left} more: see /api/v1/incidents.") if left > 0 else Html()
    return document(
        f"{f'({len(found)}) ' if found else ''}{run.run} - Lockstep",
        bar(snapshot, config, crumb=run.run),
        (
            live("now", "Now", _now(run, config)),
            live("open", "Open incidents", cards(found[:OPEN_MAX], config, with_run=False, hosts=view.hosts), more),
            _over_time(),
            _map(view.kinds),
            live("slowest", "Slowest ranks", _slowest(view.slowest)),
            _profile_form(view),
            live("captures", "Captures", _captures(view)),
            live("domains", "Domains", _domains(view)),
            live("closed", "Recently closed", cards(view.closed[:CLOSED_MAX], config, with_run=False)),
        ),
        scripts=("uplot.js", "series.js", "heat.js"),
        styles=("uplot.css",),
    )


def render_unknown(name: str, closed: "list[Incident]", snapshot: "Snapshot", config: "CoordinatorConfig") -> str:
    """Return the page of a run that is not, or no longer, monitored, with its stored incidents."""
    shown = live("now", "Now", tag("p", f"No run {name!r:.200} is watched now. ", link("/", "All runs")))
    past = [live("closed", "Recently closed", cards(closed, config, with_run=False))] if closed else []
    return document("No such run - Lockstep", bar(snapshot, config, crumb=name), (shown, *past))


def _now(run: "RunSnapshot", config: "CoordinatorConfig") -> Html:
    name = quote(run.run, safe="")
    facts = [
        ("State", tag("span", run.state, class_=f"badge {run.state}")),
        ("Step", "-" if run.step is None else str(run.step)),
        ("Step time", step_time(run)),
        ("Healthy", format_seconds(run.baseline_step_seconds)),
        ("Expected", expected(run)),
        *([_earlier(run.earlier)] if run.earlier else []),
        ("Ranks", f"{run.ranks_reporting} of {run.world_size}"),
        ("Slow ranks", suspects(run)),
        ("Devices lost", lost(run)),
    ]
    if run.ranks_blind:
        facts.append(("Without waits", f"{run.ranks_blind} ranks measure no wait: their own work is unknown"))
    links = [link(f"/api/v1/runs/{name}", "as JSON"), link(f"/api/v1/runs/{name}/policy", "thresholds")]
    if config.dashboard_base_url:
        links.append(link(f"{config.dashboard_base_url.rstrip('/')}/d/{DASHBOARD}?var-run={name}", "dashboard"))
    tiles = (tag("div", tag("dt", title), tag("dd", value)) for title, value in facts)
    return join((_stillness(run), tag("dl", *tiles, class_="tiles"), tag("p", *links, class_="links")))


def _earlier(earlier: "EarlierAttempts") -> tuple[str, Html]:
    """Return a tile with the step time of earlier attempts, and a notable slowdown of this one.

    Attempts are compared by their undisturbed steps, so the slowdown does not refer to the current step time. A run of
    another name may be a different experiment on purpose: such runs are named, and a slower step is not marked as bad.
    """
    is_own = earlier.match == NAME
    shown = [format_seconds(earlier.step_seconds)]
    if earlier.slowdown_ratio >= NOTABLE_RATIO:
        part = earlier.part.replace("_", " ")
        why = f", {part} +{format_seconds(earlier.part_more_seconds)}" if part else ""
        more = f"this one undisturbed {earlier.slowdown_ratio:+.0%}{why}"
        shown.append(tag("small", more, class_="bad" if is_own else "soft"))
    if not is_own:
        shown.append(tag("small", *_runs_named(earlier), class_="soft"))
    return "Earlier attempts" if is_own else "Same workload", join(shown)


def _runs_named(earlier: "EarlierAttempts") -> list[str]:
    """Return links to the compared runs, separated by commas."""
    links = [link(f"/runs/{quote(name, safe='')}", name) for name in earlier.runs]
    return [piece for each in links for piece in (", ", each)][1:]


def _stillness(run: "RunSnapshot") -> Html:
    """Return since when a run makes no step; empty while it makes steps."""
    if run.state not in _STILL or run.last_step_unix_s is None:
        return Html()
    is_over = run.state in (State.FINISHED, State.CANCELLED)
    shown = ("Last step at " if is_over else "No step since ", moment(run.last_step_unix_s), ".")
    return tag("p", *shown, class_="soft" if is_over else "bad")


def _over_time() -> Html:
    """Return the placeholder for the charts and the incidents' timeline, filled by `series.js`."""
    spans = [tag("option", name, value=value) for name, value in _SPANS]
    return tag(
        "section",
        tag("h2", "Over time"),
        tag("noscript", muted("The charts need JavaScript; /api/v1/runs/NAME/series has their numbers.")),
        tag(
            "div",
            tag("p", "", id="series-note", class_="soft"),
            tag(
                "div",
                tag("p", tag("label", "Show ", tag("select", *spans, id="range")), class_="controls"),
                tag("p", "", id="series-at", class_="at", role="status"),
                tag("h3", "Incidents"),
                tag("p", "", id="lanes-note", class_="soft"),
                tag("div", id="lanes", class_="lanes"),
                tag(
                    "div",
                    id="charts",
                    tabindex=0,
                    role="group",
                    aria_label="Charts. Left and right arrows read points.",
                ),
                id="series-shown",
            ),
            id="series-body",
            hidden="",
        ),
        id="over-time",
    )


def _map(kinds: list[str]) -> Html:
    """Return the placeholder for the heat map, filled by `heat.js`."""
    options = [tag("option", "node" if kind == "node" else f"{kind} domain", value=kind) for kind in kinds]
    quantities = (("self", "own work"), ("wait", "waiting"))
    picks = [tag("option", title, value=value) for value, title in quantities]
    return tag(
        "section",
        tag("h2", "Rank by step"),
        tag("noscript", muted("The map needs JavaScript; the slowest ranks below do not.")),
        tag(
            "div",
            tag(
                "p",
                tag("label", "Show ", tag("select", *picks, id="quantity")),
                tag("label", "grouped by ", tag("select", *options, id="by")),
                class_="controls",
            ),
            tag("p", "", id="map-note", class_="soft"),
            tag("p", "", id="cell", class_="cell", role="status"),
            tag(
                "div",
                tag("canvas", aria_hidden="true"),
                tag("div", class_="cursor", hidden=""),
                id="heat",
                class_="map",
                tabindex=0,
                role="application",
                aria_roledescription="heat map",
                aria_label="Ranks by steps. Arrow keys move, Enter takes the rank into the profile form.",
                aria_describedby="cell",
            ),
            tag(
                "p",
                tag("span", "", id="low"),
                tag("span", class_="ramp", aria_hidden="true"),
                tag("span", "", id="high"),
                tag("span", "not measured", class_="missing"),
                tag("span", "incident, from its first step", class_="marked"),
                id="legend",
                class_="legend",
            ),
            id="map-live",
            hidden="",
        ),
        id="map",
    )


def _slowest(ranks: list[dict[str, Any]]) -> Html:
    if not ranks:
        return muted("No undisturbed step yet.")
    heads = ("rank", "host", "own work", "against peers", "waiting", "own work, last steps")
    rows = []
    for each in ranks:
        excess = each["excess_ratio"]
        cells = (
            str(each["rank"]),
            each["hostname"] or "-",
            format_seconds(each["self_seconds"]),
            "-" if excess is None else f"{excess:+.1%}",
            format_seconds(each["wait_seconds"]),
            _strip(each["levels"]),
        )
        named = zip(heads, cells, strict=True)
        rows.append(tag("tr", *(tag("td", value, data_name=name) for name, value in named)))
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    return tag("table", head, tag("tbody", *rows), class_="runs slow")


def _strip(levels: list[int | None]) -> Html:
    """Return a rank's last steps as coloured cells."""
    cells = [
        tag("rect", x=place * _STRIP_STEP, y=0, width=_STRIP_STEP, height=_STRIP_HEIGHT, class_=f"l{level}")
        for place, level in enumerate(levels)
        if level is not None
    ]
    width = len(levels) * _STRIP_STEP
    return tag(
        "svg", *cells, width=width, height=_STRIP_HEIGHT, viewBox=f"0 0 {width} {_STRIP_HEIGHT}", aria_hidden="true"
    )


def _profile_form(view: RunView) -> Html:
    ranks = ", ".join(str(each.rank) for each in view.run.suspects[:_SUSPECTS_ASKED])
    needed = tag("p", "Needs the API token. It stays in this tab and goes to this coordinator only.", class_="soft")
    tools = join(("Without JavaScript: ", tag("code", "lockstep profile RUN --ranks LIST --token-file FILE")))
    form = Html(
        '<form id="profile" hidden><p class="controls">'
        f'<label>Ranks <input name="ranks" required placeholder="0, 8-11" value="{ranks}" autocomplete="off"></label>'
        f'<label>Steps <input name="steps" type="number" min="1" max="{PROFILE_STEPS_MAX}" '
        f'value="{view.profile_steps:d}"></label>'
        '<label>Token <input name="token" type="password" required autocomplete="off"></label>'
        '<button>Profile</button></p><progress hidden max="1" value="0" aria-label="ranks done"></progress>'
        '<p role="status" id="profile-status"></p><ul id="profile-ranks"></ul></form>'
    )
    return tag(
        "section",
        tag("h2", "Profile"),
        muted(f"Captures some steps of up to {PROFILE_RANKS_MAX} ranks while the training goes on."),
        needed,
        tag("noscript", tag("p", tools)),
        form,
        id="profile-section",
    )


def _captures(view: RunView) -> Html:
    if not view.captures:
        return muted("None yet.")
    rows = []
    for each in view.captures[:CAPTURES_SHOWN]:
        states = [rank["state"] for rank in each["ranks"]]
        shown = ", ".join(f"{counted(states.count(state), 'rank')} {state}" for state in dict.fromkeys(states))
        cost = f"cost {format_seconds(each['cost_seconds'])}" if each["cost_seconds"] else "cost nothing"
        end = "under way" if each["ended_unix_seconds"] is None else cost
        reason = f" for {each['incident_id']}" if each["incident_id"] else ""
        what = f"request {each['request_id']}{reason}: steps {each['first_step']} to "
        rows.append(tag("li", f"{what}{each['first_step'] + each['steps'] - 1}, {shown}; {end}"))
    more = link(f"/api/v1/runs/{quote(view.run.run, safe='')}/profile", "all of them, as JSON")
    return join((tag("ul", *rows), tag("p", more)))


def _domains(view: RunView) -> Html:
    if not view.domains:
        return muted("No process groups are known.")
    parts = []
    for kind, own in view.domains.items():
        rows = (tag("li", tag("strong", name), f": ranks {ranks}") for name, ranks in own)
        left = view.domain_counts[kind] - len(own)
        more = muted(f"{left} more: see the API.") if left else Html()
        title = tag("summary", f"{kind}: {counted(view.domain_counts[kind], 'domain')}")
        parts.append(tag("details", title, tag("ul", *rows), more, id=f"kind-{kind}"))
    return join(parts)
