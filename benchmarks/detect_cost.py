"""What a step costs the coordinator, by number of ranks: `python -m benchmarks.detect_cost [--ranks 8 1024]`.

Each step arrives on a socket as an MQTT 5 stream, a QoS 1 message for every 8 ranks, nodes in no order. It is read and
acknowledged, placed in its node's stream, decoded, coalesced, placed in the timeline and evaluated, all as in the live
coordinator, and by its code. Columns: medians in CPU ms of one core of `transport` (socket to topic and payload, and
back the PUBACK), `decode` (to batches in their streams), `ingest` (batches to the laid out step), `detect` and the
`total` of the four, the total's 95th percentile, and wall ms; us a message of all but detection, and ns a rank of
detection, which stay as they are where growth is linear; `x add`, the total in passes of `numpy.add` over one number of
each rank, timed with every step, which a busy machine slows as well; `restart`, ms of receiving the first step of
another attempt of all ranks; bytes of detector state per rank, and those of the last rows, which are kept to be shown.

Cases: a healthy step and one with 1 % of the ranks slow, in batches that hold what a step log holds; and a healthy step
with all columns that an exporter sends of a job on devices, most of which nothing here reads: that has no budget.

Returns 1 where a budget is missed by the median.
"""

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mqtt5
import numpy as np

from benchmarks.scenarios.job import Fault, Interruptions, Noise, Scenario
from benchmarks.scenarios.model import generate
from benchmarks.scenarios.recording import RANKS_PER_NODE, START_UNIX_S, Recording
from coordinator.detect.detector import Detector
from coordinator.intake.coalescer import BatchCoalescer
from coordinator.intake.streams import Receipt, Streams
from coordinator.intake.timeline import StepRow, StepTimeline
from coordinator.settings.policy import Policy
from lockstep.contracts import topics
from lockstep.contracts.codec import decode_parsed, encode
from lockstep.contracts.delivery import FrameHeader, pack_frame, unpack_frame
from lockstep.contracts.messages import StepBatch
from lockstep.contracts.rows import RANK, SEPARATOR
from lockstep.serving.mqtt_session import MqttSession

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = {8: "dp=8", 1024: "tp=8,pp=4,dp=32", 10_240: "tp=8,pp=8,dp=160", 102_400: "tp=8,pp=8,dp=1600"}
DETECT_BUDGET_MS = {10_240: 2.0, 102_400: 10.0}
TOTAL_BUDGET_MS = {10_240: 60.0, 102_400: 600.0}
STATE_BUDGET_BYTES = 64
_MANY = 10_240  # ranks from which state that does not grow with them no longer counts
CASES = (("healthy", False, False), ("1 % slow", True, False), ("all columns", False, True))
"""Name, whether ranks are slow, whether batches hold all columns."""
STEPS = 48
WARM_UP_STEPS = 28  # noise is learnt and the slow ranks are named
FAULT_STEP = 22
STAGES = ("transport", "decode", "ingest", "detect")
_READ_BYTES = 64 << 10  # of the stream at once: less than the buffer of a socket pair
_PACKET_IDS = 65_535
_NS = 1_000_000_000
_OTHER_COLUMNS = (
    *("gc_count", "gc_full_count", "samples", "model_flops"),
    *("recompilations", "agent_ns", "device_step_ns", "device_comm_ns", "host_lead_ns"),
)
"""What an exporter sends besides; of it, only whether there is a device is read here."""


@dataclass(slots=True)
class Spent:
    """CPU ms of each measured step by stage, and wall ms of all of it."""

    stage_ms: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    wall_ms: list[float] = field(default_factory=list)
    add_ms: list[float] = field(default_factory=list)
    restart_ms: float = 0.0
    state_bytes: int = 0
    shown_bytes: int = 0

    @property
    def total_ms(self) -> "NDArray[np.float64]":
        """All stages together, step by step."""
        return np.sum(list(self.stage_ms.values()), axis=0)


