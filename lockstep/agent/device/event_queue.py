"""HOT (budget 1,500 ns an event, of which most is the driver's): events queued behind marks, read as the device passes.

The host runs ahead of its device, so its marks give when work was queued. Behind each of them an event is queued as
well, and some time later, at a mark that may end a step, what the device has passed is read and written as marks of
its own: raw distances between events (contracts/marks.py, DEVICE_*). Where that lies on the host's clock is not known
here: lockstep/accounting places it. Nothing here waits for a device.

Distances are read from anchors, the events of marks that may end a step; a segment lies between two of them. Which of
them ends a step is the accounting's to know. A segment may hold any number of collectives: their events are read and
used again while it still runs, so only how far the host is ahead counts against EVENTS_MAX. A mark that finds no event
has none read, and so its wait is missing in the record, never 0.

Threads: as the buffer's; autograd's own threads issue collectives while the training thread is inside backward, and
read events as it does, one thread at a time.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from threading import RLock
from time import thread_time_ns
from typing import TYPE_CHECKING

from lockstep.agent.boundary import came_by_signal, describe, warn
from lockstep.contracts.marks import DOMAIN_MASK, DOMAIN_SHIFT, MarkKind

if TYPE_CHECKING:
    from lockstep.agent.device.device_streams import Stamp, Stream
    from lockstep.agent.mark_buffer import MarkBuffer

BEHIND_SEGMENTS = 8
"""Segments on their way from which on the accounting is asked to give steps up: it knows which of them are steps."""
EVENTS_MAX = 4096
"""Events of collectives and waits in use at one time: bounds what the agent holds, about 0.25 KB each on the host. CUDA
lets a host run about a thousand launches ahead (its launch queue; to be checked on a device), so no job should need
more."""
RESERVE = 1024
"""Events in use above those, for the marks of the step itself (six for each batch of a step that accumulates) and for
the first RARE_MAX collectives of each domain: one domain's thousands leave no other without events."""
RARE_MAX = 32
READ_FROM = 512
"""Events in use from which on those passed are read while the step runs; most steps have fewer."""
READ_EVERY = 64
READ_COUNT = 2 * READ_EVERY
"""How many are queued between two readings, and how many are read then: 0.1 ms of host time, and faster than queued."""
SEGMENTS_MAX = 1024
"""Segments on their way; a device that is further behind is not measured until it has caught up."""
STREAMS_MAX = 1024
"""Streams that are distinguished; torch's pools have some hundred."""
ERRORS_MAX = 8
"""Errors of calls to the device after which none is made any more, though it answers others."""

_BACKWARD_BEGIN, _BACKWARD_END = int(MarkKind.BACKWARD_BEGIN), int(MarkKind.BACKWARD_END)
_STEP_END, _ISSUE = int(MarkKind.STEP_END), int(MarkKind.ISSUE)
_WAITS = (int(MarkKind.WAIT_BEGIN), int(MarkKind.WAIT_END))
_OPTIMIZER_ENDS = (int(MarkKind.OPTIMIZER_END), int(MarkKind.SCALER_END))
_OPTIMIZERS = (int(MarkKind.OPTIMIZER_BEGIN), int(MarkKind.SCALER_BEGIN), *_OPTIMIZER_ENDS)
_EVENT, _ANCHOR = int(MarkKind.DEVICE_EVENT), int(MarkKind.DEVICE_ANCHOR)
_QUEUED, _UNMEASURED = int(MarkKind.DEVICE_QUEUED), int(MarkKind.DEVICE_UNMEASURED)
_SEGMENT_THAT_ENDS = 1  # detail of an _UNMEASURED mark


class EventSegment:
    """What was queued from one anchor to the next. `start` and `end` are their events, None where one is missing."""

    __slots__ = ("end", "end_ordinal", "is_whole", "issued", "start", "unread")

    def __init__(self, start: "Stamp | None") -> None:
        self.start = start
        self.end: Stamp | None = None
        self.end_ordinal = 0
        self.is_whole = start is not None
        """Whether it can still be measured."""
        self.unread: deque[tuple[int, Stamp]] = deque()
        """(ordinal of the mark, event) of those in use, in the order in which they were queued."""
        self.issued = [0] * (DOMAIN_MASK + 1)
        """Collectives by domain; of two threads at once one may be lost, which only moves a limit."""


