import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.sending import publisher as publisher_module
from exporter.sending.publisher import _BACKOFF_MAX_S, _CUTS_MAX, Publisher
from lockstep.contracts import topics
from lockstep.contracts.codec import encode
from lockstep.contracts.delivery import unpack_frame
from lockstep.contracts.messages import Acknowledgement, CaptureRequest, CaptureResult, NodeAlive, NodeAnnouncement
from lockstep.serving import mqtt
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import BrokerError, PublishRefusedError
from lockstep.serving.mqtt import MqttBroker
from tests.exporter.conftest import make_config, until
from tests.support.model_coordinator import ModelCoordinator, coordinating
from tests.support.servers import WAIT_S, Mosquitto

REQUEST = CaptureRequest(run="run", node="node-1", request_id=5, ranks=[0], first_step=-1, steps=3)
REQUEST_TOPIC = topics.run_topic("run", topics.REQUEST, "node-1")
ANSWER_TOPIC = topics.run_topic("run", topics.ANSWER, "node-1")
ANNOUNCE_TOPIC = topics.run_topic("run", topics.ANNOUNCE, "node-1")
ANNOUNCEMENT = encode(NodeAnnouncement(run="run", node="node-1", ranks=[], groups=[]))


class Station:
    """A publisher, and the requests that it passed on."""

    def __init__(self, root: Path, tmp_path: Path, port: int = 1, broker=None, **values) -> None:
        self.config = make_config(root, tmp_path, broker_port=port, **values)
        self.counts = ExporterCounters()
        self.requests: list[CaptureRequest] = []
        self.publisher = Publisher(
            self.config,
            broker or MqttBroker(self.config),
            counts=self.counts,
            on_request=self.requests.append,
            heartbeats=list,
            jitter=random.Random(1),
        )
        self.spool = self.publisher.spool
        # Backoff as in production, only shorter: the tests are about what is lost, not about how long it takes.
        self.publisher._backoff_s = lambda _: 0.05  # type: ignore[method-assign]

    def send(self, *numbers: int, reason: str = "", records: int = 1) -> None:
        for number in numbers:
            answer = CaptureResult(run="run", node="node-1", rank=0, request_id=number, state="done", reason=reason)
            self.publisher.put(ANSWER_TOPIC, encode(answer), records)


@contextlib.asynccontextmanager
async def on_air(station: Station):
    station.publisher.open()
    task = asyncio.create_task(station.publisher.run())
    try:
        yield station
    finally:
        station.publisher.finish()
        await asyncio.wait_for(task, WAIT_S)
        station.publisher.close()


@contextlib.asynccontextmanager
async def peer(port: int):
    """Connect as somebody else."""
    broker = MqttBroker(BrokerConfig(broker_host="127.0.0.1", broker_port=port))
    async with broker.connect(client_id="peer", on_message=lambda *_: None, packet_max_bytes=1 << 20) as session:
        yield session
        await session.close()


def numbers(coordinator) -> list[int]:
    return [answer.request_id for answer in coordinator.of(CaptureResult)]


@pytest.mark.servers
async def test_messages_arrive_in_order_and_the_spool_empties(root, tmp_path, mosquitto: Mosquitto):
    """What is spooled is received once, committed, and freed."""
    async with coordinating(mosquitto.port) as coordinator, on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.send(*range(200))
        await coordinator.until(lambda: len(numbers(coordinator)) == 200)
        await until(lambda: station.spool.waiting_messages == 0)
        assert numbers(coordinator) == list(range(200))
        status = station.publisher.status()
        assert (status.connected, status.resent, status.coordinators, status.spool_bytes) == (True, 0, 1, 0)
        assert status.acknowledged_unix_ns is not None
        assert coordinator.model.position("node-1", station.spool.stream_id).duplicates == 0


@pytest.mark.servers
async def test_messages_wait_for_a_coordinator_that_is_not_there_yet(root, tmp_path, mosquitto: Mosquitto):
    """A broker without a subscriber gets state only; a coordinator that comes later gets everything, once, in order."""
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.send(*range(30))
        await until(lambda: station.publisher.status().published >= 1)
        assert station.spool.waiting_messages == 30
        async with coordinating(mosquitto.port) as coordinator:
            await coordinator.until(lambda: len(numbers(coordinator)) == 30)
            assert numbers(coordinator) == list(range(30))
            await until(lambda: station.spool.waiting_messages == 0)
        assert station.publisher.status().resent == 0


