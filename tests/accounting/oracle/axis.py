"""A step's marks, made when work was queued, become marks of when the device did it. Pure arithmetic on ns.

A mark that has an event lies where the event does. What has none (garbage collections, phases that the
training names itself) lies where the host was, unless the device was busy then: between the events around it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import itemgetter

from lockstep.contracts.records import MISSING
from tests.accounting.oracle.account import BACKWARD, Collective, Interval, Marks

UNSEEN_NS = -2
"""`Collective.done_ns` of one of which nobody says when it was done, but whose waits are seen: it blocks only there,
and how long it was in flight is not known."""

Flight = tuple[int, int | None, bool]
"""(issue, done, whether aside): device times of a collective, the second if an event tells, and whether its stream was
not the training's own."""


class Axis:
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


def translate(marks: Marks, axis: Axis, flights: Mapping[Collective, Flight]) -> Marks:
    """Return `marks` in device time; they and their collectives are not changed.

    A collective on a stream of its own (FSDP's) blocks only where the training's stream waits for it, however it was
    called.
    """
    at = axis.at
    translated = Marks()
    translated.unmeasured = dict(marks.unmeasured)
    translated.spans = [(phase, at(begin), at(end)) for phase, begin, end in marks.spans]
    translated.gcs = [axis.exposed(begin, end) for begin, end in marks.gcs]
    translated.blocks = [(at(begin), at(end), kind) for begin, end, kind in marks.blocks]
    tails = _tails(marks)
    for collective in marks.collectives:
        issue, done, aside = flights.get(collective, (at(collective.issue_ns), None, False))
        if done is None:
            done = _done_ns(collective, issue, tails, axis)
        copy = Collective(
            issue, collective.kind, collective.payload_bytes, collective.bus_bytes, collective.synchronous and not aside
        )
        copy.done_ns = done
        (translated.aside if aside else translated.collectives).append(copy)
    return translated


def _tails(marks: Marks) -> list[Interval]:
    """Return, for each backward, from when on nobody was seen waiting in it, and its end."""
    blocks = [begin for begin, _, _ in marks.blocks]
    tails = []
    for phase, begin, end in marks.spans:
        if phase == BACKWARD:
            index = bisect_right(blocks, end)
            tails.append((max(begin, blocks[index - 1] + 1) if index else begin, end))
    return tails


def _done_ns(collective: Collective, issue_ns: int, tails: list[Interval], axis: Axis) -> int:
    """Return when a collective without an event of its end was done, as far as the host knows.

    0, which is "until the end of the backward", only for the last ones of a backward: the reducer waits for those
    unseen. Whoever called an earlier one waited for it where that was seen.
    """
    if collective.done_ns != 0:
        return collective.done_ns if collective.done_ns < 0 else max(axis.at(collective.done_ns), issue_ns)
    index = bisect_right(tails, collective.issue_ns, key=itemgetter(0)) - 1
    in_tail = index >= 0 and collective.issue_ns <= tails[index][1]
    return 0 if in_tail and not collective.synchronous else UNSEEN_NS


def in_flight_ns(collectives: list[Collective]) -> int:
    """Return the time with any collective in flight; MISSING if of one it is not known when it was done."""
    total = reached = 0
    for collective in sorted(collectives, key=lambda collective: collective.issue_ns):
        if collective.done_ns <= 0:
            return MISSING
        begin = max(collective.issue_ns, reached)
        if collective.done_ns > begin:
            total += collective.done_ns - begin
            reached = collective.done_ns
    return total
