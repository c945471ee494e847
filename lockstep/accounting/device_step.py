# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""The device events of one step: those queued, those read, and what they measure. Pure arithmetic on ns.

Shapes: C collectives, E events that were read, Q marks after which an event was queued, P points on the home stream.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.accounting.communication_layout import MARK_DTYPE
from lockstep.accounting.events import EVENTS_MAX, UNKNOWN_NS, IssuedCollective, StepEvents
from lockstep.accounting.step_arrays import (
    Bools,
    CommunicationPoints,
    Integers,
    StepArrays,
    all_hold,
    any_holds,
    arrays_of,
)
from lockstep.accounting.step_record import FinishedStep
from lockstep.contracts.marks import MARK_BYTES, ORDINAL_MASK

POINTS_MAX = 4 * EVENTS_MAX
"""Limit of marks with events in one step: a process that never ends a step must not fill the memory."""
DISTANCE_MAX_NS = 1 << 53
"""Limit of distances: 104 days, more than lies between any two steps."""

Anchors = dict[int, tuple[int, int]]
"""Maps the ordinal of a mark to (position of its event in the device's own time, ns; its stream), ascending."""
Point = tuple[int, int]
"""(ordinal of a mark after which an event was queued, its host time, ns)."""

_NO_POINT = (-1, -1, 0)


class DeviceStep:
    """The events queued in one step. `start` and `end` are ordinals of the marks whose events are its limits.

    `spans` are the points without which the step cannot be measured, `waits` those without which its waits cannot.
    `flights` are (ordinal of the issue mark, ordinal of the end mark or -1, host time of the end mark) of collectives
    that were read mark by mark; for others, see `finished.arrays`.
    """

    __slots__ = ("end", "finished", "flights", "is_whole", "spans", "start", "waits")

    def __init__(self, start: int | None) -> None:
        self.start = start
        self.end = -1
        self.is_whole = start is not None
        """Whether the step can still be measured."""
        self.spans: list[Point] = []
        self.waits: list[Point] = []
        self.flights: dict[IssuedCollective, tuple[int, int, int]] = {}
        self.finished: FinishedStep

    def add_span(self, ordinal: int, host_ns: int) -> None:
        """Note a mark where a span begins or ends."""
        if self._may_add():
            self.spans.append((ordinal, host_ns))

    def add_wait(self, ordinal: int, host_ns: int) -> None:
        """Note a mark where a wait begins or ends."""
        if self._may_add():
            self.waits.append((ordinal, host_ns))

    def add_issue(self, collective: IssuedCollective, ordinal: int) -> None:
        """Note the issue mark of a collective."""
        if self._may_add():
            self.flights[collective] = (ordinal, -1, 0)

    def add_end(self, collective: IssuedCollective, ordinal: int, host_ns: int) -> None:
        """Note the mark whose event is the end of the collective."""
        flight = self.flights.get(collective)
        if flight is None or not self._may_add():
            collective.done_ns = UNKNOWN_NS
        else:
            self.flights[collective] = (flight[0], ordinal, host_ns)

    def _may_add(self) -> bool:
        """Whether one more point fits; if not, the step is given up."""
        if len(self.spans) + len(self.waits) + 2 * len(self.flights) >= POINTS_MAX:
            self.forget()
        return self.is_whole

    def close(self, finished: FinishedStep, ordinal: int) -> None:
        """End the step at mark `ordinal`."""
        self.finished = finished
        self.end = ordinal
        arrays = finished.arrays
        if finished.is_incomplete or (arrays is not None and 2 * len(arrays.issue_ns_C) >= POINTS_MAX):
            self.forget()

    def forget(self) -> None:
        """Drop the points of a step that will not be measured."""
        self.is_whole = False
        self.spans = []
        self.waits = []
        self.flights = {}

    def columns(self) -> tuple[StepArrays, CommunicationPoints]:
        """Return the step's communication as arrays, in host time, with its points."""
        arrays = self.finished.arrays
        if arrays is not None and arrays.points is not None:
            return arrays, arrays.points
        events = self.finished.events
        flights = [self.flights.get(collective, _NO_POINT) for collective in events.collectives]
        issue_at_C, queued_at_C, queued_ns_C = np.array(flights, np.int64).reshape(-1, 3).T
        wait_at_V, wait_ns_V = _columns(self.waits)
        points = CommunicationPoints(issue_at_C, queued_at_C, queued_ns_C, wait_at_V, wait_ns_V)
        return arrays_of(events), points


