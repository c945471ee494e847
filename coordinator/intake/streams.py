"""Where this coordinator stands in the stream of each node: what is new, what is there twice, what is missing.

No clock and no I/O; the protocol is `lockstep/contracts/delivery.py`. Frames of a node are taken in order only. A frame
that was taken waits until its records are settled: judged, rejected or counted lost. What is settled without a gap may
be committed; the store writes it together with what the runs know, and only then does an acknowledgement free it on
the node. A coordinator that is killed goes on where its store stands: what was not committed comes again.

A frame whose run has no room for it is not received, and its node is held until there is: what nodes have spooled in an
outage stays on their disks until those that are slower to come back have delivered as much.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from lockstep.contracts.delivery import FrameHeader, window_of
from lockstep.contracts.messages import Acknowledgement

NODES_MAX = 200_000
"""Streams that are followed; 16 times the largest cluster that is planned for. About 500 bytes each."""
RESEND_AFTER_S = 2.0
"""Least time between two requests for the same frame: a broker delivers what was in flight within it."""

SETTLED = "settled"
"""Outcome of records that reached their run: judged, or rejected by its timeline, which counts them by reason."""


class FrameVerdict(Enum):
    """What a frame is to its stream."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    GAP = "gap"
    AHEAD = "ahead"
    """Its turn, but of steps that its run cannot hold yet: nodes that lag behind have to deliver first."""
    REFUSED = "refused"
    """Of a stream that its node has not announced."""


class Pending(Protocol):
    """Records that may still wait to be judged."""

    @property
    def is_settled(self) -> bool:
        """Whether none of them waits any more."""


class _Held:
    """Records that wait until their holder settles them."""

    is_settled = False


_HELD = _Held()


