"""One panel as HTML: its title and content, or why it is empty."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from dashboards.preview import chart
from dashboards.preview.ask import QueryResult, Series, TimeWindow, alerts, ask
from dashboards.preview.units import PALETTE, format_value

_CELL_WIDTH, _CELL_HEIGHT = 58, 32
"""The size of a grid cell in units of drawings."""
_LEGEND_MAX = 12
_LEGEND_CELLS = 6  # of the grid's 24 that a legend column needs
_ROWS_MAX = 12
_SHORT_CHARS = 26
"""Table cells up to this length stay on one line: broken names of ranks, causes and headings are unreadable."""
_HEADING_PX = 48
"""The height of the panel's title and frame."""
_COLOURS = {
    "green": "#3d9a50",
    "dark-green": "#256b38",
    "light-green": "#8bc48a",
    "yellow": "#c99a00",
    "red": "#d0342c",
    "dark-red": "#8f1d17",
    "dark-orange": "#c8640f",
    "orange": "#e08a3c",
    "light-orange": "#f0b47a",
    "blue": "#3a76c4",
    "light-blue": "#7ab2f0",
    "purple": "#8256b8",
    "text": "var(--ink)",
}

_GREY = "#66717c"


def draw(panel: Mapping[str, Any], window: TimeWindow, values: Mapping[str, str], tops: Sequence[int]) -> str:
    """Return the panel's HTML; `tops` are all grid rows at which panels begin: a line is as high as it needs to be."""
    place = panel["gridPos"]
    lines = sum(place["y"] <= top < place["y"] + place["h"] for top in tops)
    style = f"grid-column:{place['x'] + 1}/span {place['w']};grid-row:{tops.index(place['y']) + 1}/span {lines}"
    if panel["type"] == "row":
        return f'<h2 style="{style}">{escape(panel["title"])}</h2>'
    title = f'<h3 title="{escape(panel["description"])}">{escape(panel["title"])}</h3>'
    return f'<section style="{style}">{title}{_body(panel, window, values)}</section>'


def _no_data(panel: Mapping[str, Any]) -> str:
    text = panel["fieldConfig"]["defaults"].get("noValue", "no data")
    return f'<p class="none">{escape(text)}</p>'


def _body(panel: Mapping[str, Any], window: TimeWindow, values: Mapping[str, str]) -> str:
    if panel["type"] == "alertlist":
        return _alerts(alerts(panel["options"]["alertInstanceLabelFilter"], window, values))
    answers = ask(panel, window, values)
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        return f'<p class="bad">{escape(errors[0])}</p>'
    series = [each for answer in answers for each in answer.series]
    if not series:
        return _no_data(panel)
    return _table(panel, answers) if panel["type"] == "table" else _drawing(panel, series, window)


