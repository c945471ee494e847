# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Communication of a large step as arrays: what communication_marks.py does mark by mark, for steps of hundreds.

Marks in an order that a training seldom leaves are not read here but one by one: both give the same records
(tests/accounting/test_arrays.py).

Shapes: M marks, C collectives, W waits, E ends of collectives, V marks that begin or end a wait.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from lockstep.accounting.communication import NOT_OURS, WAITS_DEEP_MAX, CommunicationTracker
from lockstep.accounting.events import IN_FLIGHT, UNKNOWN_NS, StepEvents, Traffic
from lockstep.accounting.pending_marks import PendingMarks
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import KIND_MASK, OTHER_THREAD, MarkKind

MARK_DTYPE = np.dtype([("time", "<u8"), ("kind", "<u2"), ("detail", "<u2"), ("subject", "<u4"), ("argument", "<i8")])
_ISSUE, _DONE, _DONE_UNKNOWN = int(MarkKind.ISSUE), int(MarkKind.DONE), int(MarkKind.DONE_UNKNOWN)
_EXPECT, _WAIT_BEGIN, _WAIT_END = int(MarkKind.EXPECT), int(MarkKind.WAIT_BEGIN), int(MarkKind.WAIT_END)
_QUEUED = int(MarkKind.DEVICE_QUEUED)
PATTERNS_MAX = 4
"""Patterns of steps that are held: a training's, its evaluation's, and those of a micro-batch more or less."""
PATTERN_COLLECTIVES_MAX = 4096
"""Of a pattern that is held, 20 bytes each."""
_NEVER = np.iinfo(np.int64).max
"""Position behind all marks."""

Integers = NDArray[np.int64]


@dataclass(slots=True)
class CommunicationPoints:
    """Marks of a step's communication that a device has events of: ordinals of marks, host times ns, arrays of int64.

    issue_at_C, queued_at_C, queued_ns_C : of the issue, and of the mark at the end, -1 where there is none
    wait_at_V, wait_ns_V : where waits begin and end
    """

    issue_at_C: Integers
    queued_at_C: Integers
    queued_ns_C: Integers
    wait_at_V: Integers
    wait_ns_V: Integers


@dataclass(frozen=True, slots=True)
class IssuePattern:
    """What a step issues, in its order: steps of a training are mostly alike, and share one. Arrays are read-only.

    domain_C, synchronous_C : of the collectives
    moved : (domain, collectives, payload bytes, bus bytes) of each domain
    """

    domain_C: Integers
    synchronous_C: NDArray[np.bool_]
    moved: tuple[tuple[int, int, int, int], ...]


def pattern_of(traffic_C: Integers, traffic: list[Traffic]) -> IssuePattern:
    """Return the pattern of collectives whose traffic is known; `traffic_C` are indices in `traffic`."""
    domain_C = np.array([each.domain for each in traffic], np.int64)[traffic_C]
    synchronous_C = np.array([each.synchronous for each in traffic], np.bool_)[traffic_C]
    domain_C.flags.writeable = synchronous_C.flags.writeable = False
    moved: dict[int, tuple[int, int, int, int]] = {}
    counts = np.bincount(traffic_C, minlength=len(traffic)).tolist()
    for more, (domain, payload_bytes, bus_bytes, _) in zip(counts, traffic, strict=True):
        _, times, payload, bus = moved.get(domain, (domain, 0, 0, 0))
        moved[domain] = (domain, times + more, payload + more * payload_bytes, bus + more * bus_bytes)
    return IssuePattern(domain_C, synchronous_C, tuple(moved.values()))


@dataclass(slots=True)
class StepArrays:
    """Collectives and waits of a step; times ns, arrays of int64.

    issue_ns_C, done_ns_C : as in IssuedCollective, in the order of issue times
    ordinal_C : of the collectives in the attempt
    domain_C, synchronous_C, moved : as in IssuePattern
    begin_ns_W, end_ns_W, domain_W : as in StepEvents.blocked, in its order
    points : of a rank with a device
    is_aside_C : whether a device does it next to the training's own work; None where none is
    """

    issue_ns_C: Integers
    done_ns_C: Integers
    ordinal_C: Integers
    domain_C: Integers
    synchronous_C: NDArray[np.bool_]
    moved: tuple[tuple[int, int, int, int], ...]
    begin_ns_W: Integers
    end_ns_W: Integers
    domain_W: Integers
    points: CommunicationPoints | None = None
    is_aside_C: NDArray[np.bool_] | None = None

    def end(self, ordinal: int, done_ns: int) -> bool:
        """Note when a collective was done; return False where it is not of this step."""
        found_C = self.ordinal_C == ordinal
        self.done_ns_C[found_C] = done_ns
        return bool(found_C.any())


