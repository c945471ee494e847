"""The bus: frames in their order, hostile payloads, acknowledgements, requests; in one process and over mosquitto."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coordinator.bus import Bus
from coordinator.intake.streams import Streams
from coordinator.leadership import Leadership
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.delivery import FrameHeader, pack_frame
from lockstep.contracts.messages import CaptureRequest, CoordinatorAlive, NodeAlive, NodeAnnouncement
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.local_broker import LocalBroker
from lockstep.serving.messaging import Broker, BrokerError
from lockstep.serving.mqtt import MqttBroker
from tests.coordinator.conftest import announce, until
from tests.coordinator.scenarios import Scenario, generate
from tests.support.servers import WAIT_S
from tests.support.wire import wired

BATCH = generate(Scenario(degrees="dp=2", steps=1)).batch(0, 1)
STEPS_TOPIC = topics.run_topic("job", topics.STEPS, "n0")
ALIVE = encode(NodeAlive(node="n0", alive=True, unix_ns=1, stream_id=7))


class Ears:
    """A bus, and what it handed over."""

    def __init__(self, broker: Broker, name: str = "c1", **callbacks) -> None:
        self.got: list = []
        self.streams = Streams(name, 1)
        self.leadership = Leadership(name, 1)
        self.bus = Bus(
            broker,
            streams=self.streams,
            leadership=self.leadership,
            on_message=lambda message, receipt: self.got.append((message, receipt)),
            now_s=lambda: 1000.0,
            **callbacks,
        )

    def of(self, form: type) -> list:
        return [message for message, _ in self.got if isinstance(message, form)]


def deaf() -> Ears:
    """Return a bus without a connection, to be fed by hand; it knows node n0."""
    ears = Ears(LocalBroker())
    ears.streams.announce("n0", 7)
    return ears


def frame(sequence: int, payload: bytes, records: int, *, first: int | None = None, stream_id: int = 7) -> bytes:
    return pack_frame(FrameHeader(stream_id, first or sequence, sequence, records), payload)


@contextlib.asynccontextmanager
async def listening(ears: Ears) -> AsyncIterator[Ears]:
    stop = asyncio.Event()
    task = asyncio.create_task(ears.bus.run(stop))
    try:
        await until(ears.bus.connected.is_set)
        yield ears
    finally:
        stop.set()
        await asyncio.wait_for(task, WAIT_S)
    assert not ears.bus.connected.is_set()


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("lockstep/v1/run/job/nothing/n0", b"", "topic"),
        ("other", ALIVE, "topic"),
        (topics.alive_topic("n0"), b"\xff" * 100, "malformed"),
        (topics.alive_topic("n0"), b"", "malformed"),
        (topics.alive_topic("n1"), ALIVE, "malformed"),
        (
            topics.alive_topic("n0"),
            encode(NodeAlive(node="n0", alive=True, unix_ns=1, stream_id=7, version=9)),
            "version",
        ),
        (topics.coordinator_topic("c2"), b"\xff", "malformed"),
        (STEPS_TOPIC, b"", "malformed"),
        (STEPS_TOPIC, encode(BATCH), "malformed"),
    ],
)
def test_foreign_payloads_are_counted_by_reason(topic, payload, reason):
    """Nothing hostile raises or is handed over; each is counted once, by reason."""
    ears = deaf()
    ears.bus._take(topic, payload)
    assert {key: value for key, value in ears.bus.counts.rejected.items() if value} == {reason: 1}
    assert ears.got == []


def test_terms_that_nodes_report_reach_the_leader_and_impossible_ones_are_counted():
    """The leader steps above what a node obeyed; a forged term costs neither the leader nor the node's heartbeat."""
    ears = deaf()
    alive = NodeAlive(node="n0", alive=True, unix_ns=1, stream_id=7)
    ears.bus._take(topics.alive_topic("n0"), encode(replace(alive, term=1234)))
    assert ears.leadership.term == 1234
    ears.bus._take(topics.alive_topic("n0"), encode(replace(alive, term=1 << 62)))
    forged = CoordinatorAlive(coordinator="c2", alive=True, incarnation=1, unix_ns=1, term=(1 << 63) - 1)
    ears.bus._take(topics.coordinator_topic("c2"), encode(forged))
    assert (ears.leadership.term, ears.bus.counts.rejected["malformed"]) == (1234, 2)
    assert [message.term for message in ears.of(NodeAlive)] == [1234, 1 << 62]
    assert ears.leadership.peers(1000.0) == 1


