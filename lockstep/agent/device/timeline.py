"""HOT (budget 2,500 ns a mark): steps on their way through the device, and where its time lies on the host's.

The host runs ahead of its device, so its marks say when work was queued. At each of them an event is queued as well.
When the device has passed a step's last event, which is asked at later boundaries and never waited for, the step's
marks are moved to where the events lie (axis.py), and the same account as on a CPU divides the device's time.

A device step runs from the end of the step before to its own: lengths are the device's own, in whole ns, so that they
add up without gap. Where the chain lies on CLOCK_MONOTONIC is anchored by what is always true: the device does nothing
before it is queued, nor after it was seen done. The anchor is as early as the first step allows; from then on a step
may be stretched or shortened by a thousandth to keep within these bounds, which is how two clocks that drift stay
together without a jump.

A step is given up when an event of it is missing (graph capture, too many of them), when more than PENDING_MAX steps
wait for the device, or when the device is lost: its record has host times, its waits are missing, and it is flagged.
The next measured step ends where the device's time, counted through the gap, says.

Threads: as the recorder's; autograd's own thread marks collectives while the training thread is inside backward.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic_ns

from lockstep.agent.account import BACKWARD, FORWARD, UNKNOWN_NS, Collective, Marks
from lockstep.agent.device.axis import Axis, Flight, in_flight_ns, translate
from lockstep.agent.device.streams import Stamp, Stream
from lockstep.agent.record import Draft
from lockstep.contracts.records import MISSING, Flag

PENDING_MAX = 8
"""Steps that may wait for the device. A job whose host runs further ahead (whole steps as one graph, never a look at
the loss) would have its steps judged too late anyway."""
EVENTS_MAX = 4096
"""Events in use at one time, ends of steps aside: bounds what the agent holds, about 0.25 KB each on the host."""
SLEW = 1000
"""A step is corrected by at most this part of its length: ten times what quartz clocks drift, and below any noise."""
_DRIFT = 100_000  # 10 ppm: by so much of a step may the least lead seen be out of date

_WARM_UP = int(Flag.WARM_UP)


class _Step:
    """A step whose events are not all done. `start` is the end of the step before; None is one that is missing."""

    __slots__ = ("draft", "end", "flights", "marks", "stamps", "start", "whole")

    def __init__(self, start: Stamp | None) -> None:
        self.start = start
        self.end: Stamp | None = None
        self.whole = start is not None
        self.stamps: list[Stamp] = []
        self.marks: list[tuple[int, Stamp]] = []
        self.flights: dict[Collective, tuple[Stamp, Stamp | None]] = {}
        self.draft: Draft


class _Reading:
    """What the device says of a step: offsets from its start, in ns; `marks` are (host, offset), ascending in both.

    `gap_ns` is the time from the end of the step measured last to this one's start.
    """

    __slots__ = ("flights", "gap_ns", "length_ns", "marks")

    def __init__(
        self, gap_ns: int, length_ns: int, marks: list[tuple[int, int]], flights: dict[Collective, Flight]
    ) -> None:
        self.gap_ns = gap_ns
        self.length_ns = length_ns
        self.marks = marks
        self.flights = flights


class Timeline:
    """Device times of one training thread. `start` is an event queued where the running step began.

    Belongs to the recorder, which calls `mark` and `issued` where it notes a time, `completed` when a collective of
    the device was queued, `close` and then `ready` at a step's end.
    """

    def __init__(self, stream: Stream, start: Stamp, clock: Callable[[], int] = monotonic_ns) -> None:
        self._stream = stream
        self._clock = clock
        self._step = _Step(start)
        self._home = start.stream
        self._pending: deque[_Step] = deque()
        self._live = 1
        self._is_lost = False
        self._known: Stamp | None = None  # the end of the step measured last, and where it lies
        self._known_ns = 0
        self._reached_ns: int | None = None  # the end of the step written last
        self._floor_ns = 0
        self.has_aside = False
        """Whether a collective of the running step was queued on another stream than the training's own."""

    def mark(self, host_ns: int) -> None:
        """Queue an event for `host_ns`, which is now; those on other streams than the training's own are not kept."""
        stamp = self._record(EVENTS_MAX)
        if stamp is not None and stamp.stream == self._home:
            self._step.marks.append((host_ns, stamp))

    def is_home(self, stream: int) -> bool:
        """Whether `stream` is the number of the stream that the training queues its own work on."""
        return stream == self._home

    def issued(self, collective: Collective) -> None:
        """Queue the event of its beginning: the device cannot begin before it has come so far."""
        stamp = self._record(EVENTS_MAX)
        if stamp is None:
            return
        self._step.flights[collective] = (stamp, None)
        if stamp.stream == self._home:
            self._step.marks.append((collective.issue_ns, stamp))
        else:
            self.has_aside = True

    def completed(self, collective: Collective, *, in_order: bool) -> None:
        """Note that it was queued, just now; `in_order` if on the current stream, so that an event here is its end.

        Otherwise nobody says when it is done: its `done_ns` stays 0, and waits for it are where the stream waits.
        """
        if not in_order:
            return
        began, _ = self._step.flights.get(collective, (None, None))
        stamp = None if began is None else self._record(EVENTS_MAX)
        if began is None or stamp is None or stamp.stream != began.stream:
            collective.done_ns = UNKNOWN_NS
        else:
            self._step.flights[collective] = (began, stamp)
            if stamp.stream == self._home:
                self._step.marks.append((self._clock(), stamp))

    def close(self, draft: Draft) -> None:
        """End the running step, which `draft` describes in host time, and begin the next."""
        step = self._step
        step.draft = draft
        if step.marks and step.marks[-1][0] == draft.end_ns:
            step.end = step.marks[-1][1]
        else:
            step.end = self._record(EVENTS_MAX + PENDING_MAX)
        self._pending.append(step)
        self._step = _Step(step.end)
        self.has_aside = False
        if step.end is not None:
            self._home = step.end.stream

    def ready(self) -> list[Draft]:
        """Return the steps that the device is done with or that are given up, oldest first, ready for the record."""
        finished: list[Draft] = []
        pending = self._pending
        while pending:
            step = pending[0]
            reading = self._read(step) if step.whole and not self._is_lost else None
            if reading is not None:
                self._measure(step, reading)
            elif step.whole and not self._is_lost and len(pending) <= PENDING_MAX:
                break
            else:
                self._give_up(step)
            pending.popleft()
            finished.append(step.draft)
        return finished

    def drain(self) -> list[Draft]:
        """Return every step that was ended, for the process ends: done or given up. Nothing is recorded after it."""
        finished = self.ready()
        self._is_lost = True
        return finished + self.ready()

    # Events.

    def _record(self, events_max: int) -> Stamp | None:
        """Queue an event on the current stream. Without one the running step cannot be measured."""
        stamp: Stamp | None = None
        if self._live < events_max and not self._is_lost:
            try:
                stamp = self._stream.record()
            except RuntimeError:  # the device is gone; the training's next call says so in its own words
                self._is_lost = True
        if stamp is None:
            self._step.whole = False
        else:
            self._live += 1
            self._step.stamps.append(stamp)
        return stamp

    def _release(self, step: _Step) -> None:
        """Give back what nobody asks for again, which the ends of this step and of the one measured last are not."""
        stamps = [stamp for stamp in step.stamps if stamp is not step.end]
        if step.start is not None and step.start is not self._known:
            stamps.append(step.start)
        self._live -= len(stamps)
        self._stream.reuse(stamps)

    def _read(self, step: _Step) -> _Reading | None:
        """Return what the device says of the step, or None: it is not done with it, or is lost."""
        start, end, stream = step.start, step.end, self._stream
        assert start is not None
        assert end is not None
        try:
            if not stream.usable() or not stream.ready(end):
                return None
            for pair in step.flights.values():
                for stamp in pair:
                    if stamp is not None and stamp.stream != end.stream and not stream.ready(stamp):
                        return None
            gap_ns = 0 if self._known in (None, start) else max(stream.elapsed_ns(self._known, start), 0)
            length_ns = max(stream.elapsed_ns(start, end), 0)
            marks = [(host_ns, stream.elapsed_ns(start, stamp)) for host_ns, stamp in step.marks]
            flights = {collective: self._read_flight(start, pair) for collective, pair in step.flights.items()}
        except RuntimeError:  # as above
            self._is_lost = True
            return None
        marks.sort()
        return _Reading(gap_ns, length_ns, _ascending(step.draft, length_ns, marks), flights)

    def _read_flight(self, start: Stamp, pair: tuple[Stamp, Stamp | None]) -> Flight:
        """Return a collective's offsets from the step's start."""
        began, ended = pair
        issue = self._stream.elapsed_ns(start, began)
        done = None if ended is None else max(self._stream.elapsed_ns(start, ended), issue)
        return issue, done, began.stream != start.stream

    # Where device time lies.

    def _measure(self, step: _Step, reading: _Reading) -> None:
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
        draft.device_comm_ns = in_flight_ns(draft.marks.collectives + draft.marks.aside)
        draft.host_lead_ns = min((lead for lead in leads if lead != MISSING), default=MISSING)
        former, self._known = self._known, step.end
        self._release(step)
        if former is not None and former is not step.start:  # steps given up lay between
            self._live -= 1
            self._stream.reuse([former])

    def _place(self, draft: Draft, reading: _Reading) -> int:
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

    def _give_up(self, step: _Step) -> None:
        """Leave the step in host time, moved to where the one before ended; what was waited in it is not known."""
        draft = step.draft
        shift_ns = 0 if self._reached_ns is None else self._reached_ns - draft.start_ns
        draft.start_ns += shift_ns
        draft.end_ns += shift_ns
        draft.flags |= _WARM_UP
        draft.marks = _shifted(draft.marks, shift_ns)
        self._reached_ns = draft.end_ns
        self._release(step)


def _ascending(draft: Draft, length_ns: int, marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the marks between the step's two ends, their offsets made to ascend: drivers round them one by one."""
    points = [(draft.start_ns, 0)]
    reached = 0
    for host_ns, offset_ns in marks:
        if not draft.start_ns < host_ns <= draft.end_ns:  # a mark in the middle of a step's end
            continue
        reached = min(max(offset_ns, reached), length_ns)
        points.append((host_ns, reached))
    if points[-1] != (draft.end_ns, length_ns):
        points.append((draft.end_ns, length_ns))
    return points


def _shifted(marks: Marks, shift_ns: int) -> Marks:
    shifted = Marks()
    shifted.spans = [(phase, begin + shift_ns, end + shift_ns) for phase, begin, end in marks.spans]
    shifted.gcs = [(begin + shift_ns, end + shift_ns) for begin, end in marks.gcs]
    for collective in marks.collectives:
        copy = Collective(
            collective.issue_ns + shift_ns,
            collective.kind,
            collective.payload_bytes,
            collective.bus_bytes,
            collective.synchronous,
        )
        copy.done_ns = UNKNOWN_NS
        shifted.collectives.append(copy)
    return shifted
