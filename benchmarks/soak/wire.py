"""The few MQTT 5 packets that a node sends and gets, as bytes: thousands of nodes share one process here.

Independent of `lockstep/serving`, whose client is what the coordinator under test uses.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lockstep.serving.messaging import Will

CONNACK, PUBLISH, PUBACK, SUBACK, DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xE0
"""Types of packets that a broker sends: the upper half of their first byte."""
REFUSED = 0x80
"""Reason codes from here on are refusals."""
PACKET_ID_BYTES = 2
_CLEAN_START, _WILL, _WILL_QOS_1, _WILL_RETAIN = 0x02, 0x04, 0x08, 0x20
_QOS_1, _RETAIN = 0x02, 0x01
_LENGTH_BYTES_MAX = 4


class Received(NamedTuple):
    """A packet: its type, its flags and its body."""

    kind: int
    flags: int
    body: bytes


class Message(NamedTuple):
    """An application message; `packet_id` is 0 for one of QoS 0, which wants no acknowledgement."""

    topic: str
    payload: bytes
    packet_id: int


def connect(client_id: str, *, keepalive_s: int, will: Will) -> bytes:
    """Return a CONNECT with a clean start and a retained will of QoS 1."""
    flags = _CLEAN_START | _WILL | _WILL_QOS_1 | _WILL_RETAIN
    head = _text("MQTT") + struct.pack(">BBH", 5, flags, keepalive_s) + b"\0"
    will_part = b"\0" + _text(will.topic) + struct.pack(">H", len(will.payload)) + will.payload
    return _packet(0x10, head + _text(client_id) + will_part)


def subscribe(packet_id: int, filters: list[str]) -> bytes:
    """Return a SUBSCRIBE at QoS 1."""
    body = b"".join(_text(each) + b"\1" for each in filters)
    return _packet(0x82, struct.pack(">HB", packet_id, 0) + body)


def publish(topic: str, payload: bytes, *, packet_id: int, retain: bool = False) -> bytes:
    """Return a PUBLISH of QoS 1."""
    flags = _QOS_1 | (_RETAIN if retain else 0)
    return _packet(PUBLISH | flags, _text(topic) + struct.pack(">HB", packet_id, 0) + payload)


def puback(packet_id: int) -> bytes:
    """Return a PUBACK."""
    return struct.pack(">BBH", PUBACK, 2, packet_id)


def disconnect() -> bytes:
    """Return a DISCONNECT, after which the broker does not publish the will."""
    return b"\xe0\0"


def packets(buffer: bytearray) -> Iterator[Received]:
    """Yield the whole packets at the beginning of `buffer` and remove them.

    Raises
    ------
    ValueError
        A length that no packet has.
    """
    begin = 0
    while (found := _next(buffer, begin)) is not None:
        packet, begin = found
        yield packet
    del buffer[:begin]


def _next(buffer: bytearray, begin: int) -> tuple[Received, int] | None:
    length, shift, at = 0, 0, begin + 1
    while True:
        if at >= len(buffer):
            return None
        byte = buffer[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift == 7 * _LENGTH_BYTES_MAX:
            raise ValueError(f"remaining length of an MQTT packet: got {length} and more, expected four bytes")
    if at + length > len(buffer):
        return None
    first = buffer[begin]
    return Received(first & 0xF0, first & 0x0F, bytes(buffer[at : at + length])), at + length


def reason(packet: Received) -> int:
    """Return the reason code of a CONNACK or PUBACK; 0 is success."""
    place = 1 if packet.kind == CONNACK else PACKET_ID_BYTES
    return packet.body[place] if len(packet.body) > place else 0


def packet_id(packet: Received) -> int:
    """Return the packet id of a PUBACK or SUBACK."""
    return int.from_bytes(packet.body[:PACKET_ID_BYTES])


def message(packet: Received) -> Message:
    """Return what a PUBLISH carries."""
    body = packet.body
    end = 2 + int.from_bytes(body[:2])
    topic = body[2:end].decode()
    number = 0
    if packet.flags & _QOS_1:
        number = int.from_bytes(body[end : end + PACKET_ID_BYTES])
        end += PACKET_ID_BYTES
    properties = body[end]
    assert properties < 0x80  # no broker adds more to a message of ours
    return Message(topic, body[end + 1 + properties :], number)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _packet(first: int, body: bytes) -> bytes:
    length, digits = len(body), bytearray()
    while True:
        length, digit = length >> 7, length & 0x7F
        digits.append(digit | 0x80 if length else digit)
        if not length:
            return bytes([first]) + bytes(digits) + body
