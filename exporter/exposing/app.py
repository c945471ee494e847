"""The exporter's HTTP server. It serves the latest snapshot only, and nothing can be changed through it."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from exporter.exposing.exposition import ExpositionCache
from exporter.exposing.snapshot import NodeSnapshot, RankView
from lockstep.contracts.metric import Level
from lockstep.contracts.neighbour_series import NEIGHBOURS_PATH
from lockstep.contracts.version import VERSION
from lockstep.serving.compression import Compression
from lockstep.serving.exposition import CONTENT_TYPES, choose_form

Latest = Callable[[], NodeSnapshot | None]
"""Returns the latest snapshot, None before the first tick."""
Neighbours = Callable[[float, float], bytes]
"""Returns what was stored of other exporters' pages between two unix times, as JSON."""

_REQUEST_MAX_BYTES = 4096  # no request here has a body
_LANDING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Lockstep exporter</title></head><body>
<h1>Lockstep exporter {version}</h1>
<ul>
<li><a href="/metrics">Metrics</a></li>
<li><a href="/api/v1/ranks">Ranks on this node</a></li>
<li><a href="/-/healthy">Healthy</a></li>
<li><a href="/-/ready">Ready</a></li>
</ul></body></html>
"""
_LATEST: web.AppKey[Latest] = web.AppKey("latest")
_NEIGHBOURS: web.AppKey[Neighbours] = web.AppKey("neighbours")
_PAGE: web.AppKey[ExpositionCache] = web.AppKey("page", ExpositionCache)


def make_app(latest: Latest, neighbours: Neighbours | None = None, *, level: Level = "full") -> web.Application:
    """Return the application for a source of snapshots; `level` sets how many series they export."""
    app = web.Application(client_max_size=_REQUEST_MAX_BYTES)
    app[_LATEST] = latest
    app[_PAGE] = ExpositionCache(level)
    app[_NEIGHBOURS] = neighbours or (lambda _start_s, _end_s: b'{"pages":[]}')
    app.add_routes(
        [
            web.get("/", _landing),
            web.get("/metrics", _metrics),
            web.get("/-/healthy", _healthy),
            web.get("/-/ready", _ready),
            web.get("/api/v1/ranks", _ranks),
            web.get(NEIGHBOURS_PATH, _neighbours),
        ]
    )
    app.on_response_prepare.append(_harden)
    Compression().protect(app)
    return app


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"


async def _landing(_: web.Request) -> web.Response:
    return web.Response(text=_LANDING.format(version=VERSION), content_type="text/html")


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="healthy\n")


async def _ready(request: web.Request) -> web.Response:
    if request.app[_LATEST]() is None:
        return web.Response(status=503, text="not ready: the first read of the rings has not finished\n")
    return web.Response(text="ready\n")


async def _metrics(request: web.Request) -> web.Response:
    snapshot = request.app[_LATEST]()
    if snapshot is None:
        return web.Response(status=503, text="not ready: the first read of the rings has not finished\n")
    form = choose_form(",".join(request.headers.getall("Accept", [])))
    # On a worker thread: at 100 us per ten series, a node with many ranks would delay the tick.
    body = await asyncio.to_thread(request.app[_PAGE].text, snapshot, form)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPES[form]})


async def _ranks(request: web.Request) -> web.Response:
    snapshot = request.app[_LATEST]()
    runs = snapshot.runs if snapshot is not None else ()
    return web.json_response({"ranks": [_rank_to_json(run.run, rank) for run in runs for rank in run.ranks]})


async def _neighbours(request: web.Request) -> web.Response:
    try:
        start_s, end_s = (float(request.query[name]) for name in ("start", "end"))
    except (KeyError, ValueError):
        return web.Response(status=400, text="start, end: expected unix seconds\n")
    body = await asyncio.to_thread(request.app[_NEIGHBOURS], start_s, end_s)
    return web.Response(body=body, content_type="application/json")


def _rank_to_json(run: str, rank: RankView) -> dict[str, Any]:
    return {
        "run": run,
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "world_size": rank.world_size,
        "hostname": rank.hostname,
        "attempt": rank.attempt,
        "state": rank.state,
        "step": rank.last_step,
        "steps": rank.steps,
        "last_step_unix_ns": rank.last_step_unix_ns,
        "heartbeat_unix_ns": rank.heartbeat_unix_ns,
    }
