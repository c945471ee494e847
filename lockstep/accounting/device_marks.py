"""Associates one rank's marks with events of its device.

The process queues an event after marks without knowing their meaning, e.g. that a backward inside another one opens no
span. Only the marks of the spans and waits of the running step become points in device time.

May live here: the meaning of a mark on a device. Not here: what was read of a step, and when it is measured.
"""

from collections.abc import Callable

from lockstep.accounting.communication_marks import CommunicationMarks
from lockstep.accounting.device_tracker import DeviceTracker
from lockstep.accounting.step_in_progress import StepInProgress
from lockstep.accounting.step_record import BuiltStep, FinishedStep, built_steps
from lockstep.contracts.marks import KIND_MASK, MARK_STRUCT, ORDINAL_MASK, OTHER_THREAD, MarkKind

Mark = tuple[int, int, int, int, int]
"""(time ns, kind, detail, subject, argument)."""
Handler = Callable[[Mark], None]

DEVICE_KINDS = frozenset(
    int(kind)
    for kind in (
        *(MarkKind.DEVICE_BEGIN, MarkKind.DEVICE_EVENT, MarkKind.DEVICE_ANCHOR, MarkKind.DEVICE_QUEUED),
        *(MarkKind.DEVICE_UNMEASURED, MarkKind.DEVICE_BEHIND, MarkKind.DEVICE_LOST),
    )
)
_BEGIN, _ANCHOR = int(MarkKind.DEVICE_BEGIN), int(MarkKind.DEVICE_ANCHOR)
_SPAN_KINDS = (
    *(MarkKind.DATA_BEGIN, MarkKind.DATA_END, MarkKind.BACKWARD_BEGIN, MarkKind.BACKWARD_END),
    *(MarkKind.OPTIMIZER_BEGIN, MarkKind.OPTIMIZER_END, MarkKind.SCALER_BEGIN, MarkKind.SCALER_END),
    *(MarkKind.CLOSURE_BEGIN, MarkKind.CLOSURE_END),
)