@dataclass(slots=True)
class _Marks:
    """Marks of a step that are all of the plain kinds, with valid times, and those of DEVICE_QUEUED apart from them."""

    time_M: Integers
    kind_M: NDArray[np.uint16]
    marks_M: NDArray[np.void]
    other_M: NDArray[np.bool_] | None
    """Of another thread; None where none is."""
    inside_M: NDArray[np.bool_] | None
    """Inside a backward, where there are other threads."""
    position_M: Integers
    queued_at_E: Integers
    """Positions in the attempt, as `position_M`, of the marks of `queued_E`."""
    queued_E: NDArray[np.void]


@dataclass(slots=True)
class _Issues:
    """Collectives in the order of marks: `at_C` is the position of the mark."""

    at_C: Integers
    ordinal_C: Integers
    pattern: IssuePattern


@dataclass(slots=True)
class _Waits:
    """Waits in the order of the marks that end them, and those that are open behind the last mark."""

    begin_ns_W: Integers
    end_at_W: Integers
    open_waits: list[int]
    open_other_waits: list[int]


def read_arrays(pending: PendingMarks, tracker: CommunicationTracker) -> StepArrays | None:
    """Return the communication of a whole step, and leave `tracker` as the marks leave it.

    None, and nothing done, where they are of a kind or in an order that is for one mark after another.
    """
    marks = _read_marks(pending, has_device=tracker.keeps_former) if tracker.is_plain else None
    if marks is None:
        return None
    issues = _read_issues(marks, tracker)
    waits = _read_waits(marks, tracker)
    if issues is None or waits is None:
        return None
    time_M, pattern = marks.time_M, issues.pattern
    issue_ns_C = time_M[issues.at_C]
    domain_W = _guessed_domains(waits, issues, tracker)
    done_ns_C = _read_ends(marks, issues, waits, domain_W)
    if tracker.keeps_former:
        _end_former(marks, issues, tracker)
    arrays = StepArrays(
        issue_ns_C=issue_ns_C,
        done_ns_C=done_ns_C,
        ordinal_C=issues.ordinal_C,
        domain_C=pattern.domain_C,
        synchronous_C=pattern.synchronous_C,
        moved=pattern.moved,
        begin_ns_W=waits.begin_ns_W,
        end_ns_W=time_M[waits.end_at_W],
        domain_W=domain_W,
    )
    if not tracker.has_communicated:  # what is waited for before the first collective is of no domain
        is_kept_W = waits.end_at_W > (issues.at_C[0] if len(issues.at_C) else _NEVER)
        _forget_waits(arrays, is_kept_W)
        waits.end_at_W = waits.end_at_W[is_kept_W]
    if tracker.keeps_former:
        arrays.points = _points(marks, issues, waits)
    tracker.take_over([domain for domain, *_ in pattern.moved], pattern.domain_C[-1:].tolist())
    tracker.set_waits(waits.open_waits, waits.open_other_waits)
    return in_issue_order(arrays)


def arrays_of(events: StepEvents) -> StepArrays:
    """Return the communication that was read one mark after another."""
    collectives = events.collectives
    indices: defaultdict[Traffic, int] = defaultdict(count().__next__)
    traffic_C = np.array([indices[each.traffic] for each in collectives], np.int64)
    pattern = pattern_of(traffic_C, list(indices))
    times = [(each.issue_ns, each.done_ns) for each in collectives]
    issue_ns_C, done_ns_C = np.array(times, np.int64).reshape(-1, 2).T
    wait_W3 = np.array(events.blocked, np.int64).reshape(-1, 3)
    return StepArrays(
        issue_ns_C=issue_ns_C,
        done_ns_C=done_ns_C,
        ordinal_C=np.full(len(collectives), -1, np.int64),
        domain_C=pattern.domain_C,
        synchronous_C=pattern.synchronous_C,
        moved=pattern.moved,
        begin_ns_W=wait_W3[:, 0],
        end_ns_W=wait_W3[:, 1],
        domain_W=wait_W3[:, 2],
    )


