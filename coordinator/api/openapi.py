"""Generates the OpenAPI description of the HTTP API: routes and texts from the handlers, bodies from the tables below.

The description is served at `/api/v1/openapi.json` and written to docs/openapi.json. Pages for people are excluded. A
test compares the tables with actual responses of a coordinator. Values inside a response (a rank's parts, an incident's
explanation) are objects without further description, because newer versions add fields to them.
"""

import re
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from coordinator.record.step_series import INTERVALS_MAX
from coordinator.settings.thresholds import catalogue
from lockstep.contracts.limits import PROFILE_RANKS_MAX, PROFILE_STEPS_MAX
from lockstep.contracts.version import VERSION

PATH = "/api/v1/openapi.json"
DESCRIBED = ("/api/", "/-/", "/metrics")
"""Prefixes of paths for programs."""
SAFE = frozenset({"GET", "HEAD"})
"""Methods that need no token."""
_TEXT, _WHOLE, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_TRUTH = {"type": "boolean"}
_OBJECT, _LIST = {"type": "object"}, {"type": "array", "items": {"type": "object"}}
_NUMBER_OR_NONE, _TEXT_OR_NONE = {"type": ["number", "null"]}, {"type": ["string", "null"]}
_WHOLE_OR_NONE = {"type": ["integer", "null"]}
_OBJECT_OR_NONE = {"type": ["object", "null"]}
_TEXTS = {"type": "array", "items": _TEXT}
_PLAIN = {"text/plain": {"schema": _TEXT}}
_RUN_FIELDS = {
    **dict.fromkeys(("run", "state"), _TEXT),
    **dict.fromkeys(("watched", "fluctuating"), _TRUTH),
    **dict.fromkeys(("step", "world_size", "ranks_reporting", "ranks_blind"), _WHOLE),
    "last_step_unix_seconds": _NUMBER,
    **dict.fromkeys(("recent_step_seconds", "baseline_step_seconds", "mean_over_best_ratio"), _NUMBER_OR_NONE),
    "slow_ranks": {"type": "array", "items": _WHOLE},
    **dict.fromkeys(("earlier", "expected"), _OBJECT_OR_NONE),
    "incidents_open": _TEXTS,
    "lost_device_seconds": {"type": ["number", "object"]},
}
_POINT_FIELDS = {
    **dict.fromkeys(("begin_unix_seconds", "end_unix_seconds", "step_seconds", "longest_step_seconds"), _NUMBER),
    **dict.fromkeys(("attempt", "first_step", "last_step", "steps"), _WHOLE),
    **dict.fromkeys(("tokens_per_second", "samples_per_second", "mfu_ratio"), _NUMBER_OR_NONE),
    "part_seconds": {"type": "object", "additionalProperties": _NUMBER},
}
_TIMELINE_FIELDS = {
    **dict.fromkeys(("id", "kind", "cause", "state", "culprit", "title"), _TEXT),
    "onset_step": _WHOLE_OR_NONE,
    "begin_unix_seconds": _NUMBER,
    "end_unix_seconds": _NUMBER_OR_NONE,
}
_DETAIL_FIELDS = {"ranks": _LIST, "ranks_omitted": _WHOLE, "domains": _LIST, "devices": _TEXTS}
_INCIDENT_FIELDS = {
    "id": _TEXT,
    "run": _TEXT,
    "kind": _TEXT,
    "state": _TEXT,
    "cause": _TEXT,
    "ranks": {"type": "array", "items": _WHOLE},
    "evidence": _TEXTS,
    "advice": _LIST,
}


