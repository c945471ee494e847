import struct

import numpy as np
import pytest

from benchmarks.soak import wire
from benchmarks.soak.delivery import TAIL_S, WINDOW_MESSAGES, Delivery
from benchmarks.soak.job import FIELDS, LAYOUT, RANKS_PER_NODE, RUN, Job, JobPlan, announcement, node_name
from benchmarks.soak.nodes import StepPacket, shares
from coordinator.intake.topology import Membership
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.delivery import FrameHeader, unpack_frame
from lockstep.contracts.messages import Acknowledgement
from lockstep.serving.messaging import Will

START_UNIX_NS = 1_790_000_000_000_000_000
PLAN = JobPlan(nodes=6, steps=40, fault_step=20, slow_rank=11, seed=3, start_unix_ns=START_UNIX_NS)


def column(rows, name):
    return rows[..., FIELDS.index(name)]


def test_the_parts_of_every_record_sum_to_its_step():
    """What the nodes send is an exact account: own work and waits are the step, and nobody waits less than nothing."""
    job = Job(PLAN)
    for step in (0, 19, 20, 39):
        rows = job.rows(step, 0, PLAN.nodes)
        own = sum(column(rows, f"{name}_ns") for name in ("data", "compute", "host", "gc"))
        waits = [column(rows, f"{kind}_wait_ns") for kind in ("tp", "dp", "world")]
        assert (own + sum(waits) == column(rows, "end_ns") - column(rows, "start_ns")).all()
        assert min(int(wait.min()) for wait in waits) > 0


def test_one_slow_rank_lengthens_everybodys_step():
    """From the fault on its compute is a tenth longer, nobody waits as little as it does, and all steps grow alike."""
    job = Job(PLAN)
    before, after = (job.rows(step, 0, PLAN.nodes).reshape(-1, len(FIELDS)) for step in (19, 20))
    growth = column(after, "compute_ns") / column(before, "compute_ns")
    assert growth.argmax() == PLAN.slow_rank
    assert 1.05 < growth.max() < 1.15
    assert (column(after, "tp_wait_ns") + column(after, "dp_wait_ns")).argmin() == PLAN.slow_rank
    durations = np.unique(column(after, "end_ns") - column(after, "start_ns"))
    assert len(durations) == 1
    assert 0.98e9 < durations[0] < 1.02e9


def test_all_processes_make_the_same_records():
    """A node's records do not depend on who asks, in which order, or for which nodes at once."""
    whole, other = Job(PLAN), Job(PLAN)
    late = other.rows(30, 2, 3)
    early = other.rows(4, 2, 3)
    assert (whole.rows(4, 0, PLAN.nodes)[2:3] == early).all()
    assert (whole.rows(30, 0, PLAN.nodes)[2:3] == late).all()


def test_the_announced_groups_make_one_job():
    """Announcements of all nodes give the coordinator a complete world of tensor- and data-parallel groups."""
    membership = Membership()
    for node in range(PLAN.nodes):
        topic = topics.run_topic(RUN, topics.ANNOUNCE, node_name(node))
        membership.take(decode(topic, encode(announcement(PLAN, node, START_UNIX_NS))))
    assert membership.is_complete
    kinds = [domain.kind for domain in membership.topology().domains]
    assert {kind: kinds.count(kind) for kind in kinds} == {"tp": PLAN.nodes, "dp": RANKS_PER_NODE, "world": 1}


def test_a_step_packet_decodes_to_what_was_filled_in():
    """The hand-filled PUBLISH holds a frame whose message the coordinator's decoder takes, each time it is filled."""
    packet, job = StepPacket("node2"), Job(PLAN)
    for sequence, step in ((1, 0), (77, 5)):
        rows = job.rows(step, 2, 3)
        header = FrameHeader(1 << 60, sequence, sequence, RANKS_PER_NODE)
        data = packet.filled(sequence + 8, header, START_UNIX_NS, rows.tobytes())
        (received,) = wire.packets(bytearray(data))
        message = wire.message(received)
        assert message.packet_id == sequence + 8
        found, body = unpack_frame(message.payload, where=message.topic)
        batch = decode(message.topic, body)
        assert found == header
        assert (batch.node, batch.count, batch.layout) == ("node2", RANKS_PER_NODE, LAYOUT)
        assert batch.sent_unix_ns == START_UNIX_NS
        assert batch.records == rows.tobytes()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 70_000])
