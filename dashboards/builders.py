"""Builders over grafanalib: panels that require a description, and JSON that Grafana reads unchanged.

No panel stacks series, connects lines over missing data, or shows 0 where nothing was measured. Counts have the unit
`postprocess.COUNT` and no decimals. `postprocess.py` converts grafanalib's output for current Grafana.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grafanalib.core as G  # noqa: N812  (grafanalib's own idiom)
from grafanalib._gen import DashboardEncoder

from dashboards.postprocess import DATASOURCE, MIN_INTERVAL, postprocessed

SCHEMA_VERSION = 41  # what current Grafana releases write; older ones ignore what they do not know
COLUMNS = 24
NO_VALUE = "no data"

_SHARED_CROSSHAIR = 1
_ON_TIME_RANGE_CHANGE = 2
_HEADINGS = {"hostname": "host", "domain_kind": "domain", "device_uuid": "device UUID"}


class BarGauge(G.Panel):  # type: ignore[misc]  # grafanalib carries no types
    """grafanalib's bar gauge writes options of Grafana 6; this one writes the current ones."""

    def to_json_data(self) -> Any:
        """Return the panel's mapping."""
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options = {"displayMode": "basic", "orientation": "horizontal", "reduceOptions": reduce, "showUnfilled": True}
        return self.panel_json({"type": "bargauge", "options": options})


