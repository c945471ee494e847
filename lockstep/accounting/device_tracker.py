"""Maps a rank's device time to the host's clock, and holds the steps that the device has not finished yet.

A device step runs from the end of the step before to its own end. Lengths are the device's own, in whole ns, so that
steps add up without gaps. The position of this chain on CLOCK_MONOTONIC is bounded by two facts: the device does
nothing before it is queued, and it has finished what was seen done. The first step is placed as early as possible.
Afterwards a step may be stretched or shortened by a thousandth to stay within these bounds, which keeps two drifting
clocks together without jumps.

A step is given up if one of its events is missing (graph capture), if more than PENDING_STEPS_MAX steps wait for the
device, or if the device is lost. Its record then has host times, no waits, and a flag. The next measured step ends
where the device's time, counted through the gap, shows.

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
"""Steps that may wait for the device. The steps of a job whose host runs further ahead (whole steps as one graph,
the loss never read) would be evaluated too late anyway."""
SLEW = 1000
"""A step is corrected by at most one part in this many of its length: ten times the drift of quartz clocks, and
below any noise."""
ANCHORS_MAX = 4096
"""Limit of stored anchors; a step with more (an optimizer per parameter, a thousand times) is not measured."""
_DRIFT = 100_000  # 10 ppm of a step: by how much the least observed lead may become outdated

_WARM_UP = int(Flag.WARM_UP)


class DeviceTracker:
    """Device times of one rank's steps.

    `emit` is called with each step in order, once the device has finished it or it is given up. `running` is the step
    in progress, `events` are the events read so far. Ordinals are positions of marks in the attempt.
    """

    def __init__(self, emit: Callable[[FinishedStep], None]) -> None:
        self._emit = emit
        self.running = DeviceStep(None)
        self.events = DeviceEvents()
        self._pending: deque[DeviceStep] = deque()
        self._is_lost = False
        self._anchors: Anchors = {}
        self._device_ns = 0  # position of the last anchor in the device's own time
        self._known: tuple[int, int] | None = None  # end of the last measured step: device time, host time
        self._reached_ns: int | None = None  # end of the last emitted step
        self._floor_ns = 0

    # Input from the process.

    def begin(self, ordinal: int, stream: int, *, is_at_start: bool) -> None:
        """Begin to measure at the event of mark `ordinal`; the running step is measured only if it has just begun."""
        self._anchors[ordinal] = (self._device_ns, stream)
        self.running = DeviceStep(ordinal if is_at_start else None)

    def read_anchor(self, ordinal: int, stream: int, distance_ns: int, seen_ns: int) -> None:
        """Note the distance of an anchor from the previous one.

        The device was seen to have finished it at `seen_ns`.
        """
        if distance_ns > DISTANCE_MAX_NS:
            self.lose_marks()
            return
        self._device_ns += max(distance_ns, 0)
        self._anchors[ordinal] = (self._device_ns, stream)
        if len(self._anchors) > ANCHORS_MAX:
            del self._anchors[next(iter(self._anchors))]
        self._finish(seen_ns)

    def lose_segment(self, ordinal: int, *, ends: bool) -> None:
        """Note that an event is missing in the segment in which mark `ordinal` lies, or which it `ends`."""
        for step in (*self._pending, self.running):
            start, end = -1 if step.start is None else step.start, step.end
            is_after = start < ordinal if ends else start <= ordinal
            if is_after and (end < 0 or ordinal <= end):
                step.forget()
        self._finish()

    def fall_behind(self) -> None:
        """Give up the oldest steps until at most PENDING_STEPS_MAX wait for the device."""
        while len(self._pending) > PENDING_STEPS_MAX:
            self._pending[0].forget()
            self._finish()

    def lose_device(self) -> None:
        """Note that no more events will be read from the device."""
        self._is_lost = True
        self._finish()

    def drain(self) -> None:
        """Give up the steps that the device has not finished, because no more events follow."""
        for step in self._pending:
            step.forget()
        self._finish()

    def given_up(self) -> list[FinishedStep]:
        """Return the unfinished steps in the form they have if they are given up now."""
        steps, reached_ns = [replace(step.finished) for step in self._pending], self._reached_ns
        for finished in steps:
            reached_ns = _give_up(finished, reached_ns)
        return steps

    def renumber(self, shift: int) -> None:
        """Add `shift` to the numbers of the steps that the device has not finished."""
        for step in self._pending:
            step.finished.step += shift

    # Steps.

    def close(self, finished: FinishedStep, ordinal: int) -> None:
        """End the running step at mark `ordinal` and begin the next one there."""
        step = self.running
        step.close(finished, ordinal)
        self._pending.append(step)
        self.running = DeviceStep(ordinal)
        self._finish()

    def lose_marks(self) -> None:
        """Note that marks are lost; distances depend on them, so the device's time starts over."""
        for step in (*self._pending, self.running):
            step.forget()
        self._finish()
        self._anchors.clear()
        self.events.clear()
        self._known = None
        self._floor_ns = 0

    def resume(self, ordinal: int) -> None:
        """Begin a step at mark `ordinal`, after marks and thereby steps before it were lost."""
        if self.running.start != ordinal:
            self.running = DeviceStep(ordinal)
            self._reached_ns = None

    def _finish(self, seen_ns: int | None = None) -> None:
        """Emit, in order, the steps whose events are complete or cannot become complete."""
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

    # Mapping of device time.

    def _measure(self, step: DeviceStep, reading: DeviceReading, seen_ns: int) -> bool:
        """Convert the step to device time; return False if it does not fit on the host's clock."""
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
        """Set the step's start and end; return the positions of its first and last event."""
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
        if finished.start_ns != origin_ns:  # this step contains the transition from host time to device time
            finished.flags |= _WARM_UP
        self._reached_ns = finished.end_ns = max(end_ns, finished.start_ns)
        return origin_ns, end_ns


def _give_up(finished: FinishedStep, reached_ns: int | None) -> int:
    """Leave the step in host time, shifted to the end of the previous step; its waits become unknown.

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
    """Return the correction of a step: longer if it begins before `earliest_ns`, shorter if it ends after `seen_ns`."""
    max_ns = length_ns // SLEW
    if origin_ns < earliest_ns:
        return min(earliest_ns - origin_ns, max_ns)
    return -min(max(origin_ns + length_ns - seen_ns, 0), max_ns)
