import asyncio
import threading

import pytest
from aiohttp.test_utils import TestClient, TestServer

from exporter.exposing import app as app_module
from exporter.exposing import exposition
from exporter.exposing.app import make_app
from tests.exporter.conftest import record
from tests.exporter.exposing.test_collector import Node


@pytest.fixture
async def client(root, make_ring):
    make_ring().write(record(0))
    node = Node(root)
    latest = [None]
    client = TestClient(TestServer(make_app(lambda: latest[0])))
    client.publish = lambda: latest.__setitem__(0, node.snapshot())  # type: ignore[attr-defined]
    await client.start_server()
    yield client
    await client.close()
    node.rings.close()


async def test_ready_means_that_a_round_is_finished(client):
    """Before the first snapshot the exporter is healthy and not ready."""
    for path, status in (("/-/healthy", 200), ("/-/ready", 503), ("/metrics", 503)):
        assert (await client.get(path)).status == status
    client.publish()
    for path in ("/-/healthy", "/-/ready", "/metrics", "/", "/api/v1/ranks"):
        response = await client.get(path)
        assert response.status == 200
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_metrics_come_in_the_form_asked_for(client):
    """Content type and text agree."""
    client.publish()
    text = await client.get("/metrics")
    assert text.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in await text.text()
    wanted = {"Accept": "application/openmetrics-text;version=1.0.0"}
    openmetrics = await client.get("/metrics", headers=wanted)
    assert openmetrics.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert (await openmetrics.text()).endswith("# EOF\n")
    assert "lockstep_steps_total" in await openmetrics.text()


async def test_metrics_are_compressed_when_asked(client):
    """A scraper that takes gzip gets a tenth of the bytes."""
    client.publish()
    response = await client.get("/metrics", headers={"Accept-Encoding": "gzip"}, auto_decompress=False)
    assert response.headers["Content-Encoding"] == "gzip"


async def test_a_snapshot_is_rendered_once_and_off_the_event_loop(client, monkeypatch):
    """Scrapes between two ticks share one text, made in a worker thread; a new snapshot is rendered again."""
    threads = []
    real = exposition.render

    def render(snapshot, form):
        threads.append(threading.current_thread())
        return real(snapshot, form)

    monkeypatch.setattr(exposition, "render", render)
    client.publish()
    for _ in range(3):
        await (await client.get("/metrics")).read()
    assert len(threads) == 1
    client.publish()
    await (await client.get("/metrics")).read()
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_the_page_has_its_level(client):
    """In both forms; what rules read is there."""
    client.publish()
    latest = client.app[app_module._LATEST]
    async with TestClient(TestServer(make_app(latest, level="minimal"))) as terse:
        for headers in ({}, {"Accept": "application/openmetrics-text;version=1.0.0"}):
            texts = [await (await each.get("/metrics", headers=headers)).text() for each in (client, terse)]
            assert ["lockstep_gc_collections" in text for text in texts] == [True, False]
            assert ["lockstep_last_step_timestamp_seconds" in text for text in texts] == [True, True]


async def test_ranks_are_listed_as_json(client):
    """The API names each shown rank with its step."""
    assert await (await client.get("/api/v1/ranks")).json() == {"ranks": []}
    client.publish()
    (rank,) = (await (await client.get("/api/v1/ranks")).json())["ranks"]
    assert (rank["run"], rank["rank"], rank["step"], rank["hostname"], rank["state"]) == (
        "run-a",
        0,
        0,
        "worker-0",
        "running",
    )


async def test_the_landing_page_links_to_everything(client):
    """The port's own page leads to the rest."""
    page = await (await client.get("/")).text()
    for path in ("/metrics", "/-/healthy", "/-/ready", "/api/v1/ranks"):
        assert f'href="{path}"' in page


async def test_nothing_can_be_changed_over_http(client):
    """Only reading is answered, and other paths do not exist."""
    assert (await client.post("/metrics", data=b"x")).status == 405
    assert (await client.get("/api/v1/../../etc/passwd")).status == 404


async def test_many_scrapes_at_once_are_all_answered(client):
    """Forty scrapers at the same moment get the same page."""
    client.publish()

    async def scrape() -> bytes:
        return await (await client.get("/metrics")).read()

    pages = await asyncio.gather(*(scrape() for _ in range(40)))
    assert len(set(pages)) == 1
