"""The coordinator's connection to the broker: frames and messages in, acknowledgements and capture requests out.

All input is untrusted until it is decoded. Anything that cannot be decoded is counted by reason, logged at a limited
rate and dropped. Frames get their position in their node's stream before they are decoded, so a malformed frame does
not block the stream.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from coordinator.intake.batch_table import last_step
from coordinator.intake.streams import SETTLED, FrameVerdict, Receipt, Streams
from coordinator.leadership import HEARTBEAT_S, Leadership
from lockstep.contracts import topics
from lockstep.contracts.codec import Message, channel_of, decode_parsed, encode
from lockstep.contracts.delivery import HEADER_BYTES, FrameHeader, unpack_frame
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import MESSAGE_MAX_BYTES, TERM_AHEAD_SECONDS_MAX
from lockstep.contracts.messages import Acknowledgement, CoordinatorAlive, NodeAlive, StepBatch
from lockstep.contracts.metrics import LOST_REASONS
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.log_limit import LogLimit
from lockstep.serving.messaging import Broker, BrokerError, Session, Will, backoff_seconds

if TYPE_CHECKING:
    from lockstep.contracts.messages import CaptureRequest, StackRequest

_log = logging.getLogger(__name__)

CHANNELS = (*topics.SPOOLED_CHANNELS, topics.ANNOUNCE, topics.ALIVE, topics.COORDINATOR)
REJECTION_REASONS = ("topic", "version", "malformed")
_BACKOFF_FIRST_S = 0.2  # a broker that restarts is back within a second
_BACKOFF_MAX_S = 15.0  # one scrape interval: a shorter outage is not visible
_STABLE_S = 30.0  # a session that lasted longer did not fail: the back-off starts over
_PUBLISH_TIMEOUT_S = 5.0
_PACKET_SPARE_BYTES = HEADER_BYTES + (64 << 10)  # topic and properties, on top of the largest payload

MESSAGE = "message"
"""Kind of work that is isolated by node: handling one message."""
QUARANTINE_S = 60.0
"""Quarantine of a node whose messages failed three times in a row; the node spools its frames meanwhile."""

HasCapacity = Callable[[str, int], bool]
"""Returns whether a run has room for records of a step now."""
OnMessage = Callable[[Message, Receipt | None], None]
"""Handles a message, with the receipt of its frame if it came on a spooled channel."""


class BusCounts:
    """Messages by channel, rejections and lost records by reason; every known label exists from the start."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter(dict.fromkeys(CHANNELS, 0))
        self.rejected: Counter[str] = Counter(dict.fromkeys(REJECTION_REASONS, 0))
        self.lost: Counter[str] = Counter(dict.fromkeys(LOST_REASONS, 0))


