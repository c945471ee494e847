"""The exporter's side of the bus: sends what is spooled, in order, and takes profile requests.

Two kinds of messages: events (batches, answers, summaries) lie in the spool until the broker has acknowledged them;
retained state (announcements, heartbeat) is kept here in its latest version only and sent again at each connection.
The session at the broker is a clean one: a profile request that waited for us would ask for steps long past.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from exporter.config import ExporterConfig
from exporter.counts import Counts
from exporter.sending.spool import Spool, Spooled
from lockstep.contracts import topics
from lockstep.contracts.codec import decode_as, encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import NodeAlive, ProfileRequest, RunHeartbeat
from lockstep.serving.broker import backoff_seconds, client_options, heed_cancellation

_log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 30.0
_KEEPALIVE_S = 15  # the broker sends the last will 1.5 times this after the network went
_ACKNOWLEDGE_S = 10.0
_REQUEST_MAX_BYTES = 64 << 10  # the broker keeps back what is larger (MQTT 5), so that it is never allocated here
_REQUESTS_WAITING_MAX = 64
_CUTS_MAX = 5  # connections closed by the broker on one and the same message, which is then dropped: it blocks the rest
_FAILURE = 0x80  # reasons from here on are failures, in MQTT 5 and 3.1.1
_NEVER_TAKEN = (144, 149, 153)  # topic name invalid, packet too large, payload format invalid: waiting would not help


class _Client(aiomqtt.Client):
    """aiomqtt takes every acknowledgement of a publish as success; MQTT 5 can also refuse in it, by an access rule say.

    One publish is under way at a time, so the last reason is that of the last publish.
    """

    reason: ReasonCode | None = None

    def _on_publish(
        self, client: paho.Client, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        self.reason = reason_code
        super()._on_publish(client, userdata, mid, reason_code, properties)

    async def deliver(self, topic: str, payload: bytes, *, retain: bool = False) -> ReasonCode | None:
        """Publish with QoS 1; return the broker's reason if it refused."""
        self.reason = None
        await self.publish(topic, payload, qos=1, retain=retain)
        return self.reason if self.reason is not None and self.reason.is_failure else None