async def test_a_frame_that_cannot_be_decoded_loses_its_records_and_blocks_nothing():
    """Every truncation of a batch is counted as lost, with the records that its frame named, and the stream goes on."""
    ears, payload = deaf(), encode(BATCH)
    for cut in range(len(payload)):
        ears.bus._take(STEPS_TOPIC, frame(cut + 1, payload[:cut], BATCH.count))
    assert ears.bus.counts.lost["malformed"] == len(payload) * BATCH.count
    ears.bus._take(STEPS_TOPIC, frame(len(payload) + 1, payload, BATCH.count))
    assert ears.of(type(BATCH)) == [BATCH]
    assert ears.streams.settle().ledger["malformed"] == len(payload) * BATCH.count


async def test_a_frame_must_hold_as_many_records_as_it_declares():
    """A header that differs than its batch would make the ledger wrong: refused, and lost by its count."""
    ears = deaf()
    ears.bus._take(STEPS_TOPIC, frame(1, encode(BATCH), BATCH.count + 5))
    assert ears.got == []
    assert ears.bus.counts.lost["malformed"] == BATCH.count + 5


async def test_what_a_node_dropped_is_counted_and_jumped_over():
    """A lost frame moves the stream on; its records are lost with the reason spool."""
    ears = deaf()
    ears.bus._take(topics.node_topic("n0", topics.LOST), frame(40, b"", 123, first=1))
    ears.bus._take(STEPS_TOPIC, frame(41, encode(BATCH), BATCH.count))
    assert ears.bus.counts.lost["spool"] == 123
    assert ears.of(type(BATCH)) == [BATCH]


async def test_ring_losses_of_a_batch_are_counted_by_reason():
    """What was overwritten or torn in the rings comes with the batches, and is counted once."""
    ears = deaf()
    batch = type(BATCH)(
        **{n: getattr(BATCH, n) for n in BATCH.__dataclass_fields__} | {"lost": {"lapped": 3, "torn": 1}}
    )
    for _ in range(2):
        ears.bus._take(STEPS_TOPIC, frame(1, encode(batch), batch.count))
    assert {k: v for k, v in ears.bus.counts.lost.items() if v} == {"lapped": 3, "torn": 1}


@pytest.fixture(params=["local", pytest.param("mqtt", marks=pytest.mark.servers)])
def broker(request) -> Broker:
    """Return a broker inside this process, or mosquitto."""
    if request.param == "local":
        return LocalBroker()
    return MqttBroker(BrokerConfig(broker_port=request.getfixturevalue("mosquitto")))


async def test_messages_come_through_hostile_ones_do_not_stop_them(broker):
    """Retained announcements and live frames arrive, foreign payloads between them are counted and dropped."""
    async with wired(broker) as wire:
        await wire.announce(announce(0))
        async with listening(Ears(broker)) as ears:
            await wire.session.publish(topics.alive_topic("n0"), b"\x00 not a message")
            await wire.session.publish(STEPS_TOPIC, b"short")
            await wire.send(topics.STEPS, BATCH)
            await until(lambda: ears.of(type(BATCH)))
        assert ears.of(NodeAnnouncement) == [announce(0)]
        assert ears.of(NodeAlive)
        assert ears.bus.counts.rejected["malformed"] == 2


async def test_a_node_is_answered_where_the_coordinator_stands(broker):
    """A heartbeat is answered at once; what was received and committed is acknowledged when it moves."""
    async with wired(broker) as wire, listening(Ears(broker)) as ears:
        await until(lambda: "c1" in wire.acknowledged)
        assert wire.acknowledged["c1"].received == 0
        await wire.send(topics.STEPS, BATCH)
        await until(lambda: ears.of(type(BATCH)))
        ears.bus.acknowledge()
        await until(lambda: wire.acknowledged["c1"].received == 1)
        assert wire.acknowledged["c1"].committed == 0
        ears.got[-1][1].settle()
        ears.streams.committed(ears.streams.settle())
        ears.bus.acknowledge()
        await until(lambda: wire.acknowledged["c1"].committed == 1)


