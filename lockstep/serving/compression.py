"""Gzips HTTP responses for clients that accept it. A body is compressed on a thread, once for all clients that get it.

Responses that are already encoded, streams, and small responses pass unchanged.
"""

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LEVEL = 4  # half the time of the usual 6, for 5 % more bytes
_MIN_BYTES = 2048
_KEPT_ANSWERS = 32
_KEPT_MAX_BYTES = 1 << 20  # of one response; a larger one is compressed for each request
_HEADER_MAX = 1024  # characters; browsers send 30


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header accepts gzip (RFC 9110, 12.5.3); weight 0 refuses a coding."""
    weights: dict[str, float] = {}
    for part in accept_encoding[:_HEADER_MAX].lower().split(","):
        coding, _, weight = part.partition(";")
        weights[coding.strip()] = _weight(weight)
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def squeeze(body: bytes) -> bytes:
    """Return `body` as gzip, deterministically; empty if that is not worth it. Takes milliseconds per MB."""
    return gzip.compress(body, _LEVEL, mtime=0) if len(body) >= _MIN_BYTES else b""


class Compression:
    """Compresses the responses of an application; `wrap` is its middleware. Used on one event loop.

    `kept` caches the latest responses by path and query, 1 MiB each at most, so that an unchanged response is
    compressed once. Whole bodies are compared, so a changed response never gets the cached copy.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()

    def protect(self, app: web.Application) -> None:
        """Install this middleware in front of all handlers of an application."""

        @web.middleware
        async def compress(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, await handler(request))

        app.middlewares.insert(0, compress)

    async def _answer(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        if not isinstance(response, web.Response) or "Content-Encoding" in response.headers:
            return response
        body = response.body
        if not isinstance(body, bytes) or len(body) < _MIN_BYTES:
            return response
        response.headers["Vary"] = "Accept-Encoding"
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            response.body = await self._gzipped(request.path_qs, body)
            response.headers["Content-Encoding"] = "gzip"
        return response

    async def _gzipped(self, name: str, body: bytes) -> bytes:
        before = self.kept.get(name)
        if before is not None and before[0] == body:
            self.kept.move_to_end(name)
            return before[1]
        zipped = await asyncio.to_thread(squeeze, body)
        if len(body) <= _KEPT_MAX_BYTES:
            self.kept[name] = body, zipped
            self.kept.move_to_end(name)
            while len(self.kept) > _KEPT_ANSWERS:
                self.kept.popitem(last=False)
        return zipped


def _weight(parameters: str) -> float:
    """Return the q of a coding's parameters, 1 if there is none, 0 if it is not a number."""
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
