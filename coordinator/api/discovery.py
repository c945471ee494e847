"""Prometheus' HTTP service discovery: the exporters of all nodes, for where no Kubernetes knows them."""

from aiohttp import web

from coordinator.api.services import SERVICES


async def list_targets(request: web.Request) -> web.Response:
    """List all exporters, every time the whole list; the answer is 200 and `[]` where there is none."""
    services = request.app[SERVICES]
    return web.json_response(services.runs.targets.listed(services.now_s()))
