"""Other exporters' pages are read within a deadline and bounds, and every failure is one count."""

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from exporter.config import ExporterConfig
from exporter.inspector import CollectiveTotals
from exporter.neighbours import reading
from exporter.neighbours.reading import NeighbourReader
from exporter.neighbours.sample_history import SERIES_MAX
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.inspector_metrics import PLACES_MAX
from tests.exporter.conftest import until

SECRET = "s3cr3t-of-the-node"


async def read_once(config: ExporterConfig, handler) -> tuple[NeighbourReader, dict[str, int]]:
    """Return a reader after its first reading of a page that `handler` answers, and what became of it."""
    app = web.Application()
    app.router.add_get("/metrics", handler)
    app.router.add_get("/elsewhere", malformed)
    server = TestServer(app)
    await server.start_server()
    reader = NeighbourReader(replace(config, neighbour_addresses=str(server.make_url("/metrics"))))
    task = asyncio.create_task(reader.run())
    try:
        await until(lambda: sum(reader.status().readings.values()), 60)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await server.close()
    return reader, {outcome: count for outcome, count in reader.status().readings.items() if count}


async def test_a_page_and_its_credentials(config: ExporterConfig, tmp_path):
    """The token comes from its file; what was kept is handed out as JSON."""
    (tmp_path / "token").write_text(SECRET)
    asked = []

    async def page(request):
        asked.append(request.headers.get("Authorization"))
        return web.Response(text="node_vmstat_oom_kill 1\nnode_load1 2\n")

    with_token = replace(config, neighbour_token_file=str(tmp_path / "token"))
    reader, outcomes = await read_once(with_token, page)
    assert (outcomes, asked[0], reader.status().series_count) == ({"answered": 1}, f"Bearer {SECRET}", 1)
    [kept] = json.loads(reader.between(0, 1e12))["pages"]
    assert kept["series"] == [
        {"labels": {"__name__": "node_vmstat_oom_kill", "instance": "node-1"}, "values": [1.0]},
    ]


async def test_a_token_that_cannot_be_read(config: ExporterConfig, tmp_path, caplog):
    """At the start it is an error that names the key; later it is reported once until it can be read again."""
    token = tmp_path / "token"
    reader = NeighbourReader(replace(config, neighbour_token_file=str(token)))
    reader.check()  # no page needs it
    urls = "http://127.0.0.1:1/metrics,http://127.0.0.1:2/metrics"
    with_pages = replace(config, neighbour_addresses=urls, neighbour_token_file=str(token))
    reader = NeighbourReader(with_pages)
    with pytest.raises(ConfigError, match=rf"neighbour_token_file: got '{token}', expected a readable file of text"):
        reader.check()

    async def page(_):
        return web.Response(text="node_load1 2\n")

    _, outcomes = await read_once(replace(config, neighbour_token_file=str(token)), page)
    assert outcomes == {"unreachable": 1}
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "neighbour_token_file" in warning
    for _ in range(2):
        reader._report_token("neighbour_token_file: gone")
    reader._report_token("")
    reader._report_token("neighbour_token_file: gone")
    assert [record.message for record in caplog.records].count("neighbour_token_file: gone") == 2


async def refusing(_):
    raise web.HTTPServiceUnavailable(text=SECRET)


async def redirecting(_):
    raise web.HTTPFound("/elsewhere")


async def large(_):
    return web.Response(body=b"#" * (reading.PAGE_MAX_BYTES + 1))


async def breaking(request):
    request.transport.close()
    return web.Response()


async def malformed(_):
    return web.Response(body=b"node_vmstat_oom_kill \xff\n")


async def slow(_):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("handler", "outcome"),
    [
        (refusing, "refused"),
        (redirecting, "refused"),
        (large, "too_large"),
        (breaking, "unreachable"),
        (malformed, "malformed"),
        (slow, "timeout"),
    ],
)
async def test_a_page_that_cannot_be_used(config: ExporterConfig, monkeypatch, caplog, handler, outcome):
    """It has one outcome, no series, and its text is in no log."""
    monkeypatch.setattr(reading, "DEADLINE_S", 0.2 if handler is slow else 30.0)
    with caplog.at_level("DEBUG"):
        reader, outcomes = await read_once(config, handler)
    assert (outcomes, reader.status().series_count) == ({outcome: 1}, 0)
    assert SECRET not in caplog.text


async def kept_of(config: ExporterConfig, sums) -> tuple[NeighbourReader, list]:
    """Return a reader after it has asked once for the Inspector's sums, and the pages it kept."""
    asked = []

    def inspected():
        asked.append(None)
        return sums

    reader = NeighbourReader(config, inspected)
    task = asyncio.create_task(reader.run())
    try:
        await until(lambda: asked, 60)
    finally:
        task.cancel()
        await asyncio.wait([task])
    return reader, json.loads(reader.between(0, 1e12))["pages"]


async def test_without_addresses_and_inspectors_nothing_is_kept(config: ExporterConfig):
    """Not even a page without series."""
    assert (await kept_of(config, {}))[1] == []


async def test_what_inspectors_time_is_kept_without_an_address(config: ExporterConfig):
    """In base units, under the names and labels that a Prometheus has from this exporter."""
    totals = CollectiveTotals(count=4, time_ns=2_000_000, bus_bytes=8e9, arrivals=1)
    _, [page] = await kept_of(config, {("job", 3): {("dp", "AllReduce"): totals}})
    labels = {"instance": "node-1", "run": "job", "rank": "3", "communicator": "dp", "operation": "AllReduce"}
    assert {
        each["labels"].pop("__name__").removeprefix("lockstep_nccl_"): each["values"] for each in page["series"]
    } == {
        "operations_total": [4.0],
        "operation_time_seconds_total": [pytest.approx(0.002)],
        "operation_bus_bytes_total": [8e9],
        "last_arrivals_total": [1.0],
    }
    assert all(each["labels"] == labels for each in page["series"])


async def test_more_series_of_inspectors_than_are_kept_count(config: ExporterConfig):
    """As those of a page that is too large."""
    view = {(f"c{number}", "AllReduce"): CollectiveTotals(count=1) for number in range(PLACES_MAX)}
    reader, [page] = await kept_of(config, {("job", rank): view for rank in range(64)})
    assert len(page["series"]) == SERIES_MAX
    assert reader.status().readings["too_large"] == 1


@pytest.mark.parametrize(
    "addresses",
    ["127.0.0.1:9100", "ftp://127.0.0.1/x", "http://8.8.8.8/metrics", "http://u:p@127.0.0.1/m", "http://[::1/m"],
)
def test_addresses_that_are_refused(config: ExporterConfig, addresses: str):
    """No page, another scheme, the internet, a secret in an address: which the message does not repeat."""
    with pytest.raises(ConfigError, match="neighbour_addresses: got") as error:
        replace(config, neighbour_addresses=addresses).validate()
    assert "u:p" not in str(error.value)


def test_addresses_of_the_node_and_its_network(config: ExporterConfig):
    """Loopback, private addresses and names."""
    addresses = "http://127.0.0.1:9400/metrics, https://[::1]:9100/metrics,http://10.1.2.3:8082/metrics,http://n1/m"
    replace(config, neighbour_addresses=addresses).validate()
