"""The exporter's connection to the broker: sends spooled messages in order, receives acknowledgements and requests.

There are two kinds of messages. Events (batches, answers, summaries) stay in the spool until every coordinator has
committed them (docs/delivery.md). Of retained state (announcements, heartbeat) only the latest version is kept; it is
sent again on each connection. The broker session is a clean one: a capture request that waited for us would ask for
steps long past, and the spool is the only store of everything else.
"""

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from exporter.config import ExporterConfig
from exporter.counts import DeliveryStatus, ExporterCounters
from exporter.sending.coordinators import Coordinators
from exporter.sending.spool import DroppedRange, Spool, SpooledMessage
from exporter.state_file import load_state, save_state
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.delivery import FrameHeader, pack_frame
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import Acknowledgement, CaptureRequest, NodeAlive, RunHeartbeat, StackRequest
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.messaging import Broker, BrokerError, PublishRefusedError, Session, Will, backoff_seconds

_log = logging.getLogger(__name__)

_SECOND_NS = 10**9
_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 30.0
_TICK_S = 1.0  # between two checks of the clock while nothing else happens
_ANSWER_S = 60.0  # for the broker to acknowledge a message; the largest one at 1.2 Mbit/s
_INCOMING_MAX_BYTES = 64 << 10  # size of a request or an acknowledgement
_CUTS_MAX = 5  # connections lost in a row on the same message, which is then dropped because it blocks the rest
_SAVE_NS = 60 * _SECOND_NS  # after a restart, a coordinator is forgotten up to this much sooner


@dataclass(frozen=True, slots=True)
class _Frame:
    topic: str
    data: bytes
    item: SpooledMessage | DroppedRange