class SocketTransport(asyncio.Transport):
    """Writes to a socket at once, as asyncio's own transport does while the peer reads."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: nothing is buffered here."""

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing is buffered here."""
        return 0

    def abort(self) -> None:
        """End nothing: `Receiver.close` closes the socket."""


class Receiver:
    """The way of a step from a socket into a timeline, with the CPU ms that each stage has taken in `spent_ms`."""

    def __init__(self, timeline: StepTimeline) -> None:
        self.spent_ms = dict.fromkeys(STAGES, 0.0)
        self._timeline = timeline
        self._coalescer = BatchCoalescer(self._ingest)
        self._broker, self._socket = socket.socketpair()
        self._messages: list[tuple[str, bytes]] = []
        self._streams = Streams("cost", 1)
        self._rows: list[StepRow] = []
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(self._open())
        self._broker.recv(_READ_BYTES)

    async def _open(self) -> MqttSession:
        session = MqttSession("socketpair", lambda topic, payload: self._messages.append((topic, payload)), 1 << 24)
        session.connection_made(SocketTransport(self._socket))
        opened = asyncio.ensure_future(session.open(mqtt5.ConnectPacket("cost").write()))
        await asyncio.sleep(0)
        session.data_received(mqtt5.ConnAckPacket().write())
        await opened
        return session

    def close(self) -> None:
        """Close the session, both ends of the socket and the event loop."""
        self._session.abort()
        self._loop.close()
        self._broker.close()
        self._socket.close()

    def _read(self) -> None:
        """Let the session handle what the socket holds, and write its acknowledgements."""
        self._loop.call_soon(self._session.data_received, self._socket.recv(_READ_BYTES))
        for _ in range(2):  # what is handled in one turn of the loop is written in the next
            self._loop.run_until_complete(asyncio.sleep(0))

    def _decode(self, topic: str, payload: bytes) -> tuple[StepBatch, Receipt]:
        parsed = topics.parse_topic(topic)
        header, body = unpack_frame(payload, where=topic)
        if header.first == 1:
            self._streams.announce(parsed.node, header.stream_id)
        _, receipt = self._streams.take(parsed.node, header)
        message = decode_parsed(parsed, topic, body)
        assert isinstance(message, StepBatch)
        assert receipt is not None
        return message, receipt

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add what happens inside to a stage."""
        begin = time.process_time()
        yield
        self.spent_ms[stage] += (time.process_time() - begin) * 1e3

    def receive(self, stream: bytes) -> list[StepRow]:
        """Return the steps that are complete after a stream of messages."""
        for first in range(0, len(stream), _READ_BYTES):
            self._broker.sendall(stream[first : first + _READ_BYTES])
            with self.timed("transport"):
                self._read()
            if self._messages:
                self._broker.recv(_READ_BYTES)
            with self.timed("decode"):
                batches = [self._decode(topic, payload) for topic, payload in self._messages]
            self._messages.clear()
            with self.timed("ingest"):
                for batch, receipt in batches:
                    self._coalescer.add(batch, receipt)
        with self.timed("ingest"):
            self._coalescer.flush()
            self._streams.settle()
        rows, self._rows = self._rows, []
        return rows

    def _ingest(self, batches: Sequence[StepBatch], receipts: Sequence[Receipt]) -> None:
        for receipt, pending in zip(receipts, self._timeline.ingest_all(batches, 0.0), strict=True):
            receipt.wait_for(pending)
        self._rows += self._timeline.ready(0.0)


def recorded(ranks: int, *, slow: int) -> Recording:
    """Return a job without pauses; `slow` ranks work 15 % longer from a step on."""
    faults = (Fault(cause="compute", ranks=tuple(range(slow)), ratio=0.15, begin=FAULT_STEP),) if slow else ()
    quiet = Interruptions(checkpoint_every=0, evaluation_every=0, missing=0.0)
    return generate(
        Scenario(
            name="cost",
            degrees=SHAPES[ranks],
            seed=1,
            steps=STEPS,
            noise=Noise(hiccup_rate=0.0),
            interruptions=quiet,
            faults=faults,
        )
    )


