"""HOT (budget 2,500 ns a mark): steps on their way through the device, and where its time lies on the host's.

The host runs ahead of its device, so its marks say when work was queued. At each of them an event is queued as well.
When the device has passed a step's last event, which is asked at later boundaries and never waited for, the step's
marks are moved to where the events lie (axis.py), and the same account as on a CPU divides the device's time.

A device step runs from the end of the step before to its own: lengths are the device's own, in whole ns, so that they
add up without gap. Where the chain lies on CLOCK_MONOTONIC is anchored by what is always true: the device does nothing
before it is queued, nor after it was seen done. The anchor is as early as the first step allows; from then on a step
may be stretched or shortened by a thousandth to keep within these bounds, which is how two clocks that drift stay
together without a jump.

A step is given up when an event of its own is missing (graph capture), when more than PENDING_MAX steps wait for the
device, or when the device is lost: its record has host times, its waits are missing, and it is flagged. The next
measured step ends where the device's time, counted through the gap, says.

A step may issue any number of collectives. Each has one or two events, which are read and used again while the step
still runs, as soon as the device has passed them; so only how far the host is ahead counts against EVENTS_MAX. What
finds no event in spite of that is not measured: the waits of its kind are missing in that step, never a part of them.

Threads: as the recorder's; autograd's own threads mark collectives while the training thread is inside backward, and
read events as it does, one thread at a time.
"""

from collections import deque
from collections.abc import Callable
from threading import RLock
from time import monotonic_ns

from lockstep.agent.boundary import came_by_signal, describe, warn
from lockstep.agent.device.streams import Stamp, Stream
from lockstep.contracts.records import MISSING, Flag
from tests.accounting.oracle.account import BACKWARD, FORWARD, UNKNOWN_NS, Collective
from tests.accounting.oracle.axis import Axis, in_flight_ns, translate
from tests.accounting.oracle.moments import Moment, StepEvents
from tests.accounting.oracle.reading import Reading, ascending, note_unmeasured, read_flight, shifted
from tests.accounting.oracle.record import Draft
from tests.accounting.oracle.running_step import MARKS_MAX

PENDING_MAX = 8
"""Steps that may wait for the device. A job whose host runs further ahead (whole steps as one graph, never a look at
the loss) would have its steps judged too late anyway."""
EVENTS_MAX = 4096
"""Events of collectives and waits in use at one time: bounds what the agent holds, about 0.25 KB each on the host. CUDA
lets a host run about a thousand launches ahead (its launch queue; to be checked on a device), so no job should need
more."""
RESERVE = 1024
"""Events in use above those, for the marks of the step itself (six for each batch of a step that accumulates) and for
the first RARE_MAX collectives of each kind: one kind's thousands leave no other without events."""
RARE_MAX = 32
READ_FROM = 512
"""Events in use from which on those passed are read while the step runs; most steps have fewer."""
READ_EVERY = 64
READ_COUNT = 2 * READ_EVERY
"""How many are queued between two readings, and how many are read then: 0.1 ms of host time, and faster than queued."""
MOMENTS_MAX = 4 * MARKS_MAX
"""Moments of one step: a process that never ends one must not fill memory."""
ERRORS_MAX = 8
"""Errors of calls to the device after which none is made any more, though it answers others."""
SLEW = 1000
"""A step is corrected by at most this part of its length: ten times what quartz clocks drift, and below any noise."""
_DRIFT = 100_000  # 10 ppm: by so much of a step may the least lead seen be out of date

_WARM_UP = int(Flag.WARM_UP)


