"""One node's end of the delivery protocol (`lockstep/contracts/delivery.py`): which message goes next, which may go.

No clock, no I/O. The spool is a queue of entries whose meaning is the caller's; nothing is ever dropped from it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.contracts.messages import Acknowledgement

T = TypeVar("T")

WINDOW_MESSAGES = 64
LIVE_S = 30.0
TAIL_S = 10.0


@dataclass(slots=True)
class _Coordinator:
    incarnation: int
    received: int
    committed: int
    seen_s: float
    moved_s: float
    in_session: bool = True


class Delivery(Generic[T]):
    """`entries` are numbered from `first` on; `next` is the one that is sent next, beyond the last where all were."""

    __slots__ = ("_coordinators", "entries", "first", "next", "sent", "stream_id")

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.entries: deque[T] = deque()
        self.first = 1
        self.next = 1
        self.sent = 0
        self._coordinators: dict[str, _Coordinator] = {}

    @property
    def last(self) -> int:
        """Sequence of the last message; `first - 1` where there is none."""
        return self.first + len(self.entries) - 1

    def entry(self) -> T:
        """Return the message that goes next."""
        return self.entries[self.next - self.first]

    def begin_session(self) -> None:
        """Send nothing until a coordinator has acknowledged in this session."""
        for known in self._coordinators.values():
            known.in_session = False

    def can_send(self, now_s: float) -> bool:
        """Whether the next message may go now; the caller has none under way."""
        if self.next > self.last:
            return False
        live = [known for known in self._coordinators.values() if known.in_session and now_s - known.seen_s < LIVE_S]
        if not live:
            return False
        received = min(known.received for known in live)
        return self.next <= max(received, self.first - 1) + WINDOW_MESSAGES

    def note_sent(self) -> None:
        """Take note that the broker has the message that was next."""
        self.sent = max(self.sent, self.next)
        self.next += 1

    def acknowledge(self, message: Acknowledgement, now_s: float) -> None:
        """Take an acknowledgement: free what is committed everywhere, and go back to what is missing."""
        if message.stream_id != self.stream_id:
            return
        known = self._coordinators.get(message.coordinator)
        is_new = known is None or not known.in_session or known.incarnation != message.incarnation
        moved_s = now_s
        if known is not None and not is_new and known.received == message.received:
            moved_s = known.moved_s
        self._coordinators[message.coordinator] = _Coordinator(
            message.incarnation, message.received, message.committed, now_s, moved_s
        )
        if message.resend or is_new:
            self._rewind(message.received)
        committed = min(known.committed for known in self._coordinators.values())
        while self.first <= committed and self.entries:
            self.entries.popleft()
            self.first += 1
        self.next = max(self.next, self.first)

    def look_for_lost_tail(self, now_s: float) -> None:
        """Send again what a coordinator has not received for long: nothing came after it that would show the gap."""
        for known in self._coordinators.values():
            is_live = known.in_session and now_s - known.seen_s < LIVE_S
            if is_live and known.received < self.next - 1 and now_s - known.moved_s >= TAIL_S:
                known.moved_s = now_s
                self._rewind(known.received)

    def _rewind(self, received: int) -> None:
        self.next = min(self.next, max(received + 1, self.first))