@pytest.mark.servers
async def test_what_is_received_is_kept_until_it_is_committed(root, tmp_path, mosquitto: Mosquitto):
    """A coordinator that is killed with messages in memory gets them again, and counts each once."""
    model = ModelCoordinator()
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        async with coordinating(mosquitto.port, model) as coordinator:
            station.send(*range(10))
            await until(lambda: station.spool.waiting_messages == 0)
            coordinator.commits = False
            station.send(*range(10, 30))
            await coordinator.until(lambda: len(numbers(coordinator)) == 30)
            assert station.spool.waiting_messages == 20
        model.restart()
        station.send(30)
        async with coordinating(mosquitto.port, model) as coordinator:
            await until(lambda: station.spool.waiting_messages == 0)
            assert numbers(coordinator) == list(range(10, 31))
        assert sorted(model.position("node-1", station.spool.stream_id).taken) == list(range(1, 32))


@pytest.mark.servers
async def test_a_broker_that_is_away_costs_nothing(root, tmp_path, mosquitto: Mosquitto):
    """Messages of the time without a broker come when it is back, in order and once."""
    async with coordinating(mosquitto.port) as coordinator, on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.send(0)
        await coordinator.until(lambda: numbers(coordinator) == [0])
        mosquitto.stop()
        await until(lambda: not station.publisher.connected)
        station.send(*range(1, 30))
        mosquitto.start()
        await coordinator.until(lambda: len(numbers(coordinator)) == 30)
        assert numbers(coordinator) == list(range(30))
        await until(lambda: station.spool.waiting_messages == 0)


