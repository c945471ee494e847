"""The coordinator's HTTP: metrics, health, JSON API and the pages.

Reads what is known; what changes anything needs the token. Everything shown comes from messages that anybody on the bus
may have written, so the page escapes all of it.
"""

import asyncio
from typing import Any

from aiohttp import web

from coordinator.api import discovery, events, heatmap, incidents, pages, policy, profile, runs, specification
from coordinator.api.kept import Kept
from coordinator.api.services import SERVICES, ApiError, Services
from coordinator.collector import SnapshotCollector
from lockstep.serving.exposition import CONTENT_TYPES, choose_form, render

_REQUEST_MAX_BYTES = 16 << 10  # the largest request names 64 ranks, or every threshold
_SCRAPES_MAX = 8  # renderings at once; more scrapers wait

_SCRAPES: web.AppKey[asyncio.Semaphore] = web.AppKey("scrapes", asyncio.Semaphore)


def make_app(services: Services) -> web.Application:
    """Return the application."""
    app = web.Application(client_max_size=_REQUEST_MAX_BYTES, middlewares=[_json_errors])
    app[SERVICES] = services
    app[_SCRAPES] = asyncio.Semaphore(_SCRAPES_MAX)
    app.add_routes(
        [
            web.get("/", pages.overview),
            web.get("/runs/{run}", pages.run),
            web.get("/static/{digest}/{name}", pages.static),
            web.get("/metrics", _metrics),
            web.get("/-/healthy", _healthy),
            web.get("/-/ready", _ready),
            web.post("/-/reload", policy.reload),
            web.get("/api/v1/runs", runs.list_runs),
            web.get("/api/v1/runs/{run}", runs.show_run),
            web.get("/api/v1/runs/{run}/heatmap", heatmap.show),
            web.get("/api/v1/runs/{run}/profile", profile.show_profiles),
            web.post("/api/v1/runs/{run}/profile", profile.ask_profile),
            web.get("/api/v1/runs/{run}/spec", specification.show),
            web.put("/api/v1/runs/{run}/spec", specification.put),
            web.delete("/api/v1/runs/{run}/spec", specification.reset),
            web.get("/api/v1/events", events.listen),
            web.get("/api/v1/targets", discovery.list_targets),
            web.get("/api/v1/incidents", incidents.list_incidents),
            web.get("/api/v1/incidents/{id}", incidents.show_incident),
            web.get("/api/v1/policy", policy.show_policy),
            web.patch("/api/v1/policy", policy.change_policy),
            web.delete("/api/v1/policy", policy.reset_policy),
            web.get("/api/v1/runs/{run}/policy", policy.show_run_policy),
            web.patch("/api/v1/runs/{run}/policy", policy.change_policy),
            web.delete("/api/v1/runs/{run}/policy", policy.reset_policy),
        ]
    )
    app[heatmap.HEAT_MAPS], app[pages.PAGES] = Kept(heatmap.KEPT_MAX), Kept(pages.KEPT_MAX)
    events.install(app)
    app.on_response_prepare.append(_harden)
    return app


@web.middleware
async def _json_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as error:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == web.HTTPUnauthorized.status_code else {}
        return web.json_response({"error": error.message}, status=error.status, headers=headers)
    except web.HTTPException as error:
        return web.json_response({"error": f"{request.method} {request.path}: {error.reason}"}, status=error.status)
    return response


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = pages.POLICY


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="healthy\n")


async def _ready(request: web.Request) -> web.Response:
    if request.app[SERVICES].is_ready():
        return web.Response(text="ready\n")
    return web.Response(text="not connected to the broker\n", status=web.HTTPServiceUnavailable.status_code)


async def _metrics(request: web.Request) -> web.Response:
    form = choose_form(request.headers.get("Accept", ""))
    async with request.app[_SCRAPES]:
        collector = SnapshotCollector(request.app[SERVICES].snapshot())
        body = await asyncio.to_thread(render, collector, form)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPES[form]})
