"""Plays hundreds or thousands of nodes in one process, each with a connection, a stream and announcements of its own.

One `epoll` and no asyncio: the load must leave the cores to what is measured. What an exporter does by its own clock is
spread over the second, node by node; a step ends everywhere at once.
"""

import gc
import heapq
import random
import select
import socket
import struct
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection

from benchmarks.soak import wire
from benchmarks.soak.job import FIELDS, LAYOUT, RANKS_PER_NODE, RUN, Job, JobPlan, announcement, node_name, revision
from exporter.sending.coordinators import Coordinators
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.delivery import HEADER_BYTES, FrameHeader, pack_frame
from lockstep.contracts.messages import (
    Acknowledgement,
    CaptureRequest,
    CaptureResult,
    NodeAlive,
    RunHeartbeat,
    StepBatch,
)
from lockstep.contracts.rows import VALUE_BYTES
from lockstep.serving.messaging import Will, backoff_seconds

HEARTBEAT_S = 10.0
"""As the exporter's default, and so are keep-alive, back-off and how long a coordinator is remembered."""
_FORGET_NS = 3600 * 10**9
_KEEPALIVE_S = 15
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 1.0, 30.0
_FLAP_S = (10.0, 30.0)
CONNECTS_PER_SECOND = 400
_CONNECT_TIMEOUT_S = 10.0
_REPORT_S = 1.0
_TURN_S = 0.02
_RECEIVE_BYTES = 1 << 16
_RECORDS_BYTES = RANKS_PER_NODE * len(FIELDS) * VALUE_BYTES
_TABLES_KEPT = 3
_ALIVE_ID, _ANNOUNCE_ID, _SUBSCRIBE_ID, _FRAME_ID = 1, 2, 3, 8
_TEMPLATE_UNIX_NS = 0x1122334455667788
_TEMPLATE_RECORDS = b"\xa5" * _RECORDS_BYTES
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Nodes `first_node` up to `last_node` of a job; those of `flapping` drop their connection every 10 to 30 s."""

    job: JobPlan
    first_node: int
    last_node: int
    flapping: frozenset[int]
    broker_port: int


@dataclass(slots=True)
class FleetCounts:
    """What happened so far; `*_max` since the last report."""

    records: int = 0
    frames: int = 0
    frames_resent: int = 0
    connections: int = 0
    drops: int = 0
    refused: int = 0
    orders: int = 0
    connected: int = 0
    steps: int = 0
    uncommitted: int = 0
    late_s_max: float = 0.0
    cpu_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)


Entry = int | tuple[str, bytes]
"""A step, whose batch is made when it is sent, or topic and payload of another message."""


class StepPacket:
    """The PUBLISH of a node's batch of one step, in which only what changes is written again."""

    __slots__ = ("_data", "_frame_at", "_id_at", "_records_at", "_sent_at")

    def __init__(self, node: str) -> None:
        batch = StepBatch(
            run=RUN,
            node=node,
            sent_unix_ns=_TEMPLATE_UNIX_NS,
            count=RANKS_PER_NODE,
            layout=LAYOUT,
            records=_TEMPLATE_RECORDS,
        )
        body = encode(batch)
        payload = pack_frame(FrameHeader(1, 1, 1, RANKS_PER_NODE), body)
        self._data = bytearray(wire.publish(topics.run_topic(RUN, topics.STEPS, node), payload, packet_id=1))
        self._frame_at = len(self._data) - len(payload)
        self._id_at = self._frame_at - wire.PACKET_ID_BYTES - 1
        body_at = self._frame_at + HEADER_BYTES
        self._sent_at = body_at + body.index(struct.pack(">Q", _TEMPLATE_UNIX_NS))
        self._records_at = body_at + body.index(_TEMPLATE_RECORDS)

    def filled(self, packet_id: int, header: FrameHeader, unix_ns: int, records: bytes | memoryview) -> bytearray:
        """Return the packet; it is overwritten by the next call."""
        data = self._data
        struct.pack_into(">H", data, self._id_at, packet_id)
        data[self._frame_at : self._frame_at + HEADER_BYTES] = pack_frame(header, b"")
        struct.pack_into(">Q", data, self._sent_at, unix_ns)
        data[self._records_at : self._records_at + _RECORDS_BYTES] = records
        return data


