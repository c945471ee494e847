import asyncio
import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import aiomqtt
import pytest

from exporter.counts import Counts
from exporter.sending.publisher import _BACKOFF_MAX_S, Publisher
from exporter.sending.spool import Spool
from lockstep.contracts import topics
from lockstep.contracts.codec import encode
from lockstep.contracts.messages import NodeAlive, NodeAnnouncement, ProfileAnswer, ProfileRequest
from tests.exporter.conftest import listening, make_config, until
from tests.support.servers import Mosquitto, free_port

pytestmark = pytest.mark.servers

REQUEST = ProfileRequest(run="run", node="node-1", request_id=5, ranks=[0], first_step=-1, steps=3)
REQUEST_TOPIC = topics.run_topic("run", topics.REQUEST, "node-1")
ANSWER_TOPIC = topics.run_topic("run", topics.ANSWER, "node-1")

# In a process of its own: amqtt leaves the socket of a client that it refuses to the garbage collector.
AMQTT = """
import asyncio
from amqtt.broker import Broker
async def main():
    await Broker({
        "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:%d"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }).start()
    await asyncio.sleep(60)
asyncio.run(main())
"""


def start_amqtt(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", AMQTT % port], stderr=subprocess.DEVNULL)


class Station:
    """A publisher with its spool, and what it received."""

    def __init__(self, root: Path, tmp_path: Path, port: int, **values) -> None:
        self.config = make_config(root, tmp_path, broker_port=port, **values)
        self.spool = Spool(Path(self.config.spool_directory), self.config.spool_max_bytes)
        self.counts = Counts()
        self.requests: list[ProfileRequest] = []
        self.publisher = Publisher(
            self.config,
            spool=self.spool,
            counts=self.counts,
            on_request=self.requests.append,
            heartbeats=list,
            unix_ns=time.time_ns,
            jitter=random.Random(1),
        )
        # Backoff as in production, only shorter: the tests are about what is lost, not about how long it takes.
        self.publisher._backoff_s = lambda _: 0.05  # type: ignore[method-assign]

    def send(self, number: int) -> None:
        answer = ProfileAnswer(run="run", node="node-1", rank=0, request_id=number, state="done")
        self.spool.append(ANSWER_TOPIC, encode(answer), 1)
        self.publisher.wake()


@contextlib.asynccontextmanager
async def on_air(station: Station):
    station.spool.open()
    tasks = [asyncio.create_task(station.publisher.run()), asyncio.create_task(station.publisher.receive())]
    try:
        yield station
    finally:
        station.publisher.finish()
        await asyncio.wait_for(tasks[0], 20)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        station.spool.close()


def numbers(listener) -> list[int]:
    return [answer.request_id for answer in listener.of(ProfileAnswer)]


async def test_messages_arrive_in_order_and_the_spool_empties(root, tmp_path, mosquitto: Mosquitto):
    """What is spooled reaches the broker, is acknowledged and counted."""
    async with listening(mosquitto.port) as listener, on_air(Station(root, tmp_path, mosquitto.port)) as station:
        for number in range(20):
            station.send(number)
        await listener.until(lambda: len(numbers(listener)) == 20)
        await until(lambda: station.spool.waiting_bytes == 0)
        assert numbers(listener) == list(range(20))
        assert station.counts.published >= 20
        assert station.publisher.connected


async def test_a_broker_that_is_away_costs_nothing(root, tmp_path, mosquitto: Mosquitto):
    """Messages of the time without a broker come when it is back, in order, and the state is visible meanwhile."""
    async with listening(mosquitto.port) as listener, on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.send(0)
        await listener.until(lambda: numbers(listener) == [0])
        mosquitto.stop()
        await until(lambda: not station.publisher.connected)
        for number in range(1, 30):
            station.send(number)
        assert station.spool.waiting_bytes > 0
        mosquitto.start()
        # The listener may come back after the first ones: the broker's acknowledgement is what counts.
        await until(lambda: station.spool.waiting_bytes == 0)
        assert station.counts.published >= 30
        station.send(30)
        await listener.until(lambda: 30 in numbers(listener))
        assert numbers(listener) == sorted(numbers(listener))


async def test_a_lasting_subscriber_gets_everything_once_in_order(root, tmp_path, mosquitto: Mosquitto):
    """A subscriber that is there before the exporter connects sees each message exactly once."""
    station = Station(root, tmp_path, mosquitto.port)
    station.spool.open()
    for number in range(50):
        station.send(number)
    station.spool.close()
    async with listening(mosquitto.port) as listener, on_air(Station(root, tmp_path, mosquitto.port)):
        await listener.until(lambda: len(numbers(listener)) >= 50)
        assert numbers(listener) == list(range(50))


async def test_requests_reach_the_node_and_hostile_ones_are_counted(root, tmp_path, mosquitto: Mosquitto):
    """A good request is handed over; garbage, wrong versions and wrong names are refused, counted, and stop nothing."""
    hostile = [
        b"",
        b"\xc1",
        b"\x92" * 50_000,
        encode(REQUEST)[:-3],
        encode(ProfileRequest(run="other", node="node-1", request_id=1, ranks=[0], first_step=0, steps=1)),
        encode(ProfileRequest(run="run", node="node-1", request_id=1, ranks=[0] * 100, first_step=0, steps=1)),
        encode(ProfileRequest(run="run", node="node-1", request_id=1, ranks=[0], first_step=0, steps=10**6)),
        encode(ProfileRequest(run="run", node="node-1", request_id=1, ranks=[0], first_step=0, steps=1, version=99)),
    ]
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        await until(lambda: station.publisher.connected)
        async with aiomqtt.Client("127.0.0.1", mosquitto.port, protocol=aiomqtt.ProtocolVersion.V5) as coordinator:
            for payload in hostile:
                await coordinator.publish(REQUEST_TOPIC, payload, qos=1)
            await coordinator.publish(REQUEST_TOPIC, b"x" * 200_000, qos=1)  # kept back by the broker
            await coordinator.publish(REQUEST_TOPIC, encode(REQUEST), qos=1)
        await until(lambda: station.requests)
        assert station.requests == [REQUEST]
        assert station.counts.rejected["message"] == len(hostile)
        assert station.publisher.connected


async def test_state_is_retained_and_sent_again_at_each_connection(root, tmp_path, mosquitto: Mosquitto):
    """A broker that forgot everything knows the runs and the node again after the next connection."""
    topic = topics.run_topic("run", topics.ANNOUNCE, "node-1")
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.publisher.state(topic, encode(NodeAnnouncement(run="run", node="node-1", ranks=[], groups=[])))
        await until(lambda: station.publisher.connected)
        mosquitto.stop()
        await until(lambda: not station.publisher.connected)
        mosquitto.start()
        await until(lambda: station.publisher.connected)
        async with listening(mosquitto.port) as late:
            await late.until(lambda: late.of(NodeAnnouncement) and late.of(NodeAlive))
            assert late.of(NodeAlive)[-1].alive


async def test_the_last_state_of_a_run_is_sent_once(root, tmp_path, mosquitto: Mosquitto):
    """A run that vanished is announced a last time and then forgotten here."""
    topic = topics.run_topic("run", topics.ANNOUNCE, "node-1")
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station, listening(mosquitto.port) as listener:
        payload = encode(NodeAnnouncement(run="run", node="node-1", ranks=[], groups=[]))
        station.publisher.state(topic, payload, last=True)
        await listener.until(lambda: listener.of(NodeAnnouncement))
        await until(lambda: topic not in station.publisher._retained)


async def test_the_broker_says_when_the_node_is_gone(root, tmp_path, mosquitto: Mosquitto):
    """An orderly end signs off; a connection that breaks has the broker say the same."""
    async with listening(mosquitto.port) as listener:
        async with on_air(Station(root, tmp_path, mosquitto.port)):
            await listener.until(lambda: listener.of(NodeAlive))
            assert listener.of(NodeAlive)[-1].alive
        await listener.until(lambda: not listener.of(NodeAlive)[-1].alive)
        async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
            await listener.until(lambda: listener.of(NodeAlive)[-1].alive)
            # Somebody else takes the client's name: the broker closes ours as a broken network would.
            count = len(listener.of(NodeAlive))
            async with aiomqtt.Client(
                "127.0.0.1",
                mosquitto.port,
                identifier="lockstep-exporter-node-1",
                protocol=aiomqtt.ProtocolVersion.V5,
            ):
                await listener.until(lambda: any(not a.alive for a in listener.of(NodeAlive)[count:]))
            await until(lambda: station.publisher.connected)


async def test_what_an_access_rule_refuses_stays_in_the_spool(root, tmp_path):
    """A broker that refuses in its acknowledgement has not got the message: nothing is dropped for that."""
    acl = tmp_path / "acl"
    acl.write_text("topic read lockstep/#\ntopic write lockstep/v1/node/#\n")
    broker = Mosquitto(tmp_path, f"acl_file {acl}\n")
    broker.start()
    try:
        station = Station(root, tmp_path, broker.port)
        connects = []
        station.publisher._note_failure = lambda error, _: connects.append(str(error))  # type: ignore[method-assign]
        async with on_air(station):
            station.send(1)
            await until(lambda: len(connects) >= 2)
            assert "Not authorized" in connects[0]
            assert station.spool.waiting_bytes > 0
            assert station.counts.lost["spool"] == 0
    finally:
        broker.stop()


async def test_what_no_broker_takes_does_not_block_the_rest(root, tmp_path):
    """A message beyond the broker's limit is dropped, counted and logged; those behind it are delivered."""
    broker = Mosquitto(tmp_path, "message_size_limit 1000\n")
    broker.start()
    try:
        async with listening(broker.port) as listener, on_air(Station(root, tmp_path, broker.port)) as station:
            station.send(1)
            reason = "x" * 2000
            large = ProfileAnswer(run="run", node="node-1", rank=0, request_id=2, state="refused", reason=reason)
            station.spool.append(ANSWER_TOPIC, encode(large), 7)
            station.send(3)
            await listener.until(lambda: len(numbers(listener)) == 2)
            assert numbers(listener) == [1, 3]
            assert station.counts.lost["spool"] == 7
    finally:
        broker.stop()


async def test_a_broker_of_mqtt_3_is_spoken_to_in_mqtt_3(root, tmp_path):
    """The embedded broker knows MQTT 3.1.1 only: both directions work over it when the configuration says so."""
    port = free_port()
    broker = start_amqtt(port)
    try:
        async with on_air(Station(root, tmp_path, port, broker_protocol="3.1.1")) as station:
            station.send(1)
            await until(lambda: station.spool.waiting_bytes == 0)
            async with aiomqtt.Client("127.0.0.1", port) as coordinator:
                await coordinator.publish(REQUEST_TOPIC, encode(REQUEST), qos=1)
            await until(lambda: station.requests)
    finally:
        broker.terminate()
        broker.wait(10)


async def test_a_password_file_that_vanished_is_a_failed_connection(root, tmp_path, mosquitto: Mosquitto):
    """Files are read at each connection; one that is missing is tried again, and nothing ends."""
    password = tmp_path / "password"
    values = {"broker_username": "user", "broker_password_file": str(password)}
    async with on_air(Station(root, tmp_path, mosquitto.port, **values)) as station:
        await asyncio.sleep(0.1)
        assert not station.publisher.connected
        password.write_text("secret\n")
        await until(lambda: station.publisher.connected)


async def test_reconnection_is_spread_and_capped(root, tmp_path):
    """Delays grow, differ between nodes, and never pass the cap."""
    first, second = (
        Publisher(
            make_config(root, tmp_path),
            spool=Spool(tmp_path / "s", 1 << 20),
            counts=Counts(),
            on_request=lambda _: None,
            heartbeats=list,
            unix_ns=time.time_ns,
            jitter=random.Random(seed),
        )
        for seed in (1, 2)
    )
    delays = [first._backoff_s(failures) for failures in (1, 4, 8)]
    assert delays == sorted(delays)
    delays.append(first._backoff_s(1000))
    assert max(delays) <= _BACKOFF_MAX_S
    assert first._backoff_s(3) != second._backoff_s(3)
