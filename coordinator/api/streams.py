"""The coordinator's offset in each node's stream, and the outcome of all records that it received."""

from aiohttp import web

from coordinator.api.services import SERVICES


async def show(request: web.Request) -> web.Response:
    """Show each node's stream offsets, and the ledger: records by outcome, over all coordinators of this store."""
    streams = request.app[SERVICES].streams
    return web.json_response({"ledger": streams.ledger, "nodes": streams.offsets()})
