"""Elements that all pages share: the document, links, and formatted figures."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from coordinator.page.assets import path_of
from lockstep.html.markup import Html, escaped, join, tag
from lockstep.html.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.settings.config import CoordinatorConfig
    from coordinator.snapshot import Snapshot

_RELOAD_SECONDS = 10  # reload interval of a page without JavaScript
_NS = 1e9
_LONG_S = 600.0
_MINUTES_MAX_S = 7200.0
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_MILLISECOND = 1e-3
_MILLISECONDS_MAX = 1.0  # seconds; longer times need no milliseconds


def document(
    title: str,
    head: "Sequence[str]",
    content: "Sequence[str]",
    *,
    scripts: "Sequence[str]" = (),
    styles: "Sequence[str]" = (),
) -> Html:
    """Return a complete page; it also works without its scripts and styles, which are files of this server.

    `scripts` are the names of files in `static` that it needs in addition to `page.js`.
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
    """Return the header of a page: name, live status, state of the coordinator, links."""
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
        tag("nav", *links, aria_label="links"),
        tag(
            "p",
            tag("span", "as of page load", id="live", class_="live", role="status"),
            tag("span", *_sources(snapshot), id="sources-live", data_live=""),
            f" · coordinator {snapshot.version}",
            class_="soft bar",
        ),
    ]


def _sources(snapshot: "Snapshot") -> list[str]:
    """Return the state of the broker and the exporters; if they are down, a live page does not change either."""
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
    """Return a section of a page that is replaced when its content changes."""
    return tag("section", tag("h2", title), tag("div", *children, id=f"{name}-live", data_live=""), id=name)


def search_bar(what: str, *, has_sort: bool = True) -> Html:
    """Return the search field of a page, and a sort control for narrow screens, where rows are shown as cards."""
    order = tag("label", "Sort by ", tag("select", tag("option", "what needs attention", value=""), id="sort"))
    return Html(
        '<p class="controls search" id="search-bar" hidden><label>Search '
        f'<input type="search" id="search" placeholder="{escaped(what)}" autocomplete="off"></label>'
        f'{order if has_sort else ""}<span id="search-count" class="soft" role="status"></span></p>'
    )


def sorted_table(rows: "Sequence[Sequence[tuple[str, str, str | None]]]") -> Html:
    """Return a table that can be sorted by any column; a narrow screen shows one card per row.

    A row has name, text and sort key of each column; without a key, the text is the key. There must be at least one
    row.
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
    """Return a time in UTC; `page.js` adds the local time and how long ago it is."""
    at = datetime.fromtimestamp(unix_s, UTC)
    return tag("time", f"{at:%Y-%m-%d %H:%M:%S} UTC", datetime=f"{at:%Y-%m-%dT%H:%M:%SZ}")


def moment_ns(unix_ns: int) -> Html:
    """Return a time given in unix nanoseconds, as `moment`."""
    return moment(unix_ns / _NS)
