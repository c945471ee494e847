import struct

import numpy as np
import pytest

from benchmarks.soak import wire
from benchmarks.soak.job import FIELDS, LAYOUT, RANKS_PER_NODE, RUN, Job, JobPlan, announcement, node_name
from benchmarks.soak.nodes import StepPacket, shares
from coordinator.intake.topology import Membership
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.delivery import FrameHeader, unpack_frame
from lockstep.serving.messaging import Will

START_UNIX_NS = 1_790_000_000_000_000_000
PLAN = JobPlan(nodes=6, steps=40, fault_step=20, slow_rank=11, seed=3, start_unix_ns=START_UNIX_NS)


def column(rows, name):
    return rows[..., FIELDS.index(name)]


def test_the_parts_of_every_record_sum_to_its_step():
    """What the nodes send is an exact account: own work and waits are the step, and no one waits less than nothing."""
    job = Job(PLAN)
    for step in (0, 19, 20, 39):
        rows = job.rows(step, 0, PLAN.nodes)
        own = sum(column(rows, f"{name}_ns") for name in ("data", "compute", "host", "gc"))
        waits = [column(rows, f"{kind}_wait_ns") for kind in ("tp", "dp", "world")]
        assert (own + sum(waits) == column(rows, "end_ns") - column(rows, "start_ns")).all()
        assert min(int(wait.min()) for wait in waits) > 0


def test_one_slow_rank_lengthens_everybodys_step():
    """From the fault on its compute is a tenth longer, no one waits as little as it does, and all steps grow alike."""
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
        membership.apply_announcement(decode(topic, encode(announcement(PLAN, node, START_UNIX_NS))), 0.0)
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


def test_nodes_are_shared_out_without_rest():
    """Every node belongs to one process."""
    parts = shares(1250, 3)
    assert [node for first, last in parts for node in range(first, last)] == list(range(1250))
