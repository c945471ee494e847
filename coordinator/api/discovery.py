"""Prometheus' HTTP service discovery of all nodes' exporters, for sites without Kubernetes service discovery."""

from aiohttp import web

from coordinator.api.services import SERVICES


async def list_targets(request: web.Request) -> web.Response:
    """List all exporters in Prometheus' HTTP service discovery format; `[]` if there are none."""
    services = request.app[SERVICES]
    return web.json_response(services.runs.targets.listed(services.now_s()))