class Node:
    """One node: its stream, and the connection that it has at the moment.

    `entries` is the spool, numbered from `first` on; nothing is ever dropped from it.
    """

    __slots__ = (
        "alive_topic", "announce_topic", "coordinators", "entries", "failures", "first", "inbox", "index", "is_ready",
        "name", "outbox", "packet", "packet_id", "socket", "stream_id", "under_way_id",
    )  # fmt: skip

    def __init__(self, index: int, stream_id: int) -> None:
        self.index = index
        self.name = node_name(index)
        self.stream_id = stream_id
        self.coordinators = Coordinators(stream_id=stream_id, freed=0, last=0, forget_ns=_FORGET_NS)
        self.entries: deque[Entry] = deque()
        self.first = 1
        self.packet = StepPacket(self.name)
        self.alive_topic = topics.alive_topic(self.name)
        self.announce_topic = topics.run_topic(RUN, topics.ANNOUNCE, self.name)
        self.socket: socket.socket | None = None
        self.inbox, self.outbox = bytearray(), bytearray()
        self.is_ready = False
        self.under_way_id = 0
        """Packet id of the frame that the broker has not acknowledged yet, 0 for none."""
        self.packet_id = _FRAME_ID
        self.failures = 0

    def free(self) -> None:
        """Let go of what every known coordinator has committed."""
        committed = self.coordinators.committed() or 0
        while self.first <= committed and self.entries:
            self.entries.popleft()
            self.first += 1