def _object(fields: dict[str, Any], *, needed: Iterable[str] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": sorted(fields if needed is None else needed)}


def _each(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return _object({name: {"type": "array", "items": schema}})


_CHANGED = _object({"changed": _LIST})
ANSWERS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/api/v1/runs"): _each("runs", _object(_RUN_FIELDS)),
    ("GET", "/api/v1/runs/{run}"): _object(_RUN_FIELDS | _DETAIL_FIELDS),
    ("GET", "/api/v1/runs/{run}/heatmap"): _object({"run": _TEXT, "steps": {"type": "array"}}),
    ("GET", "/api/v1/runs/{run}/series"): _object(
        {"run": _TEXT, "ranks": _WHOLE, "baseline_step_seconds": _NUMBER_OR_NONE}
        | {"points": {"type": "array", "items": _object(_POINT_FIELDS)}}
        | {"incidents": {"type": "array", "items": _object(_TIMELINE_FIELDS)}}
    ),
    ("GET", "/api/v1/runs/{run}/trace"): _object({"traceName": _TEXT, "traceEvents": _LIST}, needed=["traceEvents"]),
    ("GET", "/api/v1/runs/{run}/profile"): _object({"running": _OBJECT_OR_NONE, "past": _LIST}),
    ("POST", "/api/v1/runs/{run}/profile"): _object({"request_id": _WHOLE, "first_step": _WHOLE, "steps": _WHOLE}),
    ("GET", "/api/v1/runs/{run}/spec"): _object(
        {"run": _TEXT, **dict.fromkeys(("source", "name", "text"), _TEXT_OR_NONE), "expected": _OBJECT_OR_NONE}
    ),
    ("GET", "/api/v1/fleet"): _each("subjects", _OBJECT),
    ("GET", "/api/v1/targets"): _LIST,
    ("GET", "/api/v1/streams"): _object({"ledger": _OBJECT, "nodes": {"type": ["array", "object"]}}),
    ("GET", "/api/v1/incidents"): _each("incidents", _object(_INCIDENT_FIELDS | {"host": _TEXT})),
    ("GET", "/api/v1/incidents/{id}"): _object(_INCIDENT_FIELDS | {"explanation": _OBJECT, "timeline": _LIST}),
    ("GET", "/api/v1/policy"): _object({"thresholds": _LIST, "runs": _OBJECT}),
    ("GET", "/api/v1/runs/{run}/policy"): _object({"run": _TEXT, "thresholds": _LIST}),
    ("POST", "/-/reload"): _object({"applied": {}, "needs_restart": {}, "changed": _LIST}),
    ("GET", PATH): _object({"openapi": _TEXT, "info": _OBJECT, "paths": _OBJECT}),
    **{(method, f"/api/v1{of}/policy"): _CHANGED for method in ("PATCH", "DELETE") for of in ("", "/runs/{run}")},
    **{
        (method, "/api/v1/runs/{run}/spec"): _object({"run": _TEXT, "source": _TEXT_OR_NONE})
        for method in ("PUT", "DELETE")
    },
}
OTHER_ANSWERS: dict[str, dict[str, Any]] = {
    "/-/healthy": _PLAIN,
    "/-/ready": _PLAIN,
    "/metrics": _PLAIN,
    "/api/v1/events": {"text/event-stream": {"schema": _TEXT}},
}
QUERIES: dict[str, dict[str, dict[str, Any]]] = {
    "/api/v1/incidents": {"run": _TEXT, "state": {"type": "string", "enum": ["open", "closed"]}},
    "/api/v1/runs/{run}/heatmap": {"by": {"type": "string", "default": "node"}},
    "/api/v1/runs/{run}/series": {
        "since_step": {"type": "integer", "minimum": 0, "default": 0},
        "points": {"type": "integer", "minimum": 1, "maximum": INTERVALS_MAX, "default": INTERVALS_MAX},
    },
    "/api/v1/runs/{run}/trace": {"incident": _TEXT},
    "/api/v1/events": {"run": _TEXT},
}


def describe(routes: Iterable[web.RouteDef]) -> dict[str, Any]:
    """Return the description of all routes for programs, as OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(routes, key=lambda route: route.path):
        if route.path.startswith(DESCRIBED):
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockstep coordinator",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "The token of api_token_file."}
            },
            "schemas": {"Error": _object({"error": _TEXT}), "Thresholds": _thresholds()},
        },
    }


def _operation(route: web.RouteDef) -> dict[str, Any]:
    handler = route.handler
    text = " ".join((handler.__doc__ or "").split())
    named = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in _names(route.path)]
    query = [{"name": name, "in": "query", "schema": schema} for name, schema in QUERIES.get(route.path, {}).items()]
    operation: dict[str, Any] = {
        "operationId": f"{handler.__module__.rpartition('.')[2]}_{handler.__name__.strip('_')}_{_suffix(route)}",
        "summary": text.rstrip("."),
        "responses": _responses(route),
    }
    if named or query:
        operation["parameters"] = [*named, *query]
    if route.method not in SAFE:
        operation["security"] = [{"token": []}]
    body = _body(route)
    return operation | ({"requestBody": {"required": True, "content": body}} if body else {})


def _suffix(route: web.RouteDef) -> str:
    """Return what distinguishes operations of one handler: the method, and whether the path names a run."""
    return route.method.lower() + ("_run" if "run" in _names(route.path) else "")


def _names(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def _responses(route: web.RouteDef) -> dict[str, Any]:
    key = route.method, route.path
    content = OTHER_ANSWERS.get(route.path) or {"application/json": {"schema": ANSWERS[key]}}
    good = "202" if key == ("POST", "/api/v1/runs/{run}/profile") else "200"
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        good: {"description": "Response", "content": content},
        "default": {"description": "Error", "content": error},
    }


def _body(route: web.RouteDef) -> dict[str, Any] | None:
    if (route.method, route.path) == ("POST", "/api/v1/runs/{run}/profile"):
        return {"application/json": {"schema": _capture()}}
    if route.method == "PATCH":
        return {"application/json": {"schema": {"$ref": "#/components/schemas/Thresholds"}}}
    if route.method == "PUT":
        return {"application/yaml": {"schema": _TEXT}}
    return None


def _capture() -> dict[str, Any]:
    ranks = {"type": "array", "items": _WHOLE, "minItems": 1, "maxItems": PROFILE_RANKS_MAX, "uniqueItems": True}
    steps = {"type": "integer", "minimum": 1, "maximum": PROFILE_STEPS_MAX}
    fields = {"ranks": ranks, "steps": steps, "shapes": {"type": "boolean", "default": False}}
    return _object(fields, needed=["ranks"]) | {"additionalProperties": False}


def _thresholds() -> dict[str, Any]:
    """Return the schema of changes: a value for each setting that can change at run time, or null to revert it."""
    fields = {}
    for name, known in catalogue().items():
        if not known.is_live:
            continue
        kind = {bool: "boolean", int: "integer", float: "number"}.get(type(known.default))
        schema: dict[str, Any] = {"type": [kind or "array", "null"], "description": known.reason}
        if kind is None:
            schema["items"] = _TEXT
        elif known.low is not None:
            schema |= {"minimum": known.low, "maximum": known.high}
        fields[name] = schema
    return _object(fields, needed=()) | {"additionalProperties": False}
