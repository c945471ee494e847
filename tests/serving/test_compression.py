"""Who gets gzip, that it holds what it should, that it is made once and not on the event loop."""

import asyncio
import gzip
import threading

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lockstep.serving import compression
from lockstep.serving.compression import Compression, squeeze, takes_gzip

LONG, SHORT = b"lockstep " * 1000, b"ok\n"


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5, br", True),
        ("x-gzip", True),
        ("*", True),
        ("gzip; q=1.0", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *;q=1", False),
        ("*;q=0", False),
        ("gzip;q=high", False),
        ("br;gzip", False),
        ("," * 2000 + "gzip", False),
    ],
)
def test_who_takes_gzip(header, takes):
    """As RFC 9110 reads the header: a weight of 0 refuses, the coding's own goes before the star's."""
    assert takes_gzip(header) is takes


def test_the_same_bytes_give_the_same_gzip():
    """No time of making is in it; what is short stays as it is."""
    assert gzip.decompress(squeeze(LONG)) == LONG
    assert squeeze(LONG) == squeeze(LONG)
    assert len(squeeze(LONG)) < len(LONG) / 10
    assert squeeze(SHORT) == b""


class Site:
    """An application whose answer is `body`; `made` are the threads that compressed."""

    def __init__(self):
        self.body, self.made = LONG, []
        self.compression = Compression()
        self.app = web.Application()
        self.app.add_routes([web.get("/whole", self._whole), web.get("/own", self._own), web.get("/flow", self._flow)])
        self.compression.protect(self.app)

    async def _whole(self, _):
        return web.Response(body=self.body, content_type="application/json")

    async def _own(self, _):
        return web.Response(body=LONG, headers={"Content-Encoding": "identity"})

    async def _flow(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(LONG)
        return response

    async def get(self, path, accept="gzip", method="GET"):
        headers = {"Accept-Encoding": accept}
        async with self.client.request(method, path, headers=headers, auto_decompress=False) as response:
            return response.headers, await response.read()


@pytest.fixture
async def site(monkeypatch):
    made = Site()

    def record(body):
        made.made.append(threading.current_thread())
        return squeeze(body)

    monkeypatch.setattr(compression, "squeeze", record)
    async with TestClient(TestServer(made.app)) as made.client:
        yield made


async def test_an_answer_is_compressed_for_who_asks(site):
    """Encoded with its length and type right; who does not ask gets it plain; caches are reported of both."""
    headers, body = await site.get("/whole")
    assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert (headers["Content-Type"], int(headers["Content-Length"])) == ("application/json", len(body))
    assert gzip.decompress(body) == LONG
    headers, body = await site.get("/whole", "identity")
    assert ("Content-Encoding" in headers, headers["Vary"], body) == (False, "Accept-Encoding", LONG)
    headers, body = await site.get("/whole", method="HEAD")
    assert (headers["Content-Encoding"], body) == ("gzip", b"")


async def test_the_same_answer_is_compressed_once_and_another_again(site):
    """By thread, never on the event loop; a change of one byte is another answer."""
    for _ in range(3):
        await site.get("/whole")
    assert len(site.made) == 1
    site.body = LONG[:-1] + b"!"
    assert gzip.decompress((await site.get("/whole"))[1]) == site.body
    assert len(site.made) == 2
    assert threading.main_thread() not in site.made


async def test_short_streamed_and_encoded_answers_pass(site):
    """Nothing is compressed that is too small, on its way already, or has an encoding."""
    site.body = SHORT
    assert (await site.get("/whole"))[1] == SHORT
    assert (await site.get("/flow"))[1] == LONG
    assert (await site.get("/own"))[1] == LONG
    assert site.made == []


async def test_what_is_kept_is_bounded(site):
    """A client that varies its questions, or asks for megabytes, does not fill the memory."""
    await asyncio.gather(*(site.get(f"/whole?{number}") for number in range(40)))
    assert len(site.compression.kept) == 32
    site.body = bytes(1 << 20) + b"!"
    for _ in range(2):
        assert gzip.decompress((await site.get("/whole?large"))[1]) == site.body
    assert len(site.made) == 42
    assert "/whole?large" not in site.compression.kept
