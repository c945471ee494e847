"""A small coordinator that follows the delivery protocol (docs/delivery.md) and remembers all that it got."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.delivery import FrameHeader, unpack_frame
from lockstep.contracts.messages import Acknowledgement, CoordinatorAlive, NodeAlive
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import BrokerError, Session
from lockstep.serving.mqtt import MqttBroker


@dataclass
class StreamOffset:
    """What a coordinator has of one stream: sequences and payloads taken, ranges counted as lost."""

    received: int = 0
    committed: int = 0
    taken: dict[int, bytes] = field(default_factory=dict)
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)  # first -> (last, records)
    duplicates: int = 0
    resend_asked: int = -1  # the position at which a gap was seen last

    def forget_uncommitted(self) -> None:
        """Stand where a coordinator stands that was killed."""
        self.received, self.resend_asked = self.committed, -1
        self.taken = {sequence: data for sequence, data in self.taken.items() if sequence <= self.committed}
        self.lost = {first: lost for first, lost in self.lost.items() if lost[0] <= self.committed}


@dataclass
class ModelCoordinator:
    """Takes frames in order, asks for what is missing, and commits on request."""

    name: str = "model"
    incarnation: int = 1
    streams: dict[tuple[str, int], StreamOffset] = field(default_factory=dict)

    def position(self, node: str, stream_id: int) -> StreamOffset:
        return self.streams.setdefault((node, stream_id), StreamOffset())

    def acknowledgement(self, node: str, stream_id: int, *, resend: bool = False) -> Acknowledgement:
        position = self.position(node, stream_id)
        return Acknowledgement(
            node=node,
            coordinator=self.name,
            incarnation=self.incarnation,
            stream_id=stream_id,
            received=position.received,
            committed=position.committed,
            resend=resend,
        )

    def on_frame(self, node: str, header: FrameHeader, payload: bytes, *, is_lost: bool) -> Acknowledgement | None:
        """Take a frame; return what goes out at once: after a gap, the acknowledgement that asks for the rest."""
        position = self.position(node, header.stream_id)
        if header.last <= position.received:
            position.duplicates += 1
            return None
        if header.first != position.received + 1:  # a lost frame that reaches over our position is a gap as well
            if position.resend_asked == position.received:
                return None
            position.resend_asked = position.received
            return self.acknowledgement(node, header.stream_id, resend=True)
        if is_lost:
            position.lost[header.first] = (header.last, header.records)
        else:
            assert header.first == header.last
            position.taken[header.first] = payload
        position.received = header.last
        position.resend_asked = -1
        return None

    def ask_again(self) -> None:
        """Let the next gap be asked for though it was before; due every 2 s."""
        for position in self.streams.values():
            position.resend_asked = -1

    def commit(self) -> None:
        for position in self.streams.values():
            position.committed = position.received

    def restart(self) -> None:
        """Begin again with what was committed."""
        self.incarnation += 1
        for position in self.streams.values():
            position.forget_uncommitted()


class CoordinatorClient:
    """A model coordinator at a real broker; everything that was published, decoded, in order of arrival."""

    def __init__(self, port: int, model: ModelCoordinator | None = None, *, commits: bool = True) -> None:
        self.model = model or ModelCoordinator()
        self.commits = commits
        self.messages: list[tuple[str, object]] = []
        self.lost_frames: list[FrameHeader] = []
        self._broker = MqttBroker(BrokerConfig(broker_host="127.0.0.1", broker_port=port))
        self._session: Session | None = None
        self._dirty: set[tuple[str, int]] = set()
        self.ready = asyncio.Event()
        self._new = asyncio.Event()

    async def run(self) -> None:
        """Stay connected until cancelled; acknowledge ten times a second what has moved."""
        while True:
            with contextlib.suppress(BrokerError):
                async with self._broker.connect(
                    client_id=self.model.name, on_message=self._on_message, packet_max_bytes=16 << 20
                ) as session:
                    await session.subscribe(topics.coordinator_filters())
                    self._session = session
                    self.ready.set()
                    for tick in itertools.count():
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.1):
                                await session.wait_closed()
                        if tick % 20 == 0:
                            self.model.ask_again()
                        if self.commits:
                            self.model.commit()
                        for node, stream_id in self._dirty:
                            self._acknowledge(self.model.acknowledgement(node, stream_id))
                        self._dirty.clear()
            await asyncio.sleep(0.05)

    def pause(self) -> None:
        """Read nothing more from the broker, as a coordinator that is busy."""
        self._session._transport.pause_reading()

    def resume(self) -> None:
        self._session._transport.resume_reading()

    def of(self, form: type) -> list:
        return [message for _, message in self.messages if isinstance(message, form)]

    async def until(self, condition, seconds: float = 60.0) -> None:
        """Wait for something that a message brings about."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._new.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await self._new.wait()

    def _on_message(self, topic: str, payload: bytes) -> None:
        parsed = topics.parse_topic(topic)
        if parsed.channel in topics.SPOOLED_CHANNELS:
            self._on_frame(topic, parsed, payload)
        else:
            message = decode(topic, payload)
            self.messages.append((topic, message))
            if isinstance(message, NodeAlive) and message.alive:
                self._acknowledge(self.model.acknowledgement(message.node, message.stream_id))
            assert not isinstance(message, CoordinatorAlive)
        self._new.set()

    def _on_frame(self, topic: str, parsed: topics.Topic, payload: bytes) -> None:
        header, data = unpack_frame(payload, where=topic)
        is_lost = parsed.channel == topics.LOST
        before = self.model.position(parsed.node, header.stream_id).received
        answer = self.model.on_frame(parsed.node, header, data, is_lost=is_lost)
        if answer is not None:
            self._acknowledge(answer)
        if self.model.position(parsed.node, header.stream_id).received == before:
            return
        self._dirty.add((parsed.node, header.stream_id))
        if is_lost:
            self.lost_frames.append(header)
        else:
            self.messages.append((topic, decode(topic, data)))

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        if self._session is not None:
            with contextlib.suppress(BrokerError):
                self._session.send(topics.node_topic(acknowledgement.node, topics.ACK), encode(acknowledgement))


@contextlib.asynccontextmanager
async def coordinating(
    port: int, model: ModelCoordinator | None = None, *, commits: bool = True
) -> AsyncIterator[CoordinatorClient]:
    """Run a model coordinator at the broker on `port`."""
    client = CoordinatorClient(port, model, commits=commits)
    task = asyncio.create_task(client.run())
    try:
        await asyncio.wait_for(client.ready.wait(), 30)
        yield client
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def coordinating_in_thread(port: int) -> Iterator[CoordinatorClient]:
    """Run a model coordinator in a thread, for a caller without an event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    manager = coordinating(port)
    try:
        yield asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
