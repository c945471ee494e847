"""Connections that cost their clients nothing cost the server little: number, time and log lines are bounded."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lockstep.serving import http_server
from lockstep.serving.http_server import BoundedSite, Connections
from lockstep.serving.log_limit import LogLimit, RepeatFilter
from tests.serving.sessions import until

CERTIFICATES = Path(__file__).parent / "certificates"
HALF = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-"
LONG_S = 1000.0


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.crt", CERTIFICATES / "server.key")
    return context


class Served:
    """An application with a handler that answers, one that waits and one that reads."""

    def __init__(self, connections: Connections, port: int) -> None:
        self.connections = connections
        self.port = port

    async def ask(self, path: str = "/metrics", **given) -> str:
        timeout = aiohttp.ClientTimeout(total=60)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(given.pop("method", "GET"), f"http://127.0.0.1:{self.port}{path}", **given) as response,
        ):
            return await response.text()

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def serving(*, context: ssl.SSLContext | None = None, **limits):
    """Serve with these limits, and end without a connection or descriptor left."""
    connections = Connections(**({"request_s": LONG_S, "idle_s": LONG_S} | limits))
    app = web.Application()
    release, reading = asyncio.Event(), asyncio.Event()

    async def metrics(_):
        return web.Response(text="metrics\n")

    async def wait(_):
        await release.wait()
        return web.Response(text="released\n")

    async def read(request):
        reading.set()
        return web.Response(text=str(len(await request.read())))

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/wait", wait)
    app.router.add_post("/read", read)
    app.router.add_post("/metrics", metrics)
    connections.protect(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    before = open_descriptors()
    await BoundedSite(runner, "127.0.0.1", 0, connections, ssl_context=context).start()
    served = Served(connections, runner.addresses[0][1])
    served.release, served.reading = release, reading
    try:
        yield served
    finally:
        release.set()
        await runner.cleanup()
        await until(lambda: not connections.open)
    assert connections.waiting == {}
    await until(lambda: open_descriptors() <= before)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


async def test_it_answers_and_keeps_a_connection():
    """Several requests on one connection, and the connection is known while it is there."""
    async with serving() as served:
        reader, writer = await served.connect()
        for _ in range(3):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readuntil(b"metrics\n")).startswith(b"HTTP/1.1 200")
        assert len(served.connections.open) == 1
        writer.close()
        await until(lambda: not served.connections.open)


@pytest.mark.parametrize(
    "data", [b"", HALF, b"\x16\x03", b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"]
)
async def test_who_sends_no_whole_request_in_time_is_closed(data):
    """Nothing, half a header, half of a body."""
    async with serving(request_s=0.05) as served:
        reader, writer = await served.connect(data)
        assert await is_closed(reader) or data == b"\x16\x03"
        writer.close()
        await until(lambda: not served.connections.open)


async def test_who_sends_no_further_request_in_time_is_closed():
    """Half a second request counts as none."""
    async with serving(idle_s=0.05) as served:
        reader, writer = await served.connect(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" + HALF)
        await reader.readuntil(b"metrics\n")
        assert await is_closed(reader)
        writer.close()


async def test_a_request_under_way_has_all_its_time():
    """The limits are for what clients must send; a stream of events goes on."""
    async with serving() as served:
        task = asyncio.create_task(served.ask("/wait"))
        await until(lambda: served.connections.open and not served.connections.waiting)
        (connection,) = served.connections.open
        assert connection._timer is None
        served.release.set()
        assert await task == "released\n"


async def test_a_body_that_ends_after_its_answer_leaves_the_connection_waiting():
    """Else a client could keep it for ever."""
    async with serving() as served:
        head = b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"
        reader, writer = await served.connect(head)
        await reader.readuntil(b"metrics\n")
        writer.write(b"-full")
        await asyncio.sleep(0)
        await until(lambda: len(served.connections.waiting) == 1)
        (connection,) = served.connections.waiting
        assert connection._timer is not None
        writer.close()


async def test_a_client_that_goes_in_the_midst_of_its_body_is_no_error(caplog):
    """Aiohttp would log it as ours, with a traceback."""
    async with serving() as served:
        _, writer = await served.connect(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")
        await served.reading.wait()
        writer.close()
        await until(lambda: not served.connections.open)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_body_is_read_whole():
    """In pieces too."""
    async with serving() as served:
        assert await served.ask("/read", method="POST", data=b"x" * 5000) == "5000"


async def test_the_longest_wait_is_replaced(caplog):
    """A scraper gets through any number of clients that send nothing, and one line of log reports it."""
    async with serving(connections_max=4) as served:
        silent = [await served.connect(HALF) for _ in range(4)]
        await until(lambda: len(served.connections.open) == 4)
        for _ in range(10):
            assert await served.ask() == "metrics\n"
        assert await is_closed(silent[0][0])
        assert len(served.connections.open) <= 4
        for _, writer in silent:
            writer.close()
    assert len([line for line in caplog.messages if line.startswith("HTTP connections")]) == 1


async def test_where_all_are_busy_the_newest_is_refused():
    """Requests under way are never the ones that end."""
    async with serving(connections_max=2) as served:
        tasks = [asyncio.create_task(served.ask("/wait")) for _ in range(2)]
        await until(lambda: len(served.connections.open) == 2 and not served.connections.waiting)
        reader, writer = await served.connect(HALF)
        assert await is_closed(reader)
        writer.close()
        served.release.set()
        assert await asyncio.gather(*tasks) == ["released\n"] * 2


async def test_half_a_handshake_counts_and_ends():
    """A client that speaks no TLS holds a place for a moment only, and is replaced like any other."""
    async with serving(context=server_context(), connections_max=2) as served:
        silent = [await served.connect(b"\x16\x03\x01") for _ in range(5)]
        await until(lambda: len(served.connections.open) == 2)
        for reader, _ in silent[:3]:
            assert await is_closed(reader)
        for _, writer in silent:
            writer.close()
    async with serving(context=server_context(), request_s=0.05) as served:
        reader, writer = await served.connect(b"\x16\x03\x01")
        assert await is_closed(reader)
        writer.close()


async def test_descriptors_that_run_out_are_a_line_of_log(monkeypatch, caplog):
    """No exception leaves the event loop, and connections are accepted again once there are descriptors."""
    monkeypatch.setattr(http_server, "_RETRY_S", 0.01)
    async with serving() as served:
        original = socket.socket.accept
        failures = iter(range(20))

        def failing(self):
            if next(failures, None) is not None:
                raise OSError(24, "Too many open files")
            return original(self)

        monkeypatch.setattr(socket.socket, "accept", failing)
        assert await served.ask() == "metrics\n"
    assert [line for line in caplog.messages if "accept" in line] == [
        "HTTP accept: got Too many open files, expected a connection"
    ]


async def test_malformed_requests_are_a_line_of_log(caplog):
    """Aiohttp would log each with its traceback."""
    async with serving() as served:
        for _ in range(20):
            reader, writer = await served.connect(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.0 400")
            writer.close()
    assert len([record for record in caplog.records if record.name == "aiohttp.server"]) <= 1


async def test_a_port_in_use_is_an_error_of_the_operating_system():
    """The service turns it into an error that names the key."""
    async with serving() as served:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        with pytest.raises(OSError, match="in use"):
            await BoundedSite(runner, "127.0.0.1", served.port, Connections()).start()
        await runner.cleanup()


ATTACKED = """
import asyncio, logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
logging.basicConfig(level=logging.DEBUG, format="LOG %(name)s %(message)s", stream=sys.stderr)
logging.getLogger("asyncio").setLevel(logging.INFO)
from aiohttp import web
from lockstep.serving.web import Web

