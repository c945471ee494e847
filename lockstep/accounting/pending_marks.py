"""Marks of collectives and waits of the running step, kept as they came until it ends.

They are nearly all marks of a large step. One by one each costs as much as a mark that ends a span; at the step's end
there are enough of them for arrays (communication_arrays.py).
"""

import re

from lockstep.contracts.marks import MARK_BYTES, MARK_STRUCT, OTHER_THREAD, MarkKind

PENDING_MAX = 1 << 16
"""Marks that are kept, 1.5 MB; a step of more is interpreted bit by bit."""

_KINDS = (
    *(MarkKind.ISSUE, MarkKind.DONE, MarkKind.DONE_UNKNOWN, MarkKind.EXPECT, MarkKind.WAIT_BEGIN, MarkKind.WAIT_END),
    *(MarkKind.UNMEASURED, MarkKind.UNMEASURED_BUS, MarkKind.ISSUE_BUS),
)
COMMUNICATION_KINDS = frozenset((*map(int, _KINDS), *(kind | OTHER_THREAD for kind in _KINDS)))
OTHER_KIND = re.compile(b"[^" + re.escape(bytes(_KINDS)) + b"]", re.DOTALL)
"""Finds, among the low bytes of kinds, those that are not kept."""
KIND_AT = 8
"""Byte of a mark at which its kind begins."""
DEVICE_OTHER_KIND = re.compile(b"[^" + re.escape(bytes((*_KINDS, MarkKind.DEVICE_QUEUED))) + b"]", re.DOTALL)
"""The same for a rank with a device, which keeps DEVICE_QUEUED too."""
_DEVICE_EVENT = bytes((MarkKind.DEVICE_EVENT,))
_ISSUE, _WAIT_END = int(MarkKind.ISSUE), int(MarkKind.WAIT_END)
_THREAD_BYTES = bytes((0, OTHER_THREAD >> 8))

assert MARK_STRUCT.format.startswith("<QH")
assert max(MarkKind) < 1 << 8


def has_plain_kinds(marks: bytes) -> bool:
    """Whether all marks of a block have a kind of one byte, and besides at most OTHER_THREAD."""
    return not marks[KIND_AT + 1 :: MARK_BYTES].translate(None, _THREAD_BYTES)


def events_end(kinds: bytes, at: int) -> int:
    """Return where the DEVICE_EVENT marks end that begin at `at`, by the low bytes of kinds.

    As a part of DEVICE_OTHER_KIND they would make each search of it five times as long.
    """
    return len(kinds) - len(kinds[at:].lstrip(_DEVICE_EVENT))


class PendingMarks:
    """Marks of the running step in their order.

    `data`, and `runs` of (marks, whether they lie inside a backward, position in the attempt of the first one).
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.runs: list[tuple[int, bool, int]] = []

    def __len__(self) -> int:
        """Return the number of marks."""
        return len(self.data) // MARK_BYTES

    def add(self, marks: bytes, position: int, *, is_backward: bool) -> None:
        """Add marks, of `has_plain_kinds` and COMMUNICATION_KINDS or DEVICE_QUEUED, the first one at `position`."""
        self.data += marks
        count, runs = len(marks) // MARK_BYTES, self.runs
        if runs:
            before, was_backward, first = runs[-1]
            if first + before == position and was_backward == is_backward:
                runs[-1] = (before + count, is_backward, first)
                return
        runs.append((count, is_backward, position))

    def longest(self) -> int:
        """Return how many collectives or waits there may be, of any thread, the more frequent of both."""
        kinds = self.data[KIND_AT::MARK_BYTES]
        return max(kinds.count(_ISSUE), kinds.count(_WAIT_END))

    def has_ends(self) -> bool:
        """Return whether collectives may have ended, of this step or of one before."""
        kinds = self.data[KIND_AT::MARK_BYTES]
        return int(MarkKind.DONE) in kinds or int(MarkKind.DONE_UNKNOWN) in kinds

    def clear(self) -> None:
        """Forget them."""
        self.data = bytearray()
        self.runs = []
