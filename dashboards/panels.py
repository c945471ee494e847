"""Panels that grafanalib lacks or writes for Grafana 6 only, and links between dashboards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grafanalib.core as G  # noqa: N812  (grafanalib's own idiom)

from dashboards.builders import NO_VALUE, headings, query, thresholds

AT_RUN = "/runs/${run:percentencode}"
"""The coordinator's page for the selected run."""

_SCHEME = "continuous-GrYlRd"


class _ModernPanel(G.Panel):  # type: ignore[misc]  # grafanalib carries no types
    """A panel of current Grafana, with its type and options given directly."""

    kind = ""
    options: dict[str, Any] = {}  # noqa: RUF012  (each subclass has its own)

    def to_json_data(self) -> Any:
        """Return the panel's mapping."""
        return self.panel_json({"type": self.kind, "options": self.options})


class _StatusHistory(_ModernPanel):
    kind = "status-history"
    options = {  # noqa: RUF012
        "colWidth": 0.9,
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }


class _Heatmap(_ModernPanel):
    kind = "heatmap"
    options = {  # noqa: RUF012
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Oranges",
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One value column of a grid: its heading, unit and query, and the text colours by value."""

    heading: str
    unit: str
    expr: str
    steps: tuple[tuple[float | None, str], ...] = ((None, "text"),)


def grid(
    title: str,
    description: str,
    labels: Sequence[str],
    columns: Sequence[Column],
    *,
    names: str = "",
    links: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({}),
) -> Any:
    """Return a table with a row per set of `labels` and one value per column, sorted by the last column, descending.

    `names` is a query of which only the labels are shown: it adds labels that the values lack. `links` are the links of
    a label's cells.
    """
    targets = [query(names, table=True)] if names else []
    targets += [query(column.expr, table=True) for column in columns]
    letters = [chr(ord("A") + place) for place in range(len(targets))]
    hidden = {"Time": True} | ({"Value #A": True} if names else {})
    values = [f"Value #{letter}" for letter in letters[len(targets) - len(columns) :]]
    if len(targets) == 1:
        values = ["Value"]
    overrides = [_column(column) for column in columns]
    overrides += [_override(headings([label]).get(label, label), links=list(made)) for label, made in links.items()]
    organize = {
        "excludeByName": hidden,
        "indexByName": {name: place for place, name in enumerate([*labels, *values])},
        "renameByName": headings(labels)
        | {value: column.heading for value, column in zip(values, columns, strict=True)},
    }
    merge = [{"id": "merge", "options": {}}] if len(targets) > 1 else []
    return G.Table(
        title=title,
        description=description,
        unit="none",
        targets=targets,
        transformations=[*merge, {"id": "organize", "options": organize}],
        sortBy=[G.TableSortByField(displayName=columns[-1].heading, desc=True)],
        overrides=overrides,
        thresholds=thresholds((None, "text")),
        extraJson={"fieldConfig": {"defaults": {"noValue": NO_VALUE}}},
    )


def matrix(title: str, description: str, unit: str, *queries: Any) -> Any:
    """Return a row of cells for each series, time from left to right, coloured from smallest to largest value."""
    defaults = {
        "unit": unit,
        "noValue": NO_VALUE,
        "color": {"mode": _SCHEME},
        "custom": {"fillOpacity": 80, "lineWidth": 0},
    }
    return _StatusHistory(
        title=title,
        description=description,
        targets=list(queries),
        thresholds=thresholds((None, "text")),
        extraJson={"fieldConfig": {"defaults": defaults, "overrides": []}},
    )


def heat(title: str, description: str, expr: str) -> Any:
    """Return a heat map of durations; `expr` gives rates of a histogram's buckets by le."""
    target = G.Target(expr=expr, legendFormat="{{le}}", format="heatmap")
    defaults = {"unit": "s", "noValue": NO_VALUE}
    return _Heatmap(
        title=title,
        description=description,
        targets=[target],
        extraJson={"fieldConfig": {"defaults": defaults, "overrides": []}},
    )


def to_board(uid: str, title: str, **variables: str) -> dict[str, Any]:
    """Return a cell's link to another dashboard, with the time range and with variables from its row.

    `variables` name the field that provides each variable's value; the data source and the selected run are passed on.
    """
    picked = "".join(f"&var-{name}=${{__data.fields.{label}}}" for name, label in variables.items())
    kept = "" if "run" in variables else "&${cluster:queryparam}&${run:queryparam}"
    url = f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}{kept}{picked}"
    return {"targetBlank": False, "title": title, "url": url}


def to_coordinator(title: str, path: str) -> dict[str, Any]:
    """Return a link to the coordinator's page or API, whose address is a variable."""
    return {"targetBlank": True, "title": title, "url": f"${{coordinator}}{path}"}


def coordinator_variable() -> Any:
    """Return the variable with the coordinator's address for browsers."""
    return G.Template(
        name="coordinator", label="Coordinator", type="textbox", query="http://localhost:9856", default="", hide=0
    )


def _column(column: Column) -> dict[str, Any]:
    colours = {"mode": "absolute", "steps": thresholds(*column.steps)}
    properties: dict[str, Any] = {"unit": column.unit, "thresholds": colours}
    if len(column.steps) > 1:
        properties["custom.cellOptions"] = {"type": "color-text"}
    return _override(column.heading, **properties)


def _override(name: str, **properties: Any) -> dict[str, Any]:
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}
