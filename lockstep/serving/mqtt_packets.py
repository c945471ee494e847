"""Parses an MQTT 5 broker's bytes into packets of the package mqtt5. No I/O, no session state.

Framing is done here: a packet that is too large is refused as soon as its header has arrived. mqtt5 gets whole packets
only, so any exception of mqtt5 means that the packet is malformed.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import mqtt5

from lockstep.contracts.errors import MalformedError

_WHERE = "MQTT stream"
_HEADER_MAX_BYTES = 5  # one byte of type and flags, up to four of length
_PUBACK = 0x40
_PUBACK_BYTES = 4  # header and packet id, without a reason: success


@dataclass(frozen=True, slots=True)
class PubAck:
    """A PUBACK, parsed here: mqtt5 refuses reasons that MQTT does not list for it, mosquitto's "packet too large"."""

    packet_id: int
    reason: int

    @property
    def reason_name(self) -> str:
        """The reason's name in the standard, or its number."""
        for reasons in (mqtt5.PubAckReasonCode, mqtt5.DisconnectReasonCode):
            with contextlib.suppress(ValueError):
                return _text(reasons(self.reason).name)
        return f"reason {self.reason}"


Packet: TypeAlias = mqtt5.Packet | PubAck


class PacketReader:
    """Splits a stream into packets; buffers one incomplete packet of at most `packet_max_bytes`, and one read."""

    def __init__(self, packet_max_bytes: int) -> None:
        self._packet_max_bytes = packet_max_bytes
        self._tail = bytearray()
        self._needed_bytes = 0  # length of the tail at which parsing can make progress

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Yield the packets that `data` completes; consume them before the next call.

        Raises
        ------
        MalformedError
            The bytes are not MQTT 5, or a packet is too large. The reader must not be used again.
        """
        stream: bytes | bytearray = data
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needed_bytes:
                return
            stream, self._tail = self._tail, bytearray()
        view = memoryview(stream)
        end = len(view)
        offset = 0
        while offset < end:
            size_bytes = self._packet_bytes(view, offset)
            if offset + size_bytes > end:
                self._tail += view[offset:]
                self._needed_bytes = size_bytes
                return
            yield _read(view[offset : offset + size_bytes])
            offset += size_bytes

    def _packet_bytes(self, view: memoryview, offset: int) -> int:
        """Return the length of the packet at `offset`; if its header is incomplete, one byte more than is available."""
        length = shift = 0
        at = offset + 1
        for byte in view[at : offset + _HEADER_MAX_BYTES]:
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004  (the last byte of the length)
                size_bytes = at - offset + length
                if size_bytes > self._packet_max_bytes:
                    raise MalformedError(
                        "packet", where=_WHERE, got=f"{size_bytes} bytes", expected=f"at most {self._packet_max_bytes}"
                    )
                return size_bytes
            shift += 7
        if at == offset + _HEADER_MAX_BYTES:
            raise MalformedError("packet length", where=_WHERE, got="5 bytes or more", expected="1 to 4")
        return at - offset + 1


def reason_text(reason: IntEnum, explanation: str | None) -> str:
    """Return a reason as readable text, with the broker's explanation.

    The stub of mqtt5 declares its reasons as `IntEnum`: they have `name` and `value`, but do not compare with numbers.
    """
    return f"{_text(reason.name)}: {explanation:.200}" if explanation else _text(reason.name)


def _text(name: str) -> str:
    return name.lower().replace("_", " ")


def _read(packet: memoryview) -> Packet:
    kind = packet[0]
    if kind == _PUBACK and len(packet) >= _PUBACK_BYTES:
        return PubAck(int.from_bytes(packet[2:4]), packet[4] if len(packet) > _PUBACK_BYTES else 0)
    try:
        return mqtt5.read(packet)[0]
    except ValueError as error:
        what = str(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        what = "text that is not UTF-8"  # mqtt5 0.8.0 panics on it, and a panic is not an Exception
    raise MalformedError(f"packet of type {kind >> 4}", where=_WHERE, got=what, expected="a packet of MQTT 5")