class Timeline:
    """Device times of one training thread. `start` is an event queued where the running step began.

    Belongs to the recorder, which calls `mark` and `issued` where it notes a time, `completed` when a collective of
    the device was queued, `close` and then `ready` at a step's end.
    """

    def __init__(self, stream: Stream, start: Stamp, clock: Callable[[], int] = monotonic_ns) -> None:
        self._stream = stream
        self._clock = clock
        self._step = StepEvents(start)
        self._home = start.stream
        self._pending: deque[StepEvents] = deque()
        self._room = EVENTS_MAX  # events that the running step may have in use
        self._read_at = READ_FROM  # how many it has in use when some are read next
        self._turn = RLock()  # never waited for; a thread that a signal handler threw out of it gets it again
        self._is_lost = False
        self._errors = 0
        self._known: Stamp | None = None  # the end of the step measured last, and where it lies
        self._known_ns = 0
        self._reached_ns: int | None = None  # the end of the step written last
        self._floor_ns = 0
        self.has_aside = False
        """Whether a collective of the running step was queued on another stream than the training's own."""

    def mark(self, host_ns: int) -> None:
        """Queue an event for `host_ns`, which is now; those on other streams than the training's own are not kept."""
        moment = self._note(host_ns, self._room + RESERVE)
        if moment is None:
            self._step.is_whole = False
        elif moment.stream == self._home:
            self._step.marks.append(moment)

    def mark_wait(self, host_ns: int) -> None:
        """Do the same where the training begins or ends to wait."""
        self._read_passed()
        moment = self._note(host_ns, self._room)
        if moment is None:
            self._step.waits_are_known = False
        elif moment.stream == self._home:
            self._step.marks.append(moment)

    def is_home(self, stream: int) -> bool:
        """Whether `stream` is the number of the stream that the training queues its own work on."""
        return stream == self._home

    def issued(self, collective: Collective) -> None:
        """Queue the event of its beginning: the device cannot begin before it has come so far."""
        self._read_passed()
        step, kind = self._step, collective.kind
        count = step.counts[kind] = step.counts[kind] + 1
        moment = self._note(collective.issue_ns, self._room + (RESERVE // 2 if count <= RARE_MAX else 0))
        if moment is None:
            step.unmeasured.add(kind)
            return
        step.flights[collective] = (moment, None)
        if moment.stream == self._home:
            step.marks.append(moment)
        else:
            self.has_aside = True

    def completed(self, collective: Collective, *, in_order: bool) -> None:
        """Note that it was queued, just now; `in_order` if on the current stream, so that an event here is its end.

        Otherwise no one says when it is done: its `done_ns` stays 0, and waits for it are where the stream waits.
        """
        if not in_order:
            return
        step = self._step
        began, _ = step.flights.get(collective, (None, None))
        moment = None if began is None else self._note(self._clock(), self._room + RESERVE)
        if began is None or moment is None or moment.stream != began.stream:
            collective.done_ns = UNKNOWN_NS
        else:
            step.flights[collective] = (began, moment)
            if moment.stream == self._home:
                step.marks.append(moment)

    def close(self, draft: Draft) -> None:
        """End the running step, which `draft` describes in host time, and begin the next."""
        step = self._step
        step.draft = draft
        step.end = step.detach_end(draft.end_ns) or self._record()
        self._pending.append(step)
        self._step = StepEvents(step.end)
        self._make_room()
        self.has_aside = False
        if step.end is not None:
            self._home = step.end.stream

    def ready(self) -> list[Draft]:
        """Return the steps that the device is done with or that are given up, oldest first, ready for the record."""
        if not self._turn.acquire(blocking=False):
            return []
        try:
            return self._finish()
        finally:
            self._turn.release()

    def drain(self) -> list[Draft]:
        """Return every step that was ended, for the process ends: done or given up. Nothing is recorded after it."""
        finished = self._finish()
        self._is_lost = True
        return finished + self._finish()

    def _finish(self) -> list[Draft]:
        finished: list[Draft] = []
        pending = self._pending
        while pending:
            step = pending[0]
            reading = self._read(step) if step.is_whole and not self._is_lost else None
            if reading is not None:
                self._measure(step, reading)
            elif step.is_whole and not self._is_lost and len(pending) <= PENDING_MAX:
                break
            else:
                self._give_up(step)
            pending.popleft()
            finished.append(step.draft)
        self._make_room()
        return finished

    # Events.

    def _note(self, host_ns: int, room: int) -> Moment | None:
        """Queue an event for the running step if it may have one more in use than `room`; None if it has no event."""
        step = self._step
        if not step.is_whole or len(step.unread) >= room:
            return None
        if len(step.marks) >= MOMENTS_MAX or len(step.flights) >= MOMENTS_MAX:
            step.forget()
            return None
        stamp = self._record()
        if stamp is None:
            step.is_whole = False
            return None
        moment = Moment(host_ns, stamp)
        step.unread.append(moment)
        return moment

    def _record(self) -> Stamp | None:
        """Queue an event on the current stream; None while none may be, and once the device failed."""
        if self._is_lost:
            return None
        try:
            return self._stream.record()
        except RuntimeError as error:
            self._meet(error)
            return None

    def _meet(self, error: RuntimeError) -> None:
        """Ask the device nothing more if it failed; what failed costs its step.

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
        self._is_lost = True
        warn(f"no device times any more: {describe(error)}")

    def _make_room(self) -> None:
        """Set how many events the running step may have in use, and at how many some are read."""
        in_use = sum(len(step.unread) for step in self._pending)
        self._room = EVENTS_MAX - in_use
        self._read_at = READ_FROM - in_use

    def _read_passed(self) -> None:
        """Read events that the device has passed, if many are in use; the oldest step's come first."""
        if len(self._step.unread) < self._read_at or self._is_lost or not self._turn.acquire(blocking=False):
            return
        try:
            step = next((step for step in (*self._pending, self._step) if step.unread and step.is_whole), None)
            if step is not None and self._stream.usable():
                step.read(self._stream, READ_COUNT)
            self._make_room()
        except RuntimeError as error:
            self._meet(error)
        finally:  # where no room is left, at each collective: one question
            self._read_at = min(max(self._read_at, len(self._step.unread) + READ_EVERY), self._room - 1)
            self._turn.release()

    def _release(self, step: StepEvents) -> None:
        """Give back what no one asks for again, which the ends of this step and of the one measured last are not."""
        stamps = step.release()
        if step.start is not None and step.start is not self._known:
            stamps.append(step.start)
        self._stream.reuse(stamps)

    def _read(self, step: StepEvents) -> Reading | None:
        """Return what the device says of the step, or None: it is not done with it, or is lost."""
        start, end, stream = step.start, step.end, self._stream
        assert start is not None
        if end is None:
            step.is_whole = False
            return None
        try:
            if not stream.usable() or not stream.ready(end) or not step.read(stream, len(step.unread)):
                return None
            gap_ns = 0 if self._known in (None, start) else max(stream.elapsed_ns(self._known, start), 0)
            length_ns = max(stream.elapsed_ns(start, end), 0)
        except RuntimeError as error:
            step.is_whole = False
            self._meet(error)
            return None
        marks = [(moment.host_ns, moment.offset_ns) for moment in step.marks if moment.offset_ns is not None]
        flights = {collective: read_flight(start, *pair) for collective, pair in step.flights.items()}
        marks.sort()
        return Reading(gap_ns, length_ns, ascending(step.draft, length_ns, marks), flights)

    # Where device time lies.

    def _measure(self, step: StepEvents, reading: Reading) -> None:
        """Move the step to device time."""
        draft = step.draft
        origin_ns = self._place(draft, reading)
        end_ns = self._known_ns
        axis = Axis([(host_ns, min(origin_ns + offset, end_ns)) for host_ns, offset in reading.marks], self._floor_ns)
        leads = [axis.lead(begin, end) for phase, begin, end in draft.marks.spans if phase in (FORWARD, BACKWARD)]
        flights = {
            collective: (origin_ns + issue, None if done is None else origin_ns + done, aside)
            for collective, (issue, done, aside) in reading.flights.items()
        }
        draft.marks = translate(draft.marks, axis, flights)
        draft.device_step_ns = reading.length_ns
        note_unmeasured(draft.marks, step)
        if not draft.marks.unmeasured:
            draft.device_comm_ns = in_flight_ns(draft.marks.collectives + draft.marks.aside)
        draft.host_lead_ns = min((lead for lead in leads if lead != MISSING), default=MISSING)
        former, self._known = self._known, step.end
        self._release(step)
        if former is not None and former is not step.start:  # steps given up lay between
            self._stream.reuse([former])

    def _place(self, draft: Draft, reading: Reading) -> int:
        """Set the step's start and end, and return where its first event lies."""
        earliest_ns = max(host_ns - offset_ns for host_ns, offset_ns in reading.marks)
        length_ns = reading.length_ns
        if self._known is None:
            origin_ns = earliest_ns
            correction_ns = 0
        else:
            origin_ns = self._known_ns + reading.gap_ns
            correction_ns = self._correction(origin_ns, earliest_ns, length_ns)
            self._floor_ns = min(self._floor_ns + length_ns // _DRIFT, origin_ns - earliest_ns)
            self._floor_ns = max(self._floor_ns + correction_ns, 0)
        self._known_ns = origin_ns + length_ns + correction_ns
        if self._reached_ns is not None:
            draft.start_ns = self._reached_ns
        if draft.start_ns != origin_ns:  # the seam between the host's time and the device's lies in this step
            draft.flags |= _WARM_UP
        self._reached_ns = draft.end_ns = max(self._known_ns, draft.start_ns)
        return origin_ns

    def _correction(self, origin_ns: int, earliest_ns: int, length_ns: int) -> int:
        """Return by how much the step is stretched so that no work is done before queued, or shortened, after seen."""
        most_ns = length_ns // SLEW
        if origin_ns < earliest_ns:
            return min(earliest_ns - origin_ns, most_ns)
        return -min(max(origin_ns + length_ns - self._clock(), 0), most_ns)

    def _give_up(self, step: StepEvents) -> None:
        """Leave the step in host time, moved to where the one before ended; what was waited in it is not known."""
        draft = step.draft
        shift_ns = 0 if self._reached_ns is None else self._reached_ns - draft.start_ns
        draft.start_ns += shift_ns
        draft.end_ns += shift_ns
        draft.flags |= _WARM_UP
        draft.marks = shifted(draft.marks, shift_ns)
        self._reached_ns = draft.end_ns
        self._release(step)