def test_packets_come_out_of_the_stream_whole(size):
    """Packets of any length are found, one after the other, wherever the stream is cut."""
    stream = wire.publish("a/b", b"x" * size, packet_id=5) + wire.puback(9)
    buffer, found = bytearray(), []
    for cut in (stream[:3], stream[3:-1], stream[-1:]):
        buffer += cut
        found += list(wire.packets(buffer))
    assert [packet.kind for packet in found] == [wire.PUBLISH, wire.PUBACK]
    assert wire.message(found[0]) == ("a/b", b"x" * size, 5)
    assert wire.packet_id(found[1]) == 9
    assert not buffer


def test_a_length_that_no_packet_has_is_an_error():
    """Five bytes of length are no MQTT."""
    with pytest.raises(ValueError, match="remaining length"):
        list(wire.packets(bytearray(b"\x30\xff\xff\xff\xff\x01")))


def test_a_connection_asks_for_its_will():
    """CONNECT carries client id, keep-alive and the retained will, as MQTT 5 lays them out."""
    data = wire.connect("me", keepalive_s=15, will=Will(topic="t", payload=b"gone"))
    assert data == (
        b"\x10\x19\x00\x04MQTT\x05\x2e" + struct.pack(">H", 15) + b"\x00\x00\x02me\x00\x00\x01t\x00\x04gone"
    )


def ack(received, committed, *, name="a", incarnation=1, stream_id=7, resend=False):
    return Acknowledgement(
        node="n",
        coordinator=name,
        incarnation=incarnation,
        stream_id=stream_id,
        received=received,
        committed=committed,
        resend=resend,
    )


def started(messages):
    """Return a node in a session, with so many messages, of which none is sent."""
    delivery = Delivery(7)
    delivery.entries += range(messages)
    delivery.begin_session()
    return delivery


def test_nothing_goes_before_an_acknowledgement_of_the_session():
    """A new session sends nothing until a coordinator has answered in it."""
    delivery = started(3)
    assert not delivery.can_send(0.0)
    delivery.acknowledge(ack(0, 0), 0.0)
    assert delivery.can_send(0.0)
    delivery.begin_session()
    assert not delivery.can_send(1.0)


def test_the_window_is_beyond_the_slowest_coordinator():
    """At most 64 messages go beyond what the coordinator that has least has received."""
    delivery = started(200)
    delivery.acknowledge(ack(100, 0, name="fast"), 0.0)
    delivery.acknowledge(ack(0, 0, name="slow"), 0.0)
    while delivery.can_send(0.0):
        delivery.note_sent()
    assert delivery.next == 1 + WINDOW_MESSAGES


def test_what_every_coordinator_has_committed_is_freed():
    """Memory goes by the least of the committed positions, and the numbers of messages stay."""
    delivery = started(10)
    delivery.acknowledge(ack(10, 9), 0.0)
    assert (delivery.first, delivery.last, list(delivery.entries)) == (10, 10, [9])
    delivery.acknowledge(ack(10, 4, name="b"), 0.0)
    delivery.acknowledge(ack(10, 10), 0.0)
    assert delivery.first == 10


@pytest.mark.parametrize(
    ("message", "goes_on_at"),
    [
        (ack(3, 0, resend=True), 4),
        (ack(2, 0, incarnation=2), 3),
        (ack(3, 0), 6),
        (ack(0, 0, stream_id=8, resend=True), 6),
    ],
)
def test_a_gap_or_another_incarnation_sends_again(message, goes_on_at):
    """`resend` and a restart go back to the message behind the received one; anything else goes on."""
    delivery = started(9)
    delivery.acknowledge(ack(0, 0), 0.0)
    for _ in range(5):
        delivery.note_sent()
    delivery.acknowledge(message, 1.0)
    assert delivery.next == goes_on_at


def test_a_lost_tail_is_sent_again():
    """What is not received for ten seconds goes again, once in ten seconds, though nothing came behind it."""
    delivery = started(5)
    delivery.acknowledge(ack(0, 0), 0.0)
    for _ in range(5):
        delivery.note_sent()
    delivery.acknowledge(ack(3, 0), 1.0)
    delivery.acknowledge(ack(3, 3), 5.0)
    delivery.look_for_lost_tail(TAIL_S)
    assert delivery.next == 6
    delivery.look_for_lost_tail(TAIL_S + 1.0)
    assert delivery.next == 4


def test_nodes_are_shared_out_without_rest():
    """Every node belongs to one process."""
    parts = shares(1250, 3)
    assert [node for first, last in parts for node in range(first, last)] == list(range(1250))
