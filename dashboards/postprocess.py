"""Converts grafanalib's output into what current Grafana reads.

grafanalib's defaults come from Grafana 6. `postprocessed` removes nulls and keys that Grafana dropped, and sets a data
source object on every panel, query and variable.
"""

from collections.abc import Sequence
from typing import Any

from dashboards.levels import explain

MIN_INTERVAL = "15s"  # the scrape interval of the example configuration: finer points would be interpolated
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

COUNT = "locale"
"""The unit of counts, without decimals: there is no half a rank, and 1,536 must not become 2 K."""

_LINK = {"asDropdown": False, "icon": "external link", "includeVars": False, "keepTime": False, "tags": []}
_ALL_BOARDS = {
    **_LINK,
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "tags": ["lockstep"],
    "targetBlank": False,
    "title": "Lockstep",
    "tooltip": "Other dashboards of Lockstep, with the same run and time",
    "type": "dashboards",
    "url": "",
}
_COORDINATOR = {
    **_LINK,
    "targetBlank": True,
    "title": "Coordinator",
    "tooltip": "The coordinator's own page, which leads to the runbooks where it has their address",
    "type": "link",
}
_LEGACY_DASHBOARD = ("__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style")
_LEGACY_PANEL = ("cacheTimeout", "columns", "editable", "error", "fontSize", "height", "hideTimeOverride", "mappings")
_LEGACY_PANEL_SIZES = ("color", "minSpan", "span", "timeFrom", "timeShift")
_LEGACY_TARGET = ("intervalFactor", "metric", "query", "step", "target", "interval", "hide")
_LEGACY_VARIABLE = ("auto", "auto_count", "auto_min", "useTags", "tagsQuery", "tagValuesQuery")
_OF_LOOKED_UP_VARIABLE = ("datasource", "definition", "refresh", "regex", "sort", "includeAll", "allValue", "options")


def postprocessed(data: dict[str, Any], at_coordinator: str) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it; its menu links to all others and to a page of the coordinator."""
    for row in data["panels"]:
        for panel in (row, *row.get("panels", ())):
            _postprocess_panel(panel)
    for item in data["templating"]["list"]:
        _postprocess_variable(item)
    _drop(data, _LEGACY_DASHBOARD)
    data["links"] = [_ALL_BOARDS, {**_COORDINATOR, "url": f"${{coordinator}}{at_coordinator}"}]
    _drop(data["timepicker"], ("time_options",))
    clean: dict[str, Any] = _without_nulls(data)
    return clean


def _postprocess_panel(panel: dict[str, Any]) -> None:
    _drop(panel, (*_LEGACY_PANEL, *_LEGACY_PANEL_SIZES))
    if panel["type"] == "row":
        _drop(panel, ("fieldConfig", "maxDataPoints", "targets", "transformations", "links", "transparent"))
        return
    _drop(panel, ("maxDataPoints",))
    config = panel.get("fieldConfig", {})
    _drop(config.get("defaults", {}).get("custom", {}), ("displayMode",))
    _write_counts(config)
    explain(panel)
    panel.update(datasource=DATASOURCE, interval=MIN_INTERVAL)
    for index, target in enumerate(panel["targets"]):
        _drop(target, _LEGACY_TARGET)
        target.update(datasource=DATASOURCE, refId=chr(ord("A") + index), editorMode="code")
        target["range"] = not target["instant"]


def _postprocess_variable(item: dict[str, Any]) -> None:
    _drop(item, _LEGACY_VARIABLE)
    if item["type"] == "textbox":
        _drop(item, _OF_LOOKED_UP_VARIABLE)
        item["current"] = {"selected": True, "text": item["query"], "value": item["query"]}
        return
    if item["type"] == "query":
        item["definition"] = item["query"]
        item["query"] = {"query": item["definition"], "refId": "StandardVariableQuery"}
    item["current"] = {"selected": True, "text": "All", "value": "$__all"} if item["multi"] else {}


def _write_counts(config: dict[str, Any]) -> None:
    """Remove the decimals of counts, on the panel and in single columns."""
    defaults = config.get("defaults", {})
    if defaults.get("unit") == COUNT:
        defaults["decimals"] = 0
    for override in config.get("overrides", []):
        if {"id": "unit", "value": COUNT} in override["properties"]:
            override["properties"].append({"id": "decimals", "value": 0})


def _drop(data: dict[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        data.pop(key, None)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
