"""HOT (budget 2,000 ns for a step without collectives): the marks of one step become a partition of its time.

May live here: arithmetic on times. May not: torch, clocks, state, I/O.

Every instant of the step goes to exactly one of: garbage collection, a wait for a domain kind, data, compute
(forward, backward, optimizer), host (the rest), in this order of priority. So

    data + compute + host + gc + sum of waits == end - start

holds exactly, in integers. When is the training thread blocked by a collective?

- A synchronous one blocks from issue to done, where that is known.
- An asynchronous one (DDP's reducer) is hidden behind the thread's work while the thread keeps issuing. Inside one
  backward it can block only after the last issue there, when the reducer waits for what is still on its way; anywhere
  else it blocks only where the thread is seen waiting for it (`blocks`).
- Whatever the thread does next of its own (a mark: a span begins or ends, another issue, a wait begins or ends)
  proves that it was not blocked any longer. The time when a collective is done is noted by another thread,
  which may have been late.

Besides, every kind has the time during which one of its collectives was in flight (`comm_ns`, a union): what of it
was no wait was hidden behind work.
"""

from bisect import bisect_left, bisect_right
from operator import attrgetter, itemgetter

from lockstep.contracts.records import DOMAIN_KINDS

DATA, FORWARD, BACKWARD, OPTIMIZER = range(4)
KIND_COUNT = len(DOMAIN_KINDS)

UNKNOWN_NS = -1
"""`Collective.done_ns` of one of which it will never be known when it is done: it blocks nobody here."""

Span = tuple[int, int, int]
"""(phase, start ns, end ns); the spans of a step ascend and do not overlap."""
Interval = tuple[int, int]
"""(start ns, end ns)."""
Wait = tuple[int, int, int]
"""(start ns, end ns, index of the domain kind).

In `Marks.blocks` a negative kind `~k` is a guess: k was issued last, and the wait is of the kind that was done when it
ended.
"""

Traffic = tuple[int, int, int]
"""(count, payload bytes, bus bytes) of collectives of one kind."""

_issue = attrgetter("issue_ns")
_start = itemgetter(0)


class Collective:
    """One collective of the training thread.

    `done_ns` is 0 until somebody sets it, once, to when the collective was done or to UNKNOWN_NS. `bus_bytes` is what
    crosses the slowest link for the payload (traffic.py).
    """

    __slots__ = ("bus_bytes", "done_ns", "issue_ns", "kind", "payload_bytes", "synchronous")

    def __init__(self, issue_ns: int, kind: int, payload_bytes: int, bus_bytes: int, synchronous: bool) -> None:  # noqa: FBT001  (hot: positional calls are the fast ones)
        self.issue_ns = issue_ns
        self.done_ns = 0
        self.kind = kind
        self.payload_bytes = payload_bytes
        self.bus_bytes = bus_bytes
        self.synchronous = synchronous


class Marks:
    """What happened in one step. All but the collectives ascend; `spans` and `gcs` are disjoint.

    `blocks` are where the thread was seen waiting for communication. Collectives `aside` are those that a device does
    beside the training's own work: their issue says nothing of that, and what waits for them is in `blocks`.
    `unmeasured` has the kinds whose waits are not known, with what was carried out of each without being dispatched
    (a CUDA graph).
    """

    __slots__ = ("aside", "blocks", "collectives", "gcs", "spans", "unmeasured")

    def __init__(self) -> None:
        self.aside: list[Collective] = []
        self.spans: list[Span] = []
        self.gcs: list[Interval] = []
        self.collectives: list[Collective] = []
        self.blocks: list[Wait] = []
        self.unmeasured: dict[int, Traffic] = {}


class Shares:
    """Where one step's time went, all in ns: disjoint, but for `comm_ns` (by kind).

    `phases_ns` is of DATA, FORWARD, BACKWARD and OPTIMIZER, without the waits and collections inside them: the last
    three sum to `compute_ns`.
    `comm_ns` and `waits_ns` are lists of length KIND_COUNT; a kind that waited was in flight for at least as long.
    """

    __slots__ = ("comm_ns", "compute_ns", "data_ns", "gc_ns", "host_ns", "phases_ns", "waits_ns")

    def __init__(self) -> None:
        self.data_ns = self.compute_ns = self.host_ns = self.gc_ns = 0
        self.comm_ns = [0] * KIND_COUNT
        self.waits_ns = [0] * KIND_COUNT
        self.phases_ns = [0, 0, 0, 0]


def account(start_ns: int, end_ns: int, marks: Marks) -> Shares:
    """Return the partition of the step from `start_ns` to `end_ns`.

    Marks that reach out of the step are clipped to it, and not changed.
    """
    shares = Shares()
    host_ns = end_ns - start_ns
    taken = _clipped(marks.gcs, start_ns, end_ns) if marks.gcs else []
    for begin, end in taken:
        shares.gc_ns += end - begin
    if marks.collectives or marks.blocks or marks.aside:
        ordered = sorted(marks.collectives, key=_issue)
        pieces = _disjoint(_blocked(end_ns, marks, ordered), start_ns, end_ns)
        if taken:
            pieces = _without(pieces, taken)
        for begin, end, kind in pieces:
            shares.waits_ns[kind] += end - begin
            host_ns -= end - begin
        taken += [(begin, end) for begin, end, _ in pieces]
        taken.sort()
        if marks.aside:
            ordered = sorted(ordered + marks.aside, key=_issue)
        _add_flight(shares, start_ns, end_ns, ordered)
    own = shares.phases_ns
    first = 0
    for phase, span_start, span_end in marks.spans:
        begin = span_start if span_start > start_ns else start_ns  # noqa: FURB136  (max() costs 3 times as much)
        end = span_end if span_end < end_ns else end_ns  # noqa: FURB136
        if begin >= end:
            continue
        if taken:
            lost, first = _overlap(begin, end, taken, first)
            own[phase] += end - begin - lost
        else:
            own[phase] += end - begin
    shares.data_ns = data_ns = own[DATA]
    shares.compute_ns = compute_ns = own[FORWARD] + own[BACKWARD] + own[OPTIMIZER]
    shares.host_ns = host_ns - shares.gc_ns - data_ns - compute_ns
    return shares


