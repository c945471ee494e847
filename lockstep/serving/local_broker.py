"""An in-process message broker: implements `Broker` between services of one event loop, without a socket or port.

Every message takes the same path: the event loop calls `_route` in the order in which messages were published. So no
publisher runs inside another one's call, and each one's messages stay in order. Topics and filters are those of MQTT,
checked by mqtt5 as for a real broker.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import mqtt5

from lockstep.serving.handler import MessageHandler
from lockstep.serving.messaging import (
    RETAINED_EXPIRY_SECONDS,
    BrokerError,
    OnMessage,
    PublishRefusedError,
    Session,
    Will,
)

_WAITING_MAX_BYTES = 1 << 20  # sent but not yet delivered; as much as the write buffer of an MQTT session


class LocalBroker:
    """A `Broker` for one event loop; retained messages live as long as it does, or until they expire."""

    def __init__(self) -> None:
        self._sessions: dict[str, LocalSession] = {}
        self._retained: dict[str, tuple[bytes, float]] = {}  # payload and expiry time, oldest first
        self.waiting_bytes = 0

    @property
    def address(self) -> str:
        """See `Broker`."""
        return "in this process"

    @asynccontextmanager
    async def connect(
        self, *, client_id: str, on_message: OnMessage, packet_max_bytes: int, will: Will | None = None
    ) -> AsyncIterator[Session]:
        """See `Broker`."""
        before = self._sessions.get(client_id)
        if before is not None:
            before.end("ended the session: session taken over")
        session = self._sessions[client_id] = LocalSession(self, client_id, on_message, packet_max_bytes, will)
        try:
            yield session
        finally:
            session.end("connection broken by this service")

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, delivered: asyncio.Event | None = None
    ) -> None:
        """Deliver a message after all that were published before it, then set `delivered`.

        Raises
        ------
        PublishRefusedError
            The topic is not valid for publishing.
        """
        try:
            mqtt5.PublishPacket(topic, payload)
        except ValueError as error:
            raise PublishRefusedError(topic, str(error), is_permanent=True) from None
        self.waiting_bytes += len(topic) + len(payload)
        asyncio.get_running_loop().call_soon(self._route, topic, payload, retain, delivered)

    def subscribe(self, session: "LocalSession", filters: Sequence[str]) -> None:
        """Deliver the retained messages that match `filters`."""
        asyncio.get_running_loop().call_soon(self._replay, session, filters)

    def remove(self, session: "LocalSession", client_id: str) -> None:
        """Forget a session that ended."""
        if self._sessions.get(client_id) is session:
            del self._sessions[client_id]

    def _route(self, topic: str, payload: bytes, retain: bool, delivered: asyncio.Event | None) -> None:  # noqa: FBT001
        self.waiting_bytes -= len(topic) + len(payload)
        if retain:
            self._retained.pop(topic, None)
            if payload:
                self._retained[topic] = payload, asyncio.get_running_loop().time() + RETAINED_EXPIRY_SECONDS
            self._expire()
        for session in list(self._sessions.values()):
            if any(matches(pattern, topic) for pattern in session.filters):
                session.deliver(topic, payload)
        if delivered is not None:
            delivered.set()

    def _replay(self, session: "LocalSession", filters: Sequence[str]) -> None:
        self._expire()
        for topic, (payload, _) in list(self._retained.items()):
            if any(matches(pattern, topic) for pattern in filters):
                session.deliver(topic, payload)

    def _expire(self) -> None:
        """Drop retained messages that were not renewed in time."""
        now_s = asyncio.get_running_loop().time()
        expired = list(itertools.takewhile(lambda topic: self._retained[topic][1] <= now_s, self._retained))
        for topic in expired:
            del self._retained[topic]


class LocalSession:
    """A `Session` of a `LocalBroker`, which creates it."""

    def __init__(
        self, broker: LocalBroker, client_id: str, on_message: OnMessage, packet_max_bytes: int, will: Will | None
    ) -> None:
        self.filters: list[str] = []
        self._broker = broker
        self._client_id = client_id
        self._handle = MessageHandler(on_message)
        self._packet_max_bytes = packet_max_bytes
        self._will = will
        self._ended = asyncio.Event()
        self._end_reason = ""

    async def subscribe(self, filters: Sequence[str]) -> None:
        """See `Session`."""
        self._check()
        for pattern in filters:
            try:
                mqtt5.TopicFilter(pattern)
            except ValueError as error:
                raise BrokerError(f"broker in this process: subscription to {pattern!r:.200}: {error}") from None
        self.filters += filters
        self._broker.subscribe(self, filters)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """See `Session`."""
        self._check()
        delivered = asyncio.Event()
        self._broker.publish(topic, payload, retain=retain, delivered=delivered)
        await delivered.wait()

    def send(self, topic: str, payload: bytes) -> bool:
        """See `Session`."""
        self._check()
        if self._broker.waiting_bytes > _WAITING_MAX_BYTES:
            return False
        self._broker.publish(topic, payload)
        return True

    async def wait_closed(self) -> None:
        """See `Session`."""
        await self._ended.wait()
        self._check()

    async def close(self) -> None:
        """See `Session`."""
        self._check()
        self._will = None
        self.end("closed by this service")

    def end(self, reason: str) -> None:
        """End the session once; publish its will unless it was closed in order."""
        if self._end_reason:
            return
        self._end_reason = reason
        self._broker.remove(self, self._client_id)
        if self._will is not None:
            self._broker.publish(self._will.topic, self._will.payload, retain=True)
        self._ended.set()

    def deliver(self, topic: str, payload: bytes) -> None:
        """Pass a message on, unless the session has ended or the message is too large for it."""
        if not self._end_reason and len(topic) + len(payload) <= self._packet_max_bytes:
            self._handle(topic, payload)

    def _check(self) -> None:
        if self._end_reason:
            raise BrokerError(f"broker in this process: {self._end_reason}")


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic filter matches a topic; wildcards do not match topics that begin with $."""
    wanted, levels = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)] if len(levels) >= len(wanted) else levels
    return len(wanted) == len(levels) and all(want in ("+", level) for want, level in zip(wanted, levels, strict=True))