class Publisher:
    """Owns the connection. `run` and `receive` are two tasks of the runtime; everything here is in its event loop."""

    def __init__(
        self,
        config: ExporterConfig,
        *,
        spool: Spool,
        counts: Counts,
        on_request: Callable[[ProfileRequest], None],
        heartbeats: Callable[[], list[RunHeartbeat]],
        unix_ns: Callable[[], int],
        jitter: random.Random,
    ) -> None:
        self.connected = False
        self._config = config
        self._node = config.node_name
        self.address, self.scheme = "", "http"  # where HTTP is bound, which `Exporter` knows later
        self._spool = spool
        self._counts = counts
        self._on_request = on_request
        self._heartbeats = heartbeats
        self._unix_ns = unix_ns
        self._jitter = jitter
        self._retained: dict[str, bytes] = {}
        self._changed: set[str] = set()
        self._last: set[str] = set()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._sessions: asyncio.Queue[_Client] = asyncio.Queue()
        self._session_lost = False
        self._cuts = 0
        self._delivery: asyncio.Timeout | None = None

    def state(self, topic: str, payload: bytes, *, last: bool = False) -> None:
        """Replace the retained message of `topic`; after the `last` one it is not sent again."""
        self._retained[topic] = payload
        self._changed.add(topic)
        if last:
            self._last.add(topic)
        else:
            self._last.discard(topic)
        self._wake.set()

    def wake(self) -> None:
        """Say that the spool holds something new."""
        self._wake.set()

    def finish(self) -> None:
        """Make `run` send what it can within `drain_seconds`, sign off and return; requests are taken no more."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Keep a session with the broker until `finish`."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while not self._stop.is_set():
            begin_s = clock()
            try:
                await self._session()
            except (aiomqtt.MqttError, OSError) as error:
                lasted = self.connected and clock() - begin_s > _BACKOFF_MAX_S
                failures = 1 if lasted else failures + 1
                self._note_failure(error, failures)
            finally:
                self.connected = False
            heed_cancellation()
            await self._wait(self._stop, self._backoff_s(failures))

    async def receive(self) -> None:
        """Take requests from one session after the other; ends by cancellation."""
        while True:
            client = await self._sessions.get()
            try:
                async for message in client.messages:
                    self._take(str(message.topic), bytes(message.payload))
            except aiomqtt.MqttError:
                self._session_lost = True
                self._wake.set()
                if self._delivery is not None:  # aiomqtt would wait for an acknowledgement that cannot come any more
                    self._delivery.reschedule(asyncio.get_running_loop().time())

    async def _session(self) -> None:
        async with self._client() as client:
            granted = await client.subscribe([(f, 1) for f in topics.exporter_filters(self._node)])
            if any((code.value if isinstance(code, ReasonCode) else code) >= _FAILURE for code in granted):
                raise aiomqtt.MqttError("the broker refused the subscription to profile requests")
            heed_cancellation()
            _log.info("connected to the broker %s:%d", self._config.broker_host, self._config.broker_port)
            self.connected, self._session_lost = True, False
            self._sessions.put_nowait(client)
            self._retained[topics.alive_topic(self._node)] = self.alive(True)
            self._changed = set(self._retained)
            while not self._stop.is_set():
                self._wake.clear()
                await self._send_all(client)
                if self._session_lost:
                    raise aiomqtt.MqttError("the broker closed the connection")
                await self._wait(self._wake, _ACKNOWLEDGE_S)
            await self._sign_off(client)

    async def _send_all(self, client: _Client) -> None:
        """Send changed state, then the spool, oldest first; state that changes meanwhile goes before the next one."""
        while not self._session_lost:
            if self._changed:
                await self._send_state(client, self._changed.pop())
                continue
            message = self._spool.peek()
            if message is None:
                return
            await self._send_spooled(client, message)

    async def _send_spooled(self, client: _Client, message: Spooled) -> None:
        try:
            refusal = await self._deliver(client, message.topic, message.payload)
        except aiomqtt.MqttError:
            self._cuts += self._session_lost
            if self._cuts >= _CUTS_MAX:
                self._drop(message, f"it closed {self._cuts} connections on it")
            raise
        if refusal is None:
            self._cuts = 0
            self._spool.acknowledge()
            self._counts.published += 1
        elif refusal.value in _NEVER_TAKEN:
            self._drop(message, str(refusal))
        else:
            raise aiomqtt.MqttError(f"the broker refused a message on {message.topic}: {refusal}")

    def _drop(self, message: Spooled, reason: str) -> None:
        self._cuts = 0
        self._spool.acknowledge()
        self._counts.lost["spool"] += message.records
        _log.warning("message on %s dropped, the broker does not take it: %s", message.topic, reason)

    async def _deliver(self, client: _Client, topic: str, payload: bytes, *, retain: bool = False) -> ReasonCode | None:
        """Deliver, and stop waiting when the connection is lost."""
        try:
            async with asyncio.timeout(None) as self._delivery:
                answer = await client.deliver(topic, payload, retain=retain)
        except TimeoutError:
            raise aiomqtt.MqttError("the broker closed the connection") from None
        finally:
            self._delivery = None
        heed_cancellation()
        return answer

    async def _send_state(self, client: _Client, topic: str) -> None:
        try:
            refusal = await self._deliver(client, topic, self._retained[topic], retain=True)
        except aiomqtt.MqttError:
            self._changed.add(topic)
            raise
        if refusal is not None:
            raise aiomqtt.MqttError(f"the broker refused a message on {topic}: {refusal}")
        self._counts.published += 1
        if topic in self._last and topic not in self._changed:
            self._last.discard(topic)
            self._retained.pop(topic)

    async def _sign_off(self, client: _Client) -> None:
        try:
            async with asyncio.timeout(self._config.drain_seconds):
                await self._send_all(client)
        except TimeoutError:
            _log.warning("%d bytes stay in the spool", self._spool.waiting_bytes)
        await self._deliver(client, topics.alive_topic(self._node), self.alive(False), retain=True)

    def _client(self) -> _Client:
        is_v5 = self._config.broker_protocol == "5"
        return _Client(
            **client_options(self._config, packet_max_bytes=_REQUEST_MAX_BYTES),
            identifier=f"lockstep-exporter-{self._node}",
            clean_start=True if is_v5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
            clean_session=None if is_v5 else True,
            will=aiomqtt.Will(topics.alive_topic(self._node), self.alive(False), qos=1, retain=True),
            keepalive=_KEEPALIVE_S,
            timeout=_ACKNOWLEDGE_S,
            max_queued_incoming_messages=_REQUESTS_WAITING_MAX,
        )

    def alive(self, alive: bool) -> bytes:  # noqa: FBT001  (the message's own field)
        """Return the heartbeat, or with `alive` false the last will."""
        return encode(
            NodeAlive(
                node=self._node,
                alive=alive,
                unix_ns=self._unix_ns(),
                address=self.address,
                scheme=self.scheme,
                runs=self._heartbeats() if alive else [],
            )
        )

    def _take(self, topic: str, payload: bytes) -> None:
        try:
            request = decode_as(ProfileRequest, topic, payload)
        except MalformedError as error:
            self._counts.reject("message", error)
            return
        if not self._stop.is_set():
            self._on_request(request)

    def _note_failure(self, error: aiomqtt.MqttError | OSError, failures: int) -> None:
        """Log the first failure in a row."""
        if failures == 1:
            where = f"{self._config.broker_host}:{self._config.broker_port}"
            _log.warning("broker %s: %s; messages wait in the spool", where, error)

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
