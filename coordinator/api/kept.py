"""Answers that cost milliseconds: made on a thread, one at a time, and once for all who ask for the same.

Twenty threads that render would each hold the interpreter for milliseconds, and the event loop would stand in their
queue; one after the other it stands for one of them at most.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web

from lockstep.serving.compression import squeeze, takes_gzip


class CachedWork(NamedTuple):
    """What an answer is made of, and how: `make` runs on a thread, and only where `inputs` are other than last time."""

    inputs: object
    make: Callable[[], bytes]


class _Made(NamedTuple):
    inputs: object
    body: bytes
    zipped: bytes


class Kept:
    """Answers by name, at most `most` of them, the last used stay."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._turn = asyncio.Lock()
        self._made: OrderedDict[str, _Made] = OrderedDict()

    @property
    def bytes_kept(self) -> int:
        """What all of it takes."""
        return sum(len(made.body) + len(made.zipped) for made in self._made.values())

    async def answer(
        self, request: web.Request, name: str, look: Callable[[], CachedWork], *, content_type: str
    ) -> web.Response:
        """Return the answer of this name; `look` is called on the event loop when it is this request's turn."""
        async with self._turn:
            work, made = look(), self._made.get(name)
            if made is None or made.inputs != work.inputs:
                made = await asyncio.to_thread(_make, work)
                self._made[name] = made
            self._made.move_to_end(name)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        body = made.body
        if made.zipped and takes_gzip(request.headers.get("Accept-Encoding", "")):
            body = made.zipped
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)


def _make(work: CachedWork) -> _Made:
    body = work.make()
    return _Made(work.inputs, body, squeeze(body))
