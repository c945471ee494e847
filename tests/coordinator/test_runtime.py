"""The whole coordinator: real broker, real HTTP, a wire that plays exporter."""

import asyncio
import time

import aiohttp
import aiomqtt
import pytest

from coordinator.intake import coalescer
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import CallNode, ProfileAnswer, TraceSummary
from tests.coordinator.conftest import announce, running, until
from tests.coordinator.scenarios import Scenario, generate
from tests.support.servers import free_port

FAULTY = generate(Scenario(degrees="dp=4", steps=80).with_fault("compute", 2, seconds=0.4, begin=40))


def trace(rank, request, work_ns):
    """Return the summary of a rank whose `forward` took `work_ns`."""
    tree = [
        CallNode(parent=-1, name="train.py(1): step", kind="python", total_ns=work_ns, self_ns=0, count=3),
        CallNode(parent=0, name="train.py(9): forward", kind="python", total_ns=work_ns, self_ns=work_ns, count=3),
    ]
    return TraceSummary(
        run="job",
        node="n0",
        rank=rank,
        request_id=request,
        window_ns=3 * work_ns,
        steps=3,
        trace_bytes=1,
        event_count=6,
        tree=tree,
    )


async def send(wire, channel, message):
    await wire.publish(topics.run_topic("job", channel, "n0"), encode(message), qos=1)


async def play(wire, first, last, start_s):
    for step in range(first, last):
        await send(wire, topics.STEPS, FAULTY.batch(step, step + 1, start_s=start_s))


@pytest.mark.servers
async def test_from_records_to_the_function_over_a_real_broker(mosquitto, tmp_path):
    """Announce, steps, incident, request, summaries, diagnosis; all of it is there after a restart, and told once."""
    now = time.time()
    settings = {"broker_port": mosquitto, "state_directory": str(tmp_path)}
    async with aiomqtt.Client("127.0.0.1", mosquitto) as wire:
        await wire.subscribe([(name, 1) for name in topics.exporter_filters("n0")])
        announcement = encode(announce(0, 1, 2, 3, heartbeat_s=now))
        await wire.publish(topics.run_topic("job", topics.ANNOUNCE, "n0"), announcement, qos=1, retain=True)
        async with running(**settings) as coordinator:
            await until(coordinator._bus.connected.is_set)
            await play(wire, 0, 50, now)
            message = await asyncio.wait_for(anext(wire.messages), 10)
            request = decode(str(message.topic), message.payload)
            assert (request.ranks, request.steps, request.stacks) == ([2, 0, 1], 3, True)
            assert request.first_step > 42
            for rank, work_ns in ((2, 900_000_000), (0, 100_000_000), (1, 100_000_000)):
                answer = ProfileAnswer(run="job", node="n0", rank=rank, request_id=request.request_id, state="done")
                await send(wire, topics.ANSWER, answer)
                await send(wire, topics.SUMMARY, trace(rank, request.request_id, work_ns))
            machine = coordinator._runs.by_name["job"].machine
            await until(lambda: str(machine.state) == "diagnosed")
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
                client.get("/api/v1/incidents?run=job") as response,
            ):
                (found,) = (await response.json())["incidents"]
            assert (found["ranks"], found["cause"], found["detected_step"]) == ([2], "compute", 42)
            assert "forward" in found["function"]
            assert found["advice"]
        async with running(**settings) as coordinator:
            await until(coordinator._bus.connected.is_set)
            await play(wire, 50, 80, now)
            await until(lambda: "job" in coordinator._runs.by_name)
            machine = coordinator._runs.by_name["job"].machine
            await until(lambda: machine.judgement is not None and machine.judgement.step == 79)
            (again,) = machine.casebook.incidents.values()
            assert (again.id, again.function) == (found["id"], found["function"])
            assert machine.casebook.incidents_total == 1


async def test_batches_wait_for_each_other_and_not_for_ever(monkeypatch):
    """A batch is not taken by itself; news of its run, and the end of the coordinator, do not overtake it."""
    monkeypatch.setattr(coalescer, "COALESCE_S", 3600.0)
    now = time.time()
    async with running(broker_port=free_port()) as coordinator:
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now))
        coordinator._on_message(FAULTY.batch(0, 1, start_s=now))
        machine = coordinator._runs.by_name["job"].machine
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now + 1))
        assert machine.judgement is None
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now, state="finished"))
        assert machine.judgement.step == 0
        coordinator._on_message(FAULTY.batch(1, 2, start_s=now))
        assert machine.judgement.step == 0
    assert machine.judgement.step == 1


async def test_a_port_in_use_is_named():
    """The error says which key, which port and where."""
    async with running() as first:
        with pytest.raises(ConfigError, match=f"http_port: got {first.http_port}"):
            async with running(http_port=first.http_port):
                pass


async def test_a_state_directory_that_is_a_file_is_named(tmp_path):
    """Nothing starts."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state_directory"):
        async with running(state_directory=str(tmp_path / "file")):
            pass


async def test_it_serves_without_a_broker_and_leaves_nothing_behind():
    """An unreachable broker shows in readiness and in a metric; after the end no task is left."""
    before = asyncio.all_tasks()
    async with (
        running(broker_port=free_port()) as coordinator,
        aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
    ):
        async with client.get("/-/ready") as response:
            assert response.status == 503
        async with client.get("/metrics") as response:
            assert "lockstep_coordinator_mqtt_connected 0.0" in await response.text()
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert left == set()
