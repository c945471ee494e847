"""The coordinator's offset in each node's stream of frames: which frame is new, a duplicate, or follows a gap.

No clock and no I/O; `lockstep/contracts/delivery.py` defines the protocol. The frames of a node are accepted in order
only. An accepted frame waits until its records are settled: evaluated, rejected or counted as lost. The settled prefix
of a stream may be committed. The store writes the offset together with the state of the runs, and only then does an
acknowledgement free the frames on the node. A coordinator that is killed resumes where its store stands: nodes send
again what was not committed.

If a frame's run has no room for it, the frame is not accepted and its node is put on hold until there is room. Records
spooled in an outage thus stay on the nodes' disks until slower nodes have delivered as much.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from lockstep.contracts.delivery import FrameHeader, window_of
from lockstep.contracts.messages import Acknowledgement

NODES_MAX = 200_000
"""Limit of streams, 16 times the largest planned cluster. Each takes about 500 bytes."""
RESEND_AFTER_S = 2.0
"""Least time between two requests for the same frame: a broker delivers frames in flight within this time."""

SETTLED = "settled"
"""Outcome of records that reached their run: evaluated, or rejected by its timeline, which counts them by reason."""


class FrameVerdict(Enum):
    """How a frame relates to its stream."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    GAP = "gap"
    AHEAD = "ahead"
    """Next in order, but its run cannot hold its steps yet: slower nodes have to deliver first."""
    REFUSED = "refused"
    """The node has not announced this stream."""


class PendingRecords(Protocol):
    """Records that may still wait to be evaluated."""

    @property
    def is_settled(self) -> bool:
        """Return whether none of them waits any longer."""


class _HeldRecords:
    """Placeholder for records that wait until their holder settles them."""

    is_settled = False


_HELD = _HeldRecords()


class Receipt:
    """Receipt for an accepted frame. Once it is settled, its records are counted by outcome."""

    __slots__ = ("_pending", "outcomes", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.outcomes: dict[str, int] = {}
        self._pending: PendingRecords | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether none of its records waits any longer."""
        return self._pending is None or self._pending.is_settled

    def hold(self) -> None:
        """Mark as unsettled until `settle` or `wait_for` is called."""
        self._pending = _HELD

    def wait_for(self, pending: PendingRecords) -> None:
        """Become settled when `pending` is."""
        self._pending = pending

    def settle(self) -> None:
        """Mark as settled."""
        self._pending = None


@dataclass(slots=True)
class _Stream:
    """Offsets of one stream. `settled` <= `received`; `unsettled` are the receipts after `settled`, in order."""

    stream_id: int
    received: int = 0
    settled: int = 0
    committed: int = 0
    unsettled: deque[Receipt] = field(default_factory=deque)
    acknowledged: tuple[int, int] = (-1, -1)
    resend_asked: tuple[int, float] = (-1, float("-inf"))
    is_held: bool = False
    """Whether its node must stop sending, because the run has no room for the next frame."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a node's stream."""

    stream_id: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What may be committed at one moment: changed offsets by node, and total records by outcome."""

    offsets: Mapping[str, StreamOffset]
    ledger: Mapping[str, int]


class Streams:
    """The streams of all nodes. `offsets` and `ledger` are what an earlier coordinator committed."""

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
        self._orphans: list[Receipt] = []  # receipts of streams that their node has replaced
        for node, offset in (offsets or {}).items():
            at = offset.sequence
            self._streams[node] = _Stream(offset.stream_id, received=at, settled=at, committed=at)

    def __len__(self) -> int:
        """Return the number of streams."""
        return len(self._streams)

    def announce(self, node: str, stream_id: int) -> Acknowledgement | None:
        """Follow the stream that a node announces; return the acknowledgement it waits for; None beyond the limit."""
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
        """Return whether this frame is the next one of its stream."""
        return self._verdict(node, header) is FrameVerdict.TAKEN

    def take(self, node: str, header: FrameHeader, *, has_capacity: bool = True) -> tuple[FrameVerdict, Receipt | None]:
        """Accept a frame if it is the next one and its run has capacity.

        Return the verdict and, if accepted, a receipt.
        """
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
        # A frame that overlaps the offset would count records twice; a resent one begins at the offset.
        return FrameVerdict.TAKEN if header.first == stream.received + 1 else FrameVerdict.GAP

    def resend(self, node: str, now_s: float) -> Acknowledgement | None:
        """Return a request to resend the missing frames of a node; None if one was made less than `RESEND_AFTER_S` ago.

        A node on hold is asked to wait instead.
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
        """Release a node from hold; return the request to resend the frames that it sent too early."""
        stream = self._streams.get(node)
        if stream is None:
            return None
        stream.is_held = False
        return self._acknowledge(node, stream, resend=True)

    def settle(self) -> Commit:
        """Count what is settled by now, and return what may be committed.

        Call it together with saving the state of the runs, with no evaluation in between: both must describe the same
        moment.
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
        """Note that the store could not write `commit`; the next commit covers it."""
        self._moved |= commit.offsets.keys()

    def acknowledgements(self) -> list[Acknowledgement]:
        """Return acknowledgements for all nodes whose offset changed since their last one."""
        return [
            self._acknowledge(node, stream)
            for node, stream in self._streams.items()
            if stream.acknowledged != (stream.received, stream.committed)
        ]

    def forget_acknowledgements(self) -> None:
        """Acknowledge every stream again: acknowledgements sent before a connection broke may be lost."""
        for stream in self._streams.values():
            stream.acknowledged = (-1, -1)

    def offsets(self) -> dict[str, dict[str, int]]:
        """Return the offsets of each stream, by node."""
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
        """Return records by outcome, over all coordinators that used this store."""
        return dict(self._ledger)

    @property
    def unsettled(self) -> int:
        """Return the number of accepted frames that are not settled."""
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
