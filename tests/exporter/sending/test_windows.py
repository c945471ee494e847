"""Many nodes, one coordinator, and a broker between them that drops what its queue cannot hold: no clock, no I/O."""

from collections import deque
from dataclasses import dataclass, field

import pytest

from coordinator.intake.streams import Streams
from exporter.sending.coordinators import Coordinators
from lockstep.contracts import delivery
from lockstep.contracts.delivery import FrameHeader

SECOND_NS = 10**9
STREAM = 7
SIZE_BYTES = 1500
QUEUE_MESSAGES = 400


@dataclass
class Queue:
    """What the broker holds for the coordinator; `dropped` counts what it had no room for."""

    frames: deque[tuple[str, FrameHeader | None]] = field(default_factory=deque)
    dropped: int = 0

    def put(self, node: str, header: FrameHeader | None) -> None:
        """Take a frame, or a heartbeat."""
        if len(self.frames) >= QUEUE_MESSAGES:
            self.dropped += 1
        else:
            self.frames.append((node, header))


@dataclass
class Fleet:
    """`nodes` that each have another message a second, and the coordinator's view of their streams."""

    nodes: int
    queue: Queue = field(default_factory=Queue)
    resent: int = 0

    def __post_init__(self) -> None:
        self.streams = Streams("c1", 1)
        self.senders = {
            f"n{index}": Coordinators(stream_id=STREAM, freed=0, last=0, forget_ns=3600 * SECOND_NS)
            for index in range(self.nodes)
        }
        for node in self.senders:
            self.streams.announce(node, STREAM)

    def run(self, *, seconds: range, messages: int, takes: int) -> None:
        """Let each node send what it has of `messages`; the coordinator takes so many a second and acknowledges.

        One that takes none does nothing at all.
        """
        for second in seconds:
            now_ns = (60 + second) * SECOND_NS
            for node, sender in self.senders.items():
                if second == 0:
                    sender.acknowledge(self.streams.announce(node, STREAM), now_ns)
                elif second % 10 == 0:
                    self.queue.put(node, None)
                sender.tick(now_ns)
                while (sender.next_sequence or messages + 1) <= messages and sender.may_send(SIZE_BYTES, now_ns):
                    sequence = sender.next_sequence
                    self.resent += sender.note_sent(sequence, SIZE_BYTES, now_ns)
                    self.queue.put(node, FrameHeader(STREAM, sequence, sequence, 1))
            for _ in range(min(takes, len(self.queue.frames))):
                node, header = self.queue.frames.popleft()
                if header is None:
                    self.senders[node].acknowledge(self.streams.announce(node, STREAM), now_ns)
                    continue
                verdict, _ = self.streams.take(node, header)
                if verdict.value == "gap" and (asked := self.streams.resend(node, second)) is not None:
                    self.senders[node].acknowledge(asked, now_ns)
            for acknowledgement in self.streams.acknowledgements() if takes else ():
                self.senders[acknowledgement.node].acknowledge(acknowledgement, now_ns)

    @property
    def received(self) -> set[int]:
        return {position["received"] for position in self.streams.offsets().values()}


@pytest.fixture(autouse=True)
def _small_queue(monkeypatch):
    monkeypatch.setattr(delivery, "BROKER_QUEUE_MESSAGES", QUEUE_MESSAGES)


def test_a_coordinator_that_stalls_finds_every_message_in_the_broker():
    """50 nodes with a minute of messages each: their windows fit the queue, so nothing is dropped and sent again."""
    fleet = Fleet(50)
    fleet.run(seconds=range(30), messages=60, takes=0)
    assert sum(header is not None for _, header in fleet.queue.frames) == QUEUE_MESSAGES // 2
    fleet.run(seconds=range(30, 130), messages=60, takes=60)
    assert fleet.received == {60}
    assert (fleet.queue.dropped, fleet.streams.frames["gap"], fleet.resent) == (0, 0, 0)


def test_a_coordinator_too_slow_for_its_nodes_loses_no_time_with_repeated_messages():
    """It takes half of what 50 nodes produce: whatever it takes is new, so it gets as far as it can."""
    fleet = Fleet(50)
    for second in range(200):
        fleet.run(seconds=range(second, second + 1), messages=second + 1, takes=25)
    assert sum(position["received"] for position in fleet.streams.offsets().values()) == fleet.streams.frames["taken"]
    assert fleet.streams.frames["taken"] >= 190 * 20  # five of 25 are heartbeats
    assert fleet.queue.dropped == 0
    assert fleet.streams.frames["gap"] == 0