def _drawing(panel: Mapping[str, Any], series: Sequence[Series], window: TimeWindow) -> str:
    """Return the panel types other than tables: numbers, bars, and drawings over time."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    width, height = panel["gridPos"]["w"] * _CELL_WIDTH, panel["gridPos"]["h"] * _CELL_HEIGHT
    size = (width, height - _HEADING_PX)
    columns = max(min(panel["gridPos"]["w"] // _LEGEND_CELLS, len(series)), 1)
    below = 20 * math.ceil(min(len(series), _LEGEND_MAX) / columns)
    style = _overridden(panel, "custom.lineStyle")
    look = chart.SeriesStyle(colours(panel), lambda legend: style(legend) is not None)
    drawn: dict[str, Callable[[], str]] = {
        "stat": lambda: _stat(panel, series[0], unit),
        "bargauge": lambda: _bars(series, unit),
        "state-timeline": lambda: chart.bands(series, window, size, look.colours),
        "status-history": lambda: chart.cells(series, unit, window, size),
        "heatmap": lambda: chart.heat(series, window, size),
        "timeseries": lambda: (
            chart.lines(series, unit, window, (width, max(height - _HEADING_PX - below, 110)), look)
            + _legend(series, unit, look.colours, columns)
        ),
    }
    return drawn[panel["type"]]()


def _stat(panel: Mapping[str, Any], series: Series, unit: str) -> str:
    if panel["options"].get("textMode") == "name":
        fill = colours(panel)(series.legend) or _COLOURS["text"]
        fill = _GREY if fill == _COLOURS["text"] else fill  # the text on it is white in both schemes
        return f'<p class="stat name" style="background:{fill}">{escape(series.legend)}</p>'
    defaults = panel["fieldConfig"]["defaults"]
    colour = _colour(series.last, defaults.get("thresholds", {}).get("steps", []))
    words = {
        text: message["text"] for item in defaults.get("mappings", []) for text, message in item["options"].items()
    }
    text = words.get(f"{series.last:g}", format_value(series.last, unit))
    return f'<p class="stat" style="color:{colour}">{escape(text)}</p>'


def _bars(series: Sequence[Series], unit: str) -> str:
    most = max((each.last for each in series), default=1.0) or 1.0
    return "".join(
        f'<div class="bar"><span>{escape(each.legend)}</span><i style="width:{max(each.last / most, 0):.1%}"></i>'
        f"<b>{escape(format_value(each.last, unit))}</b></div>"
        for each in series[:_ROWS_MAX]
    )


def _legend(series: Sequence[Series], unit: str, colour: Callable[[str], str | None], columns: int = 1) -> str:
    rows = [
        f'<span><i class="k" style="background:{colour(each.legend) or f"var(--c{index % PALETTE})"}"></i>'
        f"{escape(each.legend)}</span><b>{escape(format_value(each.last, unit))}</b>"
        for index, each in enumerate(series[:_LEGEND_MAX])
    ]
    more = len(series) - _LEGEND_MAX
    rows += [f"<span>and {more} more</span><b></b>"] if more > 0 else []
    style = f"grid-template-columns:repeat({columns}, 1fr)"
    return f'<div class="legend" style="{style}">{"".join(f"<p>{row}</p>" for row in rows)}</div>'


def _alerts(answer: QueryResult) -> str:
    if answer.error:
        return f'<p class="bad">{escape(answer.error)}</p>'
    if not answer.series:
        return '<p class="none">none fires</p>'
    rows = []
    for each in answer.series[:_ROWS_MAX]:
        labels = each.labels
        where = " ".join(f"{key}={labels[key]}" for key in ("run", "rank", "hostname", "cause") if labels.get(key))
        state = f"{escape(labels.get('alertstate', ''))}<br>{escape(labels.get('severity', ''))}"
        rows.append(
            f"<tr><td>{escape(labels['alertname'])}<br><small>{escape(where)}</small></td><td>{state}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _table(panel: Mapping[str, Any], answers: Sequence[QueryResult]) -> str:
    """Apply the transformations merge and organize, and sort as the panel specifies."""
    options = panel["transformations"][-1]["options"]
    many = len(answers) > 1
    order = sorted(options["indexByName"], key=options["indexByName"].__getitem__)
    labels = [name for name in order if not name.startswith("Value")]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for answer in answers:
        column = f"Value #{answer.letter}" if many else "Value"
        for each in answer.series:
            _row_of(rows, each.labels, labels)[column] = each.last
    if not rows:
        return _no_data(panel)
    shown = [name for name in order if name not in options["excludeByName"]]
    names = options["renameByName"]
    sort = [item["displayName"] for item in panel["options"].get("sortBy", [])]
    ordered = list(rows.values())
    for heading in sort:
        key = next((column for column, name in names.items() if name == heading), heading)
        ordered.sort(key=lambda row: -row.get(key, float("-inf")))
    heads = "".join(f"<th>{escape(names.get(name, name))}</th>" for name in shown)
    body = "".join(
        f"<tr>{''.join(_cell(panel, row, name, names) for name in shown)}</tr>" for row in ordered[:_ROWS_MAX]
    )
    more = f'<p class="none">and {len(ordered) - _ROWS_MAX} more rows</p>' if len(ordered) > _ROWS_MAX else ""
    return f"<table><tr>{heads}</tr>{body}</table>{more}"


def _row_of(
    rows: dict[tuple[str, ...], dict[str, Any]], found: Mapping[str, str], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the row that a series belongs to: the one that agrees in all labels that both have."""
    for row in rows.values():
        if all(row[label] == found[label] for label in labels if label in found and label in row) and any(
            label in found and label in row for label in labels
        ):
            row.update({label: found[label] for label in labels if label in found})
            return row
    key = tuple(found.get(label, "") for label in labels)
    return rows.setdefault(key, {label: found[label] for label in labels if label in found})


def _cell(panel: Mapping[str, Any], row: Mapping[str, Any], name: str, names: Mapping[str, str]) -> str:
    value = row.get(name)
    if not isinstance(value, float):
        return _text(str(value or ""))
    heading = names.get(name, name)
    properties = {
        item["id"]: item["value"]
        for override in panel["fieldConfig"].get("overrides", [])
        if override["matcher"]["options"] == heading
        for item in override["properties"]
    }
    unit = properties.get("unit", panel["fieldConfig"]["defaults"]["unit"])
    steps = properties.get("thresholds", {}).get("steps", [])
    colour = _colour(value, steps) if len(steps) > 1 else "inherit"
    return f'<td class="n" style="color:{colour}">{escape(format_value(value, unit))}</td>'


def _text(text: str) -> str:
    """Return a cell; a long one may be broken."""
    mark = ' class="w"' if len(text) > _SHORT_CHARS else ""
    return f"<td{mark}>{escape(text)}</td>"


def _colour(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    reached = [step["color"] for step in steps if step.get("value") is None or value >= step["value"]]
    return _COLOURS.get(reached[-1], reached[-1]) if reached else "inherit"


def colours(panel: Mapping[str, Any]) -> Callable[[str], str | None]:
    """Return a function from a legend to the series' colour, by the panel's overrides; None without one."""
    chosen = _overridden(panel, "color")

    def colour(legend: str) -> str | None:
        fixed = chosen(legend)
        return _COLOURS.get(fixed["fixedColor"], fixed["fixedColor"]) if fixed else None

    return colour


def _overridden(panel: Mapping[str, Any], key: str) -> Callable[[str], Any]:
    """Return a function from a legend to one property of the series; None if no override sets it."""
    found = [
        (override["matcher"], item["value"])
        for override in panel["fieldConfig"].get("overrides", [])
        for item in override["properties"]
        if item["id"] == key
    ]

    def value(legend: str) -> Any:
        for matcher, chosen in found:
            if matcher["id"] == "byName" and matcher["options"] == legend:
                return chosen
            if matcher["id"] == "byRegexp" and re.search(matcher["options"].strip("/"), legend):
                return chosen
        return None

    return value
