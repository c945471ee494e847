"""What all pages share: the frame of a document, links, and figures as people read them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from coordinator.page.assets import path_of
from lockstep.html.markup import Html, escaped, join, tag
from lockstep.html.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import Snapshot

_RELOAD_SECONDS = 10  # of a page without JavaScript
_NS = 1e9
_LONG_S = 600.0
_MINUTES_MAX_S = 7200.0
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_MILLISECOND = 1e-3
_MILLISECONDS_MAX = 1.0  # seconds; above, a thousandth carries no information


def document(
    title: str,
    head: "Sequence[str]",
    content: "Sequence[str]",
    *,
    scripts: "Sequence[str]" = (),
    styles: "Sequence[str]" = (),
) -> Html:
    """Return a whole page; scripts and styles are files of this server, and work is done without them.

    `scripts` are names of files in `static` that it needs besides `page.js`.
    """
    reload = tag("noscript", tag("meta", http_equiv="refresh", content=str(_RELOAD_SECONDS)))
    made = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
            tag("link", rel="icon", type="image/svg+xml", href=path_of("icon.svg")),
            *(tag("link", rel="stylesheet", href=path_of(name)) for name in styles),
            tag("link", rel="stylesheet", href=path_of("page.css")),
            tag("script", src=path_of("page.js"), defer=""),
            *(tag("script", src=path_of(name), defer="") for name in scripts),
            reload,
        ),
        tag(
            "body",
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag("header", *head),
            tag("main", *content, id="content", tabindex=-1),
        ),
        lang="en",
    )
    return Html(f"<!DOCTYPE html>{made}")


def bar(snapshot: "Snapshot", config: "CoordinatorConfig", *, crumb: str = "") -> list[Html]:
    """Return the head of a page: name, whether it is live, state of the coordinator, ways out."""
    home = tag("a", "Lockstep", href="/", class_="home")
    place = join((home, tag("span", " / ", class_="soft"), tag("span", crumb))) if crumb else home
    links = [
        link("/incidents", "incidents"),
        link("/fleet", "fleet"),
        link("/api/v1/runs", "API"),
        link("/metrics", "metrics"),
    ]
    links += [link(config.dashboard_base_url, "dashboards")] if config.dashboard_base_url else []
    links += [link(config.runbook_base_url, "runbooks")] if config.runbook_base_url else []
    return [
        tag("h1", place),
        tag("nav", *links, aria_label="elsewhere"),
        tag(
            "p",
            tag("span", "as of this page's loading", id="live", class_="live", role="status"),
            tag("span", *_sources(snapshot), id="sources-live", data_live=""),
            f" · coordinator {snapshot.version}",
            class_="soft bar",
        ),
    ]


def _sources(snapshot: "Snapshot") -> list[str]:
    """Return where news come from; without it the page stands still, however live it is."""
    broker = (
        "connected to the broker" if snapshot.is_connected else tag("span", "not connected to the broker", class_="bad")
    )
    alive = f"exporters alive: {snapshot.nodes_alive}"
    is_deaf = bool(snapshot.runs) and not snapshot.nodes_alive
    lost = {reason: count for reason, count in snapshot.records_lost.items() if count}
    text = f"step records lost: {sum(lost.values())} ({', '.join(f'{r} {n}' for r, n in lost.items())})"
    losses = [" · ", tag("span", text, class_="bad")] if lost else []
    return [" · ", broker, " · ", tag("span", alive, class_="bad") if is_deaf else alive, *losses]


def live(name: str, title: str, *children: str) -> Html:
    """Return a part of a page that is replaced when something is new."""
    return tag("section", tag("h2", title), tag("div", *children, id=f"{name}-live", data_live=""), id=name)


def search_bar(what: str, *, has_sort: bool = True) -> Html:
    """Return the field that searches rows and cards of a page, and what sorts its table where rows are cards."""
    order = tag("label", "Sort by ", tag("select", tag("option", "what needs attention", value=""), id="sort"))
    return Html(
        '<p class="controls search" id="search-bar" hidden><label>Search '
        f'<input type="search" id="search" placeholder="{escaped(what)}" autocomplete="off"></label>'
        f'{order if has_sort else ""}<span id="search-count" class="soft" role="status"></span></p>'
    )


def sorted_table(rows: "Sequence[Sequence[tuple[str, str, str | None]]]") -> Html:
    """Return a table to sort by any column and, on a narrow screen, a card a row.

    A row has name, text and sort key of each column; without a key it is sorted by its text. There is one row at least.
    """
    heads = [tag("th", name, scope="col") for name, _, _ in rows[0]]
    cells = [tag("tr", *(tag("td", text, data_name=name, data_value=key) for name, text, key in row)) for row in rows]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *cells), class_="runs sorted")


def link(url: str, text: str) -> Html:
    """Return a link."""
    return tag("a", text, href=url)


def format_seconds(seconds: float | None) -> str:
    """Return a time: `433 ms`, `12.5 s`, `34 min`, `2.4 h`."""
    if seconds is None:
        return "-"
    if abs(seconds) >= _LONG_S:
        is_minutes = abs(seconds) < _MINUTES_MAX_S
        return f"{seconds / _MINUTE_S:.0f} min" if is_minutes else f"{seconds / _HOUR_S:.1f} h"
    return f"{seconds * 1e3:.0f} ms" if _MILLISECOND <= abs(seconds) < _MILLISECONDS_MAX else format_ns(seconds * _NS)


def moment(unix_s: float) -> Html:
    """Return when something was, in UTC; `page.js` adds the reader's own clock, and how long ago that is."""
    at = datetime.fromtimestamp(unix_s, UTC)
    return tag("time", f"{at:%Y-%m-%d %H:%M:%S} UTC", datetime=f"{at:%Y-%m-%dT%H:%M:%SZ}")


def moment_ns(unix_ns: int) -> Html:
    """Return the same of nanoseconds."""
    return moment(unix_ns / _NS)
