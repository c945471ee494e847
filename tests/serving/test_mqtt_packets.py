"""A stream split into packets: whole, byte by byte, with what follows, at any cut; and what is none."""

import itertools
import random

import mqtt5
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.serving.mqtt_packets import PacketReader, PubAck, reason_text

QOS = mqtt5.QoS.AT_LEAST_ONCE
PACKETS = [
    mqtt5.ConnAckPacket(receive_max=5),
    mqtt5.PublishPacket("a", b""),
    mqtt5.PublishPacket("a/b", b"x" * 100, qos=QOS, packet_id=1),
    mqtt5.PublishPacket("a/b", b"x" * 120, qos=QOS, packet_id=2),
    mqtt5.PublishPacket("a/b", b"x" * 20_000, qos=QOS, packet_id=65_535, retain=True),
    mqtt5.SubAckPacket(3, [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE]),
    mqtt5.PingRespPacket(),
    mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode.SERVER_BUSY),
]
STREAM = b"".join(packet.write() for packet in PACKETS)


def read(*pieces, packet_max_bytes=1 << 20):
    """Return the packets of a stream that comes in pieces, as text: mqtt5's packets do not compare."""
    reader = PacketReader(packet_max_bytes)
    return [packet for piece in pieces for packet in reader.feed(piece)]


def text(packets):
    return [packet.write() for packet in packets]


def test_a_stream_is_the_same_however_it_is_cut():
    """In one piece, byte by byte, and at random."""
    expected = [packet.write() for packet in PACKETS]
    assert text(read(STREAM)) == expected
    assert text(read(*(STREAM[at : at + 1] for at in range(len(STREAM))))) == expected
    random_ = random.Random(1)
    for _ in range(200):
        cuts = sorted({0, len(STREAM), *(random_.randrange(len(STREAM)) for _ in range(random_.randrange(8)))})
        assert text(read(*(STREAM[a:b] for a, b in itertools.pairwise(cuts)))) == expected


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: type(packet).__name__)
def test_a_packet_is_there_with_its_last_byte(packet):
    """Not before it, and not only with what follows."""
    data = packet.write()
    for cut in range(len(data)):
        reader = PacketReader(1 << 20)
        assert list(reader.feed(data[:cut])) == []
        assert text(reader.feed(data[cut:] + STREAM[:1])) == [data]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x40\x02\x00\x07", (7, 0, "success")),
        (b"\x40\x03\x00\x07\x10", (7, 16, "no matching subscribers")),
        (b"\x40\x03\x01\x00\x87", (256, 135, "not authorized")),
        (b"\x40\x04\x00\x07\x95\x00", (7, 149, "packet too large")),
        (b"\x40\x03\x00\x07\xc8", (7, 200, "reason 200")),
        (
            mqtt5.PubAckPacket(9, reason_code=mqtt5.PubAckReasonCode.QUOTA_EXCEEDED, reason_str="full").write(),
            (9, 151, "quota exceeded"),
        ),
    ],
)
def test_an_acknowledgement_has_any_reason(data, expected):
    """Those too that MQTT does not list for it."""
    (packet,) = read(data)
    assert isinstance(packet, PubAck)
    assert (packet.packet_id, packet.reason, packet.reason_name) == expected


def test_a_packet_of_the_limit_passes_and_one_byte_more_does_not():
    """The limit counts the whole packet, header included."""
    data = mqtt5.PublishPacket("a", bytes(500)).write()
    assert len(read(data, packet_max_bytes=len(data))) == 1
    with pytest.raises(MalformedError, match=f"got {len(data)} bytes, expected at most {len(data) - 1}"):
        read(data, packet_max_bytes=len(data) - 1)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 100])
def test_a_packet_that_is_too_large_is_refused_by_its_header(cut):
    """As soon as its length is there, and none of it is kept."""
    data = b"\x30\xff\xff\xff\x7f" + bytes(200)
    reader = PacketReader(1000)
    if cut < 5:
        assert list(reader.feed(data[:cut])) == []
        data = data[cut:]
    with pytest.raises(MalformedError, match="got 268435460 bytes, expected at most 1000"):
        list(reader.feed(data))
    assert len(reader._tail) <= 5


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_length_of_more_than_four_bytes_is_none(cut):
    """However it arrives."""
    data = b"\x30\xff\xff\xff\xff\xff\x01"
    with pytest.raises(MalformedError, match="packet length"):
        read(data[:cut], data[cut:])


# Of a panic Rust prints to stderr what Python's exception was; pytest takes that for one that was lost.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_whatever_comes_is_packets_or_malformed():
    """Damaged packets, seeded: nothing else comes out of mqtt5, and the reader keeps no more than the limit."""
    random_ = random.Random(2)
    seen = set()
    for _ in range(20_000):
        data = bytearray(random_.choice(PACKETS[:4] + PACKETS[5:]).write())
        for _ in range(random_.randint(1, 3)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        reader = PacketReader(1000)
        try:
            for packet in reader.feed(bytes(data)):
                seen.add(type(packet).__name__)
        except MalformedError:
            seen.add("malformed")
        assert len(reader._tail) <= 1000
    assert {"malformed", "PublishPacket", "PubAck", "PingRespPacket"} <= seen


def test_a_large_packet_in_small_pieces_is_looked_at_twice(monkeypatch):
    """When it begins and when it is whole: pieces between only grow its beginning."""
    looks = []
    look = PacketReader._packet_bytes
    monkeypatch.setattr(PacketReader, "_packet_bytes", lambda *given: looks.append(1) or look(*given))
    data = mqtt5.PublishPacket("a", bytes(4 << 20)).write()
    assert text(read(*(data[at : at + 500] for at in range(0, len(data), 500)), packet_max_bytes=1 << 27)) == [data]
    assert len(looks) == 2


def test_a_reason_has_words():
    """The standard's, and the broker's own."""
    reason = mqtt5.DisconnectReasonCode.SESSION_TAKEN_OVER
    assert reason_text(reason, None) == "session taken over"
    assert reason_text(reason, "elsewhere" * 100) == "session taken over: " + ("elsewhere" * 100)[:200]