class EventQueue:
    """Events of one training thread's marks. `start` is an event that was queued where the running step began.

    `at_mark` is the buffer's `device` callback; `completed` is called when a collective of the device was queued.
    """

    def __init__(
        self, stream: "Stream", buffer: "MarkBuffer", start: "Stamp", cpu_clock: Callable[[], int] = thread_time_ns
    ) -> None:
        self._stream = stream
        self._buffer = buffer
        self._cpu_clock = cpu_clock
        self._segment = EventSegment(start)
        self._home = start.stream
        self._pending: deque[EventSegment] = deque()
        self._known = start  # the anchor read last
        self._streams: dict[int, int] = {}
        self._measured: set[int] = set()  # ordinals of collectives whose issue has an event
        self._capacity = EVENTS_MAX  # events that the running segment may have in use
        self._read_at = READ_FROM  # how many it has in use when some are read next
        self._turn = RLock()  # never waited for; a thread that a signal handler threw out of it gets it again
        self._is_lost = self._is_explicit = False
        self._errors = 0
        self.has_aside = False
        """Whether a collective of the running segment was queued on another stream than the training's own."""
        buffer.device_mark(int(MarkKind.DEVICE_BEGIN), self._stream_index(start), 0, 0)

    # What the training does.

    def at_mark(self, kind: int, detail: int, subject: int, ordinal: int) -> None:
        """Queue the event of a mark that was just made."""
        if self._is_lost:
            return
        if kind == _ISSUE:
            self._issue(detail >> DOMAIN_SHIFT & DOMAIN_MASK, subject, ordinal)
        elif kind in _WAITS:
            self._read_passed()
            self._queue(ordinal, self._capacity)
        elif kind in (_BACKWARD_BEGIN, _BACKWARD_END):
            depth = self._buffer.backward_depth
            if kind == _BACKWARD_END and detail and not depth and not self._is_explicit:
                self._end_segment(ordinal)
            elif depth == (kind == _BACKWARD_BEGIN):  # only the outermost
                self._queue(ordinal, self._capacity + RESERVE)
        elif kind in _OPTIMIZERS and self._buffer.backward_depth:  # fused into the backward, whose end may be a step's
            return
        elif kind == _STEP_END or (kind in _OPTIMIZER_ENDS and not self._is_explicit):
            self._is_explicit |= kind == _STEP_END
            self._end_segment(ordinal)
        else:
            self._queue(ordinal, self._capacity + RESERVE)

    def _issue(self, domain: int, collective: int, ordinal: int) -> None:
        """Queue the event of a collective's beginning: the device cannot begin before it has come so far."""
        self._read_passed()
        segment = self._segment
        count = segment.issued[domain] = segment.issued[domain] + 1
        stamp = self._queue(ordinal, self._capacity + (RESERVE // 2 if count <= RARE_MAX else 0))
        if stamp is not None:
            self._measured.add(collective)
            if stamp.stream != self._home:
                self.has_aside = True

    def completed(self, collective: int, *, in_order: bool) -> None:
        """Note that a collective was queued, just now; `in_order` if on the current stream: an event here is its end.

        Otherwise no one knows when it is done, and waits for it are where the stream waits.
        """
        is_measured = collective in self._measured
        self._measured.discard(collective)
        if not in_order:
            return
        if not is_measured or self._is_lost:
            self._buffer.done_unknown(collective)
            return
        self._queue(self._buffer.device_mark(_QUEUED, 0, collective, 0), self._capacity + RESERVE)

    def is_home(self, stream: int) -> bool:
        """Whether `stream` is the number of the stream that the training queues its own work on."""
        return stream == self._home

    def finish(self) -> None:
        """Write what the device has passed, for the process ends. Nothing is queued or read after it."""
        self._read_segments()
        if self._pending:
            self._lose()
        self._is_lost = True

    # Queueing.

    def _queue(self, ordinal: int, capacity: int) -> "Stamp | None":
        """Queue an event for a mark of the running segment if it may have one more in use than `room`."""
        segment = self._segment
        if not segment.is_whole or len(segment.unread) >= capacity:
            return None
        stamp = self._record()
        if stamp is None:
            self._give_up(segment, ordinal)
            return None
        segment.unread.append((ordinal, stamp))
        return stamp

    def _record(self) -> "Stamp | None":
        """Queue an event on the current stream; None while none may be, and once the device failed."""
        if self._is_lost:
            return None
        try:
            return self._stream.record()
        except RuntimeError as error:
            self._meet(error)
            return None

    def _give_up(self, segment: EventSegment, ordinal: int, detail: int = 0) -> None:
        """Note that a segment cannot be measured: an event behind the mark `ordinal` in it is missing."""
        if segment.is_whole:
            segment.is_whole = False
            self._buffer.device_mark(_UNMEASURED, detail, ordinal, 0)

    def _end_segment(self, ordinal: int) -> None:
        """Queue the anchor of a mark that may end the step, and read what the device has passed."""
        began_ns = self._cpu_clock()
        segment = self._segment
        segment.end_ordinal = ordinal
        segment.end = stamp = self._record() if len(self._pending) < SEGMENTS_MAX else None
        self._segment = EventSegment(stamp)
        if stamp is not None:
            self._home = stamp.stream
        elif not self._is_lost:
            self._buffer.device_mark(_UNMEASURED, 0, ordinal, 0)
        self._pending.append(segment)
        self._measured.clear()
        self.has_aside = False
        self._update_capacity()
        self._read_segments()
        if len(self._pending) > BEHIND_SEGMENTS:
            self._buffer.device_mark(int(MarkKind.DEVICE_BEHIND), 0, 0, len(self._pending))
        cost_ns = self._cpu_clock() - began_ns
        if cost_ns > 0:
            self._buffer.spend(cost_ns)

    # Reading.

    def _read_passed(self) -> None:
        """Read events that the device has passed, if many are in use; the oldest segment's come first."""
        if len(self._segment.unread) < self._read_at or self._is_lost or not self._turn.acquire(blocking=False):
            return
        try:
            waiting = (segment for segment in (*self._pending, self._segment) if segment.unread and segment.is_whole)
            segment = next(waiting, None)
            if segment is not None and self._stream.usable():
                self._read(segment, READ_COUNT)
            self._update_capacity()
        except RuntimeError as error:
            self._meet(error)
        finally:  # where no room is left, at each collective: one question
            self._read_at = min(max(self._read_at, len(self._segment.unread) + READ_EVERY), self._capacity - 1)
            self._turn.release()

    def _update_capacity(self) -> None:
        """Set how many events the running segment may have in use, and at how many some are read."""
        in_use = sum(len(segment.unread) for segment in self._pending)
        self._capacity = EVENTS_MAX - in_use
        self._read_at = READ_FROM - in_use

    def _read_segments(self) -> None:
        """Read every segment that the device has passed."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            pending = self._pending
            while pending and not self._is_lost and self._read_to_end(pending[0]):
                pending.popleft()
            for segment in pending:
                if segment.is_whole:
                    break
                self._release(segment)
            self._update_capacity()
        finally:
            self._turn.release()

    def _read_to_end(self, segment: EventSegment) -> bool:
        """Read a segment's events and its end, if the device has passed all; return whether nothing is left of it."""
        end, stream = segment.end, self._stream
        try:
            if end is not None:
                if not stream.usable() or not stream.ready(end):
                    return False
                if segment.is_whole and not self._read(segment, len(segment.unread)):
                    return False
                distance_ns = stream.elapsed_ns(self._known, end)
        except RuntimeError as error:
            self._give_up(segment, segment.end_ordinal, _SEGMENT_THAT_ENDS)
            self._meet(error)
            return False
        self._release(segment)
        if end is not None:
            self._buffer.device_mark(_ANCHOR, self._stream_index(end), segment.end_ordinal, distance_ns)
            former, self._known = self._known, end
            stream.reuse([former])
        return True

    def _release(self, segment: EventSegment) -> None:
        """Give back what is not asked for again."""
        unread, segment.unread = segment.unread, deque()
        self._stream.reuse([stamp for _, stamp in unread])

    def _read(self, segment: EventSegment, count: int) -> bool:
        """Read the oldest `count` events if the device has passed all of them; return whether it has.

        Raises
        ------
        RuntimeError
            The device failed.
        """
        start, unread, stream = segment.start, segment.unread, self._stream
        assert start is not None
        for stamp in {stamp.stream: stamp for _, stamp in islice(unread, count)}.values():
            if not stream.ready(stamp):  # events of one stream are passed in their order
                return False
        write, elapsed_ns = self._buffer.device_mark, stream.elapsed_ns
        free: list[Stamp] = []
        ordinal = segment.end_ordinal
        try:
            for _ in range(min(count, len(unread))):
                ordinal, stamp = unread.popleft()
                free.append(stamp)
                write(_EVENT, self._stream_index(stamp), ordinal, elapsed_ns(start, stamp))
        except BaseException:  # the device failed, or a signal handler of the training raised: this event is lost
            self._give_up(segment, ordinal)
            raise
        finally:
            stream.reuse(free)
        return True

    def _stream_index(self, stamp: "Stamp") -> int:
        streams = self._streams
        index = streams.get(stamp.stream)
        if index is None:
            if len(streams) == STREAMS_MAX:
                return STREAMS_MAX
            streams[stamp.stream] = index = len(streams)
        return index

    # Errors.

    def _meet(self, error: RuntimeError) -> None:
        """Ask the device nothing more if it failed; what failed costs its segment.

        A fault of work queued earlier leaves the context of CUDA unusable: every later call returns it, so another
        event shows it, and the training's own next call gets it as well. Any other error is of our own call.
        """
        if came_by_signal(error):
            raise error
        self._errors += 1
        if self._errors < ERRORS_MAX:
            try:
                stamp = self._stream.record()
            except RuntimeError as second:
                if came_by_signal(second):
                    raise
            else:
                self._stream.reuse([] if stamp is None else [stamp])
                return
        self._lose()
        warn(f"no device times any more: {describe(error)}")

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._buffer.device_mark(int(MarkKind.DEVICE_LOST), 0, 0, 0)
