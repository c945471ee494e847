"""The nodes, devices and links that incidents have named, over all runs."""

from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.api.services import SERVICES
from coordinator.page.fleet import render_fleet

if TYPE_CHECKING:
    from coordinator.fleet.history import SubjectRecord


async def show(request: web.Request) -> web.Response:
    """List all subjects with their sightings, those named most often recently first."""
    services = request.app[SERVICES]
    return web.json_response({"subjects": [_to_json(each) for each in services.fleet.records(services.now_s())]})


async def page(request: web.Request) -> web.Response:
    """Show all subjects as a page."""
    services = request.app[SERVICES]
    text = render_fleet(services.fleet.records(services.now_s()), services.snapshot(), services.control.config)
    return web.Response(body=text.encode(errors="replace"), content_type="text/html", charset="utf-8")


def _to_json(record: "SubjectRecord") -> dict[str, Any]:
    return {
        "kind": record.subject.kind,
        "name": record.subject.name,
        "recent_incidents": record.recent,
        "runs": list(record.runs),
        "incidents": [
            {
                "id": each.incident_id,
                "run": each.run,
                "kind": each.incident_kind,
                "cause": each.cause,
                "opened_unix_ns": round(each.opened_unix_s * 1e9),
            }
            for each in record.sightings
        ],
    }