def without_waits(arrays: StepArrays) -> StepArrays:
    """Return a copy without its waits."""
    none_W = np.empty(0, np.int64)
    return replace(arrays, begin_ns_W=none_W, end_ns_W=none_W, domain_W=none_W)


def _read_marks(pending: PendingMarks, *, has_device: bool) -> _Marks | None:
    marks_M = np.frombuffer(pending.data, MARK_DTYPE)
    kind_M = marks_M["kind"]
    if marks_M["time"].max() > MONOTONIC_NS_MAX:
        return None
    other_M = inside_M = None
    if kind_M.max() >= OTHER_THREAD:
        other_M = kind_M >= OTHER_THREAD
        kind_M = kind_M & KIND_MASK
        counts, insides, _ = zip(*pending.runs, strict=True)
        inside_M = np.repeat(insides, counts)
    position_M, queued_at_E, queued_E = np.empty(0, np.int64), np.empty(0, np.int64), marks_M[:0]
    if has_device:
        position_M = _positions(pending)
        queued_M = (kind_M == _QUEUED).nonzero()[0]
        # `take`: of marks, which are no numbers, an index costs 30 times as much.
        queued_at_E, queued_E = position_M.take(queued_M), marks_M.take(queued_M)
    if len(queued_at_E):
        kept_M = (kind_M != _QUEUED).nonzero()[0]
        marks_M, kind_M, position_M = marks_M.take(kept_M), kind_M.take(kept_M), position_M.take(kept_M)
        if other_M is not None and inside_M is not None:
            other_M, inside_M = other_M.take(kept_M), inside_M.take(kept_M)
    if kind_M.max(initial=0) > _WAIT_END:
        return None
    return _Marks(
        marks_M["time"].astype(np.int64), kind_M, marks_M, other_M, inside_M, position_M, queued_at_E, queued_E
    )


def _positions(pending: PendingMarks) -> Integers:
    """Return the position in the attempt of each mark."""
    counts, _, firsts = zip(*pending.runs, strict=True)
    counts_R = np.array(counts)
    return np.repeat(np.array(firsts) - counts_R.cumsum() + counts_R, counts_R) + np.arange(len(pending))


def _read_issues(marks: _Marks, tracker: CommunicationTracker) -> _Issues | None:
    is_issue_M = marks.kind_M == _ISSUE
    if marks.other_M is not None and marks.inside_M is not None:
        is_issue_M &= ~marks.other_M | marks.inside_M
    at_C = is_issue_M.nonzero()[0]
    ordinal_C = marks.marks_M["subject"][at_C]
    if not (ordinal_C[1:] > ordinal_C[:-1]).all():
        return None
    pattern = _pattern_of(marks.marks_M["detail"][at_C], marks.marks_M["argument"][at_C], tracker)
    return None if pattern is None else _Issues(at_C, ordinal_C, pattern)


def _pattern_of(
    detail_C: NDArray[np.uint16], argument_C: Integers, tracker: CommunicationTracker
) -> IssuePattern | None:
    """Return what was issued, of a step like one before the same object; None where no agent writes such a mark."""
    key = (detail_C.tobytes(), argument_C.tobytes())
    pattern = tracker.patterns.get(key)
    if pattern is not None:
        return pattern
    indices: defaultdict[tuple[int, int], int] = defaultdict(count().__next__)
    pairs = zip(detail_C.tolist(), argument_C.tolist(), strict=True)
    traffic_C = np.fromiter(map(indices.__getitem__, pairs), np.int64, len(detail_C))
    traffic = [tracker.traffic_of(*pair) for pair in indices]
    known = [each for each in traffic if each is not None]
    if len(known) < len(traffic):
        return None
    pattern = pattern_of(traffic_C, known)
    if len(detail_C) <= PATTERN_COLLECTIVES_MAX:
        if len(tracker.patterns) == PATTERNS_MAX:
            tracker.patterns.clear()
        tracker.patterns[key] = pattern
    return pattern


