"""How messages of a node reach every coordinator exactly once: streams, sequences, acknowledgements.

A node's exporter numbers the messages of its spool from 1 on. Together they are one *stream*, named by a random id that
lives as long as the spool does (`NodeAlive.stream_id`); a spool that begins again, or whose machine was rebooted, is
another one. What is published on a spooled channel is a *frame*: this header, then the message.

    magic 4 bytes, stream_id u64, first u64, last u64, records u64

A frame of a message has `first == last`, its sequence. A frame on the channel `lost` has no message: the exporter does
not have the messages `first` to `last` any more; `records` step records in them were not committed when they went.

A coordinator takes frames of a stream in order only. It acknowledges, about once a second and whenever a node announces
itself, up to which sequence it has *received* (in memory) and *committed* (judged or counted, and stored). The
exporter keeps what is not committed, and sends again from `received + 1` on after a reconnection or a gap (go-back-N).
A broker's own acknowledgement frees nothing: a broker may acknowledge what it drops from a full queue.

Each acknowledgement grants a *window*: what may be under way beyond `received`. It shrinks with the number of nodes, so
that all windows together fit the broker's queue (receiver-side flow control, as in RFC 9293, 3.8.6).
"""

import struct
from dataclasses import dataclass

from lockstep.contracts.errors import MalformedError

MAGIC = b"LKF1"
_HEADER = struct.Struct("<4sQQQQ")
HEADER_BYTES = _HEADER.size
SEQUENCE_MAX = (1 << 63) - 1
"""At a million messages a second it takes 292,000 years."""

BROKER_QUEUE_MESSAGES = 100_000
BROKER_QUEUE_BYTES = 256 << 20
"""What the broker queues for one subscriber; the shipped configurations set it. Messages beyond it are dropped."""
WINDOW_MESSAGES_MAX = 64  # a minute of a node
WINDOW_BYTES_MAX = 8 << 20  # the largest message
WINDOW_MESSAGES_MIN = 2  # twice what a node has to send between two acknowledgements


def window_of(nodes: int) -> tuple[int, int]:
    """Return how many messages and bytes each of so many nodes may have under way to one coordinator.

    Together they fill at most half of what the broker queues for it. The other half is for nodes that do not know of
    a smaller window yet, and for announcements. Nodes that fill more than the queue lose messages, send them again, and
    keep the queue full with what they send again.
    """
    messages = BROKER_QUEUE_MESSAGES // (2 * max(nodes, 1))
    size_bytes = BROKER_QUEUE_BYTES // (2 * max(nodes, 1))
    return min(max(messages, WINDOW_MESSAGES_MIN), WINDOW_MESSAGES_MAX), min(size_bytes, WINDOW_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Place of a frame in its stream; `records` counts step records in the message, or in the messages dropped."""

    stream_id: int
    first: int
    last: int
    records: int


def pack_frame(header: FrameHeader, payload: bytes) -> bytes:
    """Return the bytes that are published."""
    return _HEADER.pack(MAGIC, header.stream_id, header.first, header.last, header.records) + payload


def unpack_frame(data: bytes, *, where: str) -> tuple[FrameHeader, bytes]:
    """Return header and message of a frame.

    Raises
    ------
    MalformedError
        It does not begin with a header, or its sequences cannot be.
    """
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        got = f"{len(data)} bytes, the first {data[: len(MAGIC)]!r}"
        raise MalformedError("frame", where=where, got=got, expected=f"a header of {HEADER_BYTES}, first {MAGIC!r}")
    _, stream_id, first, last, records = _HEADER.unpack_from(data)
    header = FrameHeader(stream_id, first, last, records)
    if not (1 <= header.first <= header.last <= SEQUENCE_MAX and 1 <= header.stream_id <= SEQUENCE_MAX):
        raise MalformedError(
            "sequence",
            where=where,
            got=(header.stream_id, header.first, header.last),
            expected="1 to 2^63 - 1, in order",
        )
    return header, data[HEADER_BYTES:]
