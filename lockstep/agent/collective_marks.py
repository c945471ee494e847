"""HOT (budget 400 ns a mark): marks of collectives, waits and devices."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from lockstep.agent.descriptors import pwrite
from lockstep.agent.mark_block import LAST, STEP, MarkBlockWriter, ordinal_at, pack_mark
from lockstep.contracts import marks
from lockstep.contracts.marks import ORDINAL_MASK, MarkKind
from lockstep.contracts.ring import ISSUE_SLOTS, WORDS_PER_ISSUE_SLOT

_CALL_SITE_MAX, _PAYLOAD_BYTES_MAX = marks.CALL_SITE_MAX, marks.PAYLOAD_BYTES_MAX
_DETAIL_BITS, _SIZE_BITS, _SLOT_SHIFT = marks.DETAIL_BITS, marks.SIZE_BITS, marks.SLOT_SHIFT
_DETAIL_MASK = (1 << _DETAIL_BITS) - 1

# fmt: off
(
    _ISSUE, _DONE, _DONE_UNKNOWN, _EXPECT, _WAIT_BEGIN, _WAIT_END, _UNMEASURED, _UNMEASURED_BUS, _ISSUE_BUS,
) = (
    int(kind) for kind in (
        MarkKind.ISSUE, MarkKind.DONE, MarkKind.DONE_UNKNOWN, MarkKind.EXPECT, MarkKind.WAIT_BEGIN, MarkKind.WAIT_END,
        MarkKind.UNMEASURED, MarkKind.UNMEASURED_BUS, MarkKind.ISSUE_BUS,
    )
)  # struct packs plain integers in half the time
# fmt: on


class CollectiveMarks(MarkBlockWriter):
    """Marks of communication, which other threads than the training thread make as well.

    `done`, `done_unknown` and `expect` take the ordinal that `issue` returned: the collective has ended now, its end
    will not be known, or it will have ended when the next wait ends. `wait_begin` and `wait_end` enclose a wait for
    communication.
    """

    __slots__ = ("_end_in_flight", "done", "done_unknown", "expect", "wait_begin", "wait_end")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.done: Callable[[int], None] = self._mark_anywhere(_DONE)
        self.done_unknown: Callable[[int], None] = self._mark_anywhere(_DONE_UNKNOWN)
        self.expect: Callable[[int], None] = self._mark_anywhere(_EXPECT)
        self.wait_begin: Callable[[], None] = self._mark_anywhere(_WAIT_BEGIN)
        self.wait_end: Callable[[], None] = self._mark_anywhere(_WAIT_END)
        self._end_in_flight = self._in_flight_callback()

    def issue(self, call_site: int, payload_bytes: int) -> int | None:
        """Mark the issue of a collective, and count it in its issue slot.

        `call_site` is that of `marks.pack_call_site`. Returns the ordinal of the collective in the attempt, modulo
        2^32; None if the buffer is inert.

        Raises
        ------
        ValueError
            A call site that `pack_call_site` does not make, or a payload beyond PAYLOAD_BYTES_MAX.
        """
        if call_site | payload_bytes < 0 or call_site > _CALL_SITE_MAX or payload_bytes > _PAYLOAD_BYTES_MAX:
            raise ValueError(
                f"issue: got call site {call_site} and {payload_bytes} bytes, "
                f"expected 0 to {_CALL_SITE_MAX} and 0 to {_PAYLOAD_BYTES_MAX}"
            )
        kind = _ISSUE
        if get_ident() != self.thread:
            if not self.thread:
                return None
            kind |= marks.OTHER_THREAD
        detail, now = call_site & _DETAIL_MASK, self._clock()
        at = self._at  # one turn
        first = self._position
        ordinal = self._issued
        self._issued = ordinal + 1 & ORDINAL_MASK
        self._at = at + STEP
        pack_mark(self._block, at, now, kind, detail, ordinal, payload_bytes << _SIZE_BITS | call_site >> _DETAIL_BITS)
        if now >= self._due_ns or at >= LAST:
            self._store()
        slot = detail >> _SLOT_SHIFT
        word = slot * WORDS_PER_ISSUE_SLOT
        self._issue_words[word] += 1
        self._issue_words[word + 1] = now
        if pwrite(*self._issue_stores[slot]) < 0:
            self.failures += 1
        if self._device is not None:
            self._device(_ISSUE, detail, ordinal, ordinal_at(first, at))
        if self._wants_poll:
            self._poll()
        return ordinal

    def issue_bus(self, ordinal: int, bus_bytes: int) -> None:
        """Set the bytes of a collective over the slowest link, if its operator does not determine them."""
        self._append(_ISSUE_BUS, 0, ordinal, bus_bytes)

    def unmeasured(self, domain: int, count: int, payload_bytes: int, bus_bytes: int) -> None:
        """Count collectives that ran without being dispatched, e.g. in a replayed graph.

        `domain` is an index in DOMAIN_KINDS, or UNKNOWN_DOMAIN if neither domain nor counts are known.
        """
        self._append(_UNMEASURED, domain, count, payload_bytes)
        self._append(_UNMEASURED_BUS, domain, 0, bus_bytes)

    def clear_issues(self, slot: int) -> None:
        """Reset the count of an issue slot to 0, because another group uses it from now on.

        Raises
        ------
        ValueError
            The slot is not 0 to ISSUE_SLOTS - 1.
        """
        if not 0 <= slot < ISSUE_SLOTS:
            raise ValueError(f"issue slot: got {slot}, expected 0 to {ISSUE_SLOTS - 1}")
        if self.thread:
            word = slot * WORDS_PER_ISSUE_SLOT
            self._issue_words[word] = self._issue_words[word + 1] = 0
            if pwrite(*self._issue_stores[slot]) < 0:
                self.failures += 1

    def _in_flight_callback(self) -> Callable[[tuple[int, int], Any], None]:
        """Return what a future calls when it ends, bound to its key in `in_flight`."""
        buffer, done, in_flight = self, self.done, self.in_flight

        def end(key: tuple[int, int], _future: Any) -> None:
            attempt, ordinal = key
            if attempt == buffer._attempt:
                done(ordinal)
            in_flight.pop(key, None)  # a forked child has forgotten it

        return end

    def device_mark(self, kind: int, detail: int, subject: int, argument: int) -> int:
        """Append a mark of a device (MarkKind 40 and up); return its ordinal modulo 2^32, -1 if the buffer is inert."""
        number = self._append(kind, detail, subject, argument)
        return number & ORDINAL_MASK if number >= 0 else number
