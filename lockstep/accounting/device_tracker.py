"""Where a rank's device is on the host's clock, and the steps that it is not done with yet.

A device step runs from the end of the step before to its own: lengths are the device's own, in whole ns, so that they
add up without gap. Where the chain lies on CLOCK_MONOTONIC is anchored by what is always true: the device does nothing
before it is queued, nor after it was seen done. The anchor is as early as the first step allows; from then on a step
may be stretched or shortened by a thousandth to keep within these bounds, which is how two clocks that drift stay
together without a jump.

A step is given up when an event of its own is missing (graph capture), when more than PENDING_STEPS_MAX steps wait for
the device, or when the device is lost: its record has host times, its waits are missing, and it is flagged. The next
measured step ends where the device's time, counted through the gap, shows.

May live here: which step is measured when, and where it lies. Not here: marks (device_marks.py), a step's arithmetic.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lockstep.accounting.device_axis import DeviceAxis, in_flight_ns, shifted, shifted_arrays, translate
from lockstep.accounting.device_step import (
    DISTANCE_MAX_NS,
    Anchors,
    DeviceEvents,
    DeviceReading,
    DeviceStep,
    note_unmeasured,
    read_step,
)
from lockstep.accounting.events import BACKWARD, FORWARD
from lockstep.accounting.step_record import FinishedStep
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.records import Flag

PENDING_STEPS_MAX = 8
"""Steps that may wait for the device. A job whose host runs further ahead (whole steps as one graph, never a look at
the loss) would have its steps judged too late anyway."""
SLEW = 1000
"""A step is corrected by at most this part of its length: ten times what quartz clocks drift, and below any noise."""
ANCHORS_MAX = 4096
"""Anchors that are held; a step of more (an optimizer for each parameter, a thousand times) is not measured."""
_DRIFT = 100_000  # 10 ppm: by so much of a step may the least lead seen be out of date

_WARM_UP = int(Flag.WARM_UP)


class DeviceTracker:
    """Device times of one rank's steps.

    `emit` is given each step in its order, once the device was done with it or it is given up. `running` is the step in
    progress, `events` are those that were read. Ordinals are positions of marks in the attempt.
    """

    def __init__(self, emit: Callable[[FinishedStep], None]) -> None:
        self._emit = emit
        self.running = DeviceStep(None)
        self.events = DeviceEvents()
        self._pending: deque[DeviceStep] = deque()
        self._is_lost = False
        self._anchors: Anchors = {}
        self._device_ns = 0  # where the anchor read last lies in the device's own time
        self._known: tuple[int, int] | None = None  # the end of the step measured last: device's own time, host's
        self._reached_ns: int | None = None  # the end of the step emitted last
        self._floor_ns = 0

    # What the process writes.

    def begin(self, ordinal: int, stream: int, *, is_at_start: bool) -> None:
        """Begin to measure at the event of mark `ordinal`; the running step is measured if it has only begun."""
        self._anchors[ordinal] = (self._device_ns, stream)
        self.running = DeviceStep(ordinal if is_at_start else None)

    def read_anchor(self, ordinal: int, stream: int, distance_ns: int, seen_ns: int) -> None:
        """Note where an anchor lies after the one read before; the device was seen to be done with it at `seen_ns`."""
        if distance_ns > DISTANCE_MAX_NS:
            self.lose_marks()
            return
        self._device_ns += max(distance_ns, 0)
        self._anchors[ordinal] = (self._device_ns, stream)
        if len(self._anchors) > ANCHORS_MAX:
            del self._anchors[next(iter(self._anchors))]
        self._finish(seen_ns)

    def lose_segment(self, ordinal: int, *, ends: bool) -> None:
        """Note that an event of the segment that mark `ordinal` lies in is missing, or of the one that it ends."""
        for step in (*self._pending, self.running):
            start, end = -1 if step.start is None else step.start, step.end
            is_after = start < ordinal if ends else start <= ordinal
            if is_after and (end < 0 or ordinal <= end):
                step.forget()
        self._finish()

    def fall_behind(self) -> None:
        """Give up the oldest of more than PENDING_STEPS_MAX steps."""
        while len(self._pending) > PENDING_STEPS_MAX:
            self._pending[0].forget()
            self._finish()

    def lose_device(self) -> None:
        """Note that nothing more is read from the device."""
        self._is_lost = True
        self._finish()

    def drain(self) -> None:
        """Give up what the device was not done with: nothing more comes."""
        for step in self._pending:
            step.forget()
        self._finish()

    def given_up(self) -> list[FinishedStep]:
        """Return what the steps are that the device was not done with, if they are given up now."""
        steps, reached_ns = [replace(step.finished) for step in self._pending], self._reached_ns
        for finished in steps:
            reached_ns = _give_up(finished, reached_ns)
        return steps

    def renumber(self, shift: int) -> None:
        """Add to the numbers of the steps that the device is not done with."""
        for step in self._pending:
            step.finished.step += shift

    # Steps.

    def close(self, finished: FinishedStep, ordinal: int) -> None:
        """End the running step with mark `ordinal` and begin the next one there."""
        step = self.running
        step.close(finished, ordinal)
        self._pending.append(step)
        self.running = DeviceStep(ordinal)
        self._finish()

    def lose_marks(self) -> None:
        """Note that marks are lost: distances from them are, so the device's time begins again."""
        for step in (*self._pending, self.running):
            step.forget()
        self._finish()
        self._anchors.clear()
        self.events.clear()
        self._known = None
        self._floor_ns = 0

    def resume(self, ordinal: int) -> None:
        """Begin a step with mark `ordinal` after marks were lost, and with them steps before it."""
        if self.running.start != ordinal:
            self.running = DeviceStep(ordinal)
            self._reached_ns = None

    def _finish(self, seen_ns: int | None = None) -> None:
        """Emit, in their order, the steps that were read to their end or cannot be."""
        pending, anchors = self._pending, self._anchors
        newest = next(reversed(anchors), -1)
        while pending:
            step = pending[0]
            if step.is_whole and not self._is_lost and step.end > newest:
                return
            reading, events = None, self.events.pop_until(step.end)
            if step.is_whole and not self._is_lost and seen_ns is not None:
                reading = read_step(step, anchors, events)
            if reading is None or seen_ns is None or not self._measure(step, reading, seen_ns):
                self._reached_ns = _give_up(step.finished, self._reached_ns)
            pending.popleft()
            for ordinal in [ordinal for ordinal in anchors if ordinal < step.end]:
                del anchors[ordinal]
            self._emit(step.finished)

    # Where device time lies.

    def _measure(self, step: DeviceStep, reading: DeviceReading, seen_ns: int) -> bool:
        """Move the step to device time; return False where that is nowhere on the host's clock."""
        finished = step.finished
        end_device_ns = self._anchors[step.end][0]
        if reading.length_ns > DISTANCE_MAX_NS or sum(self._known or (0, 0)) + end_device_ns > MONOTONIC_NS_MAX:
            self._known = None
            return False
        gap_ns = 0 if self._known is None else end_device_ns - reading.length_ns - self._known[0]
        origin_ns, end_ns = self._place(finished, reading, gap_ns, seen_ns)
        self._known = (end_device_ns, end_ns)
        axis = DeviceAxis(reading.host_ns_P, np.minimum(origin_ns + reading.offset_ns_P, end_ns), self._floor_ns)
        events = finished.events
        computing = [(begin, end) for phase, begin, end in events.spans if phase in (FORWARD, BACKWARD)]
        finished.events, finished.arrays = translate(events, reading, axis, origin_ns)
        finished.device_step_ns = reading.length_ns
        note_unmeasured(finished.events, reading.unmeasured)
        if not finished.events.unmeasured:
            finished.device_comm_ns = in_flight_ns(finished.arrays)
        finished.host_lead_ns = axis.lead(computing)
        return True

    def _place(self, finished: FinishedStep, reading: DeviceReading, gap_ns: int, seen_ns: int) -> tuple[int, int]:
        """Set the step's start and end; return where its first event and its last one lie."""
        earliest_ns = int((reading.host_ns_P - reading.offset_ns_P).max())
        length_ns = reading.length_ns
        correction_ns = 0
        if self._known is None:
            origin_ns = earliest_ns
        else:
            origin_ns = self._known[1] + gap_ns
            correction_ns = _correction(origin_ns, earliest_ns, length_ns, seen_ns)
            self._floor_ns = min(self._floor_ns + length_ns // _DRIFT, origin_ns - earliest_ns)
            self._floor_ns = max(self._floor_ns + correction_ns, 0)
        end_ns = origin_ns + length_ns + correction_ns
        if self._reached_ns is not None:
            finished.start_ns = self._reached_ns
        if finished.start_ns != origin_ns:  # the seam between the host's time and the device's lies in this step
            finished.flags |= _WARM_UP
        self._reached_ns = finished.end_ns = max(end_ns, finished.start_ns)
        return origin_ns, end_ns


def _give_up(finished: FinishedStep, reached_ns: int | None) -> int:
    """Leave the step in host time, moved to where the one before ended; what was waited in it is not known.

    Return where it ends.
    """
    shift_ns = 0 if reached_ns is None else reached_ns - finished.start_ns
    finished.start_ns += shift_ns
    finished.end_ns += shift_ns
    finished.flags |= _WARM_UP
    finished.events = shifted(finished.events, shift_ns)
    if finished.arrays is not None:
        finished.arrays = shifted_arrays(finished.arrays, shift_ns)
    return finished.end_ns


def _correction(origin_ns: int, earliest_ns: int, length_ns: int, seen_ns: int) -> int:
    """Return by how much a step is stretched so that no work is done before queued, or shortened, after seen."""
    most_ns = length_ns // SLEW
    if origin_ns < earliest_ns:
        return min(earliest_ns - origin_ns, most_ns)
    return -min(max(origin_ns + length_ns - seen_ns, 0), most_ns)
