"""Coordinators that notify a real receiver: a slow one delays nothing, a pair sends once, a restart nothing again."""

import asyncio
import json
import time

import aiohttp

from lockstep.serving.local_broker import LocalBroker
from tests.coordinator.conftest import announce, running, until
from tests.coordinator.notify.receiver import Receiver, receiving, webhook_settings
from tests.coordinator.test_runtime import play
from tests.support.wire import wired


def lead(*coordinators):
    """Let the time pass after which the first of them leads."""
    for each in coordinators:
        each._leadership.update(time.time() + 3)


async def evaluated(coordinator, step):
    await until(lambda: "job" in coordinator._runs.by_name)
    machine = coordinator._runs.by_name["job"].machine
    await until(lambda: machine.step_result is not None and machine.step_result.step == step)


async def test_a_slow_receiver_delays_nothing_and_a_restart_sends_nothing_again(tmp_path):
    """Steps are evaluated while it keeps the event; then it is counted, and known after a restart."""
    now, broker, gate = time.time(), LocalBroker(), asyncio.Event()
    receiver = Receiver(gate=gate)
    async with receiving(receiver) as url, wired(broker) as wire:
        settings = {
            "broker": broker,
            "state_directory": str(tmp_path / "state"),
            "external_url": "https://lockstep.example.org",
            **webhook_settings(tmp_path, url),
        }
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        async with running(**settings) as coordinator:
            await until(coordinator._bus.connected.is_set)
            lead(coordinator)
            await play(wire, 0, 50, now)
            await evaluated(coordinator, 49)
            coordinator.on_tick(time.time())
            await until(lambda: receiver.requests)
            await play(wire, 50, 60, now)
            await evaluated(coordinator, 59)
            gate.set()
            counts = coordinator._notifier.senders["webhook"].counts
            await until(lambda: counts["sent"] == 1)
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
                client.get("/metrics") as response,
            ):
                name = "lockstep_coordinator_notifications_total"
                assert f'{name}{{outcome="sent",target="webhook"}} 1.0' in await response.text()
        event = json.loads(receiver.requests[0][2])
        assert event["type"] == "lockstep.incident.opened"
        assert event["data"]["ranks"] == [2]
        assert event["data"]["host"] == "host-n0"
        assert event["data"]["links"]["incident"].startswith("https://lockstep.example.org/incidents/job-")
        async with running(**settings) as coordinator:
            await until(coordinator._bus.connected.is_set)
            lead(coordinator)
            await play(wire, 60, 70, now)
            await evaluated(coordinator, 69)
            assert coordinator._runs.by_name["job"].machine.tracker.incidents
            coordinator.on_tick(time.time())
            assert coordinator._leadership.leads
            assert not coordinator._notifier.senders["webhook"]._queue
    assert len(receiver.requests) == 1


async def test_of_a_pair_the_leader_alone_sends(tmp_path):
    """Both evaluate the incident; the follower keeps it for the case that its leader dies."""
    now, broker, receiver = time.time(), LocalBroker(), Receiver()
    async with receiving(receiver) as url, wired(broker) as wire:
        settings = {"broker": broker, **webhook_settings(tmp_path, url)}
        await wire.announce(announce(0, 1, 2, 3, heartbeat_s=now))
        async with running(name="a", **settings) as first, running(name="b", **settings) as second:
            for each in (first, second):
                await until(each._bus.connected.is_set)
            for each in (first, second):
                await until(lambda each=each: each._leadership.peers(time.time()) == 1)
            lead(first, second)
            assert (first._leadership.leads, second._leadership.leads) == (True, False)
            await play(wire, 0, 50, now)
            for each in (first, second):
                await evaluated(each, 49)
                each.on_tick(time.time())
            await until(lambda: first._notifier.senders["webhook"].counts["sent"] == 1)
            (kept,) = second._notifier._waiting["webhook"]
            assert not second._notifier.senders["webhook"]._queue
    assert [headers["webhook-id"] for _, headers, _ in receiver.requests] == [kept.id]
