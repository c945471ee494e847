"""How a node's messages reach every coordinator exactly once: streams, sequences, acknowledgements.

A node's exporter numbers the messages of its spool from 1 on. Together they form one *stream*, identified by a random
id that lives as long as the spool (`NodeAlive.stream_id`). A spool that starts over, or whose machine was rebooted, is
a new stream. A *frame* is published on a spooled channel: this header, then the message.

    magic 4 bytes, stream_id u64, first u64, last u64, records u64

A frame with a message has `first == last`, its sequence. A frame on the channel `lost` has no message: the exporter no
longer has the messages `first` to `last`, and `records` of their step records were uncommitted when they were dropped.

A coordinator accepts the frames of a stream in order only. About once a second, and whenever a node announces itself,
it acknowledges the sequence up to which it has *received* (in memory) and *committed* (evaluated or counted, and
stored). The exporter keeps what is not committed, and resends from `received + 1` after a reconnection or a gap
(go-back-N). The broker's own acknowledgement frees nothing, because a broker may acknowledge messages that it drops
from a full queue.

Each acknowledgement grants a *window*: what may be in flight beyond `received`. It shrinks with the number of nodes, so
that all windows together fit the broker's queue (receiver-side flow control, as in RFC 9293, 3.8.6).
"""

import struct
from dataclasses import dataclass

from lockstep.contracts.errors import MalformedError

MAGIC = b"LKF1"
_HEADER = struct.Struct("<4sQQQQ")
HEADER_BYTES = _HEADER.size
SEQUENCE_MAX = (1 << 63) - 1
"""At a million messages a second it lasts 292,000 years."""

BROKER_QUEUE_MESSAGES = 100_000
BROKER_QUEUE_BYTES = 256 << 20
"""The broker's queue for one subscriber, as the shipped configurations set it. Messages beyond it are dropped."""
WINDOW_MESSAGES_MAX = 64  # messages of a node in a minute
WINDOW_BYTES_MAX = 8 << 20  # the largest message
WINDOW_MESSAGES_MIN = 2  # twice the messages of a node between two acknowledgements


def window_of(nodes: int) -> tuple[int, int]:
    """Return how many messages and bytes each node may have in flight to one coordinator, given the number of nodes.

    Together they fill at most half of the broker's queue for it. The other half is for nodes that do not know of a
    smaller window yet, and for announcements. Nodes that overfill the queue lose messages, resend them, and so keep the
    queue full.
    """
    messages = BROKER_QUEUE_MESSAGES // (2 * max(nodes, 1))
    size_bytes = BROKER_QUEUE_BYTES // (2 * max(nodes, 1))
    return min(max(messages, WINDOW_MESSAGES_MIN), WINDOW_MESSAGES_MAX), min(size_bytes, WINDOW_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The place of a frame in its stream; `records` counts step records in the message, or in the dropped messages."""

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
        It does not begin with a header, or its sequences are impossible.
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