class Receipt:
    """A frame that was taken. Once it is settled, its records are counted by outcome."""

    __slots__ = ("_pending", "outcomes", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.outcomes: dict[str, int] = {}
        self._pending: Pending | None = None

    @property
    def is_settled(self) -> bool:
        """Whether none of its records waits any more."""
        return self._pending is None or self._pending.is_settled

    def hold(self) -> None:
        """Wait until `settle` or `wait_for`."""
        self._pending = _HELD

    def wait_for(self, pending: Pending) -> None:
        """Be settled when `pending` is."""
        self._pending = pending

    def settle(self) -> None:
        """Be settled now."""
        self._pending = None


@dataclass(slots=True)
class _Stream:
    """`settled` <= `received`; `unsettled` are the receipts after `settled`, in order."""

    stream_id: int
    received: int = 0
    settled: int = 0
    committed: int = 0
    unsettled: deque[Receipt] = field(default_factory=deque)
    acknowledged: tuple[int, int] = (-1, -1)
    resend_asked: tuple[int, float] = (-1, float("-inf"))
    is_held: bool = False
    """Whether its node is to send nothing, because its next frame has no room."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a node's stream."""

    stream_id: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What may be committed at one moment: offsets that moved by node, and records by outcome since the beginning."""

    offsets: Mapping[str, StreamOffset]
    ledger: Mapping[str, int]


class Streams:
    """All nodes' streams. `offsets` and `ledger` are what an earlier coordinator committed."""

    def __init__(
        self,
        coordinator: str,
        incarnation: int,
        offsets: Mapping[str, StreamOffset] | None = None,
        ledger: Mapping[str, int] | None = None,
    ) -> None:
        self.frames: Counter[str] = Counter({verdict.value: 0 for verdict in FrameVerdict})
        self._coordinator = coordinator
        self._incarnation = incarnation
        self._ledger: Counter[str] = Counter(ledger or {})
        self._moved: set[str] = set()
        self._streams: dict[str, _Stream] = {}
        self._orphans: list[Receipt] = []  # of streams that their node has left behind
        for node, offset in (offsets or {}).items():
            at = offset.sequence
            self._streams[node] = _Stream(offset.stream_id, received=at, settled=at, committed=at)

    def __len__(self) -> int:
        """How many nodes are followed."""
        return len(self._streams)

    def announce(self, node: str, stream_id: int) -> Acknowledgement | None:
        """Follow the stream that a node announces; return the acknowledgement it waits for, None beyond the limit."""
        stream = self._streams.get(node)
        if stream is None or stream.stream_id != stream_id:
            if stream is None and len(self._streams) >= NODES_MAX:
                return None
            if stream is not None:
                self._orphans += stream.unsettled
            stream = self._streams[node] = _Stream(stream_id)
            self._moved.add(node)
        return self._acknowledge(node, stream)

    def is_next(self, node: str, header: FrameHeader) -> bool:
        """Whether it is this frame's turn."""
        return self._verdict(node, header) is FrameVerdict.TAKEN

    def take(self, node: str, header: FrameHeader, *, has_capacity: bool = True) -> tuple[FrameVerdict, Receipt | None]:
        """Take a frame's place, unless its run has no room for it; its receipt counts nothing yet."""
        verdict, receipt = self._verdict(node, header), None
        if verdict is FrameVerdict.TAKEN and not has_capacity:
            verdict = FrameVerdict.AHEAD
            self._streams[node].is_held = True
        elif verdict is FrameVerdict.TAKEN:
            stream, receipt = self._streams[node], Receipt(header.last)
            stream.received, stream.is_held = header.last, False
            stream.unsettled.append(receipt)
        self.frames[verdict.value] += 1
        return verdict, receipt

    def _verdict(self, node: str, header: FrameHeader) -> FrameVerdict:
        stream = self._streams.get(node)
        if stream is None or stream.stream_id != header.stream_id:
            return FrameVerdict.REFUSED
        if header.last <= stream.received:
            return FrameVerdict.DUPLICATE
        # A lost frame that begins before its turn counts records twice: what is asked for again begins where it should.
        return FrameVerdict.TAKEN if header.first == stream.received + 1 else FrameVerdict.GAP

    def resend(self, node: str, now_s: float) -> Acknowledgement | None:
        """Return the request for what is missing of a node's stream, None where it was made a moment ago.

        A node that is held is asked to wait instead.
        """
        stream = self._streams.get(node)
        if stream is None:
            return None
        received, asked_s = stream.resend_asked
        if received == stream.received and now_s - asked_s < RESEND_AFTER_S:
            return None
        stream.resend_asked = (stream.received, now_s)
        return self._acknowledge(node, stream, resend=not stream.is_held)

    def resume(self, node: str) -> Acknowledgement | None:
        """Hold a node no longer; return the request for what it sent too early."""
        stream = self._streams.get(node)
        if stream is None:
            return None
        stream.is_held = False
        return self._acknowledge(node, stream, resend=True)

    def settle(self) -> Commit:
        """Count what is settled by now, and return what may be committed; call it where runs' memories are taken.

        Between this and the memories of the runs nothing may be judged: they speak of the same moment.
        """
        for node, stream in self._streams.items():
            unsettled = stream.unsettled
            while unsettled and unsettled[0].is_settled:
                receipt = unsettled.popleft()
                stream.settled = receipt.sequence
                self._ledger.update(receipt.outcomes)
            if stream.settled != stream.committed:
                self._moved.add(node)
        self._count_orphans()
        offsets = {
            node: StreamOffset(stream.stream_id, stream.settled)
            for node in self._moved
            for stream in (self._streams[node],)
        }
        self._moved = set()
        return Commit(offsets=offsets, ledger=dict(self._ledger))

    def committed(self, commit: Commit) -> None:
        """Note that the store has written `commit`."""
        for node, offset in commit.offsets.items():
            stream = self._streams.get(node)
            if stream is not None and stream.stream_id == offset.stream_id:
                stream.committed = max(stream.committed, offset.sequence)

    def failed(self, commit: Commit) -> None:
        """Note that the store could not write `commit`: the next one covers it."""
        self._moved |= commit.offsets.keys()

    def acknowledgements(self) -> list[Acknowledgement]:
        """Return the acknowledgements of all nodes whose offset changed since theirs."""
        return [
            self._acknowledge(node, stream)
            for node, stream in self._streams.items()
            if stream.acknowledged != (stream.received, stream.committed)
        ]

    def forget_acknowledgements(self) -> None:
        """Acknowledge everything again: what was sent before a connection broke may be lost."""
        for stream in self._streams.values():
            stream.acknowledged = (-1, -1)

    def offsets(self) -> dict[str, dict[str, int]]:
        """Return where each node's stream stands, by node."""
        return {
            node: {
                "stream_id": stream.stream_id,
                "received": stream.received,
                "settled": stream.settled,
                "committed": stream.committed,
            }
            for node, stream in sorted(self._streams.items())
        }

    @property
    def ledger(self) -> dict[str, int]:
        """Records by outcome, over all coordinators that used this store."""
        return dict(self._ledger)

    @property
    def unsettled(self) -> int:
        """Frames that were taken and are not settled."""
        return sum(len(stream.unsettled) for stream in self._streams.values())

    def _count_orphans(self) -> None:
        if self._orphans:
            for receipt in self._orphans:
                if receipt.is_settled:
                    self._ledger.update(receipt.outcomes)
            self._orphans = [receipt for receipt in self._orphans if not receipt.is_settled]

    def _acknowledge(self, node: str, stream: _Stream, *, resend: bool = False) -> Acknowledgement:
        stream.acknowledged = (stream.received, stream.committed)
        window_messages, window_bytes = window_of(len(self._streams))
        return Acknowledgement(
            node=node,
            coordinator=self._coordinator,
            incarnation=self._incarnation,
            stream_id=stream.stream_id,
            received=stream.received,
            committed=stream.committed,
            resend=resend,
            hold=stream.is_held,
            window_messages=window_messages,
            window_bytes=window_bytes,
        )