def batches_of(
    recording: Recording, row: int, *, step: int, later_s: int = 0, all_columns: bool = False
) -> list[StepBatch]:
    """Return one step as its nodes send it, in no order; all numbers are int64 on the wire."""
    ranks = recording.present.shape[1]
    duration_ns = np.rint(recording.duration_W * _NS).astype(np.int64)
    end_ns = (START_UNIX_S + later_s) * _NS + int(duration_ns[: row + 1].sum()) + recording.skew_ns_R
    parts = {f"{name}_ns": _ns(values[row]) for name, values in recording.parts.items()}
    waits = {f"{kind}_wait_ns": _ns(values[row]) for kind, values in recording.waits.items()}
    parts["compute_ns"] += duration_ns[row] - sum(parts.values()) - sum(waits.values())  # exact, whatever was rounded
    columns = {"step": np.full(ranks, step), "start_ns": end_ns - duration_ns[row], "end_ns": end_ns}
    columns |= {"flags": recording.flags[row], **parts, **waits, "tokens": recording.tokens[row].astype(np.int64)}
    columns |= {f"{kind}_bytes": moved for kind, moved in recording.moved.items()}
    columns |= {"forward_ns": parts["compute_ns"] // 3, "optimizer_ns": parts["compute_ns"] // 10}
    columns["backward_ns"] = parts["compute_ns"] - columns["forward_ns"] - columns["optimizer_ns"]
    columns["cpu_ns"] = duration_ns[row] - sum(waits.values()) - parts["data_ns"]
    for kind, transfer in recording.transfers.items():
        if all_columns or kind == "pp":
            columns |= {f"{kind}_count": np.full(ranks, 8), f"{kind}_shortest_ns": _ns(transfer[row] / 8)}
        if all_columns:
            columns |= {f"{kind}_{name}": np.full(ranks, 1000) for name in ("comm_ns", "bus_bytes")}
    if all_columns:
        columns |= {name: np.full(ranks, 1000) for name in _OTHER_COLUMNS}
    rows = np.stack([np.arange(ranks), *columns.values()], axis=1).astype("<i8")
    layout = SEPARATOR.join((RANK, *columns))
    order = np.random.default_rng(row).permutation(-(-ranks // RANKS_PER_NODE))
    return [_batch(layout, rows, node * RANKS_PER_NODE) for node in order.tolist()]


def _ns(seconds: "NDArray[np.float32]") -> "NDArray[np.int64]":
    return np.rint(seconds.astype(np.float64) * _NS).astype(np.int64)


def _batch(layout: str, rows: "NDArray[np.int64]", first: int) -> StepBatch:
    own = rows[first : first + RANKS_PER_NODE]
    return StepBatch(
        run="job",
        node=f"node{first // RANKS_PER_NODE}",
        sent_unix_ns=0,
        count=len(own),
        layout=layout,
        records=own.tobytes(),
    )


def stream_of(batches: Sequence[StepBatch], sequence: int) -> bytes:
    """Return batches, each at this place in its node's stream, as a broker sends them to a subscriber."""
    return b"".join(
        mqtt5.PublishPacket(
            topics.run_topic(batch.run, topics.STEPS, batch.node),
            pack_frame(FrameHeader(1, sequence, sequence, batch.count), encode(batch)),
            qos=mqtt5.QoS.AT_LEAST_ONCE,
            packet_id=1 + place % _PACKET_IDS,
        ).write()
        for place, batch in enumerate(batches)
    )


def measure(ranks: int, *, slow: int, all_columns: bool) -> Spent:
    """Return what the steps after warm-up cost."""
    recording = recorded(ranks, slow=slow)
    timeline = StepTimeline(Policy().timeline)
    timeline.know(list(range(ranks)))
    hosts = [f"node{rank // RANKS_PER_NODE}" for rank in range(ranks)]
    detector = Detector(timeline.ranks, recording.topology, Policy(), hosts=hosts)
    spent, receiver = Spent(), Receiver(timeline)
    for row in range(STEPS):
        stream = stream_of(batches_of(recording, row, step=row, all_columns=all_columns), row + 1)
        receiver.spent_ms = dict.fromkeys(STAGES, 0.0)
        begin_wall = time.perf_counter()
        (step,) = receiver.receive(stream)
        with receiver.timed("detect"):
            detector.evaluate(step)
        if row >= WARM_UP_STEPS:
            spent.wall_ms.append((time.perf_counter() - begin_wall) * 1e3)
            for stage, stage_ms in receiver.spent_ms.items():
                spent.stage_ms[stage].append(stage_ms)
            spent.add_ms.append(_add_ms(ranks))
    stream = stream_of(batches_of(recording, 0, step=0, later_s=3600, all_columns=all_columns), STEPS + 1)
    receiver.spent_ms = dict.fromkeys(STAGES, 0.0)
    (_,) = receiver.receive(stream)
    receiver.close()
    spent.restart_ms = sum(receiver.spent_ms.values())
    spent.shown_bytes = array_bytes(detector.recent_rows)
    spent.state_bytes = array_bytes(detector) - spent.shown_bytes
    return spent


def _add_ms(ranks: int) -> float:
    """Return what one pass of `numpy.add` over one number of each rank costs right now."""
    values = np.ones(ranks, dtype=np.float32)
    out = np.empty_like(values)
    begin = time.process_time()
    for _ in range(16):
        np.add(values, values, out=out)
    return (time.process_time() - begin) * 1e3 / 16


def array_bytes(root: object) -> int:
    """Return the memory of all arrays that an object reaches, each counted once, views with what they belong to."""
    return sum(array.nbytes for array in _arrays(root, set()))


def _arrays(value: object, seen: set[int]) -> "Iterator[NDArray[np.generic]]":
    if isinstance(value, np.ndarray):
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in seen:
            seen.add(id(owner))
            yield owner
        return
    if id(value) in seen or isinstance(value, str | bytes | type) or callable(value):
        return
    seen.add(id(value))
    for inner in _inside(value):
        yield from _arrays(inner, seen)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Iterator):
        return []
    if hasattr(value, "__iter__"):
        return list(value)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def report(ranks: int, case: str, spent: Spent, *, has_budget: bool) -> bool:
    """Print a row; return whether a budget is missed."""
    transport, decode, ingest, detect = (float(np.median(spent.stage_ms[stage])) for stage in STAGES)
    total, late = float(np.median(spent.total_ms)), float(np.percentile(spent.total_ms, 95))
    wall, add = float(np.median(spent.wall_ms)), float(np.median(spent.add_ms))
    message_us = (transport + decode + ingest) * 1e3 / -(-ranks // RANKS_PER_NODE)
    state = spent.state_bytes / ranks
    limits = (DETECT_BUDGET_MS.get(ranks), TOTAL_BUDGET_MS.get(ranks), STATE_BUDGET_BYTES if ranks >= _MANY else None)
    compared = [
        (value, limit if has_budget else None) for value, limit in zip((detect, total, state), limits, strict=True)
    ]
    texts = [_with_budget(value, limit) for value, limit in compared]
    print(
        f"{ranks:>7} {case:<11} {transport:>9.2f} {decode:>7.2f} {ingest:>8.2f} {texts[0]} {texts[1]} {late:>8.2f}"
        f" {wall:>8.2f} {message_us:>7.1f} {detect * 1e6 / ranks:>7.0f} {total / add:>7.0f} {spent.restart_ms:>8.1f}"
        f" {texts[2]} {spent.shown_bytes / ranks:>6.0f}",
        flush=True,
    )
    return any(limit is not None and value > limit for value, limit in compared)


def _with_budget(value: float, budget: float | None) -> str:
    text = "" if budget is None else f"/{budget:g}{'!' if value > budget else ''}"
    return f"{value:>8.2f}{text:<5}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a budget is missed by the median."""
    parser = argparse.ArgumentParser(description="Cost of a step in the coordinator, from the socket to the verdict.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parsed = parser.parse_args(arguments)
    print(
        f"{'ranks':>7} {'case':<11} {'transport':>9} {'decode':>7} {'ingest':>8} {'detect':>13} {'total':>13}"
        f" {'p95':>8} {'wall':>8} {'us/msg':>7} {'ns/rank':>7} {'x add':>7} {'restart':>8} {'state B':>13}"
        f" {'rows B':>6}"
    )
    over = False
    for ranks in parsed.ranks:
        for case, is_slow, all_columns in CASES:
            spent = measure(ranks, slow=max(1, ranks // 100) if is_slow else 0, all_columns=all_columns)
            over |= report(ranks, case, spent, has_budget=not all_columns)
    print("/ is the budget of a median, ! where it is missed")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