@pytest.mark.servers
async def test_what_the_broker_drops_is_sent_again(root, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A broker acknowledges what it then drops from a full queue; the gap shows, and everything arrives once, in order."""
    broker = Mosquitto(tmp_path, "max_queued_messages 10\n")
    broker.start()
    monkeypatch.setattr(mqtt, "RECEIVE_MAX", 2)  # else the broker never queues for a subscriber that is there
    try:
        async with coordinating(broker.port) as coordinator, on_air(Station(root, tmp_path, broker.port)) as station:
            station.send(0)
            await coordinator.until(lambda: numbers(coordinator) == [0])
            published = station.publisher.status().published
            coordinator.pause()
            station.send(*range(1, 100))
            await until(lambda: station.publisher.status().published >= published + 64)
            coordinator.resume()
            await coordinator.until(lambda: len(numbers(coordinator)) == 100)
            assert numbers(coordinator) == list(range(100))
            await until(lambda: station.spool.waiting_messages == 0)
            assert station.publisher.status().resent > 40
            assert coordinator.lost_frames == []
            assert station.counts.lost == dict.fromkeys(station.counts.lost, 0)
    finally:
        broker.stop()


@pytest.mark.servers
async def test_requests_reach_the_node_and_hostile_ones_are_counted(root, tmp_path, mosquitto: Mosquitto):
    """A good request is passed on; garbage, wrong versions and wrong names are refused, counted, and stop nothing."""
    hostile = [
        b"",
        b"\xc1",
        b"\x92" * 50_000,
        encode(REQUEST)[:-3],
        encode(CaptureRequest(run="other", node="node-1", request_id=1, ranks=[0], first_step=0, steps=1)),
        encode(CaptureRequest(run="run", node="node-1", request_id=1, ranks=[0] * 100, first_step=0, steps=1)),
        encode(CaptureRequest(run="run", node="node-1", request_id=1, ranks=[0], first_step=0, steps=10**6)),
        encode(CaptureRequest(run="run", node="node-1", request_id=1, ranks=[0], first_step=0, steps=1, version=99)),
    ]
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        await until(lambda: station.publisher.connected)
        async with peer(mosquitto.port) as session:
            for payload in hostile:
                await session.publish(REQUEST_TOPIC, payload)
            await session.publish(REQUEST_TOPIC, b"x" * 200_000)  # kept back by the broker
            await session.publish(REQUEST_TOPIC, encode(REQUEST))
        await until(lambda: station.requests)
        assert station.requests == [REQUEST]
        assert station.counts.rejected["message"] == len(hostile)
        assert station.publisher.connected


@pytest.mark.servers
async def test_acknowledgements_that_cannot_be_are_counted_and_free_nothing(root, tmp_path, mosquitto: Mosquitto):
    """Of another stream, beyond what was sent, or no message at all: a peer that lies holds nothing back and loses nothing."""
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.send(*range(5))
        await until(lambda: station.publisher.connected)
        good = Acknowledgement(
            node="node-1",
            coordinator="c",
            incarnation=1,
            stream_id=station.spool.stream_id,
            received=0,
            committed=0,
        )
        lies = [("stream_id", 1), ("received", 2**62), ("committed", 3), ("coordinator", "")]
        async with peer(mosquitto.port) as session:
            topic = topics.node_topic("node-1", topics.ACK)
            for field, value in lies:
                values = {name: getattr(good, name) for name in good.__dataclass_fields__}
                await session.publish(topic, encode(Acknowledgement(**(values | {field: value}))))
            await session.publish(topic, b"\xc1")
        await until(lambda: station.counts.rejected["message"] == 1)
        assert station.counts.rejected["acknowledgement"] == len(lies)
        assert station.spool.waiting_messages == 5
        async with coordinating(mosquitto.port) as coordinator:
            await coordinator.until(lambda: len(numbers(coordinator)) == 5)


@pytest.mark.servers
async def test_state_is_retained_and_sent_again_at_each_connection(root, tmp_path, mosquitto: Mosquitto):
    """A broker that forgot everything knows the runs and the node again after the next connection."""
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
        station.publisher.state(ANNOUNCE_TOPIC, ANNOUNCEMENT)
        await until(lambda: station.publisher.connected)
        mosquitto.stop()
        await until(lambda: not station.publisher.connected)
        mosquitto.start()
        async with coordinating(mosquitto.port) as late:
            await late.until(lambda: late.of(NodeAnnouncement) and late.of(NodeAlive))
            assert late.of(NodeAlive)[-1].alive
            assert late.of(NodeAlive)[-1].stream_id == station.spool.stream_id


@pytest.mark.servers
async def test_the_last_state_of_a_run_is_sent_once(root, tmp_path, mosquitto: Mosquitto):
    """A run that vanished is announced a last time and then forgotten here."""
    async with on_air(Station(root, tmp_path, mosquitto.port)) as station, coordinating(mosquitto.port) as coordinator:
        station.publisher.state(ANNOUNCE_TOPIC, ANNOUNCEMENT, last=True)
        await coordinator.until(lambda: coordinator.of(NodeAnnouncement))
        await until(lambda: ANNOUNCE_TOPIC not in station.publisher._retained)


@pytest.mark.servers
async def test_the_broker_reports_when_the_node_is_gone(root, tmp_path, mosquitto: Mosquitto):
    """An orderly end signs off; a connection that breaks has the broker publish the same."""
    async with coordinating(mosquitto.port) as coordinator:
        async with on_air(Station(root, tmp_path, mosquitto.port)):
            await coordinator.until(lambda: coordinator.of(NodeAlive))
            assert coordinator.of(NodeAlive)[-1].alive
        await coordinator.until(lambda: not coordinator.of(NodeAlive)[-1].alive)
        async with on_air(Station(root, tmp_path, mosquitto.port)) as station:
            await coordinator.until(lambda: coordinator.of(NodeAlive)[-1].alive)
            # Somebody else uses the client's name: the broker closes ours as a broken network would.
            count = len(coordinator.of(NodeAlive))
            other = MqttBroker(station.config)
            async with other.connect(
                client_id="lockstep-exporter-node-1", on_message=lambda *_: None, packet_max_bytes=1 << 20
            ):
                await coordinator.until(lambda: any(not a.alive for a in coordinator.of(NodeAlive)[count:]))
            await until(lambda: station.publisher.connected)


@pytest.mark.servers
async def test_what_an_access_rule_refuses_stays_in_the_spool(root, tmp_path):
    """A broker that refuses in its acknowledgement has not got the message: nothing is dropped for that."""
    acl = tmp_path / "acl"
    acl.write_text("topic read lockstep/#\ntopic write lockstep/v1/node/#\n")
    broker = Mosquitto(tmp_path, f"acl_file {acl}\n")
    broker.start()
    try:
        station = Station(root, tmp_path, broker.port)
        failures = []
        station.publisher._note_failure = lambda error, _: failures.append(str(error))  # type: ignore[method-assign]
        async with coordinating(broker.port), on_air(station):
            station.send(1)
            await until(lambda: len(failures) > _CUTS_MAX)
            assert "not authorized" in failures[0].lower()
            assert station.spool.waiting_messages == 1
            assert station.counts.lost["refused"] == 0
    finally:
        broker.stop()


@pytest.mark.servers
async def test_what_no_broker_takes_becomes_a_lost_frame(root, tmp_path):
    """A message beyond the broker's limit is counted on both sides; those behind it are delivered."""
    broker = Mosquitto(tmp_path, "message_size_limit 1000\n")
    broker.start()
    try:
        async with coordinating(broker.port) as coordinator, on_air(Station(root, tmp_path, broker.port)) as station:
            station.send(1)
            station.send(2, reason="x" * 2000, records=7)
            station.send(3)
            await coordinator.until(lambda: len(numbers(coordinator)) == 2)
            assert numbers(coordinator) == [1, 3]
            assert [(f.first, f.last, f.records) for f in coordinator.lost_frames] == [(2, 2, 7)]
            assert station.counts.lost["refused"] == 7
            await until(lambda: station.spool.waiting_messages == 0)
    finally:
        broker.stop()


@pytest.mark.servers
async def test_a_spool_that_overflowed_reports_it_in_a_lost_frame(root, tmp_path, mosquitto: Mosquitto):
    """What had to make room is counted to the record by the coordinator that comes later."""
    async with on_air(Station(root, tmp_path, mosquitto.port, spool_max_bytes=64 << 10)) as station:
        for number in range(1, 201):
            station.send(number, reason="x" * 1000, records=3)
        lost = station.counts.lost["spool"]
        assert lost > 0
        async with coordinating(mosquitto.port) as coordinator:
            await coordinator.until(lambda: numbers(coordinator)[-1:] == [200])
            (frame,) = coordinator.lost_frames
            assert (frame.first, frame.records) == (1, lost)
            assert lost == 3 * frame.last
            assert numbers(coordinator) == list(range(frame.last + 1, 201))


@pytest.mark.servers
async def test_a_password_file_that_vanished_is_a_failed_connection(root, tmp_path, mosquitto: Mosquitto):
    """Files are read at each connection; one that is missing is tried again, and nothing ends."""
    password = tmp_path / "password"
    values = {"broker_username": "user", "broker_password_file": str(password)}
    station = Station(root, tmp_path, mosquitto.port, **values)
    failures = []
    station.publisher._note_failure = lambda *failure: failures.append(failure)  # type: ignore[method-assign]
    async with on_air(station):
        await until(lambda: len(failures) >= 2)
        assert not station.publisher.connected
        password.write_text("secret\n")
        await until(lambda: station.publisher.connected)


async def test_a_failed_connection_is_logged_once_with_the_address(root, tmp_path, caplog):
    """Errors of the session name the broker themselves, those of the operating system do not."""
    publisher = Station(root, tmp_path, 9).publisher
    for error in (BrokerError("broker 127.0.0.1:9: cannot connect"), OSError("no route")):
        publisher._note_failure(error, 1)
        publisher._note_failure(error, 2)
    assert caplog.messages == [
        f"broker 127.0.0.1:9: {what}; messages wait in the spool" for what in ("cannot connect", "no route")
    ]


SILENCE = object()


class ScriptedBroker:
    """Acknowledges as a coordinator would, and calls `act` with each message that is published."""

    address = "scripted"

    def __init__(self, act) -> None:
        self.act = act
        self.frames: list[tuple[str, int, int, int]] = []
        self.received = self.stream_id = 0
        self.sessions = 0

    @contextlib.asynccontextmanager
    async def connect(self, *, on_message, **_):
        self.sessions += 1
        yield ScriptedSession(self, on_message)


class ScriptedSession:
    def __init__(self, broker: ScriptedBroker, on_message) -> None:
        self._broker = broker
        self._on_message = on_message

    async def subscribe(self, filters) -> None:
        assert filters == topics.exporter_filters("node-1")

    async def publish(self, topic: str, payload: bytes, **_) -> None:
        broker = self._broker
        await asyncio.sleep(0)
        if broker.act(topic, payload) is SILENCE:
            await asyncio.Event().wait()
        parsed = topics.parse_topic(topic)
        if parsed.channel in topics.SPOOLED_CHANNELS:
            header, _ = unpack_frame(payload, where=topic)
            broker.frames.append((parsed.channel, header.first, header.last, header.records))
            broker.received, broker.stream_id = header.last, header.stream_id
        if parsed.channel != topics.ANNOUNCE and self.station.spool.stream_id:
            self._acknowledge()

    def _acknowledge(self) -> None:
        acknowledgement = Acknowledgement(
            node="node-1",
            coordinator="c",
            incarnation=1,
            stream_id=self.station.spool.stream_id,
            received=self._broker.received,
            committed=self._broker.received,
        )
        self._on_message(topics.node_topic("node-1", topics.ACK), encode(acknowledgement))

    @property
    def station(self) -> Station:
        return self._broker.station

    async def wait_closed(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        return


def scripted(root: Path, tmp_path: Path, act) -> tuple[Station, ScriptedBroker]:
    broker = ScriptedBroker(act)
    station = broker.station = Station(root, tmp_path, broker=broker)
    return station, broker


def is_frame(topic: str, payload: bytes, sequence: int) -> bool:
    return topic == ANSWER_TOPIC and unpack_frame(payload, where=topic)[0].first == sequence


async def test_a_message_that_costs_every_connection_becomes_a_lost_frame(root, tmp_path):
    """A broker that closes on one message, as those without reasons do, is not closed on for ever."""

    def cut(topic: str, payload: bytes) -> None:
        if is_frame(topic, payload, 2):
            raise BrokerError("closed")

    station, broker = scripted(root, tmp_path, cut)
    async with on_air(station):
        station.send(1, 2, 3, records=4)
        await until(lambda: len(broker.frames) == 3)
        assert broker.frames == [("answer", 1, 1, 4), ("lost", 2, 2, 4), ("answer", 3, 3, 4)]
        assert broker.sessions == _CUTS_MAX + 1
        assert station.counts.lost["refused"] == 4


async def test_a_broker_that_does_not_answer_costs_its_connection_and_no_message(root, tmp_path, monkeypatch):
    """However often: its silence is no verdict on the message."""
    monkeypatch.setattr(publisher_module, "_ANSWER_S", 0.01)
    silent = []

    def act(topic: str, payload: bytes) -> object:
        if is_frame(topic, payload, 1) and len(silent) <= _CUTS_MAX:
            silent.append(topic)
            return SILENCE
        return None

    station, broker = scripted(root, tmp_path, act)
    async with on_air(station):
        station.send(1)
        await until(lambda: broker.frames)
        assert broker.frames == [("answer", 1, 1, 1)]
        assert station.counts.lost["refused"] == 0


async def test_connections_lost_on_different_messages_cost_none(root, tmp_path):
    """A bad network is no reason to drop anything."""
    cuts = []

    def cut(topic: str, payload: bytes) -> None:
        for sequence in range(1, 9):
            if is_frame(topic, payload, sequence) and cuts.count(sequence) < _CUTS_MAX - 1:
                cuts.append(sequence)
                raise BrokerError("closed")

    station, broker = scripted(root, tmp_path, cut)
    async with on_air(station):
        station.send(*range(8))
        await until(lambda: len(broker.frames) == 8)
        assert [frame[:3] for frame in broker.frames] == [("answer", n, n) for n in range(1, 9)]
        assert station.counts.lost["refused"] == 0


async def test_state_that_no_broker_takes_does_not_hold_steps_back(root, tmp_path):
    """An announcement beyond the broker's limit is left out, and the stream goes on."""

    def refuse(topic: str, payload: bytes) -> None:
        if topic == ANNOUNCE_TOPIC:
            raise PublishRefusedError(topic, "too large", is_permanent=True)

    station, broker = scripted(root, tmp_path, refuse)
    async with on_air(station):
        station.publisher.state(ANNOUNCE_TOPIC, ANNOUNCEMENT)
        station.send(1)
        await until(lambda: broker.frames)
        assert broker.sessions == 1


async def test_known_coordinators_are_remembered_over_a_restart(root, tmp_path):
    """The spool is kept for one that was there before, though another one commits; its last sign counts in wall time."""
    station, _ = scripted(root, tmp_path, lambda *_: None)
    async with on_air(station):
        await until(lambda: station.publisher.status().coordinators == 1)
    unix_ns, clock_ns = 10**18, 60 * 10**9
    for away_s, expected in ((3599, 1), (3602, 0)):
        again = Publisher(
            station.config,
            station.publisher._broker,
            counts=ExporterCounters(),
            on_request=lambda _: None,
            heartbeats=list,
            jitter=random.Random(1),
            unix_ns=lambda: unix_ns,
            clock_ns=lambda: clock_ns,
        )
        saved = tmp_path / "spool" / "coordinators.json"
        saved.write_text(f'{{"c": {unix_ns - away_s * 10**9}}}')
        again.open()
        again.put(ANSWER_TOPIC, b"", 0)
        assert again.status().coordinators == expected
        again.close()


async def test_reconnection_is_spread_and_capped(root, tmp_path):
    """Delays grow, differ between nodes, and never pass the cap."""
    config = make_config(root, tmp_path)
    first, second = (
        Publisher(
            config,
            MqttBroker(config),
            counts=ExporterCounters(),
            on_request=lambda _: None,
            heartbeats=list,
            jitter=random.Random(seed),
        )
        for seed in (1, 2)
    )
    delays = [first._backoff_s(failures) for failures in (1, 4, 8)]
    assert delays == sorted(delays)
    delays.append(first._backoff_s(1000))
    assert max(delays) <= _BACKOFF_MAX_S
    assert first._backoff_s(3) != second._backoff_s(3)