def _read_waits(marks: _Marks, tracker: CommunicationTracker) -> _Waits | None:
    at_W = (marks.kind_M >= _WAIT_BEGIN).nonzero()[0]
    kind_W = marks.kind_M[at_W]
    is_alternating = (kind_W[0::2] == _WAIT_BEGIN).all() and (kind_W[1::2] == _WAIT_END).all()
    if is_alternating and not tracker.has_open_waits and (marks.other_M is None or not marks.other_M[at_W].any()):
        begin_ns_W = marks.time_M[at_W[0::2]]
        end_at_W = at_W[1::2]
        return _Waits(begin_ns_W[: len(end_at_W)], end_at_W, begin_ns_W[len(end_at_W) :].tolist(), [])
    return _pair_waits(marks, at_W, tracker)


def _pair_waits(marks: _Marks, at_W: Integers, tracker: CommunicationTracker) -> _Waits | None:
    """Return waits inside waits and of two threads: each end is of what its thread began last."""
    none_W = np.zeros(len(at_W), np.bool_)
    other_W = none_W if marks.other_M is None else marks.other_M[at_W]
    inside_W = none_W if marks.inside_M is None else marks.inside_M[at_W]
    own, others = tracker.open_waits()
    pairs = []
    columns = (at_W, marks.kind_M[at_W], marks.time_M[at_W], other_W, inside_W)
    for at, kind, time_ns, is_other, is_inside in zip(*(column.tolist() for column in columns), strict=True):
        waits = others if is_other else own
        if kind == _WAIT_BEGIN:
            waits.append(NOT_OURS if is_other and not is_inside else time_ns)
            if len(waits) > WAITS_DEEP_MAX:
                return None
        elif waits and (began_ns := waits.pop()) != NOT_OURS:
            pairs.append((began_ns, at))
    pairs_W = np.array(pairs, np.int64).reshape(-1, 2)
    return _Waits(pairs_W[:, 0], pairs_W[:, 1], own, others)


def _guessed_domains(waits: _Waits, issues: _Issues, tracker: CommunicationTracker) -> Integers:
    """Return, for each wait, the domain of what was issued last, as a guess."""
    last_W = issues.at_C.searchsorted(waits.end_at_W)
    return ~np.concatenate(([tracker.last_domain], issues.pattern.domain_C))[last_W]


def _read_ends(marks: _Marks, issues: _Issues, waits: _Waits, domain_W: Integers) -> Integers:
    """Return when each collective was done, and set the domain of waits for those that were expected."""
    end_at_E = ((marks.kind_M >= _DONE) & (marks.kind_M <= _EXPECT)).nonzero()[0]
    end_at_E, collective_E = _collectives_of(end_at_E, marks, issues)
    kind_E = marks.kind_M[end_at_E]
    done_ns_E = marks.time_M[end_at_E]
    done_ns_E[kind_E == _DONE_UNKNOWN] = UNKNOWN_NS
    expect_E = (kind_E == _EXPECT).nonzero()[0]
    if len(expect_E):
        wait_E = waits.end_at_W.searchsorted(end_at_E[expect_E])
        end_at_E[expect_E] = _NEVER
        done_ns_E[expect_E] = marks.time_M[issues.at_C[collective_E[expect_E]]]  # given up at the step's end
        is_awaited_E = wait_E < len(waits.end_at_W)
        expect_E, wait_E = expect_E[is_awaited_E], wait_E[is_awaited_E]
        end_at_E[expect_E] = waits.end_at_W[wait_E]
        done_ns_E[expect_E] = marks.time_M[waits.end_at_W[wait_E]]
        domain_W[wait_E] = issues.pattern.domain_C[
            collective_E[expect_E]
        ]  # of several the last one, as for the next line
        order_E = end_at_E.argsort(kind="stable")
        collective_E, done_ns_E = collective_E[order_E], done_ns_E[order_E]
    done_ns_C = np.full(len(issues.at_C), IN_FLIGHT, np.int64)
    done_ns_C[collective_E] = done_ns_E
    return done_ns_C


