"""The bus against a real broker, and hostile payloads."""

import asyncio

import aiomqtt
import pytest

from coordinator.bus import Bus, BusCounts, take_payload
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import NodeAlive, ProfileRequest
from tests.coordinator.conftest import announce, until
from tests.coordinator.scenarios import Scenario, generate

ALIVE = encode(NodeAlive(node="n0", alive=True, unix_ns=1))


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("lockstep/v1/run/job/nothing/n0", b"", "topic"),
        ("other", ALIVE, "topic"),
        (topics.alive_topic("n0"), b"\xff" * 100, "malformed"),
        (topics.alive_topic("n0"), b"", "malformed"),
        (topics.alive_topic("n0"), None, "malformed"),
        (topics.alive_topic("n1"), ALIVE, "malformed"),
        (topics.alive_topic("n0"), encode(NodeAlive(node="n0", alive=True, unix_ns=1, version=9)), "version"),
    ],
)
def test_foreign_payloads_are_counted_by_reason(topic, payload, reason):
    """Nothing hostile raises; each is counted once, by reason."""
    counts = BusCounts()
    assert isinstance(take_payload(topic, payload, counts), MalformedError)
    assert {key: value for key, value in counts.rejected.items() if value} == {reason: 1}


def test_every_truncation_of_a_batch_is_refused():
    """A batch cut anywhere is malformed, whole it is taken."""
    batch = generate(Scenario(degrees="dp=2", steps=1)).batch(0, 1)
    payload, topic, counts = encode(batch), topics.run_topic("job", topics.STEPS, "n0"), BusCounts()
    for cut in range(len(payload)):
        take_payload(topic, payload[:cut], counts)
    assert counts.rejected["malformed"] == len(payload)
    assert take_payload(topic, payload, counts) == batch


@pytest.mark.servers
async def test_messages_come_through_hostile_ones_do_not_stop_them(mosquitto):
    """Retained announcements and live messages arrive, a foreign payload between them is counted and dropped."""
    got, stop = [], asyncio.Event()
    bus = Bus(CoordinatorConfig(broker_port=mosquitto), got.append)
    async with aiomqtt.Client("127.0.0.1", mosquitto) as sender:
        await sender.publish(topics.run_topic("job", topics.ANNOUNCE, "n0"), encode(announce(0)), qos=1, retain=True)
        task = asyncio.create_task(bus.run(stop))
        await until(bus.connected.is_set)
        await sender.publish(topics.alive_topic("n0"), b"\x00 not a message", qos=1)
        await sender.publish(topics.alive_topic("n0"), ALIVE, qos=1)
        await until(lambda: len(got) == 2)
    assert {type(message).__name__ for message in got} == {"NodeAnnouncement", "NodeAlive"}
    assert bus.counts.rejected["malformed"] == 1
    assert (bus.counts.received["announce"], bus.counts.received["alive"]) == (1, 2)
    stop.set()
    await asyncio.wait_for(task, 10)
    assert not bus.connected.is_set()


@pytest.mark.servers
async def test_requests_reach_their_node(mosquitto):
    """A request arrives on the topic of its node and decodes to itself."""
    stop = asyncio.Event()
    bus = Bus(CoordinatorConfig(broker_port=mosquitto), lambda _: None)
    request = ProfileRequest(run="job", node="n1", request_id=7, ranks=[2], first_step=80, steps=3)
    async with aiomqtt.Client("127.0.0.1", mosquitto) as receiver:
        await receiver.subscribe([(name, 1) for name in topics.exporter_filters("n1")])
        task = asyncio.create_task(bus.run(stop))
        await until(bus.connected.is_set)
        await bus.publish_request(request)
        message = await asyncio.wait_for(anext(receiver.messages), 10)
    assert decode(str(message.topic), message.payload) == request
    stop.set()
    await asyncio.wait_for(task, 10)


async def test_without_a_broker_it_keeps_trying_and_ends_when_told():
    """An unreachable broker is no failure of ours; a request says that it cannot be sent."""
    stop = asyncio.Event()
    bus = Bus(CoordinatorConfig(broker_port=1), lambda _: None)
    task = asyncio.create_task(bus.run(stop))
    with pytest.raises(aiomqtt.MqttError, match="not connected"):
        await bus.publish_request(ProfileRequest(run="j", node="n", request_id=1, ranks=[0], first_step=1, steps=1))
    stop.set()
    await asyncio.wait_for(task, 10)
    assert not bus.connected.is_set()
