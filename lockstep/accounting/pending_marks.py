"""Buffers the marks of collectives and waits of the running step, unchanged, until it ends.

They are nearly all marks of a large step. Handled one by one, each costs as much as a mark that ends a span. At the end
of the step there are enough of them for arrays (communication_arrays.py).
"""

import re

from lockstep.contracts.marks import MARK_BYTES, MARK_STRUCT, OTHER_THREAD, MarkKind

PENDING_MAX = 1 << 16
"""Limit of buffered marks, 1.5 MB; a step with more is handled piecewise."""

_KINDS = (
    *(MarkKind.ISSUE, MarkKind.DONE, MarkKind.DONE_UNKNOWN, MarkKind.EXPECT, MarkKind.WAIT_BEGIN, MarkKind.WAIT_END),
    *(MarkKind.UNMEASURED, MarkKind.UNMEASURED_BUS, MarkKind.ISSUE_BUS),
)
COMMUNICATION_KINDS = frozenset((*map(int, _KINDS), *(kind | OTHER_THREAD for kind in _KINDS)))
OTHER_KIND = re.compile(b"[^" + re.escape(bytes(_KINDS)) + b"]", re.DOTALL)
"""Matches, among the low bytes of kinds, those that are not buffered."""
KIND_AT = 8
"""Offset of the kind in a mark, bytes."""
DEVICE_OTHER_KIND = re.compile(b"[^" + re.escape(bytes((*_KINDS, MarkKind.DEVICE_QUEUED))) + b"]", re.DOTALL)
"""The same for a rank with a device, which also buffers DEVICE_QUEUED."""
_DEVICE_EVENT = bytes((MarkKind.DEVICE_EVENT,))
_ISSUE, _WAIT_END = int(MarkKind.ISSUE), int(MarkKind.WAIT_END)
_THREAD_BYTES = bytes((0, OTHER_THREAD >> 8))

assert MARK_STRUCT.format.startswith("<QH")
assert max(MarkKind) < 1 << 8


def has_plain_kinds(marks: bytes) -> bool:
    """Whether all marks of a block have a one-byte kind, apart from the bit OTHER_THREAD."""
    return not marks[KIND_AT + 1 :: MARK_BYTES].translate(None, _THREAD_BYTES)


def events_end(kinds: bytes, at: int) -> int:
    """Return the end of the run of DEVICE_EVENT marks that begins at `at`, by the low bytes of kinds.

    Including this kind in DEVICE_OTHER_KIND would make each search five times as slow.
    """
    return len(kinds) - len(kinds[at:].lstrip(_DEVICE_EVENT))


class PendingMarks:
    """Marks of the running step in order.

    `data` are the marks; `runs` are (number of marks, whether they lie inside a backward, position of the first in the
    attempt).
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.runs: list[tuple[int, bool, int]] = []

    def __len__(self) -> int:
        """Return the number of marks."""
        return len(self.data) // MARK_BYTES

    def add(self, marks: bytes, position: int, *, is_backward: bool) -> None:
        """Add marks, the first one at `position`: plain kinds of COMMUNICATION_KINDS, or DEVICE_QUEUED."""
        self.data += marks
        count, runs = len(marks) // MARK_BYTES, self.runs
        if runs:
            before, was_backward, first = runs[-1]
            if first + before == position and was_backward == is_backward:
                runs[-1] = (before + count, is_backward, first)
                return
        runs.append((count, is_backward, position))

    def longest(self) -> int:
        """Return an upper bound of the number of collectives or of waits, whichever is larger, over all threads."""
        kinds = self.data[KIND_AT::MARK_BYTES]
        return max(kinds.count(_ISSUE), kinds.count(_WAIT_END))

    def has_ends(self) -> bool:
        """Return whether collectives of this step or a former one may have ended."""
        kinds = self.data[KIND_AT::MARK_BYTES]
        return int(MarkKind.DONE) in kinds or int(MarkKind.DONE_UNKNOWN) in kinds

    def clear(self) -> None:
        """Remove all marks."""
        self.data = bytearray()
        self.runs = []
