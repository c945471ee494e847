"""Raw bytes on the ports of both services, over loopback; some dozens of clients at a time."""

import asyncio
import contextlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from traceback import extract_tb
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from benchmarks.fuzz import mutate
from benchmarks.fuzz.harness import ACCEPTED, SurpriseError
from benchmarks.fuzz.node import node_snapshot
from coordinator.settings.thresholds import catalogue
from exporter.counts import ExporterCounters
from exporter.exposing.app import make_app as make_exporter_app
from exporter.reading.rings import Rings
from lockstep.serving.http_server import BoundedSite as HttpSite
from lockstep.serving.http_server import Connections
from tests.coordinator.web import TOKEN, Site

_CLIENTS = 32
_EXPORTER_SHARE = 0.2  # it has five pages, and nothing can be changed there
_IDLE_S = 0.05  # of the servers here: half a request is what many cases are
_ANSWER_S = 20.0  # longest time for an answer, or for the end of a connection; only a hang takes it
_STREAM_S = 0.1  # for what never ends, as events
_EXPECTED = (HttpProcessingError, web.RequestPayloadError, ConnectionResetError)
_UPSTREAM = re.compile(rb"\nExpect:[^\r\n]*[\x80-\xff]", re.IGNORECASE)
"""aiohttp 3.14 answers this with 500 before any code of ours runs: it puts the header into a text of UTF-8."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PRI", "g\xe9t")
_CHANGES = (
    ("POST", "/-/reload"),
    ("POST", "/api/v1/runs/job/profile"),
    ("PUT", "/api/v1/runs/job/spec"),
    ("DELETE", "/api/v1/runs/job/spec"),
    ("PATCH", "/api/v1/policy"),
    ("DELETE", "/api/v1/policy"),
    ("PATCH", "/api/v1/runs/job/policy"),
    ("DELETE", "/api/v1/runs/job/policy"),
)
_TARGETS = (
    *("/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/ranks", "/api/v1/runs", "/api/v1/runs/job"),
    *("/runs/job", "/incidents/job-1", "/api/v1/runs/job/heatmap", "/api/v1/runs/job/heatmap?steps=9&kind=self"),
    *("/api/v1/runs/job/trace", "/api/v1/runs/job/trace?first=1&last=9", "/api/v1/runs/job/profile"),
    *("/api/v1/runs/job/spec", "/api/v1/runs/job/policy", "/api/v1/policy", "/api/v1/incidents", "/api/v1/events"),
    *("/api/v1/incidents?run=job&open=true&limit=5", "/api/v1/incidents/job-1", "/api/v1/targets", "/static/x/page.js"),
)
_VERSIONS = (*("1.1",) * 40, *("1.0",) * 4, "2.0", "9", "1.1.1", "")
_ODD = (
    "%00",
    "%ff",
    "%2e%2e",
    "../..",
    "%",
    "\\",
    "//",
    "?",
    "#",
    "*",
    ":",
    "\xe9",
    "%F0%9F%98%80",
    "x" * 9000,
    "-1",
    "nan",
    "1e999",
    "9" * 5000,
)
_HEADERS = (
    "Accept: application/openmetrics-text; version=1.0.0; q=0.9, */*;q=x",
    "Accept: " + ",".join(["text/plain;q=0.1"] * 500),
    "Accept-Encoding: gzip;q=0, deflate, *;q=nan",
    "Accept-Encoding: gzip",
    "Content-Encoding: gzip",
    "Content-Encoding: deflate",
    "Content-Type: application/json; charset=nothing",
    "Content-Type: application/json; charset=utf-7",
    "Content-Type: multipart/form-data; boundary=x",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Connection: close",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Upgrade: h2c",
    "Expect: 100-continue",
    "Expect: anything",
    "Range: bytes=0-1,5-9",
    "If-None-Match: *",
    "If-Modified-Since: never",
    "Cookie: a=b; " + "c" * 4000,
    "Authorization: Bearer",
    "Authorization: Bearer \xe9",
    "Authorization: Basic ====",
    "Last-Event-ID: 9" + "9" * 30,
    "X: " + "y" * 9000,
    "X" * 9000 + ": y",
    ": nothing",
    "No colon",
    " folded: line",
    "Host: a\r\nHost: b",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 5\r\nContent-Length: 6",
)
_SPEC = (Path(__file__).parents[3] / "examples/simulator/gpt2_32.yaml").read_text(encoding="utf-8")


class Http:
    """Each case is one connection to one of the services."""

    name = "http"

    def begin(self, _: Random) -> None:
        """Serve both."""
        self._loop = asyncio.new_event_loop()
        self._surprises: list[BaseException] = []
        self._loop.set_exception_handler(
            lambda _, context: self._note(context.get("exception") or SurpriseError(str(context)))
        )
        self._log = _Caught(self._surprises)
        logger = logging.getLogger("aiohttp.server")
        self._loop.run_until_complete(self._start())
        logger.filters.clear()
        logger.addHandler(self._log)

    def close(self) -> None:
        """End both."""
        logging.getLogger("aiohttp.server").removeHandler(self._log)
        self._loop.run_until_complete(self._stop())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._folder.cleanup()

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Send one case over each connection."""
        cases = iter(randoms)
        while group := list(islice(cases, _CLIENTS)):
            yield from self._loop.run_until_complete(self._ask_all(group))

    async def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-fuzz-")
        token = Path(self._folder.name) / "token"
        token.write_text(TOKEN, encoding="ascii")
        counts = ExporterCounters()
        snapshot = node_snapshot(Rings(Path(self._folder.name) / "nothing", counts, {}), counts, 10**12)
        self._site = Site(token_file=str(token))
        self._runners = []
        self._ports = []
        for app in (self._site.app, make_exporter_app(lambda: snapshot)):
            connections = Connections(request_s=_IDLE_S, idle_s=_IDLE_S)
            connections.protect(app)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, lingering_time=_IDLE_S)
            await runner.setup()
            await HttpSite(runner, "127.0.0.1", 0, connections).start()
            self._runners.append(runner)
            self._ports.append(runner.addresses[0][1])

    async def _stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        await asyncio.sleep(2 * _IDLE_S)  # for what lingers over bodies that nothing reads
        self._site.store.close()

    async def _ask_all(self, randoms: list[Random]) -> list[str | BaseException]:
        return list(await asyncio.gather(*(self._ask(random) for random in randoms)))

    async def _ask(self, random: Random) -> str | BaseException:
        data = _request(random)
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await _exchange(self._ports[random.random() < _EXPORTER_SHARE], data)
        except TimeoutError:
            return SurpriseError(f"no answer and no end of the connection within {_ANSWER_S:g} s: {data[:300]!r}")
        if _UPSTREAM.search(data):
            return "500 of aiohttp itself"
        codes = [int(code) for code in _STATUS.findall(answer)]
        if self._surprises:
            return self._surprises.pop()
        if any(code >= 500 and code != 503 for code in codes):
            return SurpriseError(f"answer {codes} to {data[:300]!r}")
        if not codes:
            return "closed without an answer"
        return ACCEPTED if codes[0] < 400 else str(codes[0])

    def _note(self, error: BaseException) -> None:
        self._surprises.append(error)


