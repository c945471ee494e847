"""Where this coordinator stands in the stream of each node, and what has become of all records that reached it."""

from aiohttp import web

from coordinator.api.services import SERVICES


async def show(request: web.Request) -> web.Response:
    """Show each node's position, and the ledger: records by outcome over all coordinators that used this store."""
    streams = request.app[SERVICES].streams
    return web.json_response({"ledger": streams.ledger, "nodes": streams.offsets()})
