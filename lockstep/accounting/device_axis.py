# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Converts a step's events from the times at which work was queued to those at which the device did it. Pure.

A mark that has a device event is placed at that event. A mark without one (garbage collection, phases named by the
training) is placed at its host time, unless the device was busy then: in that case it lies between the neighbouring
events. All times are in ns.

Shapes: P points, T times, C collectives, W waits, S spans, B backwards.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.accounting.breakdown_arrays import union_ns
from lockstep.accounting.device_step import DeviceReading
from lockstep.accounting.events import BACKWARD, IN_FLIGHT, UNKNOWN_NS, UNSEEN_NS, IssuedCollective, StepEvents
from lockstep.accounting.step_arrays import Integers, StepArrays, all_hold, any_holds, in_issue_order, without_waits
from lockstep.contracts.records import MISSING


class DeviceAxis:
    """Maps host times of one step to device times.

    Points ascend in both. `floor_ns` is the lag of an idle device, i.e. the duration of a launch.
    """

    __slots__ = ("_device_ns_P", "_floor_ns", "_host_ns_P")

    def __init__(self, host_ns_P: Integers, device_ns_P: Integers, floor_ns: int) -> None:
        self._host_ns_P = host_ns_P
        self._device_ns_P = device_ns_P
        self._floor_ns = floor_ns

    def at(self, host_ns_T: Integers) -> Integers:
        """Return the device times of host times."""
        hosts, devices, last = self._host_ns_P, self._device_ns_P, len(self._host_ns_P) - 1
        behind_T = hosts.searchsorted(host_ns_T, "right")
        if all_hold(hosts[behind_T - 1] == host_ns_T):  # all are points; a time before the first compares with the last
            return devices[behind_T - 1]
        before_T = hosts.searchsorted(host_ns_T)
        late_ns_T = host_ns_T + self._floor_ns
        between_ns_T = np.where(before_T > 0, np.maximum(late_ns_T, devices[before_T - 1]), late_ns_T)
        upper_ns_T = devices[np.minimum(before_T, last)]
        between_ns_T = np.where(before_T <= last, np.minimum(between_ns_T, upper_ns_T), between_ns_T)
        return np.where(behind_T > before_T, devices[behind_T - 1], between_ns_T)

    def exposed(self, begin_ns_T: Integers, end_ns_T: Integers) -> tuple[Integers, Integers]:
        """Return the parts of host pauses during which the device had no work.

        The work still queued for the device at the next event shows by how much the pause was hidden, so at most the
        rest was exposed.
        """
        begin_T, end_T = self.at(begin_ns_T), self.at(end_ns_T)
        index_T = self._host_ns_P.searchsorted(end_ns_T)
        next_T = np.minimum(index_T, len(self._host_ns_P) - 1)
        lead_ns_T = np.maximum(self._device_ns_P[next_T] - self._host_ns_P[next_T] - self._floor_ns, 0)
        lead_ns_T[index_T > next_T] = 0
        return np.maximum(begin_T, end_T - np.maximum(end_ns_T - begin_ns_T - lead_ns_T, 0)), end_T

    def lead(self, spans: Sequence[tuple[int, int]]) -> int:
        """Return the least lead of the host over the device in these host spans.

        MISSING if no event lies in any of them.
        """
        if not spans:
            return MISSING
        begin_ns_S, end_ns_S = np.array(spans, np.int64).T
        firsts = self._host_ns_P.searchsorted(begin_ns_S).tolist()
        lasts = self._host_ns_P.searchsorted(end_ns_S, "right").tolist()
        ahead_ns_P = self._device_ns_P - self._host_ns_P
        inside = [ahead_ns_P[first:last].min() for first, last in zip(firsts, lasts, strict=True) if first < last]
        return max(int(min(inside)) - self._floor_ns, 0) if inside else MISSING