class Fleet:
    """The nodes of one process. `run` returns when it is asked to stop."""

    def __init__(self, plan: FleetPlan, commands: Connection) -> None:
        self.plan = plan
        self.counts = FleetCounts()
        self.job = Job(plan.job)
        self._commands = commands
        self._random = random.Random(f"{plan.job.seed}/{plan.first_node}")  # noqa: S311  (spreads, guards nothing)
        self._nodes = [
            Node(index, self._random.randrange(1, 1 << 62)) for index in range(plan.first_node, plan.last_node)
        ]
        self._phases = sorted((self._random.random(), place) for place in range(len(self._nodes)))
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, Node] = {}
        self._timers: list[tuple[float, int, str]] = []
        self._tables: dict[int, memoryview] = {}
        self._step, self._place = 0, 0  # which batch is due next: its step, and whose turn it is
        self._heartbeats = 0  # that were due so far
        self._is_finished = False
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def run(self) -> None:
        """Play until `stop` comes."""
        gc.freeze()
        begin_s = time.monotonic()
        for place, node in enumerate(self._nodes):
            connect_s = begin_s + place / CONNECTS_PER_SECOND
            heapq.heappush(self._timers, (connect_s, place, "connect"))
            if node.index in self.plan.flapping:
                heapq.heappush(self._timers, (connect_s + self._random.uniform(*_FLAP_S), place, "flap"))
        report_s = begin_s
        while True:
            now_s = time.monotonic()
            self._produce(now_s)
            self._send_heartbeats(now_s - begin_s)
            while self._timers and self._timers[0][0] <= now_s:
                _, place, what = heapq.heappop(self._timers)
                self._on_timer(self._nodes[place], place, what, now_s)
            if now_s >= report_s:
                report_s += _REPORT_S
                self._report(now_s)
                if self._take_command():
                    return
            for descriptor, events in self._epoll.poll(_TURN_S):
                self._on_ready(self._by_descriptor[descriptor], events)

    def _produce(self, now_s: float) -> None:
        """Put the batches that are due into their nodes' spools, and send what may go."""
        unix_ns = round(now_s * _NS) + self._offset_ns
        plan = self.plan.job
        while self._step < plan.steps:
            end_ns = self.job.end_unix_ns(self._step)
            if end_ns > unix_ns:
                return
            phase, place = self._phases[self._place]
            due_ns = end_ns + round(phase * (end_ns - self.job.end_unix_ns(self._step - 1))) if self._step else end_ns
            if due_ns > unix_ns:
                return
            self.counts.late_s_max = max(self.counts.late_s_max, (unix_ns - due_ns) / _NS)
            node = self._nodes[place]
            node.entries.append(self._step)
            self.counts.records += RANKS_PER_NODE
            self._send_next(node, now_s)
            self._place += 1
            if self._place == len(self._nodes):
                self._step, self._place = self._step + 1, 0
                self.counts.steps = self._step

    def _send_heartbeats(self, age_s: float) -> None:
        """Send the heartbeats that are due, each node's at its own time."""
        while self._heartbeats < len(self._nodes) * age_s / HEARTBEAT_S:
            node = self._nodes[self._heartbeats % len(self._nodes)]
            self._heartbeats += 1
            if node.is_ready:
                self._write(node, wire.publish(node.alive_topic, self._alive(node), packet_id=_ALIVE_ID, retain=True))

    def _on_timer(self, node: Node, place: int, what: str, now_s: float) -> None:
        if what == "connect":
            self._connect(node, place, now_s)
        elif node.socket is None:
            heapq.heappush(self._timers, (now_s + 1.0, place, "flap"))
        else:
            self.counts.drops += 1
            self._drop(node, place, now_s, "")
            heapq.heappush(self._timers, (now_s + self._random.uniform(*_FLAP_S), place, "flap"))

    def _connect(self, node: Node, place: int, now_s: float) -> None:
        try:
            node.socket = socket.create_connection(("127.0.0.1", self.plan.broker_port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            self._come_back(node, place, now_s, str(error))
            return
        node.socket.setblocking(False)
        node.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        node.inbox.clear()
        node.outbox.clear()
        self._by_descriptor[node.socket.fileno()] = node
        self._epoll.register(node.socket.fileno(), select.EPOLLIN)
        self.counts.connections += 1
        will = Will(topic=node.alive_topic, payload=self._alive(node, alive=False))
        self._write(node, wire.connect(f"lockstep-exporter-{node.name}", keepalive_s=_KEEPALIVE_S, will=will))

    def _drop(self, node: Node, place: int, now_s: float, error: str) -> None:
        """Break the connection without a word, and come back as an exporter does."""
        assert node.socket is not None
        descriptor = node.socket.fileno()
        self._epoll.unregister(descriptor)
        del self._by_descriptor[descriptor]
        node.socket.close()
        node.socket, node.under_way_id = None, 0
        self.counts.connected -= node.is_ready
        node.is_ready = False
        self._come_back(node, place, now_s, error)

    def _come_back(self, node: Node, place: int, now_s: float, error: str) -> None:
        if error:
            self.counts.errors[error] = self.counts.errors.get(error, 0) + 1
        node.failures += 1
        wait_s = backoff_seconds(
            node.failures, self._random.random(), first_seconds=_BACKOFF_FIRST_S, longest_seconds=_BACKOFF_MAX_S
        )
        heapq.heappush(self._timers, (now_s + wait_s, place, "connect"))

    def _on_ready(self, node: Node, events: int) -> None:
        assert node.socket is not None
        now_s = time.monotonic()
        try:
            if events & select.EPOLLOUT:
                self._flush(node)
            if events & ~select.EPOLLOUT:
                data = node.socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("closed by the broker")
                node.inbox += data
                for packet in wire.packets(node.inbox):
                    self._take(node, packet, now_s)
        except (OSError, ValueError) as error:
            self._drop(node, node.index - self.plan.first_node, now_s, str(error))

    def _take(self, node: Node, packet: wire.Received, now_s: float) -> None:
        if packet.kind == wire.PUBACK:
            self._on_puback(node, packet, now_s)
        elif packet.kind == wire.PUBLISH:
            self._on_message(node, wire.message(packet), now_s)
        elif packet.kind == wire.CONNACK:
            if wire.reason(packet):
                raise ConnectionError(f"refused: reason {wire.reason(packet)}")
            self._write(node, wire.subscribe(_SUBSCRIBE_ID, topics.exporter_filters(node.name)))
        elif packet.kind == wire.SUBACK:
            node.is_ready, node.failures = True, 0
            self.counts.connected += 1
            node.coordinators.begin_session()
            self._announce(node)
        else:
            raise ConnectionError(f"packet of type {packet.kind >> 4}")

    def _on_puback(self, node: Node, packet: wire.Received, now_s: float) -> None:
        if wire.packet_id(packet) != node.under_way_id:
            return
        node.under_way_id = 0
        if wire.reason(packet) >= wire.REFUSED:
            self.counts.refused += 1
            raise ConnectionError(f"publish refused: reason {wire.reason(packet)}")
        self._send_next(node, now_s)

    def _on_message(self, node: Node, message: wire.Message, now_s: float) -> None:
        if message.packet_id:
            self._write(node, wire.puback(message.packet_id))
        decoded = decode(message.topic, message.payload)
        if isinstance(decoded, Acknowledgement):
            node.coordinators.acknowledge(decoded, round(now_s * _NS))
            node.free()
        elif isinstance(decoded, CaptureRequest):
            self.counts.orders += 1
            node.entries += [_refusal(decoded, rank) for rank in decoded.ranks]
        self._send_next(node, now_s)

    def _send_next(self, node: Node, now_s: float) -> None:
        sequence, now_ns = node.coordinators.next_sequence, round(now_s * _NS)
        if not node.is_ready or node.under_way_id or sequence is None or sequence >= node.first + len(node.entries):
            return
        if not node.coordinators.may_send(_RECORDS_BYTES, now_ns):
            return
        entry = node.entries[sequence - node.first]
        node.packet_id = node.packet_id + 1 if node.packet_id < 0xFFFF else _FRAME_ID
        node.under_way_id = node.packet_id
        self.counts.frames += 1
        self.counts.frames_resent += node.coordinators.note_sent(sequence, _RECORDS_BYTES, now_ns)
        if isinstance(entry, int):
            header = FrameHeader(node.stream_id, sequence, sequence, RANKS_PER_NODE)
            data = node.packet.filled(node.packet_id, header, time.time_ns(), self._records(node, entry))
            self._write(node, data)
        else:
            header = FrameHeader(node.stream_id, sequence, sequence, 0)
            self._write(node, wire.publish(entry[0], pack_frame(header, entry[1]), packet_id=node.packet_id))

    def _records(self, node: Node, step: int) -> memoryview:
        """Return the records of a node's step; those of the last steps are made for all nodes at once."""
        plan = self.plan
        table = self._tables.get(step)
        if table is None and step < self._step:  # sent late, after the others' were let go
            return memoryview(self.job.rows(step, node.index, node.index + 1)).cast("B")  # type: ignore[arg-type]
        if table is None:
            rows = self.job.rows(step, plan.first_node, plan.last_node)
            table = self._tables[step] = memoryview(rows.reshape(-1)).cast("B")  # type: ignore[arg-type]
            for old in [each for each in self._tables if each <= step - _TABLES_KEPT]:
                del self._tables[old]
        at = (node.index - plan.first_node) * _RECORDS_BYTES
        return table[at : at + _RECORDS_BYTES]

    def _announce(self, node: Node) -> None:
        """Publish what is retained; the heartbeat last, which coordinators answer."""
        ranks = encode(announcement(self.plan.job, node.index, time.time_ns(), is_finished=self._is_finished))
        self._write(node, wire.publish(node.announce_topic, ranks, packet_id=_ANNOUNCE_ID, retain=True))
        self._write(node, wire.publish(node.alive_topic, self._alive(node), packet_id=_ALIVE_ID, retain=True))

    def _alive(self, node: Node, *, alive: bool = True) -> bytes:
        unix_ns = time.time_ns()
        ranks = RunHeartbeat(
            run=RUN, revision=revision(is_finished=self._is_finished), alive_unix_ns=[unix_ns] * RANKS_PER_NODE
        )
        return encode(
            NodeAlive(
                node=node.name,
                alive=alive,
                unix_ns=unix_ns,
                stream_id=node.stream_id,
                address=f"{node.name}:9855",
                runs=[ranks] if alive else [],
            )
        )

    def _write(self, node: Node, data: bytes | bytearray) -> None:
        """Write now, and what the socket does not take when it does again."""
        assert node.socket is not None
        if node.outbox:
            node.outbox += data
            return
        try:
            sent = node.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the next read fails, too, and drops the connection
            return
        if sent < len(data):
            node.outbox += data[sent:]
            self._epoll.modify(node.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, node: Node) -> None:
        assert node.socket is not None
        sent = node.socket.send(node.outbox)
        del node.outbox[:sent]
        if not node.outbox:
            self._epoll.modify(node.socket.fileno(), select.EPOLLIN)

    def _report(self, now_s: float) -> None:
        uncommitted = 0
        for node in self._nodes:
            uncommitted += len(node.entries)
            node.coordinators.tick(round(now_s * _NS))
            self._send_next(node, now_s)
        self.counts.uncommitted = uncommitted
        self.counts.cpu_s = time.process_time()
        self._commands.send(asdict(self.counts))
        self.counts.late_s_max = 0.0

    def _take_command(self) -> bool:
        """Take what the parent asks for; return whether to stop."""
        if not self._commands.poll():
            return False
        command = self._commands.recv()
        ready = [node for node in self._nodes if node.is_ready]
        if command == "finish":
            self._is_finished = True
            for node in ready:
                self._announce(node)
            return False
        assert command == "stop"
        for node in ready:
            self._write(node, wire.disconnect())
        return True


def _refusal(request: CaptureRequest, rank: int) -> tuple[str, bytes]:
    """Return topic and payload of what a rank answers that has no profiler."""
    answer = CaptureResult(
        run=request.run,
        node=request.node,
        rank=rank,
        request_id=request.request_id,
        state="refused",
        reason="this rank is simulated",
    )
    return topics.run_topic(request.run, topics.ANSWER, request.node), encode(answer)


def play(plan: FleetPlan, commands: Connection) -> None:
    """Play the nodes of a plan; the target of a process."""
    try:
        Fleet(plan, commands).run()
    except KeyboardInterrupt:
        pass
    finally:
        commands.close()


def shares(nodes: int, processes: int) -> list[tuple[int, int]]:
    """Return how nodes are divided among processes: first and behind the last of each."""
    return list(pairwise(nodes * place // processes for place in range(processes + 1)))