def _columns(points: list[Point]) -> Integers:
    """Return points as an array of shape (2, points)."""
    return np.array(points, np.int64).reshape(-1, 2).T


class DeviceEvents:
    """Distances of events that were read but whose step is not measured yet, ns after the preceding anchor."""

    def __init__(self) -> None:
        self._marks = bytearray()
        self._kept_E = np.empty((3, 0), np.int64)
        self._position = 0

    def add(self, marks: bytes, position: int) -> None:
        """Add DEVICE_EVENT marks, the last one at `position`; surplus ones belong to steps that are not measured."""
        if len(self._marks) // MARK_BYTES + self._kept_E.shape[1] < 2 * POINTS_MAX:
            self._marks += marks
            self._position = position

    def pop_until(self, end: int) -> Integers:
        """Return (ordinals, streams, distances) of the events up to mark `end`, ascending, and remove them.

        Marks carry the low 32 bits of ordinals, which must be among the last 2^32.
        """
        position = self._position
        marks_E = np.frombuffer(self._marks, MARK_DTYPE)
        self._marks = bytearray()
        ordinal_E = marks_E["subject"].astype(np.int64)
        if position > ORDINAL_MASK:
            ordinal_E = position - ((position - ordinal_E) & ORDINAL_MASK)
        read_E = np.empty((3, len(marks_E)), np.int64)
        read_E[0], read_E[1] = ordinal_E, marks_E["detail"]
        np.minimum(np.maximum(marks_E["argument"], -DISTANCE_MAX_NS), DISTANCE_MAX_NS, out=read_E[2])
        if self._kept_E.shape[1]:
            read_E = np.concatenate((self._kept_E, read_E), axis=1)
        if any_holds(read_E[0, 1:] < read_E[0, :-1]):
            read_E = read_E[:, read_E[0].argsort(kind="stable")]
        cut = int(read_E[0].searchsorted(end, "right"))
        self._kept_E = read_E[:, cut:]
        return read_E[:, :cut]

    def clear(self) -> None:
        """Remove all events."""
        self._marks = bytearray()
        self._kept_E = self._kept_E[:, :0]


@dataclass(slots=True)  # not frozen: that costs a step 2 us more
class DeviceReading:
    """The measurement of a step on a device: offsets from its start, ns.

    host_ns_P, offset_ns_P : points of the training's own stream, ascending in both arrays : the step's communication in
    host time; unknown ends are UNKNOWN_NS issue_ns_C, done_ns_C : offsets, valid where `is_read_C` and `is_done_C`
    is_aside_C : whether the stream was not the training's own; None if it was for all unmeasured : domains of which an
    event is missing
    """

    length_ns: int
    host_ns_P: Integers
    offset_ns_P: Integers
    arrays: StepArrays
    issue_ns_C: Integers
    is_read_C: Bools
    done_ns_C: Integers
    is_done_C: Bools
    is_aside_C: Bools | None
    unmeasured: set[int]


