"""Incidents and their explanations."""

import asyncio

from aiohttp import web

from coordinator.api.services import BAD, SERVICES, ApiError, hosts_of, nodes_of
from coordinator.decide.explain import history
from coordinator.decide.incidents import CLOSED, OPEN, Incident, to_brief_json, to_json
from coordinator.page.incident_report import POLICY, render_report


async def list_incidents(request: web.Request) -> web.Response:
    """List incidents, the oldest first, without explanations, which take megabytes; `host` is set for open ones."""
    run, state = request.query.get("run", ""), request.query.get("state", "")
    if state not in ("", OPEN, CLOSED):
        raise ApiError(BAD, f"state: got {state!r}, expected {OPEN!r} or {CLOSED!r}")
    services = request.app[SERVICES]
    kept = {i.id: i for i in await asyncio.to_thread(services.store.incidents, run=run, state="")}
    fresh = {
        incident.id: incident
        for known in services.runs.by_name.values()
        if run in ("", known.name)
        for incident in known.machine.tracker.incidents.values()
    }
    both = sorted((kept | fresh).values(), key=lambda incident: (incident.opened_unix_ns, incident.id))
    hosts = hosts_of(services.runs.by_name.values())
    listed = [to_brief_json(each) | {"host": hosts.get(each.id, "")} for each in both if state in ("", each.state)]
    return web.json_response({"incidents": listed})


async def show_incident(request: web.Request) -> web.Response:
    """Show one incident with its explanation and its timeline."""
    incident = await _known(request)
    return web.json_response(to_json(incident) | {"timeline": history(incident)})


async def report(request: web.Request) -> web.Response:
    """Show one incident as a self-contained document that can be sent and stored."""
    services, incident = request.app[SERVICES], await _known(request)
    host = hosts_of(services.runs.by_name.values()).get(incident.id, "")
    nodes = nodes_of(services.runs.by_name.values(), incident.id)
    text = await asyncio.to_thread(render_report, incident, services.control.config, host, nodes)
    headers = {"Content-Security-Policy": POLICY}
    return web.Response(body=text.encode(errors="replace"), content_type="text/html", charset="utf-8", headers=headers)


async def _known(request: web.Request) -> Incident:
    services, wanted = request.app[SERVICES], request.match_info["id"]
    for run in services.runs.by_name.values():
        if wanted in run.machine.tracker.incidents:
            return run.machine.tracker.incidents[wanted]
    incident = await asyncio.to_thread(services.store.incident, wanted)
    if incident is None:
        raise ApiError(
            web.HTTPNotFound.status_code, f"incident: got {wanted!r:.200}, expected one of /api/v1/incidents"
        )
    return incident
