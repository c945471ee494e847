"""One MQTT 5 connection: requests that wait for the broker, and acknowledgements that the broker waits for.

State lives on the event loop and changes in two ways only: a packet arrives (`_handlers`), or the session ends
(`_finish`), once, with its reason. Waiters are woken with a result, never with an exception, so that a waiter cancelled
at the same moment leaves no exception that is never retrieved.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import mqtt5

from lockstep.contracts.errors import MalformedError
from lockstep.serving.handler import MessageHandler
from lockstep.serving.messaging import RETAINED_EXPIRY_SECONDS, BrokerError, OnMessage, PublishRefusedError
from lockstep.serving.mqtt_packets import PacketReader, PubAck, reason_text

A = TypeVar("A")

KEEP_ALIVE_S = 15
"""The broker publishes the will after 1.5 times this without traffic; we ping twice in that time."""
RECEIVE_MAX = 64
"""QoS 1 messages in flight to us: one node's window; further ones wait in the broker's queue.

Brokers limit the bytes of the queue, but not of messages in flight: mosquitto held 65,534 messages of 8 MiB for a
reader that had stopped. Each is acknowledged as it is handed over, so 64 of them are 100,000 messages a second on
loopback, as many as with 65,534. It must not be MQTT's default, 65,535: mqtt5 omits that value, and mosquitto then
assumes 20.
"""
_IN_FLIGHT_MAX = 64  # QoS 1 messages from us: the window of the delivery protocol
_PACKET_MAX_BYTES = 1 << 27  # half of what MQTT can carry, 16 times the largest message; mqtt5 panics beyond all of it
_WRITE_HIGH_BYTES = 1 << 20  # a second of acknowledgements to 10,000 nodes
_JOIN_MAX_BYTES = 64 << 10  # small packets of one turn of the event loop are written together, up to this
_CLOSE_TIMEOUT_S = 2.0  # for the broker to close after our DISCONNECT
_PACKET_IDS = 65_535
_FAILURE = 0x80  # reason codes from here on are failures
_PERMANENT = frozenset((144, 149, 153))  # topic name invalid, packet too large, payload format invalid
_PINGREQ = mqtt5.PingReqPacket().write()


class MqttSession(asyncio.Protocol):
    """A `Session` over one transport; created by `MqttBroker`."""

    def __init__(self, address: str, on_message: OnMessage, packet_max_bytes: int) -> None:
        self._address = address
        self._handle = MessageHandler(on_message)
        self._reader = PacketReader(packet_max_bytes)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._handlers: dict[type, Callable[[Any], None]] = {mqtt5.ConnAckPacket: self._on_connack}
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._end_reason = ""
        self._publishing: dict[int, asyncio.Future[PubAck | None]] = {}
        self._subscribing: dict[int, asyncio.Future[mqtt5.SubAckPacket | None]] = {}
        self._packet_id = 0
        self._slots = asyncio.Semaphore(0)
        self._send_max_bytes = _PACKET_MAX_BYTES
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._is_full = False
        self._is_alive = True
        self._buffered_bytes = 0
        self._ping_s = KEEP_ALIVE_S / 2
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, connect: bytes) -> None:
        """Send the CONNECT packet and wait until the broker accepts the session; otherwise break the connection.

        Raises
        ------
        BrokerError
            It refused, or the connection was lost.
        """
        self._write(connect)
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        self._check()

    async def subscribe(self, filters: Sequence[str]) -> None:
        """See `Session`."""
        self._check()
        packet_id = self._next_packet_id()
        try:
            asked = [mqtt5.TopicFilter(pattern, max_qos=mqtt5.QoS.AT_LEAST_ONCE) for pattern in filters]
            data = mqtt5.SubscribePacket(packet_id, asked).write()
        except ValueError as error:
            raise BrokerError(f"broker {self._address}: subscription to {list(filters)!r:.200}: {error}") from None
        answer = await self._exchange(self._subscribing, packet_id, data)
        if len(answer.reason_codes) != len(filters):
            self._end(f"answered {len(answer.reason_codes)} subscriptions, expected {len(filters)}")
            raise self._error()
        for pattern, code in zip(filters, answer.reason_codes, strict=True):
            if code != mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE:
                reason = reason_text(code, answer.reason_str)
                raise BrokerError(f"broker {self._address}: refused the subscription to {pattern}: {reason}")

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """See `Session`."""
        self._check()
        await self._slots.acquire()  # the PUBACK releases it, even if its caller was cancelled
        try:
            self._check()
            packet_id = self._next_packet_id()
            data = self._pack(topic, payload, retain=retain, packet_id=packet_id)
        except BaseException:
            self._slots.release()
            raise
        answer = await self._exchange(self._publishing, packet_id, data)
        if answer.reason >= _FAILURE:
            raise PublishRefusedError(topic, answer.reason_name, is_permanent=answer.reason in _PERMANENT)

    def send(self, topic: str, payload: bytes) -> bool:
        """See `Session`."""
        self._check()
        if self._is_full:
            return False
        self._write(self._pack(topic, payload))
        return True

    async def wait_closed(self) -> None:
        """See `Session`."""
        await self._ended.wait()
        self._check()

    async def close(self) -> None:
        """See `Session`; the broker closes the connection after our DISCONNECT, so it has read everything before it."""
        self._check()
        self._write(mqtt5.DisconnectPacket().write())
        self._flush()
        self._finish("closed by this service")
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._lost.wait()
        except TimeoutError:
            pass
        finally:
            self._transport.abort()

    def abort(self) -> None:
        """Break the connection; has no effect without one."""
        self._end("connection broken by this service")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all waiters."""
        self._finish(f"connection lost: {exc}" if exc else "connection closed by the broker")
        self._lost.set()

    def pause_writing(self) -> None:
        """Stop reading until the broker reads, so that a flood of messages causes no flood of acknowledgements."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Handle every complete packet."""
        self._is_alive = True
        try:
            for packet in () if self._end_reason else self._reader.feed(data):
                handler = self._handlers.get(type(packet))
                if handler is None:
                    self._end(f"sent {type(packet).__name__}, which is unexpected now")
                else:
                    handler(packet)
                if self._end_reason:
                    break
        except MalformedError as error:
            self._end(str(error))

    def _on_connack(self, packet: mqtt5.ConnAckPacket) -> None:
        if packet.reason_code != mqtt5.ConnAckReasonCode.SUCCESS:
            self._end(f"refused the session: {reason_text(packet.reason_code, packet.reason_str)}")
            return
        needs = {
            "QoS 1": packet.max_qos != mqtt5.QoS.AT_MOST_ONCE,
            "retained messages": packet.retain_available,
            "wildcard subscriptions": packet.wildcard_subscription_available,
        }
        for what, is_supported in needs.items():
            if not is_supported:
                self._end(f"does not support {what}, which Lockstep needs")
                return
        self._handlers = {
            mqtt5.PublishPacket: self._on_publish,
            PubAck: self._on_puback,
            mqtt5.SubAckPacket: self._on_suback,
            mqtt5.PingRespPacket: lambda _: None,  # any packet shows that the broker is alive
            mqtt5.DisconnectPacket: self._on_disconnect,
        }
        self._slots = asyncio.Semaphore(min(packet.receive_max, _IN_FLIGHT_MAX))
        self._send_max_bytes = min(packet.max_packet_size or _PACKET_MAX_BYTES, _PACKET_MAX_BYTES)
        self._ping_s = min(packet.server_keep_alive or KEEP_ALIVE_S, KEEP_ALIVE_S) / 2
        self._timer = self._loop.call_later(self._ping_s, self._on_timer)
        self._opened.set()

    def _on_publish(self, packet: mqtt5.PublishPacket) -> None:
        self._handle(packet.topic, packet.payload)
        if packet.packet_id is not None:
            self._write(mqtt5.PubAckPacket(packet.packet_id).write())

    def _on_puback(self, packet: PubAck) -> None:
        _settle(self._publishing, packet.packet_id, packet)
        self._slots.release()

    def _on_suback(self, packet: mqtt5.SubAckPacket) -> None:
        _settle(self._subscribing, packet.packet_id, packet)

    def _on_disconnect(self, packet: mqtt5.DisconnectPacket) -> None:
        self._end(f"ended the session: {reason_text(packet.reason_code, packet.reason_str)}")

    def _on_timer(self) -> None:
        """Ping; end the session if, since the last ping, nothing arrived and nothing of a full buffer was sent."""
        buffered_bytes = self._transport.get_write_buffer_size()
        if not self._is_alive and buffered_bytes >= self._buffered_bytes:
            self._end(f"no answer to a ping within {self._ping_s:g} s")
            return
        self._is_alive, self._buffered_bytes = False, buffered_bytes
        self._write(_PINGREQ)
        self._timer = self._loop.call_later(self._ping_s, self._on_timer)

    def _pack(self, topic: str, payload: bytes, *, retain: bool = False, packet_id: int | None = None) -> bytes:
        qos = mqtt5.QoS.AT_MOST_ONCE if packet_id is None else mqtt5.QoS.AT_LEAST_ONCE
        expiry_s = RETAINED_EXPIRY_SECONDS if retain else None
        size_bytes = len(payload)
        if size_bytes <= self._send_max_bytes:
            try:
                packet = mqtt5.PublishPacket(
                    topic, payload, qos=qos, retain=retain, packet_id=packet_id, message_expiry_interval=expiry_s
                )
                data = packet.write()
            except ValueError as error:
                raise PublishRefusedError(topic, str(error), is_permanent=True) from None
            size_bytes = len(data)
            if size_bytes <= self._send_max_bytes:
                return data
        reason = f"packet too large: got {size_bytes} bytes, expected at most {self._send_max_bytes}"
        raise PublishRefusedError(topic, reason, is_permanent=True)

    async def _exchange(self, table: dict[int, asyncio.Future[A | None]], packet_id: int, data: bytes) -> A:
        """Write a packet and return the broker's answer to it."""
        future: asyncio.Future[A | None] = self._loop.create_future()
        table[packet_id] = future
        self._write(data)
        answer = await future
        if answer is None:
            raise self._error()
        return answer

    def _next_packet_id(self) -> int:
        """Return an unused id; an id stays in use until it is answered, even if its caller was cancelled."""
        while True:
            self._packet_id = self._packet_id % _PACKET_IDS + 1
            if self._packet_id not in self._publishing and self._packet_id not in self._subscribing:
                return self._packet_id

    def _write(self, data: bytes) -> None:
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes > _JOIN_MAX_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._unwritten:
            self._transport.write(b"".join(self._unwritten))
            self._unwritten.clear()
            self._unwritten_bytes = 0

    def _check(self) -> None:
        if self._end_reason:
            raise self._error()

    def _error(self) -> BrokerError:
        return BrokerError(f"broker {self._address}: {self._end_reason}")

    def _end(self, reason: str) -> None:
        self._finish(reason)
        self._transport.abort()

    def _finish(self, reason: str) -> None:
        """Store the reason of the end, the first one only, and wake all waiters."""
        if self._end_reason:
            return
        self._end_reason = reason
        if self._timer is not None:
            self._timer.cancel()
        _wake(self._publishing)
        _wake(self._subscribing)
        self._slots.release()  # each waiting publisher passes it on to the next
        self._opened.set()
        self._ended.set()


def _wake(table: dict[int, asyncio.Future[A | None]]) -> None:
    for future in table.values():
        if not future.done():
            future.set_result(None)


def _settle(table: dict[int, asyncio.Future[A | None]], packet_id: int, packet: A) -> None:
    future = table.pop(packet_id, None)
    if future is None:
        raise MalformedError("packet id", where=type(packet).__name__, got=packet_id, expected="one that waits for it")
    if not future.done():
        future.set_result(packet)
