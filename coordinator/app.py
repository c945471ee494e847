"""The coordinator's HTTP server: metrics, health, JSON API and pages.

Read requests only show known state; requests that change anything need the token. Everything shown comes from messages
that anyone on the bus may have written, so the pages escape all of it.
"""

from typing import Any

from aiohttp import web

from coordinator.api import (
    discovery,
    event_stream,
    fleet,
    heatmap,
    incidents,
    openapi,
    pages,
    policy,
    profile,
    runs,
    series,
    specification,
    streams,
    trace,
)
from coordinator.api.response_cache import CachedWork, ResponseCache
from coordinator.api.services import SERVICES, ApiError, Services
from coordinator.collector import SnapshotCollector
from lockstep.serving.compression import Compression
from lockstep.serving.exposition import CONTENT_TYPES, choose_form, render

_REQUEST_MAX_BYTES = 16 << 10  # the largest request names 64 ranks, or every setting

EXPOSITIONS: web.AppKey[ResponseCache] = web.AppKey("expositions", ResponseCache)
EXPOSITIONS_MAX = 2
"""Cached texts of /metrics: one per exposition format, 200 KB at 20 runs."""


def routes() -> list[web.RouteDef]:
    """Return all routes."""
    return [
        web.get("/", pages.overview),
        web.get("/runs/{run}", pages.run),
        web.get("/fleet", fleet.page),
        web.get("/incidents", pages.incidents),
        web.get("/incidents/{id}", incidents.report),
        web.get("/static/{digest}/{name}", pages.static),
        web.get("/metrics", metrics),
        web.get("/-/healthy", _healthy),
        web.get("/-/ready", _ready),
        web.post("/-/reload", policy.reload),
        web.get(openapi.PATH, _openapi),
        web.get("/api/v1/runs", runs.list_runs),
        web.get("/api/v1/runs/{run}", runs.show_run),
        web.get("/api/v1/runs/{run}/heatmap", heatmap.show),
        web.get("/api/v1/runs/{run}/series", series.show_series),
        web.get("/api/v1/runs/{run}/trace", trace.show),
        web.get("/api/v1/runs/{run}/profile", profile.show_captures),
        web.post("/api/v1/runs/{run}/profile", profile.request_capture),
        web.get("/api/v1/runs/{run}/spec", specification.show),
        web.put("/api/v1/runs/{run}/spec", specification.put),
        web.delete("/api/v1/runs/{run}/spec", specification.reset),
        web.get("/api/v1/events", event_stream.listen),
        web.get("/api/v1/fleet", fleet.show),
        web.get("/api/v1/targets", discovery.list_targets),
        web.get("/api/v1/streams", streams.show),
        web.get("/api/v1/incidents", incidents.list_incidents),
        web.get("/api/v1/incidents/{id}", incidents.show_incident),
        web.get("/api/v1/policy", policy.show_policy),
        web.patch("/api/v1/policy", policy.change_policy),
        web.delete("/api/v1/policy", policy.reset_policy),
        web.get("/api/v1/runs/{run}/policy", policy.show_run_policy),
        web.patch("/api/v1/runs/{run}/policy", policy.change_policy),
        web.delete("/api/v1/runs/{run}/policy", policy.reset_policy),
    ]


def make_app(services: Services) -> web.Application:
    """Return the application."""
    app = web.Application(client_max_size=_REQUEST_MAX_BYTES, middlewares=[_json_errors])
    app[SERVICES] = services
    app.add_routes(routes())
    app[heatmap.HEAT_MAPS], app[pages.PAGES] = ResponseCache(heatmap.KEPT_MAX), ResponseCache(pages.KEPT_MAX)
    app[EXPOSITIONS], app[trace.TRACES] = ResponseCache(EXPOSITIONS_MAX), ResponseCache(trace.KEPT_MAX)
    app[series.SERIES] = ResponseCache(series.KEPT_MAX)
    Compression().protect(app)
    event_stream.install(app)
    app.on_response_prepare.append(_harden)
    return app


@web.middleware
async def _json_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as error:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == web.HTTPUnauthorized.status_code else {}
        return web.json_response({"error": error.message}, status=error.status, headers=headers)
    except web.RequestPayloadError as error:  # the body does not match its Content-Encoding or Transfer-Encoding
        return web.json_response({"error": f"body: {error!s:.200}"}, status=web.HTTPBadRequest.status_code)
    except web.HTTPException as error:
        return web.json_response({"error": f"{request.method} {request.path}: {error.reason}"}, status=error.status)
    return response


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Content-Security-Policy", pages.POLICY)


async def _openapi(_: web.Request) -> web.Response:
    """Describe the API as OpenAPI."""
    return web.json_response(openapi.describe(routes()))


async def _healthy(_: web.Request) -> web.Response:
    """Answer 200 while the event loop runs."""
    return web.Response(text="healthy\n")


async def _ready(request: web.Request) -> web.Response:
    """Answer 200 while the coordinator is connected to its broker, else 503."""
    if request.app[SERVICES].is_ready():
        return web.Response(text="ready\n")
    return web.Response(text="not connected to the broker\n", status=web.HTTPServiceUnavailable.status_code)


async def metrics(request: web.Request) -> web.Response:
    """Answer a scrape; concurrent scrapes share one text, which is rendered and compressed on a thread."""
    form = choose_form(",".join(request.headers.getall("Accept", [])))
    kind, _, _ = CONTENT_TYPES[form].rpartition("; charset=")

    def read_inputs() -> CachedWork:
        snapshot = request.app[SERVICES].snapshot()
        return CachedWork(snapshot, lambda: render(SnapshotCollector(snapshot), form))

    return await request.app[EXPOSITIONS].answer(request, form, read_inputs, content_type=kind)
