"""Dispatches marks of communication to the running step.

Communication of another thread belongs to the step if it is inside a backward, where autograd's threads issue. Only the
process knows whether a thread is one of autograd's; other threads leave no such marks (contracts/marks.py).
"""

from collections.abc import Callable

from lockstep.accounting.communication import CommunicationTracker
from lockstep.accounting.communication_arrays import read_arrays
from lockstep.accounting.pending_marks import PendingMarks
from lockstep.accounting.step_arrays import StepArrays
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import MARK_BYTES, MARK_STRUCT, OTHER_THREAD, MarkKind

Mark = tuple[int, int, int, int, int]
"""(time ns, kind, detail, subject, argument)."""
TIME, KIND, DETAIL, SUBJECT, ARGUMENT = range(5)
Handler = Callable[[Mark], None]

ARRAYS_FROM = 230
"""Number of marks in a step from which arrays are faster than handling marks one by one
(benchmarks/accounting_cost.py)."""

_OF_NO_STEP = frozenset(kind | OTHER_THREAD for kind in (MarkKind.ISSUE, MarkKind.UNMEASURED, MarkKind.UNMEASURED_BUS))
"""Ignored outside a backward: collectives of a thread other than autograd's, such as one that saves a checkpoint."""


class CommunicationMarks:
    """Applies one rank's marks of collectives and waits to `tracker`.

    `refuse()` is called for a malformed mark, `lack()` if something that a wait depends on is lost.
    """

    def __init__(self, tracker: CommunicationTracker, refuse: Callable[[], None], lack: Callable[[], None]) -> None:
        self.pending = PendingMarks()
        self._tracker = tracker
        self._refuse, self._lack = refuse, lack
        own: dict[int, Handler] = {
            MarkKind.ISSUE: self._issue,
            MarkKind.DONE: lambda mark: tracker.end(mark[SUBJECT], mark[TIME]),
            MarkKind.DONE_UNKNOWN: lambda mark: tracker.end(mark[SUBJECT]),
            MarkKind.EXPECT: lambda mark: tracker.expect(mark[SUBJECT]),
            MarkKind.WAIT_BEGIN: self._begin_wait,
            MarkKind.WAIT_END: self._end_wait,
            MarkKind.UNMEASURED: self._note_unmeasured,
            MarkKind.UNMEASURED_BUS: self._note_unmeasured_bus,
            MarkKind.ISSUE_BUS: self._set_bus_bytes,
        }
        inside = own | {
            MarkKind.WAIT_BEGIN: lambda mark: self._begin_other_wait(mark, is_ours=True),
            MarkKind.WAIT_END: self._end_other_wait,
        }
        outside = inside | {MarkKind.WAIT_BEGIN: lambda mark: self._begin_other_wait(mark, is_ours=False)}
        self._handlers = tuple(
            {int(kind): handler for kind, handler in own.items()}
            | {kind | OTHER_THREAD: handler for kind, handler in other.items()}
            for other in (outside, inside)
        )
        """Handlers by kind, indexed by whether the training thread is inside a backward."""
        self.interpret: Callable[[int, Mark, Handler | None], None] | None = None
        """On a rank with a device, called for each buffered mark with its position, the mark and its handler."""

    def handle(self, mark: Mark, *, is_backward: bool) -> None:
        """Handle a mark, after the buffered ones."""
        if self.pending.runs:
            self.settle()
        if is_backward or mark[KIND] not in _OF_NO_STEP:
            self._handlers[is_backward][mark[KIND]](mark)

    def settle(self) -> None:
        """Handle the buffered marks one by one."""
        data, runs = bytes(self.pending.data), self.pending.runs
        self.pending.clear()
        at = 0
        for count, is_backward, position in runs:
            end = at + count * MARK_BYTES
            handlers, left_out = self._handlers[is_backward], frozenset() if is_backward else _OF_NO_STEP
            for ordinal, mark in enumerate(MARK_STRUCT.iter_unpack(data[at:end]), position):
                if mark[TIME] > MONOTONIC_NS_MAX:
                    self._refuse()
                elif mark[KIND] in left_out:
                    continue
                elif self.interpret is None:
                    handlers[mark[KIND]](mark)
                else:
                    self.interpret(ordinal, mark, handlers.get(mark[KIND]))
            at = end

    def end_step(self, *, is_plain: Callable[[], bool]) -> StepArrays | None:
        """Return the communication of the ending step as arrays; None if it is in the tracker's events.

        `is_plain()` returns whether arrays can be used, i.e. whether the spans are in the order of time.
        """
        arrays = None
        if len(self.pending) >= ARRAYS_FROM and is_plain():
            arrays = read_arrays(self.pending, self._tracker)
        if arrays is None:
            self.settle()
        else:
            self.pending.clear()
        return arrays

    def _issue(self, mark: Mark) -> None:
        time_ns, _, detail, ordinal, argument = mark
        if not self._tracker.issue(ordinal, detail, argument, time_ns):
            self._refuse()

    def _set_bus_bytes(self, mark: Mark) -> None:
        if not self._tracker.set_bus_bytes(mark[SUBJECT], mark[ARGUMENT]):
            self._refuse()

    def _note_unmeasured(self, mark: Mark) -> None:
        _, _, domain, count, payload_bytes = mark
        if not self._tracker.note_unmeasured(domain, count, payload_bytes, 0):
            self._refuse()

    def _note_unmeasured_bus(self, mark: Mark) -> None:
        if not self._tracker.note_unmeasured(mark[DETAIL], 0, 0, mark[ARGUMENT]):
            self._refuse()

    def _begin_wait(self, mark: Mark) -> None:
        if not self._tracker.begin_wait(mark[TIME]):
            self._refuse_waits()

    def _begin_other_wait(self, mark: Mark, *, is_ours: bool) -> None:
        if not self._tracker.begin_other_wait(mark[TIME], is_ours=is_ours):
            self._refuse_waits()

    def _refuse_waits(self) -> None:
        self._tracker.forget_waits()
        self._refuse()

    def _end_wait(self, mark: Mark) -> None:
        if not self._tracker.end_wait(mark[TIME]):
            self._lack()

    def _end_other_wait(self, mark: Mark) -> None:
        if not self._tracker.end_other_wait(mark[TIME]):
            self._lack()