class DeviceMarks:
    """Marks of a rank with a device, from mark `ordinal` on, which begins or continues the measurement.

    `ordinal` is the position in the attempt of the mark being handled; the caller sets it before passing a mark.
    """

    def __init__(self, running: StepInProgress, communication: CommunicationMarks, ordinal: int) -> None:
        self.ordinal = ordinal
        self._marks = communication
        communication.interpret = self._interpret
        self._running = running
        self._spans = running.spans
        self._communication = running.communication
        self._communication.keeps_former = True
        self._tracker = DeviceTracker(running.append)
        running.deliver = self._close
        self._notes: dict[int, Callable[[Mark, Handler], None]] = {
            **{int(kind): self._note_span for kind in _SPAN_KINDS},
            MarkKind.ISSUE: self._note_issue,
            MarkKind.ISSUE | OTHER_THREAD: self._note_issue,
            MarkKind.WAIT_BEGIN: self._note_wait_begin,
            MarkKind.WAIT_BEGIN | OTHER_THREAD: self._note_other_wait_begin,
            MarkKind.WAIT_END: self._note_wait_end,
            MarkKind.WAIT_END | OTHER_THREAD: self._note_wait_end,
        }
        readers: dict[int, Handler] = {
            MarkKind.DEVICE_BEGIN: self._begin,
            MarkKind.DEVICE_EVENT: self._read_event,
            MarkKind.DEVICE_ANCHOR: self._read_anchor,
            MarkKind.DEVICE_QUEUED: self._note_queued,
            MarkKind.DEVICE_UNMEASURED: self._lose_segment,
            MarkKind.DEVICE_BEHIND: lambda _mark: self._tracker.fall_behind(),
            MarkKind.DEVICE_LOST: lambda _mark: self._tracker.lose_device(),
        }
        self.readers = {kind | other: reader for kind, reader in readers.items() for other in (0, OTHER_THREAD)}
        """Handlers of the marks of DEVICE_KINDS."""

    @staticmethod
    def begins(mark: Mark) -> bool:
        """Whether a mark shows that there is a device; if its begin mark is lost, its anchors show it."""
        return mark[1] & KIND_MASK in (_BEGIN, _ANCHOR)

    def handle(self, mark: Mark, handler: Handler) -> None:
        """Handle a mark of the training, and note its meaning on the device."""
        note = self._notes.get(mark[1])
        if note is None:
            handler(mark)
        else:
            note(mark, handler)

    def _interpret(self, ordinal: int, mark: Mark, handler: Handler | None) -> None:
        """Handle a buffered mark."""
        present, self.ordinal = self.ordinal, ordinal
        if handler is None:
            self._note_queued(mark)
        else:
            self.handle(mark, handler)
        self.ordinal = present

    def _begin(self, mark: Mark) -> None:
        self._marks.settle()
        self._tracker.begin(self.ordinal, mark[2], is_at_start=self._is_at_start())

    def steps_given_up(self) -> list[BuiltStep]:
        """Return the steps that the device has not finished, in the form they have if they are given up."""
        return built_steps(self._tracker.given_up())

    def renumber(self, shift: int) -> None:
        """Add `shift` to the numbers of the steps that the device has not finished."""
        self._tracker.renumber(shift)

    def lose_marks(self) -> None:
        """Note that marks are lost."""
        self._tracker.lose_marks()

    def resume(self) -> None:
        """Begin a step at the current mark, after marks were lost."""
        self._tracker.resume(self.ordinal)

    def drain(self) -> None:
        """Build the steps that the device has not finished, because no mark follows."""
        self._tracker.drain()

    def _close(self, finished: FinishedStep) -> None:
        if finished.arrays is not None:
            self._communication.keep_former(finished.arrays)
        self._tracker.close(finished, self.ordinal)

    def _is_at_start(self) -> bool:
        events, (open_phase, _) = self._spans.events, self._spans.open_since
        return open_phase < 0 and not (events.spans or events.collectives or events.blocked)

    # Marks after which events were queued.

    def _note_span(self, mark: Mark, handler: Handler) -> None:
        before, step = self._spans.open_since, self._running.step
        handler(mark)
        if self._spans.open_since != before and self._running.step == step:
            self._tracker.running.add_span(self.ordinal, mark[0])

    def _note_issue(self, mark: Mark, handler: Handler) -> None:
        handler(mark)
        collective = self._communication.find(mark[3])
        if collective is not None:
            self._tracker.running.add_issue(collective, self.ordinal)

    def _note_queued(self, mark: Mark) -> None:
        """Note that a collective was queued on the current stream: the event of this mark is its end."""
        collective = self._communication.find(mark[3])
        if collective is not None:
            self._tracker.running.add_end(collective, self.ordinal, mark[0])

    def _note_wait_begin(self, mark: Mark, handler: Handler) -> None:
        handler(mark)
        self._tracker.running.add_wait(self.ordinal, mark[0])

    def _note_other_wait_begin(self, mark: Mark, handler: Handler) -> None:
        handler(mark)
        if self._spans.is_backward:
            self._tracker.running.add_wait(self.ordinal, mark[0])

    def _note_wait_end(self, mark: Mark, handler: Handler) -> None:
        blocked = self._spans.events.blocked
        count = len(blocked)
        handler(mark)
        if len(blocked) > count:
            self._tracker.running.add_wait(self.ordinal, mark[0])

    # Events that were read.

    def _absolute(self, ordinal: int) -> int:
        """Return the position of a mark from its low 32 bits; it must be among the last 2^32."""
        return self.ordinal - (self.ordinal - ordinal & ORDINAL_MASK)

    def _read_event(self, mark: Mark) -> None:
        self._tracker.events.add(MARK_STRUCT.pack(*mark), self.ordinal)

    def read_events(self, marks: bytes, position: int) -> None:
        """Add the events of consecutive DEVICE_EVENT marks, the last one at `position`."""
        self._tracker.events.add(marks, position)

    def _read_anchor(self, mark: Mark) -> None:
        seen_ns, _, stream, ordinal, distance_ns = mark
        if self._marks.pending.has_ends():  # some may belong to the steps that are measured now
            self._marks.settle()
        self._tracker.read_anchor(self._absolute(ordinal), stream, distance_ns, seen_ns)

    def _lose_segment(self, mark: Mark) -> None:
        self._tracker.lose_segment(self._absolute(mark[3]), ends=bool(mark[2]))
