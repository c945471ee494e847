"""Tracks each coordinator's offsets in this node's stream: what may be sent next, and what may be freed.

There is no I/O and no clock here: times are arguments, CLOCK_MONOTONIC ns. `publisher.py` passes acknowledgements in
and queries the state.

A coordinator is *known* while its last acknowledgement is at most `forget_ns` old; what it has not committed is kept.
It is *live* while it has acknowledged in this session and within the last 30 s; sending waits for it.

The send offset goes back to just after what a coordinator has received (go-back-N) in three cases: the coordinator
shows its offsets for the first time in this session or since it was started; it requests that; or it acknowledges the
same offsets for 10 s although more was sent, which is how the loss of the newest messages shows. That timeout doubles
while resending does not help (as in RFC 6298, 5.5), so that a thousand nodes do not keep an overloaded coordinator busy
with duplicates. A coordinator that acknowledges nothing shows no loss: duplicates would only fill the broker's queue
until it continues.

While a live coordinator *holds* because it has no capacity, nothing is sent and no timeout runs; sending then continues
where it stopped. Beyond what a live coordinator has received, at most the window that it granted is in flight.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lockstep.contracts.delivery import WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import Acknowledgement
from lockstep.contracts.paths import is_name

_SECOND_NS = 10**9
LIVE_NS = 30 * _SECOND_NS  # three of our heartbeats, each of which a coordinator answers
RESEND_NS = 10 * _SECOND_NS  # ten acknowledgements
_RESEND_DOUBLINGS_MAX = 5  # 320 s
KNOWN_MAX = 16  # a pair is usual; each one retains messages


@dataclass(slots=True)
class _CoordinatorOffsets:
    """One coordinator; `unmoved_ns` is when `received` last moved while more was sent, None if nothing more was."""

    seen_ns: int
    received: int
    committed: int
    incarnation: int = 0
    is_holding: bool = False
    in_session: bool = False
    unmoved_ns: int | None = None
    timeouts: int = 0
    window_messages: int = WINDOW_MESSAGES_MAX
    window_bytes: int = WINDOW_BYTES_MAX


class Coordinators:
    """Offsets of all known coordinators and of the publisher in one stream.

    `next_sequence` is the send offset, None until a coordinator has acknowledged in this session.
    """

    def __init__(
        self, *, stream_id: int, freed: int, last: int, forget_ns: int, seen_ns: Mapping[str, int] | None = None
    ) -> None:
        self.next_sequence: int | None = None
        self.acknowledged_ns: int | None = None  # when the last acknowledgement came
        self._stream_id = stream_id
        self._sent = last  # the last message that this process or an earlier one may have sent
        self._forget_ns = forget_ns
        self._coordinators = {name: _CoordinatorOffsets(seen, freed, freed) for name, seen in (seen_ns or {}).items()}
        self._in_flight: deque[tuple[int, int]] = (
            deque()
        )  # (last sequence, bytes) of frames behind the live coordinators

    @property
    def seen_ns(self) -> dict[str, int]:
        """Return when each known coordinator last acknowledged."""
        return {name: offsets.seen_ns for name, offsets in self._coordinators.items()}

    def begin_session(self) -> None:
        """Start a new connection: nothing is sent before a coordinator acknowledges in it."""
        self.next_sequence = None
        self._in_flight.clear()
        for offsets in self._coordinators.values():
            offsets.in_session = False
            offsets.unmoved_ns = None

    def acknowledge(self, ack: Acknowledgement, now_ns: int) -> None:
        """Update a coordinator's offsets.

        Raises
        ------
        MalformedError
            The offsets are impossible; nothing has changed.
        """
        self._check(ack)
        offsets = self._coordinators.setdefault(ack.coordinator, _CoordinatorOffsets(now_ns, 0, 0))
        is_first = not offsets.in_session or ack.incarnation != offsets.incarnation
        has_released = offsets.is_holding and not ack.hold
        if is_first or ack.received != offsets.received:
            offsets.unmoved_ns = now_ns
        if ack.received > offsets.received:
            offsets.timeouts = 0
        offsets.seen_ns = self.acknowledged_ns = now_ns
        offsets.received, offsets.committed = ack.received, ack.committed
        offsets.window_messages, offsets.window_bytes = ack.window_messages, ack.window_bytes
        offsets.incarnation, offsets.in_session, offsets.is_holding = ack.incarnation, True, ack.hold
        if has_released:
            offsets.unmoved_ns, offsets.timeouts = now_ns, 0
        if is_first or ack.resend or has_released:
            self.rewind(ack.received + 1)
        if not self._lacks(offsets):
            offsets.unmoved_ns = None

    def tick(self, now_ns: int) -> None:
        """Forget coordinators that have long been silent, and resend to those that make no progress."""
        silent = [name for name, each in self._coordinators.items() if now_ns - each.seen_ns > self._forget_ns]
        for name in silent:
            del self._coordinators[name]
        for offsets in self._live(now_ns):
            patience_ns = RESEND_NS << min(offsets.timeouts, _RESEND_DOUBLINGS_MAX)
            if offsets.is_holding or offsets.unmoved_ns is None or not self._lacks(offsets):
                continue
            if offsets.seen_ns - offsets.unmoved_ns >= patience_ns:
                offsets.timeouts += 1
                offsets.unmoved_ns = now_ns
                self.rewind(offsets.received + 1)

    def rewind(self, sequence: int) -> None:
        """Continue sending from `sequence`, if the send offset is beyond it."""
        if self.next_sequence is None or sequence < self.next_sequence:
            self.next_sequence = sequence
        while self._in_flight and self._in_flight[-1][0] >= sequence:
            self._in_flight.pop()

    def may_send(self, size_bytes: int, now_ns: int) -> bool:
        """Whether a frame of this size fits every window, and no coordinator holds; one may always be in flight."""
        live = list(self._live(now_ns))
        if self.next_sequence is None or not live or any(offsets.is_holding for offsets in live):
            return False
        received = [offsets.received for offsets in live]
        while self._in_flight and self._in_flight[0][0] <= min(received):
            self._in_flight.popleft()
        return not self._in_flight or (
            len(self._in_flight) < min(offsets.window_messages for offsets in live)
            and size_bytes + sum(b for _, b in self._in_flight) <= min(offsets.window_bytes for offsets in live)
        )

    def note_sent(self, last: int, size_bytes: int, now_ns: int) -> bool:
        """Move the send offset past a frame that ends with `last`; return whether it was sent before."""
        self.next_sequence = last + 1
        self._in_flight.append((last, size_bytes))
        for offsets in self._coordinators.values():
            if offsets.in_session and offsets.unmoved_ns is None and offsets.received < last:
                offsets.unmoved_ns = now_ns
        is_resent = last <= self._sent
        self._sent = max(self._sent, last)
        return is_resent

    def received(self) -> int | None:
        """Return the last message that every known coordinator has received, or None if none is known."""
        return min((offsets.received for offsets in self._coordinators.values()), default=None)

    def committed(self) -> int | None:
        """Return the last message that every known coordinator has committed, or None if none is known."""
        return min((offsets.committed for offsets in self._coordinators.values()), default=None)

    def lost_frame_end(self, first: int, last: int) -> int:
        """Return where a lost frame that begins at `first` must end: at `last`, or before at a coordinator's offset.

        A coordinator counts all records of a lost frame or none.
        """
        inside = (offsets.received for offsets in self._coordinators.values() if offsets.in_session)
        return min((received for received in inside if first <= received < last), default=last)

    def _live(self, now_ns: int) -> Iterator[_CoordinatorOffsets]:
        for offsets in self._coordinators.values():
            if offsets.in_session and now_ns - offsets.seen_ns <= LIVE_NS:
                yield offsets

    def _lacks(self, offsets: _CoordinatorOffsets) -> bool:
        return self.next_sequence is not None and offsets.received < self.next_sequence - 1

    def _check(self, ack: Acknowledgement) -> None:
        where = f"acknowledgement of {ack.coordinator:.128}"
        if not is_name(ack.coordinator):
            raise MalformedError("coordinator", where=where, got=ack.coordinator, expected="a name")
        if ack.stream_id != self._stream_id:
            raise MalformedError("stream_id", where=where, got=ack.stream_id, expected=self._stream_id)
        if not 0 <= ack.committed <= ack.received <= self._sent:
            raise MalformedError(
                "offsets", where=where, got=(ack.committed, ack.received), expected=f"0 to {self._sent}, in order"
            )
        if ack.coordinator not in self._coordinators and len(self._coordinators) >= KNOWN_MAX:
            raise MalformedError("coordinator", where=where, got="another one", expected=f"at most {KNOWN_MAX}")
