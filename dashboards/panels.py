"""Panels that grafanalib does not have, or writes for Grafana 6 only, and ways between boards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grafanalib.core as G  # noqa: N812  (grafanalib's own idiom)

from dashboards.builders import NO_VALUE, headings, query, thresholds

AT_RUN = "/runs/${run:percentencode}"
"""The coordinator's page about the chosen run."""

_SCHEME = "continuous-GrYlRd"


class _Modern(G.Panel):  # type: ignore[misc]  # grafanalib carries no types
    """A panel of today's Grafana whose type and options are given as they are."""

    kind = ""
    options: dict[str, Any] = {}  # noqa: RUF012  (each subclass has its own)

    def to_json_data(self) -> Any:
        """Return the panel's mapping."""
        return self.panel_json({"type": self.kind, "options": self.options})


class _StatusHistory(_Modern):
    kind = "status-history"
    options = {  # noqa: RUF012
        "colWidth": 0.9,
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }


class _Heatmap(_Modern):
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
    """One value of a grid: its heading, its unit, what is asked, and the colours of its text from values on."""

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
    """Return a table with a row for each set of `labels` and one value a column; the last column sorts it, falling.

    `names` is a query of which only the labels are shown: it adds labels that the values lack. `links` are those of the
    cells of a label.
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
    """Return a row of cells for each series, time from left to right, coloured from the least to the most."""
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
    """Return how often each duration occurred; `expr` gives rates of a histogram's buckets by le."""
    target = G.Target(expr=expr, legendFormat="{{le}}", format="heatmap")
    defaults = {"unit": "s", "noValue": NO_VALUE}
    return _Heatmap(
        title=title,
        description=description,
        targets=[target],
        extraJson={"fieldConfig": {"defaults": defaults, "overrides": []}},
    )


def to_board(uid: str, title: str, **variables: str) -> dict[str, Any]:
    """Return a link of a cell to another dashboard, with the time range and these variables taken from its row.

    `variables` name the field whose value a variable gets; the data source and the run chosen here go along.
    """
    picked = "".join(f"&var-{name}=${{__data.fields.{label}}}" for name, label in variables.items())
    kept = "" if "run" in variables else "&${cluster:queryparam}&${run:queryparam}"
    url = f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}{kept}{picked}"
    return {"targetBlank": False, "title": title, "url": url}


def to_coordinator(title: str, path: str) -> dict[str, Any]:
    """Return a link to the coordinator's own page or API, whose address is a variable."""
    return {"targetBlank": True, "title": title, "url": f"${{coordinator}}{path}"}


def coordinator_variable() -> Any:
    """Return the variable that holds the coordinator's address for browsers."""
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