def translate(
    events: StepEvents, reading: DeviceReading, axis: DeviceAxis, origin_ns: int
) -> tuple[StepEvents, StepArrays]:
    """Return a step's events and its communication in device time; the step's first event is at `origin_ns`.

    The inputs are not changed. A collective on a stream of its own (FSDP's) blocks only where the training's stream
    waits for it, whether or not it was called synchronously.
    """
    arrays = reading.arrays
    waits, spans = len(arrays.begin_ns_W), len(events.spans)
    span_S = np.array(events.spans, np.int64).reshape(-1, 3)
    moved_T = axis.at(np.concatenate((arrays.begin_ns_W, arrays.end_ns_W, span_S[:, 1], span_S[:, 2])))
    begin_ns_W, end_ns_W = moved_T[:waits], moved_T[waits : 2 * waits]
    begin_S, end_S = moved_T[2 * waits : 2 * waits + spans], moved_T[2 * waits + spans :]
    issue_ns_C = origin_ns + reading.issue_ns_C
    if not all_hold(reading.is_read_C):
        issue_ns_C = np.where(reading.is_read_C, issue_ns_C, axis.at(arrays.issue_ns_C))
    done_ns_C = np.where(reading.is_done_C, origin_ns + reading.done_ns_C, arrays.done_ns_C)
    if not all_hold(reading.is_done_C):
        seen_C = (~reading.is_done_C & (done_ns_C > IN_FLIGHT)).nonzero()[0]
        if len(seen_C):
            done_ns_C[seen_C] = np.maximum(axis.at(done_ns_C[seen_C]), issue_ns_C[seen_C])
        is_open_C = ~reading.is_done_C & (done_ns_C == IN_FLIGHT)
        if any_holds(is_open_C):
            done_ns_C = np.where(is_open_C, _unended(arrays, events), done_ns_C)
    synchronous_C = arrays.synchronous_C
    if reading.is_aside_C is not None:
        synchronous_C = synchronous_C & ~reading.is_aside_C
    translated = StepEvents()
    translated.unmeasured = dict(events.unmeasured)
    translated.spans = list(zip(span_S[:, 0].tolist(), begin_S.tolist(), end_S.tolist(), strict=True))
    if events.collections:
        begin_ns_T, end_ns_T = axis.exposed(*np.array(events.collections, np.int64).T)
        translated.collections = list(zip(begin_ns_T.tolist(), end_ns_T.tolist(), strict=True))
    moved = StepArrays(
        issue_ns_C=issue_ns_C,
        done_ns_C=done_ns_C,
        ordinal_C=arrays.ordinal_C,
        domain_C=arrays.domain_C,
        synchronous_C=synchronous_C,
        moved=arrays.moved,
        by_domain_C=arrays.by_domain_C,
        begin_ns_W=begin_ns_W,
        end_ns_W=end_ns_W,
        domain_W=arrays.domain_W,
        is_aside_C=reading.is_aside_C,
    )
    return translated, in_issue_order(moved)


def _unended(arrays: StepArrays, events: StepEvents) -> Integers:
    """Return the `done_ns` constants of collectives whose end has no event.

    IN_FLIGHT, i.e. "until the end of the backward", applies only to the last ones of a backward: the reducer waits for
    those unobserved. If the caller of a hook waited for an earlier one, that wait was observed.
    """
    backward_B = np.array([(begin, end) for phase, begin, end in events.spans if phase == BACKWARD], np.int64)
    if not len(backward_B):
        return np.full(len(arrays.issue_ns_C), UNSEEN_NS, np.int64)
    begin_B, end_B = backward_B.T
    if len(arrays.begin_ns_W):  # starting after the last wait that began in the backward, or before it
        last_B = arrays.begin_ns_W.searchsorted(end_B, "right") - 1
        begin_B = np.where(last_B >= 0, np.maximum(begin_B, arrays.begin_ns_W[last_B] + 1), begin_B)
    index_C = begin_B.searchsorted(arrays.issue_ns_C, "right") - 1
    is_tail_C = (index_C >= 0) & (arrays.issue_ns_C <= end_B[index_C]) & ~arrays.synchronous_C
    return np.where(is_tail_C, IN_FLIGHT, UNSEEN_NS)


def in_flight_ns(arrays: StepArrays) -> int:
    """Return the time with any collective in flight; MISSING if the end of one is unknown."""
    if any_holds(arrays.done_ns_C <= IN_FLIGHT):
        return MISSING
    return union_ns(arrays.issue_ns_C, arrays.done_ns_C, 0)


def shifted(events: StepEvents, shift_ns: int) -> StepEvents:
    """Return the events of an unmeasured step, in shifted host time; the ends of its collectives become unknown."""
    moved = StepEvents()
    moved.unmeasured = events.unmeasured
    moved.spans = [(phase, begin + shift_ns, end + shift_ns) for phase, begin, end in events.spans]
    moved.collections = [(begin + shift_ns, end + shift_ns) for begin, end in events.collections]
    for collective in events.collectives:
        copy = IssuedCollective(collective.issue_ns + shift_ns, collective.traffic)
        copy.done_ns = UNKNOWN_NS
        moved.collectives.append(copy)
    return moved


def shifted_arrays(arrays: StepArrays, shift_ns: int) -> StepArrays:
    """Return the same for communication in arrays."""
    moved = without_waits(arrays)
    moved.issue_ns_C = arrays.issue_ns_C + shift_ns
    moved.done_ns_C = np.full_like(arrays.done_ns_C, UNKNOWN_NS)
    return moved