def read_step(step: DeviceStep, anchors: Anchors, read_E: Integers) -> DeviceReading | None:
    """Return the measurement of a step that the device has finished.

    None if the event of a span or a limit is missing.
    """
    start, end = anchors.get(-1 if step.start is None else step.start), anchors.get(step.end)
    if not step.is_whole or start is None or end is None:
        return None
    arrays, points = step.columns()
    span_at_S, span_ns_S = _columns(step.spans)
    spans, count = len(span_at_S), len(arrays.issue_ns_C)
    waits = spans + len(points.wait_at_V)
    at_Q = np.concatenate((span_at_S, points.wait_at_V, points.issue_at_C, points.queued_at_C))
    host_ns_Q = np.concatenate((span_ns_S, points.wait_ns_V, arrays.issue_ns_C, points.queued_ns_C))
    offset_ns_Q, stream_Q, is_read_Q = _look_up(at_Q, step, anchors, read_E)
    if not all_hold(is_read_Q[:spans]):
        return None
    issued, queued = slice(waits, waits + count), slice(waits + count, None)
    is_read_C, issue_ns_C = is_read_Q[issued], offset_ns_Q[issued]
    is_done_C = is_read_Q[queued] & (stream_Q[issued] == stream_Q[queued])
    unmeasured: set[int] = set()
    if not all_hold(is_read_C):
        is_done_C &= is_read_C
        unmeasured.update(arrays.domain_C[(points.issue_at_C >= 0) & ~is_read_C].tolist())
    if not all_hold(is_read_Q[spans:waits]):
        unmeasured.update(arrays.domain_C.tolist())
    is_unknown_C = (points.queued_at_C >= 0) & is_read_C & ~is_done_C
    if any_holds(is_unknown_C):
        arrays.done_ns_C = np.where(is_unknown_C, np.int64(UNKNOWN_NS), arrays.done_ns_C)
    length_ns = end[0] - start[0]
    is_home_Q = is_read_Q & (stream_Q == start[1])
    host_ns_P, offset_ns_P = _ascending(step.finished, length_ns, host_ns_Q[is_home_Q], offset_ns_Q[is_home_Q])
    is_aside_C = is_read_C & ~is_home_Q[issued]
    return DeviceReading(
        length_ns=length_ns,
        host_ns_P=host_ns_P,
        offset_ns_P=offset_ns_P,
        arrays=arrays,
        issue_ns_C=issue_ns_C,
        is_read_C=is_read_C,
        done_ns_C=np.maximum(offset_ns_Q[queued], issue_ns_C),
        is_done_C=is_done_C,
        is_aside_C=is_aside_C if any_holds(is_aside_C) else None,
        unmeasured=unmeasured,
    )


def _look_up(at_Q: Integers, step: DeviceStep, anchors: Anchors, read_E: Integers) -> tuple[Integers, Integers, Bools]:
    """Return offsets of events from the step's start, their streams, and whether they were read.

    Distances are relative to the preceding anchor; an anchor inside the step has distance 0 to itself.
    """
    assert step.start is not None
    ordinals = [ordinal for ordinal in anchors if step.start <= ordinal < step.end]
    inside = [(ordinal, anchors[ordinal][1], 0) for ordinal in ordinals[1:]]
    if inside:
        read_E = np.concatenate((read_E, np.array(inside, np.int64).T), axis=1)
        read_E = read_E[:, read_E[0].argsort(kind="stable")]
    if not read_E.shape[1]:
        return np.zeros_like(at_Q), np.zeros_like(at_Q), np.zeros(len(at_Q), np.bool_)
    index_Q = read_E[0].searchsorted(at_Q, "right") - 1
    found_EQ = read_E[:, index_Q]  # index -1 gives the last event, whose ordinal differs
    offset_ns_Q = found_EQ[2]
    if inside:
        base_ns = np.array([anchors[ordinal][0] for ordinal in ordinals], np.int64) - anchors[step.start][0]
        offset_ns_Q = offset_ns_Q + base_ns[np.searchsorted(ordinals, at_Q, "right") - 1]
    return offset_ns_Q, found_EQ[1], found_EQ[0] == at_Q


def _ascending(
    finished: FinishedStep, length_ns: int, host_ns_Q: Integers, offset_ns_Q: Integers
) -> tuple[Integers, Integers]:
    """Return the points inside the step, with offsets made ascending, because drivers round them individually."""
    order_P = host_ns_Q.argsort(kind="stable")
    host_ns_P, offset_ns_P = host_ns_Q[order_P], offset_ns_Q[order_P]
    # Marks outside of the step's limits are dropped.
    first, last = host_ns_P.searchsorted(finished.start_ns, "right"), host_ns_P.searchsorted(finished.end_ns, "right")
    host_ns_P, offset_ns_P = host_ns_P[first:last], offset_ns_P[first:last]
    ends_ns_2P = np.empty((2, len(host_ns_P) + 2), np.int64)
    ends_ns_2P[:, 0], ends_ns_2P[:, -1] = (finished.start_ns, 0), (finished.end_ns, length_ns)
    ends_ns_2P[0, 1:-1], ends_ns_2P[1, 1:-1] = host_ns_P, offset_ns_P
    host_ns_P, offset_ns_P = ends_ns_2P
    return host_ns_P, np.minimum(np.maximum.accumulate(offset_ns_P), length_ns)


def note_unmeasured(events: StepEvents, domains: set[int]) -> None:
    """Note the domains of which an event is missing."""
    for domain in domains:
        events.unmeasured.setdefault(domain, (0, 0, 0))
