"""Partitions the time of one step by its events.

Every instant of the step is attributed to exactly one of: garbage collection, a wait for a domain, data, compute
(forward, backward, optimizer), host (the rest), in this order of priority. So

    data + compute + host + gc + sum of waits == end - start

holds exactly, in integers. When does a collective block the training thread?

- A synchronous one blocks from issue to done, if the end is known.
- An asynchronous one (DDP's reducer) is hidden behind the thread's work as long as the thread keeps issuing. Inside a
  backward it can block only after the last issue, when the reducer waits for the remaining ones. Elsewhere it blocks
  only where the thread is observed waiting for it (`blocked`).
- The next action of the thread itself (a span begins or ends, another issue, a wait begins or ends) proves that it was
  no longer blocked. The end of a collective is noted by another thread, which may have been late.

In addition, each domain has the time during which one of its collectives was in flight (`in_flight_ns`, a union). The
part of it that is not a wait was hidden behind work.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import attrgetter, itemgetter, sub

from lockstep.accounting.events import (
    BACKWARD,
    DATA,
    IN_FLIGHT,
    PHASE_COUNT,
    UNKNOWN_NS,
    Interval,
    IssuedCollective,
    StepEvents,
    Wait,
)
from lockstep.contracts.records import DOMAIN_KINDS

DOMAIN_COUNT = len(DOMAIN_KINDS)

_issue_ns = attrgetter("issue_ns")
_start = itemgetter(0)


class StepBreakdown:
    """The parts of one step's time in ns; disjoint, except for `in_flight_ns`.

    `phase_ns` is a list of length PHASE_COUNT that excludes the waits and collections inside a phase: forward, backward
    and optimizer sum to `compute_ns`. `wait_ns` and `in_flight_ns` are lists of length DOMAIN_COUNT; a domain's
    in-flight time is at least its wait.
    """

    __slots__ = ("collection_ns", "compute_ns", "data_ns", "host_ns", "in_flight_ns", "phase_ns", "wait_ns")

    def __init__(self) -> None:
        self.data_ns = self.compute_ns = self.host_ns = self.collection_ns = 0
        self.phase_ns = [0] * PHASE_COUNT
        self.wait_ns = [0] * DOMAIN_COUNT
        self.in_flight_ns = [0] * DOMAIN_COUNT


def attribute(start_ns: int, end_ns: int, events: StepEvents) -> StepBreakdown:
    """Return the partition of the step from `start_ns` to `end_ns`; events that extend beyond it are clipped."""
    breakdown = StepBreakdown()
    taken = clip(events.collections, start_ns, end_ns)
    breakdown.collection_ns = sum(end - begin for begin, end in taken)
    if events.collectives or events.blocked or events.aside:
        ordered = sorted(events.collectives, key=_issue_ns)
        pieces = _disjoint(_blocked(end_ns, events, ordered), start_ns, end_ns)
        if taken:
            pieces = subtract(pieces, taken)
        for begin, end, domain in pieces:
            breakdown.wait_ns[domain] += end - begin
        taken += [(begin, end) for begin, end, _ in pieces]
        taken.sort()
        if events.aside:
            ordered = sorted(ordered + events.aside, key=_issue_ns)
        _add_flight(breakdown, start_ns, end_ns, ordered)
    taken_time = TakenTime([begin for begin, _ in taken], [end for _, end in taken])
    _add_phases(breakdown, start_ns, end_ns, events, taken_time)
    return breakdown


def _add_phases(breakdown: StepBreakdown, start_ns: int, end_ns: int, events: StepEvents, taken: "TakenTime") -> None:
    """Set phases, data, compute and host, without the time that is `taken` already."""
    own = breakdown.phase_ns
    for phase, span_start, span_end in events.spans:
        begin, end = max(span_start, start_ns), min(span_end, end_ns)
        if begin < end:
            own[phase] += end - begin - (taken.until(end) - taken.until(begin))
    breakdown.data_ns = own[DATA]
    breakdown.compute_ns = sum(own) - own[DATA]
    attributed = breakdown.collection_ns + sum(breakdown.wait_ns) + sum(own)
    breakdown.host_ns = end_ns - start_ns - attributed


def _blocked(end_ns: int, events: StepEvents, ordered: list[IssuedCollective]) -> list[Wait]:
    """Return when the thread was blocked; intervals may overlap.

    Among equal begins, the earliest issued comes first.
    """
    issues = [collective.issue_ns for collective in ordered]
    limits = _unblocked_at(end_ns, events, issues)
    backwards = [span for span in events.spans if span[0] == BACKWARD]
    waits: list[Wait] = []
    index = -1
    span_start = span_end = last = last_limit = -1
    for collective in ordered:
        issue, done = collective.issue_ns, collective.done_ns
        domain, _, _, synchronous = collective.traffic
        if synchronous:
            if done > 0 and issue < end_ns:
                limit = limits[bisect_right(limits, issue)]
                waits.append((issue, done if done < limit else limit, domain))  # noqa: FURB136  (min() takes 3 times as long)
            continue
        while span_end < issue and index + 1 < len(backwards):
            index += 1
            _, span_start, span_end = backwards[index]
            last = issues[bisect_right(issues, span_end) - 1]
            last_limit = limits[bisect_right(limits, last)] if last < end_ns else last
        if span_start <= issue <= span_end:
            if done == IN_FLIGHT or done > last_limit:
                done = last_limit
            waits.append((last, done, domain))
    return waits + _known_domains(events.blocked, ordered + events.aside if events.aside else ordered)


def _known_domains(blocked: list[Wait], ordered: list[IssuedCollective]) -> list[Wait]:
    """Return `blocked`, with each guessed domain replaced by that of the collective done nearest to the wait's end."""
    done: list[tuple[int, int]] = []
    if any(domain < 0 for _, _, domain in blocked) and len({collective.traffic.domain for collective in ordered}) > 1:
        done = sorted((c.done_ns, c.traffic.domain) for c in ordered if c.done_ns > 0)
    return [
        (begin, end, domain if domain >= 0 else _nearest(end, done, guess=~domain)) for begin, end, domain in blocked
    ]


