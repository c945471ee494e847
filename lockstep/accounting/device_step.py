"""One step's events on a device: which were queued, which were read, and what they measure. Pure arithmetic on ns."""

from bisect import bisect_right
from dataclasses import dataclass

from lockstep.accounting.device_axis import Flight
from lockstep.accounting.events import EVENTS_MAX, UNKNOWN_NS, IssuedCollective, StepEvents
from lockstep.accounting.step_record import FinishedStep

POINTS_MAX = 4 * EVENTS_MAX
"""Marks with events of one step: a process that never ends one must not fill memory."""

Anchors = dict[int, tuple[int, int]]
"""Ordinal of a mark to (where its event lies in the device's own time, ns; its stream), ascending."""


class DevicePoint:
    """A mark that an event was queued behind; `distance_ns` is None until it is read, and for ever if it never is."""

    __slots__ = ("distance_ns", "host_ns", "ordinal", "stream")

    def __init__(self, ordinal: int, host_ns: int) -> None:
        self.ordinal = ordinal
        self.host_ns = host_ns
        self.stream = 0
        self.distance_ns: int | None = None


class DeviceStep:
    """What was queued in one step. `start` and `end` are ordinals of the marks whose events are its limits.

    Of `points` those in `spans` are what a step cannot be measured without, those in `waits` what its waits cannot.
    """

    __slots__ = (
        "end",
        "finished",
        "flights",
        "is_whole",
        "points",
        "spans",
        "start",
        "waits",
    )

    def __init__(self, start: int | None) -> None:
        self.start = start
        self.end = -1
        self.is_whole = start is not None
        """Whether it can still be measured."""
        self.points: dict[int, DevicePoint] = {}
        """By the ordinals of their marks, ascending."""
        self.spans: list[DevicePoint] = []
        self.waits: list[DevicePoint] = []
        self.flights: dict[IssuedCollective, tuple[DevicePoint, DevicePoint | None]] = {}
        self.finished: FinishedStep

    def add_span(self, ordinal: int, host_ns: int) -> None:
        """Note a mark where a span begins or ends."""
        point = self._add(ordinal, host_ns)
        if point is not None:
            self.spans.append(point)

    def add_wait(self, ordinal: int, host_ns: int) -> None:
        """Note a mark where a wait begins or ends."""
        point = self._add(ordinal, host_ns)
        if point is not None:
            self.waits.append(point)

    def add_issue(self, collective: IssuedCollective, ordinal: int) -> None:
        """Note the mark of a collective's issue."""
        point = self._add(ordinal, collective.issue_ns)
        if point is not None:
            self.flights[collective] = (point, None)

    def add_end(self, collective: IssuedCollective, ordinal: int, host_ns: int) -> None:
        """Note the mark whose event is the collective's end."""
        flight = self.flights.get(collective)
        point = None if flight is None else self._add(ordinal, host_ns)
        if flight is None or point is None:
            collective.done_ns = UNKNOWN_NS
        else:
            self.flights[collective] = (flight[0], point)

    def _add(self, ordinal: int, host_ns: int) -> DevicePoint | None:
        if len(self.points) >= POINTS_MAX:
            self.forget()
        if not self.is_whole:
            return None
        point = self.points[ordinal] = DevicePoint(ordinal, host_ns)
        return point

    def forget(self) -> None:
        """Let go of the points of a step that will not be measured."""
        self.is_whole = False
        self.points = {}
        self.spans = []
        self.waits = []
        self.flights = {}


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What a device shows of a step: offsets from its start, ns; `points` are (host, offset), ascending in both.

    `flights` are of the collectives whose beginning was read. `unmeasured` are domains of which something has no event.
    """

    length_ns: int
    points: list[tuple[int, int]]
    flights: dict[IssuedCollective, Flight]
    unmeasured: set[int]


def read_step(step: DeviceStep, anchors: Anchors) -> DeviceReading | None:
    """Return what was read of a step that the device is done with; None where a span's event or a limit is missing."""
    start, end = anchors.get(-1 if step.start is None else step.start), anchors.get(step.end)
    if not step.is_whole or start is None or end is None:
        return None
    if any(point.distance_ns is None for point in step.spans):
        return None
    offsets = _offsets(step, anchors, start[0])
    home, length_ns = start[1], end[0] - start[0]
    points = sorted((point.host_ns, offset) for point, offset in offsets.items() if point.stream == home)
    events = step.finished.events
    unmeasured = set()
    if any(point.distance_ns is None for point in step.waits):
        unmeasured = {collective.traffic.domain for collective in events.collectives}
    flights: dict[IssuedCollective, Flight] = {}
    for collective, (began, ended) in step.flights.items():
        issue_ns = offsets.get(began)
        if issue_ns is None:
            unmeasured.add(collective.traffic.domain)
            continue
        done_ns = None
        if ended is not None:
            done_ns = offsets.get(ended) if ended.stream == began.stream else None
            if done_ns is None:
                collective.done_ns = UNKNOWN_NS
            else:
                done_ns = max(done_ns, issue_ns)
        flights[collective] = (issue_ns, done_ns, began.stream != home)
    return DeviceReading(length_ns, _ascending(step.finished, length_ns, points), flights, unmeasured)


def _offsets(step: DeviceStep, anchors: Anchors, start_ns: int) -> dict[DevicePoint, int]:
    """Return where each point that was read lies after the step's start: distances are from the last anchor before."""
    ordinals = [ordinal for ordinal in anchors if step.start is not None and step.start <= ordinal < step.end]
    bases = [anchors[ordinal][0] - start_ns for ordinal in ordinals]
    read = ((point, point.distance_ns) for point in step.points.values())
    if len(ordinals) == 1:
        return {point: distance_ns for point, distance_ns in read if distance_ns is not None}
    return {
        point: bases[bisect_right(ordinals, point.ordinal) - 1] + distance_ns
        for point, distance_ns in read
        if distance_ns is not None
    }


def _ascending(finished: FinishedStep, length_ns: int, points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the points between the step's two ends, their offsets made to ascend: drivers round them one by one."""
    ascending = [(finished.start_ns, 0)]
    reached = 0
    for host_ns, offset_ns in points:
        if not finished.start_ns < host_ns <= finished.end_ns:  # a mark in the middle of a step's end
            continue
        reached = min(max(offset_ns, reached), length_ns)
        ascending.append((host_ns, reached))
    if ascending[-1] != (finished.end_ns, length_ns):
        ascending.append((finished.end_ns, length_ns))
    return ascending


def note_unmeasured(events: StepEvents, domains: set[int]) -> None:
    """Note the domains of which something found no event."""
    for domain in domains:
        events.unmeasured.setdefault(domain, (0, 0, 0))