async def serve():
    app = web.Application()
    async def metrics(_):
        return web.Response(text="metrics\\n")
    app.router.add_get("/metrics", metrics)
    guard = Web()
    guard.protect(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await guard.site(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()

asyncio.run(serve())
"""


async def test_two_hundred_half_requests_at_128_descriptors(tmp_path):
    """A scraper is answered all the while, and the log has a handful of lines: 47,761 in 25 s with asyncio's server."""
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(  # noqa: ASYNC220  (its first line is waited for)
            [sys.executable, "-c", ATTACKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    try:
        served = Served(Connections(), int(process.stdout.readline()))
        half = [await served.connect(HALF) for _ in range(200)]
        for _ in range(20):
            assert await served.ask() == "metrics\n"
        for _, writer in half:
            writer.close()
        assert await served.ask() == "metrics\n"
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(log.read_text().splitlines()) <= 5


def test_a_limited_log_counts_the_lines_it_left_out(caplog):
    """Per kind; a clock that steps back begins another minute."""
    limit = LogLimit(logging.getLogger("test"))
    for second in range(130):
        limit.warning("a", float(second), "text\nof two lines")
        limit.warning("b", 0.0, "other")
    limit.warning("a", 0.0, "again")
    assert caplog.messages == [
        "text\\nof two lines",
        "other",
        "text\\nof two lines (59 more like it were not logged)",
        "text\\nof two lines (59 more like it were not logged)",
        "again (9 more like it were not logged)",
    ]


def test_a_limited_log_forgets_kinds_that_somebody_invents(caplog):
    """The one that was logged longest ago goes first."""
    limit = LogLimit(logging.getLogger("test"))
    for number in range(1000):
        limit.warning(f"kind {number}", 0.0, "text")
    limit.warning("kind 999", 0.0, "text")
    limit.warning("kind 0", 0.0, "text")
    assert len(limit._logged_s) == 256
    assert len(caplog.records) == 1001


def test_a_filter_holds_back_repeated_records(caplog):
    """By text, before its values are put in."""
    logger = logging.getLogger("test.repeated")
    RepeatFilter.install(logger)
    RepeatFilter.install(logger)
    assert len(logger.filters) == 1
    for number in range(5):
        logger.warning("number %d", number)
        logger.warning("other")
    (repeated,) = logger.filters
    record = logging.LogRecord("test", logging.WARNING, "", 0, "number %d", (9,), None)
    record.created += 61.0
    assert repeated.filter(record)
    assert caplog.messages == ["number 0", "other"]
    assert record.getMessage() == "number 9 (4 more like it were not logged)"
    logger.removeFilter(repeated)
