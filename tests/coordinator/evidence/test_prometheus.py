"""What a Prometheus may answer, or not: each costs its query and is counted; nothing raises, nothing leaks."""

import asyncio
import gzip
import logging
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.evidence.catalogue import load_catalogue
from coordinator.evidence.prometheus import (
    ANSWER_MAX_BYTES,
    EMPTY,
    MALFORMED,
    REFUSED,
    TIMEOUT,
    TOO_LARGE,
    UNREACHABLE,
    Access,
    PrometheusClient,
    QueryError,
    parse_answer,
)
from coordinator.evidence.reader import DEADLINE_S, EvidenceReader, Periods
from lockstep.contracts.errors import ConfigError
from tests.coordinator.evidence.neighbours import FAULTS, SUSPECT, Site

SECRET = "s3cr3t-of-the-site"
PERIODS = Periods(before_start_s=1e9, before_end_s=1e9 + 600, after_start_s=1e9 + 600, after_end_s=1e9 + 900)
VECTOR = '{"status":"success","data":{"resultType":"vector","result":[%s]}}'
SAMPLE = '{"metric":{"UUID":"GPU-1"},"value":[1,"%s"]}'


@asynccontextmanager
async def answering(handler):
    """Yield the address of a server whose every POST is answered by `handler`."""
    app = web.Application()
    app.router.add_post("/prom/api/v1/query", handler)
    app.router.add_route("*", "/elsewhere", answer(VECTOR % ""))
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("/prom"))
    finally:
        await server.close()


async def outcome(handler, *, timeout_s=30.0):
    """Return what becomes of one query, and the counts."""
    async with answering(handler) as url:
        client = PrometheusClient(Access(url=url))
        async with client.session() as session:
            try:
                return await session.query("up", 1e9, timeout_s), client.counts
            except QueryError as error:
                return error.outcome, client.counts


def answer(body, **headers):
    async def handler(_):
        return web.Response(body=body.encode() if isinstance(body, str) else body, headers=headers)

    return handler


async def refusing(_):
    raise web.HTTPServiceUnavailable(text=SECRET)


async def redirecting(_):
    raise web.HTTPTemporaryRedirect("/elsewhere")


async def endless(request):
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(2 * ANSWER_MAX_BYTES // 65536):
        await response.write(b" " * 65536)
    return response


async def silent(_):
    await asyncio.Event().wait()


NONSENSE = {
    "nothing": "",
    "a page": "<html>",
    "no vector": '{"status":"success","data":{"resultType":"matrix","result":[]}}',
    "an error that answers 200": '{"status":"error","data":{"resultType":"vector","result":[]}}',
    "another value": VECTOR % '{"metric":{},"value":["1",2]}',
    "another label": VECTOR % '{"metric":{"a":1},"value":[1,"2"]}',
    "deep": "[" * 100_000,
    "no text": b"\xff\xfe",
    "long label": VECTOR % '{"metric":{"a":"%s"},"value":[1,"2"]}' % ("x" * 2000),
    "too many": VECTOR % ",".join([SAMPLE % 1] * 2001),
    "compressed": gzip.compress(b" " * (1 << 24)),
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_is_counted_as_malformed(body):
    """Bytes that are no instant vector are none, however they are made."""
    answered, counts = await outcome(answer(body))
    assert answered == MALFORMED
    assert counts[MALFORMED] == 1


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(refusing, REFUSED), (redirecting, REFUSED), (endless, TOO_LARGE)],
    ids=["error", "redirect", "endless"],
)
async def test_refusals_redirects_and_endless_answers_are_counted(handler, expected):
    """A redirect would carry credentials to another address, an endless answer would be held in memory."""
    answered, counts = await outcome(handler)
    assert answered == expected
    assert counts[expected] == 1


async def test_silence_ends_at_the_timeout():
    """Who does not answer in time is not waited for."""
    answered, counts = await outcome(silent, timeout_s=0.05)
    assert answered == TIMEOUT
    assert counts[TIMEOUT] == 1


async def test_no_server_there_is_counted_as_unreachable():
    """A port on which nothing listens."""
    client = PrometheusClient(Access(url="http://127.0.0.1:9"))
    async with client.session() as session:
        with pytest.raises(QueryError, match=UNREACHABLE):
            await session.query("up", 1e9, 30.0)
    assert client.counts[UNREACHABLE] == 1


async def test_an_empty_vector_is_no_failure():
    """The exporter that a query reads is not scraped here."""
    answered, counts = await outcome(answer(VECTOR % ""))
    assert answered == []
    assert counts[EMPTY] == 1


def test_numbers_that_are_none_are_distinguished():
    """NaN, infinities and text have no value; the series is still one."""
    found = parse_answer((VECTOR % ",".join(SAMPLE % text for text in ("1.5", "NaN", "+Inf", "x"))).encode())
    assert [series.value for series in found] == [1.5, None, None, None]


async def test_credentials_are_sent_and_never_shown(tmp_path, caplog):
    """They come from the file as it is now, go to the configured address, and stand in no message."""
    seen = []

    async def handler(request):
        seen.append(request.headers["Authorization"])
        return web.Response(status=401, text=SECRET)

    file = tmp_path / "token"
    caplog.set_level(logging.DEBUG)
    async with answering(handler) as url:
        reader = EvidenceReader(PrometheusClient(Access(url=url, token_file=str(file))), load_catalogue())
        machines = Site(0, FAULTS[0], SUSPECT).machines
        missing = await reader.read(machines, PERIODS, 1e9)
        file.write_text(f"{SECRET}\n")
        refused = await reader.read(machines, PERIODS, 1e9)
        file.write_text(f"{SECRET}\x01")
        damaged = await reader.read(machines, PERIODS, 1e9)
    assert set(seen) == {f"Bearer {SECRET}"}
    assert "not read: evidence_token_file" in missing.note
    assert "refused" in refused.note
    assert "unprintable" in damaged.note
    assert not any(each.is_complete for each in (missing, refused, damaged))
    assert SECRET not in caplog.text + repr((missing, refused, damaged))


def test_a_user_and_a_password_make_a_header(tmp_path):
    """As RFC 7617 has it; the example is the RFC's."""
    file = tmp_path / "password"
    file.write_text("Aladdin:open sesame\n")
    access = Access(url="http://x", password_file=str(file))
    assert access.headers() == {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}
    with pytest.raises(ConfigError, match="evidence_ca_file"):
        Access(url="https://x", ca_file=str(file)).context()


async def test_a_reading_ends_at_its_deadline():
    """Every query of the catalogue waits for ever, and the reading ends once, not once a query."""
    asked = []

    async def slow(request):
        asked.append((await request.post())["timeout"])
        await asyncio.Event().wait()

    async with answering(slow) as url:
        client = PrometheusClient(Access(url=url))
        reader = EvidenceReader(client, load_catalogue())
        begin = time.monotonic()
        machine = await reader.read(Site(0, FAULTS[0], SUSPECT).machines, PERIODS, 1e9)
        took_s = time.monotonic() - begin
    assert took_s > DEADLINE_S - 0.1
    assert took_s < 10 * DEADLINE_S  # one after the other they would take fifty times as long
    assert client.counts[TIMEOUT] == sum(client.counts.values()) > 10
    assert not machine.is_complete
    assert "no evidence" in machine.note
    assert "timeout" in machine.note
    assert all(0 < float(text) <= DEADLINE_S for text in asked)
