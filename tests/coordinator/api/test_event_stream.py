"""Server-sent events: what is sent, to how many, and how it ends."""

import asyncio
import json

import aiohttp
import pytest

from coordinator.api import event_stream
from coordinator.api.event_stream import BROADCAST, LISTENERS_MAX, Broadcast
from coordinator.api.services import ApiError
from tests.coordinator.conftest import running, until
from tests.coordinator.test_runs import play
from tests.coordinator.web import FAULTY, Site, get
from tests.support.servers import WAIT_S

PATH = "/api/v1/events"


async def next_event(response):
    """Return the data of the next event; comments and the retry line are passed over."""
    while True:
        text = (await asyncio.wait_for(response.content.readuntil(b"\n\n"), WAIT_S)).decode()
        if text.startswith("event: runs"):
            return json.loads(text.partition("data: ")[2])["runs"]


async def test_a_listener_receives_what_is_new():
    """At once what is known; then only what has changed; of one run where one is named."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 30)
        broadcast = site.app[BROADCAST]
        async with site.client.get(PATH) as response, site.client.get(f"{PATH}?run=other") as other:
            assert response.content_type == "text/event-stream"
            (run,) = await next_event(response)
            assert (run["run"], run["step"], run["open"]) == ("job", 29, 0)
            assert await next_event(other) == []
            play(site.runs, FAULTY, 30, 50)
            broadcast.publish()
            (now,) = await next_event(response)
            assert (now["step"], now["open"], now["revision"] != run["revision"]) == (49, 1, True)
        await until(lambda: not broadcast.listeners)


async def test_listeners_are_bounded():
    """One more than there may be is refused with the reason; one that leaves makes room."""
    known = [{"run": "job", "step": 1}]
    broadcast = Broadcast(lambda: known)
    listeners = [broadcast.add("") for _ in range(LISTENERS_MAX)]
    with pytest.raises(ApiError, match="listen already"):
        broadcast.add("")
    broadcast.discard(listeners[0])
    broadcast.add("")


async def test_a_slow_listener_costs_one_event():
    """A listener that does not read has the newest event only; the same again is not offered."""
    known = [{"run": "job", "step": 0}]
    broadcast = Broadcast(lambda: known)
    listener = broadcast.add("job")
    for step in range(1, 1000):
        known[0]["step"] = step
        broadcast.publish()
    assert json.loads(listener.newest.partition(b"data: ")[2]) == {"runs": [{"run": "job", "step": 999}]}
    listener.newest = None
    broadcast.publish()
    assert listener.newest is None


async def test_silence_is_kept_alive(monkeypatch):
    """A comment where nothing is new, so that no one between takes the connection for dead."""
    monkeypatch.setattr(event_stream, "_KEEPALIVE_S", 0.01)
    async with Site() as site, site.client.get(PATH) as response:
        await next_event(response)
        assert await asyncio.wait_for(response.content.readuntil(b"\n\n"), WAIT_S) == b": still here\n\n"


async def test_the_end_of_the_coordinator_ends_every_stream():
    """At once, and no one new is let in."""
    async with Site() as site:
        async with site.client.get(PATH) as response:
            await next_event(response)
            await site.app.shutdown()
            assert await asyncio.wait_for(response.content.read(), WAIT_S) == b": still here\n\n"
        assert "events" in (await get(site, PATH, 503))["error"]


async def test_a_failed_look_is_counted_and_the_next_one_comes(monkeypatch):
    """A bug in what is known of one run must not leave every page without events for good."""
    monkeypatch.setattr(event_stream, "_PERIOD_S", 0.01)
    known = [[], ValueError("a bug"), [{"run": "job", "step": 1}]]

    def look():
        found = known.pop(0) if len(known) > 1 else known[0]
        if isinstance(found, Exception):
            raise found
        return found

    broadcast = Broadcast(look)
    listener = broadcast.add("")
    task = asyncio.create_task(broadcast.run())
    await until(lambda: b"job" in listener.newest)
    task.cancel()
    assert broadcast.isolation.dropped["events", "failed"] == 1


async def test_nothing_is_computed_while_no_one_listens():
    """The look at the runs is taken for listeners only."""
    looks = []
    broadcast = Broadcast(lambda: looks.append(1) or [])
    broadcast.publish()
    assert looks == []


async def test_a_running_coordinator_ends_with_a_page_open():
    """The stream of a real one ends well when it is asked to stop, so that it need not wait for its deadline."""
    async with aiohttp.ClientSession() as client:
        async with running() as coordinator:
            response = await client.get(f"http://127.0.0.1:{coordinator.http_port}{PATH}")
            assert await next_event(response) == []
            rest = asyncio.create_task(response.content.read())
        assert await asyncio.wait_for(rest, WAIT_S) == b": still here\n\n"
