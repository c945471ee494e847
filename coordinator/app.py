"""The coordinator's HTTP: metrics, health, JSON API and one page. Reads what is known; only a profile can be asked for.

Everything shown comes from messages that anybody on the bus may have written, so the page escapes all of it.
"""

import asyncio
import hmac
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator import events as ev
from coordinator.collector import SnapshotCollector
from coordinator.detect.components import medians
from coordinator.incidents import CLOSED, OPEN, to_json
from coordinator.page import render_page
from lockstep.contracts.limits import PROFILE_RANKS_MAX, PROFILE_STEPS_MAX
from lockstep.serving.exposition import CONTENT_TYPES, choose_form, render

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from coordinator.runs import Orders, Run, Runs
    from coordinator.snapshot import Snapshot
    from coordinator.store import Store

_REQUEST_MAX_BYTES = 16 << 10  # the largest request names 64 ranks
_RANKS_MAX = 4096  # ranks listed in one answer: 1 MB; the rest is counted
_SCRAPES_MAX = 8  # renderings at once; more scrapers wait


@dataclass(frozen=True, kw_only=True)
class Services:
    """What the handlers reach. `snapshot` makes a fresh one, on the event loop only."""

    config: "CoordinatorConfig"
    runs: "Runs"
    store: "Store"
    snapshot: "Callable[[], Snapshot]"
    perform: "Callable[[Orders], None]"
    now_s: Callable[[], float]
    is_ready: Callable[[], bool]
    token: str


_SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
_SCRAPES: web.AppKey[asyncio.Semaphore] = web.AppKey("scrapes", asyncio.Semaphore)


def make_app(services: Services) -> web.Application:
    """Return the application."""
    app = web.Application(client_max_size=_REQUEST_MAX_BYTES, middlewares=[_json_errors])
    app[_SERVICES] = services
    app[_SCRAPES] = asyncio.Semaphore(_SCRAPES_MAX)
    app.add_routes(
        [
            web.get("/", _page),
            web.get("/metrics", _metrics),
            web.get("/-/healthy", _healthy),
            web.get("/-/ready", _ready),
            web.get("/api/v1/runs", _runs),
            web.get("/api/v1/runs/{run}", _run),
            web.post("/api/v1/runs/{run}/profile", _profile),
            web.get("/api/v1/incidents", _incidents),
            web.get("/api/v1/incidents/{id}", _incident),
        ]
    )
    app.on_response_prepare.append(_harden)
    return app


