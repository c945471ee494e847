"""A step's events, noted when work was queued, become events of when the device did it. Pure arithmetic on ns.

A mark that has an event lies where the event does. What has none (garbage collections, phases that the training
names itself) lies where the host was, unless the device was busy then: between the events around it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import attrgetter, itemgetter

from lockstep.accounting.events import (
    BACKWARD,
    IN_FLIGHT,
    UNKNOWN_NS,
    UNSEEN_NS,
    Interval,
    IssuedCollective,
    StepEvents,
)
from lockstep.contracts.records import MISSING

Flight = tuple[int, int | None, bool]
"""(issue, done, whether aside): device times of a collective, the second if an event has it, and whether its stream was
not the training's own."""


class DeviceAxis:
    """Where host times of one step lie in device time.

    `points` are (host, device) pairs, ascending in both; `floor_ns` is how late an idle device is, which is what a
    launch takes.
    """

    __slots__ = ("_devices", "_exact", "_floor_ns", "_hosts")

    def __init__(self, points: list[tuple[int, int]], floor_ns: int) -> None:
        self._hosts = [host for host, _ in points]
        self._devices = [device for _, device in points]
        self._exact = dict(points)
        self._floor_ns = floor_ns

    def at(self, host_ns: int) -> int:
        """Return the device time of `host_ns`."""
        exact = self._exact.get(host_ns)
        if exact is not None:
            return exact
        index = bisect_left(self._hosts, host_ns)
        device = host_ns + self._floor_ns
        if index > 0:
            device = max(device, self._devices[index - 1])
        if index < len(self._hosts):
            device = min(device, self._devices[index])
        return device

    def exposed(self, begin_ns: int, end_ns: int) -> Interval:
        """Return the part of a pause of the host that the device had no work for.

        What was still queued for the device at the next event is what the pause could have been longer without being
        felt, so at most the rest was exposed.
        """
        begin, end = self.at(begin_ns), self.at(end_ns)
        return max(begin, end - max(end_ns - begin_ns - self._lead_after(end_ns), 0)), end

    def _lead_after(self, host_ns: int) -> int:
        index = bisect_left(self._hosts, host_ns)
        if index == len(self._hosts):
            return 0
        return max(self._devices[index] - self._hosts[index] - self._floor_ns, 0)

    def lead(self, begin_ns: int, end_ns: int) -> int:
        """Return the least time by which the host was ahead from `begin_ns` to `end_ns`; MISSING without an event."""
        events = range(bisect_left(self._hosts, begin_ns), bisect_right(self._hosts, end_ns))
        if not events:
            return MISSING
        return max(min(self._devices[index] - self._hosts[index] for index in events) - self._floor_ns, 0)


def translate(events: StepEvents, axis: DeviceAxis, flights: Mapping[IssuedCollective, Flight]) -> StepEvents:
    """Return `events` in device time; they and their collectives are not changed.

    A collective on a stream of its own (FSDP's) blocks only where the training's stream waits for it, however it was
    called.
    """
    at = axis.at
    translated = StepEvents()
    translated.unmeasured = dict(events.unmeasured)
    translated.spans = [(phase, at(begin), at(end)) for phase, begin, end in events.spans]
    translated.collections = [axis.exposed(begin, end) for begin, end in events.collections]
    translated.blocked = [(at(begin), at(end), domain) for begin, end, domain in events.blocked]
    tails = _tails(events)
    for collective in events.collectives:
        flight = flights.get(collective)
        issue_ns, done_ns, is_aside = (at(collective.issue_ns), None, False) if flight is None else flight
        traffic = collective.traffic._replace(synchronous=False) if is_aside else collective.traffic
        moved = IssuedCollective(issue_ns, traffic)
        moved.done_ns = _done_ns(collective, issue_ns, tails, axis) if done_ns is None else done_ns
        (translated.aside if is_aside else translated.collectives).append(moved)
    return translated


def _tails(events: StepEvents) -> list[Interval]:
    """Return, for each backward, from when on no one was seen waiting in it, and its end."""
    waits = [begin for begin, _, _ in events.blocked]
    tails = []
    for phase, begin, end in events.spans:
        if phase == BACKWARD:
            index = bisect_right(waits, end)
            tails.append((max(begin, waits[index - 1] + 1) if index else begin, end))
    return tails


def _done_ns(collective: IssuedCollective, issue_ns: int, tails: list[Interval], axis: DeviceAxis) -> int:
    """Return when a collective without an event of its end was done, as far as the host knows.

    IN_FLIGHT, which is "until the end of the backward", only for the last ones of a backward: the reducer waits for
    those unseen. Whoever called an earlier one waited for it where that was seen.
    """
    done_ns = collective.done_ns
    if done_ns != IN_FLIGHT:
        return done_ns if done_ns < 0 else max(axis.at(done_ns), issue_ns)
    index = bisect_right(tails, collective.issue_ns, key=itemgetter(0)) - 1
    in_tail = index >= 0 and collective.issue_ns <= tails[index][1]
    return IN_FLIGHT if in_tail and not collective.traffic.synchronous else UNSEEN_NS


def in_flight_ns(events: StepEvents) -> int:
    """Return the time with any collective in flight; MISSING if of one it is not known when it was done."""
    total = reached = 0
    for collective in sorted(events.collectives + events.aside, key=attrgetter("issue_ns")):
        if collective.done_ns <= IN_FLIGHT:
            return MISSING
        begin = max(collective.issue_ns, reached)
        if collective.done_ns > begin:
            total += collective.done_ns - begin
            reached = collective.done_ns
    return total


def shifted(events: StepEvents, shift_ns: int) -> StepEvents:
    """Return the events of a step that was not measured, in host time and moved; no end of a collective is known."""
    moved = StepEvents()
    moved.unmeasured = events.unmeasured
    moved.spans = [(phase, begin + shift_ns, end + shift_ns) for phase, begin, end in events.spans]
    moved.collections = [(begin + shift_ns, end + shift_ns) for begin, end in events.collections]
    for collective in events.collectives:
        copy = IssuedCollective(collective.issue_ns + shift_ns, collective.traffic)
        copy.done_ns = UNKNOWN_NS
        moved.collectives.append(copy)
    return moved