def _blocked(end_ns: int, marks: Marks, ordered: list[Collective]) -> list[Wait]:
    """Return where the thread was blocked; intervals may overlap, the earliest issued comes first among equals."""
    issues = [collective.issue_ns for collective in ordered]
    limits = _own_marks(end_ns, marks, issues)
    backwards = [span for span in marks.spans if span[0] == BACKWARD]
    waits: list[Wait] = []
    index = -1
    span_start = span_end = last = last_limit = -1
    for collective in ordered:
        issue = collective.issue_ns
        done = collective.done_ns
        if collective.synchronous:
            if done > 0 and issue < end_ns:
                limit = limits[bisect_right(limits, issue)]
                waits.append((issue, done if done < limit else limit, collective.kind))  # noqa: FURB136  (hot)
            continue
        while span_end < issue and index + 1 < len(backwards):
            index += 1
            _, span_start, span_end = backwards[index]
            last = issues[bisect_right(issues, span_end) - 1]
            last_limit = limits[bisect_right(limits, last)] if last < end_ns else last
        if span_start <= issue <= span_end:
            if done == 0 or done > last_limit:
                done = last_limit
            waits.append((last, done, collective.kind))
    if marks.blocks:
        waits += _known_kinds(marks.blocks, ordered + marks.aside)
    return waits


def _known_kinds(blocks: list[Wait], ordered: list[Collective]) -> list[Wait]:
    """Return `blocks` with each guessed kind replaced by that of the collective done nearest to the block's end."""
    kinds = {collective.kind for collective in ordered}
    done: list[tuple[int, int]] = []
    if len(kinds) > 1 and any(kind < 0 for _, _, kind in blocks):
        done = sorted((collective.done_ns, collective.kind) for collective in ordered if collective.done_ns > 0)
    known: list[Wait] = []
    for begin, end, kind in blocks:
        if kind >= 0:
            known.append((begin, end, kind))
            continue
        at = bisect_right(done, (end, KIND_COUNT))
        near = done[max(at - 1, 0) : at + 1]
        known.append((begin, end, min(near, key=lambda item: abs(item[0] - end))[1] if near else ~kind))
    return known


def _add_flight(shares: Shares, start_ns: int, end_ns: int, ordered: list[Collective]) -> None:
    """Fill `comm_ns`: by kind, the union of the times in which a collective was in flight."""
    reached = [start_ns] * KIND_COUNT
    flight = shares.comm_ns
    for collective in ordered:
        kind, done = collective.kind, collective.done_ns
        if done == UNKNOWN_NS:
            continue
        if done == 0 or done > end_ns:
            done = end_ns
        begin = reached[kind]
        begin = max(begin, collective.issue_ns)
        if done > begin:
            flight[kind] += done - begin
            reached[kind] = done
    for kind, wait in enumerate(shares.waits_ns):
        flight[kind] = max(flight[kind], wait)


def _own_marks(end_ns: int, marks: Marks, issues: list[int]) -> list[int]:
    """Return every time at which the thread is known not to be blocked, ascending."""
    own = [*issues, end_ns]
    for _, begin, end in marks.spans:
        own += (begin, end)
    for begin, end, _ in marks.blocks:
        own += (begin, end)
    own.sort()
    return own


def _disjoint(waits: list[Wait], start_ns: int, end_ns: int) -> list[Wait]:
    """Return the union of `waits` inside the step, each instant given to the wait that began first."""
    pieces: list[Wait] = []
    cursor = start_ns
    for wait_start, wait_end, kind in sorted(waits, key=_start):
        begin = cursor if wait_start < cursor else wait_start  # noqa: FURB136  (hot)
        end = end_ns if wait_end > end_ns else wait_end  # noqa: FURB136
        if begin < end:
            pieces.append((begin, end, kind))
            cursor = end
    return pieces


def _clipped(intervals: list[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    clipped = ((max(begin, start_ns), min(end, end_ns)) for begin, end in intervals)
    return [(begin, end) for begin, end in clipped if begin < end]


def _without(pieces: list[Wait], holes: list[Interval]) -> list[Wait]:
    """Return `pieces` less `holes`; both ascend and are disjoint."""
    left: list[Wait] = []
    starts = [begin for begin, _ in holes]
    for begin, end, kind in pieces:
        cursor = begin
        for hole_start, hole_end in holes[max(bisect_left(starts, begin) - 1, 0) : bisect_left(starts, end)]:
            if cursor < hole_start:
                left.append((cursor, hole_start, kind))
            cursor = max(cursor, hole_end)
        if cursor < end:
            left.append((cursor, end, kind))
    return left


def _overlap(begin: int, end: int, taken: list[Interval], first: int) -> tuple[int, int]:
    """Return how much of begin to end is taken, and the index from which the next span need look."""
    lost = 0
    count = len(taken)
    while first < count and taken[first][1] <= begin:
        first += 1
    index = first
    while index < count and taken[index][0] < end:
        lost += min(taken[index][1], end) - max(taken[index][0], begin)
        index += 1
    return lost, first