class Bus:
    """The connection to the broker, one session at a time. `on_message` is called on the event loop and must be quick.

    `connected` is set while subscribed; `now_s` is the wall clock. `on_connect` is called before the first message of a
    session, `on_disconnect` after its last one.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        streams: Streams,
        leadership: Leadership,
        on_message: OnMessage,
        now_s: Callable[[], float],
        has_capacity: HasCapacity = lambda _run, _step: True,
        on_connect: Callable[[], None] = lambda: None,
        on_disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts = BusCounts()
        self.connected = asyncio.Event()
        self._broker = broker
        self._streams = streams
        self._leadership = leadership
        self._on_message = on_message
        self._now_s = now_s
        self._has_capacity = has_capacity
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._ahead: dict[str, tuple[str, int]] = {}  # run and step that a node sent too early
        self._session: Session | None = None
        self._random = random.Random()  # noqa: S311  (jitter only, not security)
        self._log = LogLimit(_log)
        self.isolation = FaultIsolation((MESSAGE,), quarantine_s=QUARANTINE_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Stay connected until `stop` is set."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while not stop.is_set():
            begin_s = clock()
            try:
                await self._serve(stop)
            except BrokerError as error:
                failures = 1 if clock() - begin_s > _STABLE_S else failures + 1
                self._log.warning("broker", self._now_s(), str(error))
            finally:
                self.connected.clear()
                if self._session is not None:
                    self._on_disconnect()
                self._session = None
                self._leadership.disconnected()
            wait_s = backoff_seconds(
                failures, self._random.random(), first_seconds=_BACKOFF_FIRST_S, longest_seconds=_BACKOFF_MAX_S
            )
            await _wait(stop, wait_s)

    async def publish_request(self, request: "CaptureRequest | StackRequest") -> None:
        """Publish a request to a node, QoS 1.

        Raises
        ------
        BrokerError
            Not connected, or the broker refused it or did not acknowledge it in time.
        """
        if self._session is None:
            raise BrokerError("not connected to the broker")
        topic = topics.run_topic(request.run, channel_of(request), request.node)
        try:
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                await self._session.publish(topic, encode(request))
        except TimeoutError:
            raise BrokerError(f"no acknowledgement within {_PUBLISH_TIMEOUT_S:g} s") from None

    def acknowledge(self) -> None:
        """Publish all due acknowledgements."""
        if self._session is not None:
            for acknowledgement in self._streams.acknowledgements():
                self._send(acknowledgement)

    def resume(self) -> None:
        """Request again the frames that were sent too early, from nodes whose runs have room now."""
        for node, (run, step) in list(self._ahead.items()):
            if self._has_capacity(run, step) and self._ahead.pop(node, None) is not None:
                self._send(self._streams.resume(node))

    def _send(self, acknowledgement: Acknowledgement | None) -> None:
        """Publish an acknowledgement; if it is lost, the next heartbeat of its node triggers another one."""
        if acknowledgement is not None and self._session is not None:
            with suppress(BrokerError):  # the session's own task reports why it ended
                self._session.send(topics.node_topic(acknowledgement.node, topics.ACK), encode(acknowledgement))

    async def _serve(self, stop: asyncio.Event) -> None:
        name = self._leadership.name
        will = Will(topic=topics.coordinator_topic(name), payload=self._heartbeat(alive=False))
        connection = self._broker.connect(
            client_id=f"lockstep-coordinator-{name}",
            on_message=self._take,
            packet_max_bytes=MESSAGE_MAX_BYTES + _PACKET_SPARE_BYTES,
            will=will,
        )
        async with connection as session:
            self._session = session
            self._streams.forget_acknowledgements()
            self._on_connect()
            await session.subscribe(topics.coordinator_filters())
            self._leadership.connected(self._now_s())
            self.connected.set()
            _log.info("connected to broker %s", self._broker.address)
            closed = asyncio.create_task(session.wait_closed(), name="bus session")
            stopped = asyncio.create_task(stop.wait(), name="bus stopper")
            try:
                while not stop.is_set():
                    await session.publish(will.topic, self._heartbeat(), retain=True)
                    await asyncio.wait((closed, stopped), timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                    if closed.done():
                        closed.result()
                await session.publish(will.topic, self._heartbeat(alive=False), retain=True)
                await session.close()
            finally:
                for task in (closed, stopped):
                    task.cancel()
                await asyncio.gather(closed, stopped, return_exceptions=True)

    def _heartbeat(self, *, alive: bool = True) -> bytes:
        return encode(self._leadership.heartbeat(self._now_s(), alive=alive))

    def _take(self, topic: str, payload: bytes) -> None:
        try:
            parsed = topics.parse_topic(topic)
        except MalformedError as error:
            self._refuse("topic", error)
            return
        self.counts.received[parsed.channel] += 1
        now_s = self._now_s()
        if not self.isolation.admits(MESSAGE, parsed.node, now_s):
            return
        with self.isolation.guard(MESSAGE, parsed.node, now_s):
            try:
                if parsed.channel in topics.SPOOLED_CHANNELS:
                    self._take_frame(parsed, topic, payload)
                else:
                    self._take_message(decode_parsed(parsed, topic, payload))
            except MalformedError as error:
                self._refuse("version" if isinstance(error, ContractVersionError) else "malformed", error)

    def _take_frame(self, parsed: topics.Topic, topic: str, payload: bytes) -> None:
        header, body = unpack_frame(payload, where=topic)
        node, is_lost = parsed.node, parsed.channel == topics.LOST
        message: Message | None = None
        malformed: MalformedError | None = None
        if self._streams.is_next(node, header) and not is_lost:
            try:
                message = decode_parsed(parsed, topic, body)
                _check_count(message, header, topic)
            except MalformedError as error:
                malformed = error
        has_capacity = not isinstance(message, StepBatch) or self._admits(node, message)
        verdict, receipt = self._streams.take(node, header, has_capacity=has_capacity)
        if receipt is None:
            if verdict in (FrameVerdict.GAP, FrameVerdict.AHEAD):
                self._send(self._streams.resend(node, self._now_s()))
            return
        if malformed is not None:
            self._lose(receipt, {"malformed": header.records})
            raise malformed
        if message is None:
            self._lose(receipt, {"spool": header.records})
            return
        if isinstance(message, StepBatch):
            self._lose(receipt, message.lost)
            receipt.outcomes[SETTLED] = message.count
            receipt.hold()
        self._on_message(message, receipt)

    def _admits(self, node: str, batch: StepBatch) -> bool:
        """Return whether the batch's run has room for it; if not, remember to request it again later."""
        step = last_step(batch)
        has_capacity = self._has_capacity(batch.run, step)
        if has_capacity:
            self._ahead.pop(node, None)
        else:
            self._ahead[node] = batch.run, step
        return has_capacity

    def _lose(self, receipt: Receipt, records: dict[str, int]) -> None:
        """Count records as lost: for `/metrics` now, and for the ledger when the frame is settled."""
        if records:
            receipt.outcomes = dict(records)
            self.counts.lost.update(records)

    def _take_message(self, message: Message) -> None:
        if isinstance(message, CoordinatorAlive):
            if not self._leadership.take(message, self._now_s()):
                self._refuse_term(message.term, f"coordinator {message.coordinator}")
            return
        if isinstance(message, NodeAlive):
            if not self._leadership.note_term(message.term, self._now_s()):
                self._refuse_term(message.term, f"node {message.node}")
            if message.alive:
                self._send(self._streams.announce(message.node, message.stream_id))
        self._on_message(message, None)

    def _refuse_term(self, term: int, where: str) -> None:
        """Reject a term that no leader can have; the rest of its message is still used."""
        latest = int(self._now_s()) + TERM_AHEAD_SECONDS_MAX
        self._refuse("malformed", MalformedError("term", where=where, got=term, expected=f"at most {latest}"))

    def _refuse(self, reason: str, error: MalformedError) -> None:
        self.counts.rejected[reason] += 1
        self._log.warning(reason, self._now_s(), f"message rejected: {error}")


def _check_count(message: Message, header: FrameHeader, where: str) -> None:
    records = message.count if isinstance(message, StepBatch) else 0
    if records != header.records or header.first != header.last:
        raise MalformedError("records", where=where, got=header.records, expected=f"{records}, in one message")


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
