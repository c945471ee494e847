"""HOT (budget 2,000 ns for a step without collectives): the marks of one step become a partition of its time.

May live here: arithmetic on times. May not: torch, clocks, state, I/O.

Every instant of the step goes to exactly one of: garbage collection, a wait for a domain kind, data, compute
(forward, backward, optimizer), host (the rest), in this order of priority. So

    data + compute + host + gc + sum of waits == end - start

holds exactly, in integers. When is the training thread blocked by a collective?

- A synchronous one blocks from issue to done.
- An asynchronous one (DDP's reducer) is hidden behind the thread's work while the thread keeps issuing. Inside one
  backward it can block only after the last issue there, when the reducer waits for what is still on its way; anywhere
  else it blocks only where the thread is seen waiting for it (`blocks`).
- Whatever the thread does next of its own (a mark: a span begins or ends, another issue, a wait begins or ends)
  proves that it was not blocked any longer. The time when a collective is done is noted by another thread,
  which may have been late.
"""

from bisect import bisect_left, bisect_right
from operator import attrgetter, itemgetter

from lockstep.contracts.records import DOMAIN_KINDS

DATA, FORWARD, BACKWARD, OPTIMIZER = range(4)
KIND_COUNT = len(DOMAIN_KINDS)

UNKNOWN_NS = -1
"""`Collective.done_ns` of one that runs on a device: the thread goes on at once, when it is done is not known."""

Span = tuple[int, int, int]
"""(phase, start ns, end ns); the spans of a step ascend and do not overlap."""
Interval = tuple[int, int]
"""(start ns, end ns)."""
Wait = tuple[int, int, int]
"""(start ns, end ns, index of the domain kind)."""

_issue = attrgetter("issue_ns")
_start = itemgetter(0)


class Collective:
    """One collective of the training thread.

    `done_ns` is 0 until another thread sets it, once; UNKNOWN_NS where nobody will, which blocks nobody here.
    """

    __slots__ = ("done_ns", "issue_ns", "kind", "payload_bytes", "synchronous")

    def __init__(self, issue_ns: int, kind: int, payload_bytes: int, synchronous: bool) -> None:  # noqa: FBT001  (hot: positional calls are the fast ones)
        self.issue_ns = issue_ns
        self.done_ns = 0
        self.kind = kind
        self.payload_bytes = payload_bytes
        self.synchronous = synchronous


class Marks:
    """What happened in one step. All but `collectives` ascend; `spans` and `gcs` are disjoint.

    `blocks` are where the thread was seen waiting for communication.
    """

    __slots__ = ("blocks", "collectives", "gcs", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.gcs: list[Interval] = []
        self.collectives: list[Collective] = []
        self.blocks: list[Wait] = []


class Shares:
    """Where one step's time went, all in ns. `wall_ns` by phase contains waits and gc, the others are disjoint."""

    __slots__ = ("compute_ns", "data_ns", "gc_ns", "host_ns", "waits_ns", "wall_ns")

    def __init__(self, data_ns: int, compute_ns: int, host_ns: int, gc_ns: int) -> None:
        self.data_ns = data_ns
        self.compute_ns = compute_ns
        self.host_ns = host_ns
        self.gc_ns = gc_ns
        self.waits_ns = [0] * KIND_COUNT
        self.wall_ns = [0, 0, 0, 0]


def account(start_ns: int, end_ns: int, marks: Marks) -> Shares:
    """Return the partition of the step from `start_ns` to `end_ns`.

    Marks that reach out of the step are clipped to it, and not changed.
    """
    shares = Shares(0, 0, 0, 0)
    taken = _clipped(marks.gcs, start_ns, end_ns) if marks.gcs else []
    for begin, end in taken:
        shares.gc_ns += end - begin
    if marks.collectives or marks.blocks:
        pieces = _disjoint(_blocked(end_ns, marks), start_ns, end_ns)
        if taken:
            pieces = _without(pieces, taken)
        for begin, end, kind in pieces:
            shares.waits_ns[kind] += end - begin
        taken += [(begin, end) for begin, end, _ in pieces]
        taken.sort()
    own = [0, 0, 0, 0]
    wall = shares.wall_ns
    first = 0
    for phase, span_start, span_end in marks.spans:
        begin = span_start if span_start > start_ns else start_ns  # noqa: FURB136  (max() costs 3 times as much)
        end = span_end if span_end < end_ns else end_ns  # noqa: FURB136
        if begin >= end:
            continue
        wall[phase] += end - begin
        if taken:
            lost, first = _overlap(begin, end, taken, first)
            own[phase] += end - begin - lost
        else:
            own[phase] += end - begin
    shares.data_ns = own[DATA]
    shares.compute_ns = own[FORWARD] + own[BACKWARD] + own[OPTIMIZER]
    shares.host_ns = end_ns - start_ns - shares.gc_ns - sum(shares.waits_ns) - sum(own)
    return shares


def _blocked(end_ns: int, marks: Marks) -> list[Wait]:
    """Return where the thread was blocked; intervals may overlap, the earliest issued comes first among equals."""
    ordered = sorted(marks.collectives, key=_issue)
    issues = [collective.issue_ns for collective in ordered]
    limits = _own_marks(end_ns, marks, issues)
    backwards = [span for span in marks.spans if span[0] == BACKWARD]
    waits: list[Wait] = []
    index = -1
    span_start = span_end = last = last_limit = -1
    for collective in ordered:
        issue = collective.issue_ns
        done = collective.done_ns or end_ns
        if collective.synchronous:
            if issue < end_ns:
                limit = limits[bisect_right(limits, issue)]
                waits.append((issue, done if done < limit else limit, collective.kind))  # noqa: FURB136  (hot)
            continue
        while span_end < issue and index + 1 < len(backwards):
            index += 1
            _, span_start, span_end = backwards[index]
            last = issues[bisect_right(issues, span_end) - 1]
            last_limit = limits[bisect_right(limits, last)] if last < end_ns else last
        if span_start <= issue <= span_end:
            waits.append((last, done if done < last_limit else last_limit, collective.kind))  # noqa: FURB136
    waits += marks.blocks
    return waits


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