class AlertList(G.Panel):  # type: ignore[misc]  # grafanalib carries no types
    """Alerts as Grafana reads them from the data source; `labels` is a PromQL selector for them."""

    labels = ""

    def to_json_data(self) -> Any:
        """Return the panel's mapping."""
        states = {"firing": True, "pending": True, "noData": False, "normal": False, "error": True}
        options = {
            "viewMode": "list",
            "groupMode": "default",
            "maxItems": 20,
            "sortOrder": 1,
            "alertInstanceLabelFilter": self.labels,
            "stateFilter": states,
        }
        return self.panel_json({"type": "alertlist", "options": options})


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLine:
    """Panels next to each other, of equal width unless `widths` sets the number of grid columns (of 24) of each."""

    panels: tuple[Any, ...]
    height: int = 8
    widths: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[int, ...]:
        """Return the number of columns of each panel, which together fill the line."""
        width, left = divmod(COLUMNS, len(self.panels))
        return self.widths or tuple(width + (place < left) for place in range(len(self.panels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRow:
    """A titled part of a dashboard. A `folded` one shows only its title until it is clicked."""

    title: str
    lines: tuple[PanelLine, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSpec:
    """A dashboard. `uid` never changes, because alerts and other dashboards link to it."""

    uid: str
    title: str
    description: str
    rows: tuple[DashboardRow, ...]
    variables: tuple[Any, ...]
    annotations: tuple[dict[str, Any], ...] = ()
    at_coordinator: str = "/"
    """The coordinator's page that the menu links to."""
    tags: tuple[str, ...] = ("lockstep",)
    window: str = "now-1h"
    refresh: str = "30s"


def query(expr: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Any:
    """Return one query of a panel. A table needs an instant query."""
    return G.Target(
        expr=expr, legendFormat=legend, instant=instant or table, format="table" if table else "time_series"
    )


def timeseries(title: str, description: str, unit: str, *queries: Any, overrides: Sequence[Any] = ()) -> Any:
    """Return a panel of lines over time; the axis begins at 0."""
    return G.TimeSeries(
        title=title,
        description=description,
        unit=unit,
        targets=list(queries),
        overrides=list(overrides),
        axisSoftMin=0,
        showPoints="auto",
        spanNulls=False,
        tooltipMode="multi",
        tooltipSort="desc",
        legendCalcs=["lastNotNull", "max"],
        legendDisplayMode="table",
        extraJson={"fieldConfig": {"defaults": {"custom": {"stacking": {"mode": "none"}}}}},
    )


def stat(
    title: str,
    description: str,
    unit: str,
    target: Any,
    *,
    steps: Sequence[tuple[float | None, str]] = ((None, "text"),),
    overrides: Sequence[Any] = (),
    name: bool = False,
    words: Sequence[dict[str, Any]] = (),
) -> Any:
    """Return a panel with one number, or with `name` the label of the only series. `steps` are (from, colour)."""
    return G.Stat(
        title=title,
        description=description,
        format=unit,
        targets=[target],
        noValue=NO_VALUE,
        reduceCalc="lastNotNull",
        graphMode="none",
        colorMode="background" if name else "value",
        textMode="name" if name else "auto",
        overrides=list(overrides),
        color={"mode": "thresholds"},
        mappings=list(words),
        thresholds=thresholds(*steps),
    )


def flag(title: str, description: str, target: Any, *, well: str, ill: str) -> Any:
    """Return a panel that shows a 1 as `well` (green) and a 0 as `ill` (red)."""
    options = {"0": {"index": 0, "text": ill}, "1": {"index": 1, "text": well}}
    words = ({"type": "value", "options": options},)
    return stat(title, description, "none", target, steps=((None, "red"), (1, "green")), words=words)


def bars(title: str, description: str, unit: str, target: Any) -> Any:
    """Return a panel with one bar per series, at the end of the time range."""
    defaults = {"unit": unit, "min": 0, "noValue": NO_VALUE, "color": {"mode": "palette-classic"}}
    return BarGauge(
        title=title,
        description=description,
        targets=[target],
        thresholds=thresholds((None, "text")),
        extraJson={"fieldConfig": {"defaults": defaults, "overrides": []}},
    )


def table(
    title: str,
    description: str,
    unit: str,
    target: Any,
    *,
    columns: Sequence[str],
    hidden: Sequence[str] = (),
    value: str = "",
) -> Any:
    """Return a table: `columns` are labels in order, `value` the heading of the value, which is hidden without one."""
    excluded = {"Time": True, **dict.fromkeys(hidden, True)}
    if not value:
        excluded["Value"] = True
    order = {label: place for place, label in enumerate([*columns, "Value"])}
    names = headings(columns) | ({"Value": value} if value else {})
    organize = {"excludeByName": excluded, "indexByName": order, "renameByName": names}
    return G.Table(
        title=title,
        description=description,
        unit=unit,
        targets=[target],
        transformations=[{"id": "organize", "options": organize}],
        sortBy=[G.TableSortByField(displayName=value, desc=True)] if value else [],
        thresholds=thresholds((None, "text")),
        extraJson={"fieldConfig": {"defaults": {"noValue": NO_VALUE}}},
    )


def headings(labels: Sequence[str]) -> dict[str, str]:
    """Return readable headings for labels whose own name is not one."""
    named = {label: _HEADINGS.get(label, label.replace("_", " ")) for label in labels}
    return {label: heading for label, heading in named.items() if heading != label}


def states(title: str, description: str, *queries: Any, overrides: Sequence[Any]) -> Any:
    """Return bands over time, one per series, coloured while the series exists."""
    return G.StateTimeline(
        title=title,
        description=description,
        targets=list(queries),
        overrides=list(overrides),
        showValue="never",
        thresholds=thresholds((None, "text")),
        extraJson={"fieldConfig": {"defaults": {"unit": "none", "noValue": NO_VALUE}}},
    )


def alerts(title: str, description: str, labels: str = '{run="$run",severity!="none"}') -> Any:
    """Return the list of firing and pending alerts, without those that have no receiver."""
    panel = AlertList(title=title, description=description)
    panel.labels = labels
    return panel


def thresholds(*steps: tuple[float | None, str]) -> list[dict[str, Any]]:
    """Return threshold steps; the first one begins at None, which stands for minus infinity."""
    return [{"value": value, "color": colour} for value, colour in steps]


def coloured(name: str, colour: str) -> dict[str, Any]:
    """Return the override that sets the colour of the series called `name`."""
    fixed = {"mode": "fixed", "fixedColor": colour}
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "color", "value": fixed}]}


def coloured_like(pattern: str, colour: str) -> dict[str, Any]:
    """Return the override that sets the colour of all series whose name matches a regular expression."""
    override = coloured(f"/{pattern}/", colour)
    override["matcher"]["id"] = "byRegexp"
    return override


def dashed(pattern: str) -> dict[str, Any]:
    """Return the override that dashes all lines whose name matches a regular expression, i.e. references."""
    style = {"fill": "dash", "dash": [8, 6]}
    properties = [{"id": "custom.lineStyle", "value": style}]
    return {"matcher": {"id": "byRegexp", "options": f"/{pattern}/"}, "properties": properties}


def datasource_variable() -> Any:
    """Return the variable that selects the Prometheus; the first one of every dashboard."""
    return G.Template(name="datasource", label="Data source", type="datasource", query="prometheus")


def variable(name: str, label: str, expr: str, *, multi: bool = False, pattern: str = ".+") -> Any:
    """Return a variable with looked-up values; with `multi`, several or all (`pattern`) may be selected."""
    return G.Template(
        name=name,
        label=label,
        query=expr,
        dataSource=DATASOURCE,
        refresh=_ON_TIME_RANGE_CHANGE,
        multi=multi,
        includeAll=multi,
        allValue=pattern if multi else None,
        default="$__all" if multi else None,
    )


def run_variables() -> tuple[Any, Any]:
    """Return the variables that select a run: its cluster (all if series have no such label) and its name."""
    return (
        variable("cluster", "Cluster", "label_values(lockstep_run_ranks, cluster)", multi=True, pattern=".*"),
        variable("run", "Run", 'label_values(lockstep_run_ranks{cluster=~"$cluster"}, run)'),
    )


def every_panel(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all panels of a rendered dashboard, those of folded rows after their heading."""
    return [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]


def annotation(name: str, expr: str, title: str, text: str, colour: str) -> dict[str, Any]:
    """Return an annotation: marks on every panel for as long as `expr` has series."""
    return {
        "name": name,
        "expr": expr,
        "titleFormat": title,
        "textFormat": text,
        "iconColor": colour,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "step": MIN_INTERVAL,
    }


def render(board: DashboardSpec) -> str:
    """Return the dashboard's JSON text."""
    dashboard = G.Dashboard(
        uid=board.uid,
        title=board.title,
        description=board.description,
        tags=list(board.tags),
        editable=False,
        timezone="utc",
        graphTooltip=_SHARED_CROSSHAIR,
        schemaVersion=SCHEMA_VERSION,
        refresh=board.refresh,
        time=G.Time(board.window, "now"),
        templating=G.Templating(list=list(board.variables)),
        annotations=G.Annotations(list=list(board.annotations)),
        panels=_placed(board.rows),
    )
    return json.dumps(postprocessed(_plain(dashboard), board.at_coordinator), indent=2, sort_keys=True) + "\n"


def _plain(part: Any) -> dict[str, Any]:
    """Return the JSON values of a grafanalib object."""
    data: dict[str, Any] = json.loads(json.dumps(part, cls=DashboardEncoder))
    return data


def _placed(rows: Sequence[DashboardRow]) -> list[dict[str, Any]]:
    """Return all panels from top to bottom with positions and ids; those of a folded row are inside it."""
    panels: list[dict[str, Any]] = []
    top = count = 0

    def place(panel: Any, x: int, width: int, height: int, into: list[dict[str, Any]]) -> dict[str, Any]:
        nonlocal count
        count += 1
        position = {"h": height, "w": width, "x": x, "y": top}
        into.append({**_plain(panel), "gridPos": position, "id": count})
        return into[-1]

    for row in rows:
        heading = place(G.RowPanel(title=row.title, collapsed=row.folded), 0, COLUMNS, 1, panels)
        inside = heading["panels"] = []
        top += 1
        begin = top
        for line in row.lines:
            left = 0
            for panel, width in zip(line.panels, line.columns, strict=True):
                place(panel, left, width, line.height, inside if row.folded else panels)
                left += width
            top += line.height
        top = begin if row.folded else top
    return panels