def _nearest(end_ns: int, done: list[tuple[int, int]], *, guess: int) -> int:
    at = bisect_right(done, (end_ns, DOMAIN_COUNT))
    near = done[max(at - 1, 0) : at + 1]
    return min(near, key=lambda item: abs(item[0] - end_ns))[1] if near else guess


def _unblocked_at(end_ns: int, events: StepEvents, issues: list[int]) -> list[int]:
    """Return all times at which the thread is known not to be blocked, ascending."""
    times = [*issues, end_ns]
    for _, begin, end in events.spans:
        times += (begin, end)
    for begin, end, _ in events.blocked:
        times += (begin, end)
    times.sort()
    return times


def _add_flight(breakdown: StepBreakdown, start_ns: int, end_ns: int, ordered: list[IssuedCollective]) -> None:
    """Set `in_flight_ns`."""
    reached = [start_ns] * DOMAIN_COUNT
    flight = breakdown.in_flight_ns
    for collective in ordered:
        domain, done, begin = collective.traffic.domain, collective.done_ns, collective.issue_ns
        if done == UNKNOWN_NS:
            continue
        if done == IN_FLIGHT or done > end_ns:
            done = end_ns
        begin = reached[domain] if begin < reached[domain] else begin  # noqa: FURB136  (as above)
        if done > begin:
            flight[domain] += done - begin
            reached[domain] = done
    for domain, wait in enumerate(breakdown.wait_ns):
        flight[domain] = max(flight[domain], wait)


def _disjoint(waits: list[Wait], start_ns: int, end_ns: int) -> list[Wait]:
    """Return the union of `waits` inside the step; each instant belongs to the wait that began first."""
    pieces: list[Wait] = []
    cursor = start_ns
    for wait_start, wait_end, domain in sorted(waits, key=_start):
        begin = cursor if wait_start < cursor else wait_start  # noqa: FURB136  (as above)
        end = end_ns if wait_end > end_ns else wait_end  # noqa: FURB136
        if begin < end:
            pieces.append((begin, end, domain))
            cursor = end
    return pieces


def clip(intervals: list[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    """Return the parts of `intervals` inside the step."""
    clipped = ((max(begin, start_ns), min(end, end_ns)) for begin, end in intervals)
    return [(begin, end) for begin, end in clipped if begin < end]


def subtract(pieces: list[Wait], taken: list[Interval]) -> list[Wait]:
    """Return `pieces` without `taken`; both must ascend and be disjoint."""
    left: list[Wait] = []
    starts = [begin for begin, _ in taken]
    for begin, end, domain in pieces:
        cursor = begin
        for taken_start, taken_end in taken[max(bisect_left(starts, begin) - 1, 0) : bisect_left(starts, end)]:
            if cursor < taken_start:
                left.append((cursor, taken_start, domain))
            cursor = max(cursor, taken_end)
        if cursor < end:
            left.append((cursor, end, domain))
    return left


class TakenTime:
    """The total time of disjoint, ascending intervals before any instant."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self._starts = starts
        self._ends = ends
        self._before: list[int] = [0, *accumulate(map(sub, ends, starts))]

    def until(self, instant_ns: int) -> int:
        """Return the time that the intervals take before `instant_ns`."""
        index = bisect_left(self._starts, instant_ns)
        beyond = max(self._ends[index - 1] - instant_ns, 0) if index else 0
        return self._before[index] - beyond
