# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Communication of a large step as arrays: what communication_marks.py does mark by mark, for steps of hundreds.

Marks in an order that a training seldom leaves are not read here but one by one: both give the same records
(tests/accounting/test_arrays.py).

Shapes: M marks, C collectives, W waits, E ends of collectives.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from lockstep.accounting.communication import NOT_OURS, WAITS_DEEP_MAX, CommunicationTracker
from lockstep.accounting.events import IN_FLIGHT, UNKNOWN_NS, Traffic
from lockstep.accounting.pending_marks import PendingMarks
from lockstep.contracts.bounds import MONOTONIC_NS_MAX
from lockstep.contracts.marks import KIND_MASK, OTHER_THREAD, MarkKind

_MARK = np.dtype([("time", "<u8"), ("kind", "<u2"), ("detail", "<u2"), ("subject", "<u4"), ("argument", "<i8")])
_ISSUE, _DONE, _DONE_UNKNOWN = int(MarkKind.ISSUE), int(MarkKind.DONE), int(MarkKind.DONE_UNKNOWN)
_EXPECT, _WAIT_BEGIN, _WAIT_END = int(MarkKind.EXPECT), int(MarkKind.WAIT_BEGIN), int(MarkKind.WAIT_END)
_NEVER = np.iinfo(np.int64).max
"""Position behind all marks."""

Integers = NDArray[np.int64]


@dataclass(slots=True)
class StepArrays:
    """Collectives and waits of a step; times ns, arrays of int64.

    issue_ns_C, done_ns_C : as in IssuedCollective, in the order of issue times
    traffic_C : indices in `traffic`
    domain_C, synchronous_C : of the traffic
    begin_ns_W, end_ns_W, domain_W : as in StepEvents.blocked, in its order
    """

    issue_ns_C: Integers
    done_ns_C: Integers
    traffic_C: Integers
    traffic: list[Traffic]
    domain_C: Integers
    synchronous_C: NDArray[np.bool_]
    begin_ns_W: Integers
    end_ns_W: Integers
    domain_W: Integers


@dataclass(slots=True)
class _Marks:
    """Marks of a step that are all of the plain kinds, with valid times."""

    time_M: Integers
    kind_M: NDArray[np.uint16]
    marks_M: NDArray[np.void]
    other_M: NDArray[np.bool_] | None
    """Of another thread; None where none is."""
    inside_M: NDArray[np.bool_] | None
    """Inside a backward, where there are other threads."""


@dataclass(slots=True)
class _Issues:
    """Collectives in the order of marks: `at_C` is the position of the mark, `traffic_C` an index in `traffic`."""

    at_C: Integers
    ordinal_C: Integers
    traffic_C: Integers
    traffic: list[Traffic]
    domain_C: Integers


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
    marks = _read_marks(pending) if tracker.is_plain else None
    if marks is None:
        return None
    issues = _read_issues(marks, tracker)
    waits = _read_waits(marks, tracker)
    if issues is None or waits is None:
        return None
    time_M = marks.time_M
    issue_ns_C = time_M[issues.at_C]
    domain_W = _guessed_domains(waits, issues, tracker)
    done_ns_C = _read_ends(marks, issues, waits, domain_W)
    arrays = StepArrays(
        issue_ns_C=issue_ns_C,
        done_ns_C=done_ns_C,
        traffic_C=issues.traffic_C,
        traffic=issues.traffic,
        domain_C=issues.domain_C,
        synchronous_C=np.array([each.synchronous for each in issues.traffic], np.bool_)[issues.traffic_C],
        begin_ns_W=waits.begin_ns_W,
        end_ns_W=time_M[waits.end_at_W],
        domain_W=domain_W,
    )
    if not tracker.has_communicated:  # what is waited for before the first collective is of no domain
        _forget_waits(arrays, waits.end_at_W > (issues.at_C[0] if len(issues.at_C) else _NEVER))
    tracker.take_over([each.domain for each in issues.traffic], issues.domain_C[-1:].tolist())
    tracker.set_waits(waits.open_waits, waits.open_other_waits)
    return _in_issue_order(arrays)


def _read_marks(pending: PendingMarks) -> _Marks | None:
    marks_M = np.frombuffer(pending.data, _MARK)
    kind_M = marks_M["kind"]
    time_M = marks_M["time"]
    if time_M.max() > MONOTONIC_NS_MAX:
        return None
    other_M = inside_M = None
    if kind_M.max() >= OTHER_THREAD:
        other_M = kind_M >= OTHER_THREAD
        kind_M = kind_M & KIND_MASK
        counts, insides = zip(*pending.runs, strict=True)
        inside_M = np.repeat(insides, counts)
    if kind_M.max() > _WAIT_END:
        return None
    return _Marks(time_M.astype(np.int64), kind_M, marks_M, other_M, inside_M)


def _read_issues(marks: _Marks, tracker: CommunicationTracker) -> _Issues | None:
    is_issue_M = marks.kind_M == _ISSUE
    if marks.other_M is not None and marks.inside_M is not None:
        is_issue_M &= ~marks.other_M | marks.inside_M
    at_C = is_issue_M.nonzero()[0]
    ordinal_C = marks.marks_M["subject"][at_C]
    if not (ordinal_C[1:] > ordinal_C[:-1]).all():
        return None
    pairs = zip(marks.marks_M["detail"][at_C].tolist(), marks.marks_M["argument"][at_C].tolist(), strict=True)
    indices: defaultdict[tuple[int, int], int] = defaultdict(count().__next__)
    traffic_C = np.fromiter(map(indices.__getitem__, pairs), np.int64, len(at_C))
    traffic = [tracker.traffic_of(*pair) for pair in indices]
    known = [each for each in traffic if each is not None]
    if len(known) < len(traffic):
        return None
    domain_C = np.array([each.domain for each in known], np.int64)[traffic_C]
    return _Issues(at_C, ordinal_C, traffic_C, known, domain_C)


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
    return ~np.concatenate(([tracker.last_domain], issues.domain_C))[last_W]


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
        domain_W[wait_E] = issues.domain_C[collective_E[expect_E]]  # of several the last one, as for the next line
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


def _forget_waits(arrays: StepArrays, is_kept_W: NDArray[np.bool_]) -> None:
    arrays.begin_ns_W, arrays.end_ns_W = arrays.begin_ns_W[is_kept_W], arrays.end_ns_W[is_kept_W]
    arrays.domain_W = arrays.domain_W[is_kept_W]


def _in_issue_order(arrays: StepArrays) -> StepArrays:
    """Return the arrays with collectives in the order of their times, which two threads may not keep."""
    if (arrays.issue_ns_C[1:] >= arrays.issue_ns_C[:-1]).all():
        return arrays
    order_C = arrays.issue_ns_C.argsort(kind="stable")
    for name in ("issue_ns_C", "done_ns_C", "traffic_C", "domain_C", "synchronous_C"):
        setattr(arrays, name, getattr(arrays, name)[order_C])
    return arrays