class ApiError(Exception):
    """A request that cannot be answered; becomes a JSON object with `error`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


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
    response.headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'"


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="healthy\n")


async def _ready(request: web.Request) -> web.Response:
    if request.app[_SERVICES].is_ready():
        return web.Response(text="ready\n")
    return web.Response(text="not connected to the broker\n", status=web.HTTPServiceUnavailable.status_code)


async def _metrics(request: web.Request) -> web.Response:
    form = choose_form(request.headers.get("Accept", ""))
    async with request.app[_SCRAPES]:
        collector = SnapshotCollector(request.app[_SERVICES].snapshot())
        body = await asyncio.to_thread(render, collector, form)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPES[form]})


async def _page(request: web.Request) -> web.Response:
    services = request.app[_SERVICES]
    closed = await asyncio.to_thread(services.store.incidents, state=CLOSED)
    text = await asyncio.to_thread(render_page, services.snapshot(), closed, services.config)
    return web.Response(text=text, content_type="text/html")


async def _runs(request: web.Request) -> web.Response:
    runs = request.app[_SERVICES].runs
    return web.json_response({"runs": [_run_head(runs, run) for run in runs.by_name.values()]})


async def _run(request: web.Request) -> web.Response:
    run = _known_run(request)
    runs = request.app[_SERVICES].runs
    if run.machine.judgement is None:
        raise ApiError(web.HTTPNotFound.status_code, f"run {run.name}: no step has been completed yet")
    return web.json_response(_run_head(runs, run) | await asyncio.to_thread(_run_detail, run))


async def _incidents(request: web.Request) -> web.Response:
    """List incidents, the oldest first."""
    run, state = request.query.get("run", ""), request.query.get("state", "")
    if state not in ("", OPEN, CLOSED):
        raise ApiError(web.HTTPBadRequest.status_code, f"state: got {state!r}, expected {OPEN!r} or {CLOSED!r}")
    services = request.app[_SERVICES]
    kept = {i.id: i for i in await asyncio.to_thread(services.store.incidents, run=run, state="")}
    fresh = {
        incident.id: incident
        for known in services.runs.by_name.values()
        if run in ("", known.name)
        for incident in known.machine.casebook.incidents.values()
    }
    both = sorted((kept | fresh).values(), key=lambda incident: (incident.opened_unix_ns, incident.id))
    return web.json_response({"incidents": [to_json(incident) for incident in both if state in ("", incident.state)]})


async def _incident(request: web.Request) -> web.Response:
    services, wanted = request.app[_SERVICES], request.match_info["id"]
    for run in services.runs.by_name.values():
        if wanted in run.machine.casebook.incidents:
            return web.json_response(to_json(run.machine.casebook.incidents[wanted]))
    incident = await asyncio.to_thread(services.store.incident, wanted)
    if incident is None:
        raise ApiError(
            web.HTTPNotFound.status_code, f"incident: got {wanted!r:.200}, expected one of /api/v1/incidents"
        )
    return web.json_response(to_json(incident))


async def _profile(request: web.Request) -> web.Response:
    services = request.app[_SERVICES]
    _authorise(request, services.token)
    run = _known_run(request)
    ranks, steps = await _profile_body(request, run, services.config.profile_steps)
    event = ev.ProfileAskedEvent(unix_s=services.now_s(), cause_id="api:profile", ranks=ranks, steps=steps)
    orders = services.runs.feed(run.name, event)
    services.perform(orders)
    for _, instructions in orders:
        for instruction in instructions:
            if isinstance(instruction, ev.RequestProfile):
                answer = {"request_id": instruction.request_id, "first_step": instruction.first_step, "steps": steps}
                return web.json_response(answer, status=web.HTTPAccepted.status_code)
            if isinstance(instruction, ev.RefuseProfile):
                raise ApiError(web.HTTPConflict.status_code, f"run {run.name}: {instruction.reason}")
    raise ApiError(web.HTTPConflict.status_code, f"run {run.name}: nothing came of it")


def _authorise(request: web.Request, token: str) -> None:
    if not token:
        raise ApiError(web.HTTPForbidden.status_code, "api_token_file is not set: nothing can be changed over HTTP")
    given = request.headers.get("Authorization", "").encode(errors="replace")
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise ApiError(web.HTTPUnauthorized.status_code, "Authorization: expected Bearer and the configured token")


async def _profile_body(request: web.Request, run: "Run", default_steps: int) -> tuple[tuple[int, ...], int]:
    bad = web.HTTPBadRequest.status_code
    try:
        body = await request.json()
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(bad, f"body: expected JSON: {error}") from None
    if not isinstance(body, dict) or not body.keys() <= {"ranks", "steps"}:
        raise ApiError(bad, 'body: expected an object with "ranks" and "steps"')
    ranks, steps = body.get("ranks"), body.get("steps", default_steps)
    if not isinstance(ranks, list) or not 0 < len(ranks) <= PROFILE_RANKS_MAX or len({*map(str, ranks)}) < len(ranks):
        raise ApiError(bad, f"ranks: expected 1 to {PROFILE_RANKS_MAX} different ranks")
    for rank in ranks:
        if type(rank) is not int or rank not in run.membership.infos:
            raise ApiError(bad, f"rank: got {rank!r:.50}, expected a rank of run {run.name}")
    if type(steps) is not int or not 1 <= steps <= PROFILE_STEPS_MAX:
        raise ApiError(bad, f"steps: got {steps!r:.50}, expected 1 to {PROFILE_STEPS_MAX}")
    return tuple(ranks), steps


def _known_run(request: web.Request) -> "Run":
    name = request.match_info["run"]
    run = request.app[_SERVICES].runs.by_name.get(name)
    if run is None:
        raise ApiError(web.HTTPNotFound.status_code, f"run: got {name!r:.200}, expected one of /api/v1/runs")
    return run


def _run_head(runs: "Runs", run: "Run") -> dict[str, Any]:
    snapshot = runs.snapshot_of(run)
    judgement = run.machine.judgement
    return {
        "run": run.name,
        "state": snapshot.state,
        "step": snapshot.step,
        "last_step_unix_seconds": snapshot.last_step_unix_s,
        "world_size": snapshot.world_size,
        "ranks_reporting": snapshot.ranks_reporting,
        "ranks_blind": snapshot.ranks_blind,
        "recent_step_seconds": snapshot.recent_step_seconds,
        "baseline_step_seconds": snapshot.baseline_step_seconds,
        "mean_over_best_ratio": judgement.mean_over_best_ratio if judgement else None,
        "fluctuating": snapshot.fluctuating,
        "slow_ranks": run.machine.casebook.slow_ranks,
        "incidents_open": [incident.id for incident in snapshot.incidents],
        "lost_device_seconds": snapshot.lost_device_seconds,
    }


def _run_detail(run: "Run") -> dict[str, Any]:
    """Return ranks and domains; arrays of thousands, so off the event loop (the rows are never changed)."""
    topology, judge = run.topology, run.judge
    ranks: list[dict[str, Any]] = []
    rows = list(judge.recent_rows) if judge else []
    if rows:
        parts = medians(rows)
        for column, rank in enumerate(rows[-1].ranks[:_RANKS_MAX]):
            values = {f"{name}_seconds": _number(value[column]) for name, value in parts.items()}
            ranks.append({"rank": int(rank), "hostname": run.hostname(int(rank)), **values})
    domains = [{"kind": d.kind, "id": d.name, "ranks": list(d.ranks)} for d in topology.domains] if topology else []
    return {
        "ranks": ranks,
        "ranks_omitted": max(0, len(run.timeline.ranks) - _RANKS_MAX),
        "domains": domains[:_RANKS_MAX],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