async def test_a_gap_is_asked_for_and_filled(broker):
    """A frame behind one that is missing is not taken; the node sends again from there, and each arrives once."""
    async with wired(broker) as wire, listening(Ears(broker)) as ears:
        await until(lambda: "c1" in wire.acknowledged)
        header = FrameHeader(wire.stream_id, 1, 1, BATCH.count)
        wire.frames.append((STEPS_TOPIC, pack_frame(header, encode(BATCH))))  # on its way, and never there
        await wire.send(topics.STEPS, BATCH)
        await until(lambda: len(ears.of(type(BATCH))) == 2)
        assert ears.streams.frames["gap"] >= 1
        assert ears.streams.offsets()["n0"]["received"] == 2


async def test_a_frame_ahead_of_what_its_run_holds_comes_again_when_there_is_capacity(broker):
    """It is neither received nor asked for before; frames behind it ask for nothing either."""
    capacity = {"job": 0}
    ears = Ears(broker, has_capacity=lambda run, step: step < capacity[run])
    async with wired(broker) as wire, listening(ears):
        await until(lambda: "c1" in wire.acknowledged)
        await wire.send(topics.STEPS, BATCH)
        await wire.send(topics.STEPS, BATCH)
        await until(lambda: ears.streams.frames["gap"])
        assert ears.streams.frames["ahead"] == 1
        await until(lambda: wire.acknowledged["c1"].hold)
        ears.bus.resume()
        assert wire.resent == 0
        capacity["job"] = 1
        ears.bus.resume()
        await until(lambda: len(ears.of(type(BATCH))) == 2)
        assert (wire.resent, ears.streams.offsets()["n0"]["received"]) == (2, 2)


async def test_the_bus_reports_when_a_session_begins_and_ends():
    """Once each: nodes are unknown from the end of one session to their heartbeats in the next."""
    events = []
    callbacks = {"on_connect": lambda: events.append("begin"), "on_disconnect": lambda: events.append("end")}
    async with listening(Ears(LocalBroker(), **callbacks)):
        assert events == ["begin"]
    assert events == ["begin", "end"]


async def test_frames_sent_while_no_one_listened_come_when_someone_does(broker):
    """A broker that has no subscriber loses what it is given; the handshake brings it all the same."""
    async with wired(broker) as wire:
        for _ in range(5):
            await wire.send(topics.STEPS, BATCH)
        async with listening(Ears(broker)) as ears:
            await until(lambda: len(ears.of(type(BATCH))) == 5)


async def test_requests_reach_their_node(broker):
    """A request arrives on the topic of its node and decodes to itself."""
    request = CaptureRequest(run="job", node="n1", request_id=7, ranks=[2], first_step=80, steps=3)
    async with wired(broker, "n1") as wire, listening(Ears(broker)) as ears:
        await ears.bus.publish_request(request)
        assert await asyncio.wait_for(wire.requests.get(), WAIT_S) == request


async def test_coordinators_know_of_each_other_and_of_their_end(broker):
    """Heartbeats are retained, and the last one states that its coordinator is gone."""
    first = Ears(broker, "c1")
    async with listening(first):
        second = Ears(broker, "c2")
        async with listening(second):
            await until(lambda: second.leadership.peers(1000.0) == 1 == first.leadership.peers(1000.0))
        await until(lambda: first.leadership.peers(1000.0) == 0)


async def test_without_a_broker_it_keeps_trying_and_ends_when_it_is_stopped():
    """An unreachable broker is no failure of ours; a request fails with the reason."""
    ears, stop = Ears(MqttBroker(BrokerConfig(broker_port=1))), asyncio.Event()
    task = asyncio.create_task(ears.bus.run(stop))
    with pytest.raises(BrokerError, match="not connected"):
        await ears.bus.publish_request(
            CaptureRequest(run="j", node="n", request_id=1, ranks=[0], first_step=1, steps=1)
        )
    stop.set()
    await asyncio.wait_for(task, WAIT_S)
    assert not ears.bus.connected.is_set()


def test_an_acknowledgement_is_refused_as_any_other_message():
    """What coordinators publish is not for coordinators: nothing but heartbeats of each other is subscribed to."""
    assert topics.node_topic("n0", topics.ACK) not in topics.coordinator_filters()
    assert decode(topics.alive_topic("n0"), ALIVE).stream_id == 7