class Publisher:
    """Owns spool and connection. `run` is one task of the runtime; everything here runs on its event loop.

    Messages can be put between `open` and `close`, connected or not. `isolation` counts received messages whose
    handling failed.
    """

    def __init__(
        self,
        config: ExporterConfig,
        broker: Broker,
        *,
        counts: ExporterCounters,
        on_request: Callable[[CaptureRequest], None],
        on_stack_request: Callable[[StackRequest], None] = lambda _: None,
        heartbeats: Callable[[], list[RunHeartbeat]],
        jitter: random.Random,
        unix_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.isolation = FaultIsolation(("message",), failures_max=sys.maxsize)
        self.connected = False
        self.address, self.scheme = "", "http"  # where HTTP is bound, set by `Exporter` later
        self.term = 0  # reported in heartbeats; `Exporter` takes it from requests
        directory = Path(config.spool_directory)
        self.spool = Spool(directory, config.spool_max_bytes)
        self._broker = broker
        self._node = config.node_name
        self._drain_seconds = config.drain_seconds
        self._counts = counts
        self._on_request = on_request
        self._on_stack_request = on_stack_request
        self._heartbeats = heartbeats
        self._jitter = jitter
        self._unix_ns = unix_ns
        self._clock_ns = clock_ns
        self._forget_ns = round(config.coordinator_forget_seconds * _SECOND_NS)
        self._coordinators_path = directory / "coordinators.json"
        self._coordinators = Coordinators(stream_id=0, freed=0, last=0, forget_ns=self._forget_ns)
        self._saved: frozenset[str] = frozenset()
        self._save_due_ns = 0
        self._retained: dict[str, bytes] = {}
        self._changed: dict[str, None] = {}
        self._last: set[str] = set()
        self._published = self._resent = 0
        self._counted_lost = 0  # of `spool.lost_records`
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._cuts = (0, 0)  # message in flight when the last connections were lost, and their number

    def open(self) -> None:
        """Open the spool, and restore the coordinators that it is kept for.

        Raises
        ------
        ConfigError
            The spool cannot be used.
        """
        self.spool.open()
        now_ns, unix_ns = self._clock_ns(), self._unix_ns()
        saved = load_state(self._coordinators_path, dict[str, int]) or {}
        self._coordinators = Coordinators(
            stream_id=self.spool.stream_id,
            freed=self.spool.freed,
            last=self.spool.last,
            forget_ns=self._forget_ns,
            seen_ns={name: now_ns - max(0, unix_ns - seen_unix_ns) for name, seen_unix_ns in saved.items()},
        )
        self._saved = frozenset(saved)

    def close(self) -> None:
        """Close the spool; unsent messages stay in it."""
        self.spool.close()

    def put(self, topic: str, payload: bytes, records: int = 0) -> None:
        """Append a message that holds `records` step records to the stream."""
        self._apply_offsets(self._clock_ns())
        self.spool.append(topic, payload, records)
        self._count_lost()
        self._wake.set()

    def state(self, topic: str, payload: bytes, *, last: bool = False) -> None:
        """Replace the retained message of `topic`; after the `last` one it is not sent again."""
        self._retained[topic] = payload
        self._changed[topic] = None
        if last:
            self._last.add(topic)
        else:
            self._last.discard(topic)
        self._wake.set()

    def heartbeat(self) -> None:
        """Publish that the node is alive; every coordinator answers with its offsets."""
        self.state(topics.alive_topic(self._node), self._alive(alive=True))

    def finish(self) -> None:
        """Make `run` send what it can within `drain_seconds`, sign off and return; no more requests are accepted."""
        self._stop.set()
        self._wake.set()

    def status(self) -> DeliveryStatus:
        """Return the current state of delivery."""
        acknowledged_ns = self._coordinators.acknowledged_ns
        ahead_ns = self._unix_ns() - self._clock_ns()
        return DeliveryStatus(
            connected=self.connected,
            spool_bytes=self.spool.waiting_bytes,
            spool_messages=self.spool.waiting_messages,
            spool_limit_bytes=self.spool.limit_bytes,
            published=self._published,
            resent=self._resent,
            coordinators=len(self._coordinators.seen_ns),
            acknowledged_unix_ns=None if acknowledged_ns is None else acknowledged_ns + ahead_ns,
        )

    async def run(self) -> None:
        """Keep a session with the broker until `finish`."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while not self._stop.is_set():
            begin_s = clock()
            try:
                await self._run_session()
            except (BrokerError, OSError) as error:
                lasted = self.connected and clock() - begin_s > _BACKOFF_MAX_S
                failures = 1 if lasted else failures + 1
                self._note_failure(error, failures)
            finally:
                self.connected = False
            await self._wait(self._stop, self._backoff_s(failures))

    async def _run_session(self) -> None:
        connection = self._broker.connect(
            client_id=f"lockstep-exporter-{self._node}",
            on_message=self._receive,
            packet_max_bytes=_INCOMING_MAX_BYTES,
            will=Will(topic=topics.alive_topic(self._node), payload=self._alive(alive=False)),
        )
        self._coordinators.begin_session()
        async with connection as session, self._until_closed(session) as closed:
            await _answered(session.subscribe(topics.exporter_filters(self._node)))
            _log.info("connected to the broker %s", self._broker.address)
            self.connected = True
            self._retained.pop(topics.alive_topic(self._node), None)  # sent last: coordinators answer with offsets
            self._changed = dict.fromkeys(self._retained)
            self.heartbeat()
            while not self._stop.is_set():
                self._wake.clear()
                while await self._send_next(session) and not self._stop.is_set():
                    pass
                if closed.done():
                    await closed
                await self._wait(self._wake, _TICK_S)
            await self._sign_off(session)

    @contextlib.asynccontextmanager
    async def _until_closed(self, session: Session) -> AsyncIterator["asyncio.Task[None]"]:
        """Watch for the end of a session while nothing is sent in it."""
        closed = asyncio.create_task(session.wait_closed(), name="broker session")
        closed.add_done_callback(lambda _: self._wake.set())
        try:
            yield closed
        finally:
            closed.cancel()
            await asyncio.wait([closed])
            if not closed.cancelled():
                closed.exception()  # retrieved: the task that was sending has raised the same

    async def _send_next(self, session: Session) -> bool:
        """Send changed state, otherwise the next item of the stream; return whether there was anything to send."""
        if self._changed:
            await self._send_state(session, next(iter(self._changed)))
            return True
        frame = self._next_frame(self._clock_ns())
        if frame is None:
            return False
        await self._send_frame(session, frame)
        return True

    def _next_frame(self, now_ns: int) -> _Frame | None:
        """Return what to send next, and count it as sent; None if there is nothing or the window is full."""
        self._apply_offsets(now_ns)
        sequence = self._coordinators.next_sequence
        item = None if sequence is None else self.spool.read(sequence)
        self._count_lost()  # reading detects damage
        size_bytes = len(item.payload) if isinstance(item, SpooledMessage) else 0
        if item is None or not self._coordinators.may_send(size_bytes, now_ns):
            return None
        if isinstance(item, DroppedRange):
            item = self.spool.dropped(item.first, self._coordinators.lost_frame_end(item.first, item.last))
            topic, payload, first, last = topics.node_topic(self._node, topics.LOST), b"", item.first, item.last
        else:
            topic, payload, first, last = item.topic, item.payload, item.sequence, item.sequence
        # Now and not when the broker confirms it: a coordinator may acknowledge it before the broker does.
        self._resent += self._coordinators.note_sent(last, size_bytes, now_ns)
        header = FrameHeader(self.spool.stream_id, first, last, item.records)
        return _Frame(topic, pack_frame(header, payload), item)

    async def _send_frame(self, session: Session, frame: _Frame) -> None:
        try:
            await _answered(session.publish(frame.topic, frame.data))
        except PublishRefusedError as error:
            if not error.is_permanent or isinstance(frame.item, DroppedRange):
                raise
            self._refuse(frame.item, str(error))
        except BrokerError:
            self._note_cut(frame.item)
            raise
        else:
            self._published += 1
            self._cuts = (0, 0)

    def _note_cut(self, item: SpooledMessage | DroppedRange) -> None:
        """Count a connection that was lost while this item was in flight."""
        if isinstance(item, SpooledMessage):
            cuts = self._cuts[1] + 1 if self._cuts[0] == item.sequence else 1
            self._cuts = (item.sequence, cuts)
            if cuts >= _CUTS_MAX:
                self._refuse(item, f"{cuts} connections in a row were lost on it")

    def _refuse(self, item: SpooledMessage, reason: str) -> None:
        """Send a lost frame in place of a message that the broker refuses."""
        self._cuts = (0, 0)
        self.spool.refuse(item.sequence)
        self._coordinators.rewind(item.sequence)
        self._counts.lost["refused"] += item.records
        _log.warning("message %d on %s dropped, the broker refuses it: %s", item.sequence, item.topic, reason)

    async def _send_state(self, session: Session, topic: str) -> None:
        del self._changed[topic]
        try:
            await _answered(session.publish(topic, self._retained[topic], retain=True))
        except (BrokerError, TimeoutError) as error:
            if isinstance(error, PublishRefusedError) and error.is_permanent:
                _log.warning("%s; it is dropped, because it would block all later messages", error)
                return
            self._changed[topic] = None
            raise
        self._published += 1
        if topic in self._last and topic not in self._changed:
            self._last.discard(topic)
            self._retained.pop(topic)

    async def _sign_off(self, session: Session) -> None:
        try:
            async with asyncio.timeout(self._drain_seconds):
                while await self._send_next(session):
                    pass
        except TimeoutError:
            _log.warning("%d bytes stay in the spool", self.spool.waiting_bytes)
        await session.publish(topics.alive_topic(self._node), self._alive(alive=False), retain=True)
        await session.close()

    def _alive(self, *, alive: bool) -> bytes:
        """Return the heartbeat, or the last will if `alive` is false."""
        return encode(
            NodeAlive(
                node=self._node,
                alive=alive,
                unix_ns=self._unix_ns(),
                stream_id=self.spool.stream_id,
                address=self.address,
                scheme=self.scheme,
                runs=self._heartbeats() if alive else [],
                term=self.term,
            )
        )

    def _apply_offsets(self, now_ns: int) -> None:
        """Store which coordinators are known, and free what all of them have committed."""
        self._coordinators.tick(now_ns)
        seen_ns = self._coordinators.seen_ns
        if seen_ns.keys() != self._saved or (seen_ns and now_ns >= self._save_due_ns):
            self._save_due_ns = now_ns + _SAVE_NS
            ahead_ns = self._unix_ns() - now_ns
            save_state(self._coordinators_path, {name: ahead_ns + seen for name, seen in seen_ns.items()})
            self._saved = frozenset(seen_ns)
        self.spool.received = self._coordinators.received() or 0
        self.spool.free(self._coordinators.committed() or 0)

    def _count_lost(self) -> None:
        self._counts.lost["spool"] += self.spool.lost_records - self._counted_lost
        self._counted_lost = self.spool.lost_records

    def _receive(self, topic: str, payload: bytes) -> None:
        with self.isolation.guard("message", topic, self._clock_ns() / _SECOND_NS):
            self._on_message(topic, payload)

    def _on_message(self, topic: str, payload: bytes) -> None:
        """Dispatch a request or an acknowledgement; count messages that are neither, or whose handling fails."""
        try:
            message = decode(topic, payload)
        except MalformedError as error:
            self._counts.reject("message", error)
            return
        match message:
            case CaptureRequest() | StackRequest() if self._stop.is_set():
                pass
            case CaptureRequest():
                self._on_request(message)
            case StackRequest():
                self._on_stack_request(message)
            case Acknowledgement():
                self._on_acknowledgement(message)
            case _:
                self._counts.reject("message", f"{type(message).__name__} on {topic}")

    def _on_acknowledgement(self, acknowledgement: Acknowledgement) -> None:
        now_ns = self._clock_ns()
        try:
            self._coordinators.acknowledge(acknowledgement, now_ns)
        except MalformedError as error:
            self._counts.reject("acknowledgement", error)
            return
        self._apply_offsets(now_ns)
        self._wake.set()

    def _note_failure(self, error: BrokerError | OSError, failures: int) -> None:
        """Log the first failure in a row."""
        if failures == 1:
            what = error if isinstance(error, BrokerError) else f"broker {self._broker.address}: {error}"
            _log.warning("%s; messages wait in the spool", what)

    def _backoff_s(self, failures: int) -> float:
        return backoff_seconds(
            failures, self._jitter.random(), first_seconds=_BACKOFF_FIRST_S, longest_seconds=_BACKOFF_MAX_S
        )

    @staticmethod
    async def _wait(event: asyncio.Event, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return


async def _answered(request: Coroutine[None, None, None]) -> None:
    """Wait for the broker's answer to a request.

    Raises
    ------
    TimeoutError
        There is none: the broker is at fault, not the message.
    BrokerError
        Raised by the request.
    """
    try:
        async with asyncio.timeout(_ANSWER_S):
            await request
    except TimeoutError:
        raise TimeoutError(f"no answer to a message within {_ANSWER_S:g} s") from None