class _Caught(logging.Handler):
    """Takes exceptions of handlers out of aiohttp's log; malformed requests and lost clients there are no surprise."""

    def __init__(self, surprises: list[BaseException]) -> None:
        super().__init__()
        self._surprises = surprises

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what was raised."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _EXPECTED) and not _is_upstream(error):
            self._surprises.append(error)


def _is_upstream(error: BaseException) -> bool:
    """Whether aiohttp itself raised it where it looks at the header Expect."""
    return any(frame.name == "_default_expect_handler" for frame in extract_tb(error.__traceback__))


async def _exchange(port: int, data: bytes) -> bytes:
    """Return what comes back until the connection ends, or for a moment of what never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            while chunk := await reader.read(1 << 16):
                answer += chunk[:4096] if len(answer) < 1 << 20 else b""
                if b"text/event-stream" in answer:
                    await asyncio.sleep(_STREAM_S)
                    break
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answer


def _request(random: Random) -> bytes:
    kind = random.random()
    if kind < 0.03:
        return random.randbytes(random.randrange(200))
    if kind < 0.05:
        return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(64)
    data = b"".join(_one(random) for _ in range(random.choice((1, 1, 1, 1, 2, 5))))
    if random.random() < 0.2:
        return mutate.changed_bytes(random, data, random.choice((1, 1, 2, 8)))
    return data


def _one(random: Random) -> bytes:
    method, target = random.choice((("GET", random.choice(_TARGETS)), random.choice(_CHANGES)))
    if random.random() < 0.2:
        method = random.choice(_METHODS)
    if random.random() < 0.3:
        target = _other_target(random, target)
    body = b"" if method in ("GET", "HEAD") and random.random() < 0.9 else _body(random, target)
    lines = [f"{method} {target} HTTP/{random.choice(_VERSIONS)}", "Host: localhost"]
    if random.random() < 0.7:
        lines.append(f"Authorization: Bearer {TOKEN}")
    is_chunked = random.random() < 0.1
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    elif body or random.random() < 0.1:
        lines.append(f"Content-Length: {len(body) + random.choice((0, 0, 0, 0, 1, -1))}")
    lines += random.sample(_HEADERS, random.choice((0, 0, 0, 0, 1, 2)))
    head = "\r\n".join(lines).encode("latin-1", errors="replace")
    return head + b"\r\n\r\n" + body


def _other_target(random: Random, target: str) -> str:
    if random.random() < 0.1:
        return random.choice(("http://other/metrics", "*", "", "metrics", "/" * 200))
    at = random.randrange(len(target) + 1)
    return target[:at] + random.choice(_ODD) + target[at:]


def _body(random: Random, target: str) -> bytes:
    """Return a body that the target may take, changed."""
    if "spec" in target:
        text = _SPEC.encode()
        return mutate.changed_bytes(random, text, random.choice((1, 4))) if random.random() < 0.7 else text
    value: dict[str, Any] = {"ranks": [0, 1], "steps": 2, "shapes": False}
    if "policy" in target:
        names = random.sample(sorted(catalogue()), 3)
        value = {name: catalogue()[name].default for name in names}
    if random.random() < 0.2:
        return json.dumps(value).encode()
    return mutate.as_json(random, mutate.changed_value(random, value, random.choice((1, 2))))
