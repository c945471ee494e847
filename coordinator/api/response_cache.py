"""Cache of rendered HTTP responses.

Each response takes milliseconds to render. It is rendered once, on a worker thread, one at a time, and is shared by all
clients that request it. Twenty threads that render at once would each hold the interpreter lock for milliseconds, and
the event loop would wait behind all of them. If one renders after the other, it waits behind one at most.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web

from lockstep.serving.compression import squeeze, takes_gzip


class CachedWork(NamedTuple):
    """The inputs of a response and its renderer: `make` runs on a thread, and only if `inputs` have changed."""

    inputs: object
    make: Callable[[], bytes]


class _Rendered(NamedTuple):
    inputs: object
    body: bytes
    zipped: bytes


class ResponseCache:
    """Responses by name. At most `max_entries` are stored; the least recently used are dropped first."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lock = asyncio.Lock()
        self._rendered: OrderedDict[str, _Rendered] = OrderedDict()

    @property
    def bytes_kept(self) -> int:
        """Memory that all stored responses take, bytes."""
        return sum(len(each.body) + len(each.zipped) for each in self._rendered.values())

    async def answer(
        self, request: web.Request, name: str, read_inputs: Callable[[], CachedWork], *, content_type: str
    ) -> web.Response:
        """Return the response `name`, rendering it if its inputs have changed; `read_inputs` runs on the event loop."""
        async with self._lock:
            work, rendered = read_inputs(), self._rendered.get(name)
            if rendered is None or rendered.inputs != work.inputs:
                rendered = await asyncio.to_thread(_render, work)
                self._rendered[name] = rendered
            self._rendered.move_to_end(name)
            while len(self._rendered) > self._max_entries:
                self._rendered.popitem(last=False)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        body = rendered.body
        if rendered.zipped and takes_gzip(request.headers.get("Accept-Encoding", "")):
            body = rendered.zipped
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)


def _render(work: CachedWork) -> _Rendered:
    body = work.make()
    return _Rendered(work.inputs, body, squeeze(body))
