"""A node without an exporter: plays the delivery protocol over any broker, so that tests speak to a real coordinator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from lockstep.contracts import topics
from lockstep.contracts.codec import Message, decode, encode
from lockstep.contracts.delivery import FrameHeader, pack_frame
from lockstep.contracts.messages import Acknowledgement, CaptureRequest, NodeAlive, StepBatch
from lockstep.serving.messaging import Broker, Session

PACKET_MAX_BYTES = 16 << 20


class Wire:
    """One node's session. What it sends is numbered and kept, and sent again from where a coordinator asks for it."""

    def __init__(self, session: Session, node: str, stream_id: int) -> None:
        self.session = session
        self.node = node
        self.stream_id = stream_id
        self.frames: list[tuple[str, bytes]] = []
        self.acknowledged: dict[str, Acknowledgement] = {}
        self.requests: asyncio.Queue[CaptureRequest] = asyncio.Queue()
        self.resent = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, channel: str, message: Message) -> None:
        """Append a message to the node's stream, and publish it."""
        sequence = len(self.frames) + 1
        records = message.count if isinstance(message, StepBatch) else 0
        header = FrameHeader(self.stream_id, sequence, sequence, records)
        frame = (topics.run_topic(message.run, channel, self.node), pack_frame(header, encode(message)))
        self.frames.append(frame)
        await self.session.publish(*frame)

    async def announce(self, message: Message) -> None:
        """Publish the retained announcement of a run."""
        topic = topics.run_topic(message.run, topics.ANNOUNCE, self.node)
        await self.session.publish(topic, encode(message), retain=True)

    async def alive(self) -> None:
        """Publish the node's heartbeat; coordinators answer with their acknowledgement."""
        await self.session.publish(topics.alive_topic(self.node), self.heartbeat(alive=True), retain=True)

    def heartbeat(self, *, alive: bool) -> bytes:
        """Return the message."""
        return encode(NodeAlive(node=self.node, alive=alive, unix_ns=1, stream_id=self.stream_id))

    def take(self, topic: str, payload: bytes) -> None:
        """Take what the node is sent."""
        message = decode(topic, payload)
        if isinstance(message, CaptureRequest):
            self.requests.put_nowait(message)
        elif isinstance(message, Acknowledgement):
            before = self.acknowledged.get(message.coordinator)
            self.acknowledged[message.coordinator] = message
            is_new = before is None or before.incarnation != message.incarnation
            if (message.resend or is_new) and message.received < len(self.frames):
                task = asyncio.create_task(self._resend(message.received))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _resend(self, after: int) -> None:
        for frame in self.frames[after:]:
            self.resent += 1
            await self.session.publish(*frame)


@asynccontextmanager
async def wired(broker: Broker, node: str = "n0", stream_id: int = 7) -> AsyncIterator[Wire]:
    """Connect a node."""
    wire: list[Wire] = []
    connection = broker.connect(
        client_id=f"wire-{node}",
        on_message=lambda topic, payload: wire[0].take(topic, payload),  # noqa: PLW0108  (made below)
        packet_max_bytes=PACKET_MAX_BYTES,
    )
    async with connection as session:
        wire.append(Wire(session, node, stream_id))
        await session.subscribe(topics.exporter_filters(node))
        await wire[0].alive()
        try:
            yield wire[0]
        finally:
            for task in list(wire[0]._tasks):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await session.close()