def _collectives_of(end_at_E: Integers, marks: _Marks, issues: _Issues) -> tuple[Integers, Integers]:
    """Return those marks that end a collective issued before them in this step, and its index."""
    if not len(issues.at_C):
        return end_at_E[:0], end_at_E[:0]
    ordinal_E = marks.marks_M["subject"][end_at_E]
    collective_E = issues.ordinal_C.searchsorted(ordinal_E)
    collective_E[collective_E == len(issues.at_C)] = 0
    is_known_E = (issues.ordinal_C[collective_E] == ordinal_E) & (issues.at_C[collective_E] < end_at_E)
    return end_at_E[is_known_E], collective_E[is_known_E]


def _end_former(marks: _Marks, issues: _Issues, tracker: CommunicationTracker) -> None:
    """Note the ends of collectives of steps before, which a device may not be done with."""
    end_at_E = ((marks.kind_M == _DONE) | (marks.kind_M == _DONE_UNKNOWN)).nonzero()[0]
    first = int(issues.ordinal_C[0]) if len(issues.at_C) else _NEVER
    end_at_E = end_at_E[marks.marks_M["subject"][end_at_E] < first]
    for ordinal, kind, time_ns in zip(
        marks.marks_M["subject"][end_at_E].tolist(),
        marks.kind_M[end_at_E].tolist(),
        marks.time_M[end_at_E].tolist(),
        strict=True,
    ):
        tracker.end(ordinal, time_ns if kind == _DONE else UNKNOWN_NS)


def _points(marks: _Marks, issues: _Issues, waits: _Waits) -> CommunicationPoints:
    """Return the marks that a device has events of."""
    count_C = len(issues.at_C)
    issue_at_C = marks.position_M[issues.at_C]
    queued_at_C, queued_ns_C = np.full(count_C, -1, np.int64), np.zeros(count_C, np.int64)
    if count_C and len(marks.queued_at_E):
        collective_E = np.minimum(issues.ordinal_C.searchsorted(marks.queued_E["subject"]), count_C - 1)
        is_known_E = issues.ordinal_C[collective_E] == marks.queued_E["subject"]
        is_known_E &= issue_at_C[collective_E] < marks.queued_at_E
        queued_at_C[collective_E[is_known_E]] = marks.queued_at_E[is_known_E]
        queued_ns_C[collective_E[is_known_E]] = marks.queued_E["time"][is_known_E]
    is_begin_M = marks.kind_M == _WAIT_BEGIN
    if marks.other_M is not None and marks.inside_M is not None:
        is_begin_M &= ~marks.other_M | marks.inside_M
    wait_at_V = np.concatenate((is_begin_M.nonzero()[0], waits.end_at_W))
    return CommunicationPoints(
        issue_at_C, queued_at_C, queued_ns_C, marks.position_M[wait_at_V], marks.time_M[wait_at_V]
    )


def _forget_waits(arrays: StepArrays, is_kept_W: NDArray[np.bool_]) -> None:
    arrays.begin_ns_W, arrays.end_ns_W = arrays.begin_ns_W[is_kept_W], arrays.end_ns_W[is_kept_W]
    arrays.domain_W = arrays.domain_W[is_kept_W]


def in_issue_order(arrays: StepArrays) -> StepArrays:
    """Return the arrays with collectives in the order of their times, which two threads may not keep."""
    if (arrays.issue_ns_C[1:] >= arrays.issue_ns_C[:-1]).all():
        return arrays
    order_C = arrays.issue_ns_C.argsort(kind="stable")
    for name in ("issue_ns_C", "done_ns_C", "ordinal_C", "domain_C", "synchronous_C"):
        setattr(arrays, name, getattr(arrays, name)[order_C])
    if arrays.is_aside_C is not None:
        arrays.is_aside_C = arrays.is_aside_C[order_C]
    points = arrays.points
    if points is not None:
        for name in ("issue_at_C", "queued_at_C", "queued_ns_C"):
            setattr(points, name, getattr(points, name)[order_C])
    return arrays
