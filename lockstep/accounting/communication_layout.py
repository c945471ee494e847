# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Finds which marks of a large step belong together: issues and ends of collectives, begins and ends of waits.

The steps of a training leave the same marks in the same order, so their layout is computed once and cached by the kinds
and subjects of the marks. With other threads, or waits open from before, a layout holds for one step only. Not here:
times.

Shapes: M marks, C collectives, W waits, E ends of collectives, Q ends in a stream's order, V marks that begin or end a
wait.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.accounting.communication import NOT_OURS, WAITS_DEEP_MAX, CommunicationTracker
from lockstep.accounting.pending_marks import KIND_AT, PendingMarks
from lockstep.accounting.step_arrays import Bools, CommunicationLayout, Integers, all_hold
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import MARK_BYTES, MarkKind

MARK_DTYPE = np.dtype([("time", "<u8"), ("kind", "<u2"), ("detail", "<u2"), ("subject", "<u4"), ("argument", "<i8")])
DONE, EXPECT = int(MarkKind.DONE), int(MarkKind.EXPECT)
_ISSUE, _DONE_UNKNOWN = int(MarkKind.ISSUE), int(MarkKind.DONE_UNKNOWN)
_WAIT_BEGIN, _WAIT_END = int(MarkKind.WAIT_BEGIN), int(MarkKind.WAIT_END)
_QUEUED = int(MarkKind.DEVICE_QUEUED)
_WAIT_PAIR = bytes((_WAIT_BEGIN, _WAIT_END))
_NO_WAITS = bytes(set(range(256)) - set(_WAIT_PAIR))
_PLAIN = bytes((_ISSUE, DONE, _DONE_UNKNOWN, EXPECT, _QUEUED)) + _WAIT_PAIR
_WITHOUT_QUEUED = bytes.maketrans(bytes((_QUEUED,)), b"\0")
"""Maps the kind DEVICE_QUEUED to 0, below all others."""
LAYOUTS_MAX = 4
"""Cached layouts, as many as patterns."""
LAYOUT_MARKS_MAX = 1 << 14
"""Limit of the marks of a cached layout; 5 bytes each, and about 25 per collective."""
_IN_FLIGHT, _UNKNOWN = -1, -2
NEVER = np.iinfo(np.int64).max
"""Position after all marks."""


@dataclass(slots=True)
class MarkColumns:
    """Marks of a step that all have plain kinds and valid times."""

    time_M: Integers
    kinds: bytearray
    """Kinds of all marks, without the bit of another thread."""
    kind_M: NDArray[np.uint8]
    """Kinds as an array, 0 for DEVICE_QUEUED."""
    marks_M: NDArray[np.void]
    other_M: Bools | None
    """Whether a mark is of another thread; None if none is."""
    inside_M: Bools | None
    """Whether a mark lies inside a backward; None without other threads."""


@dataclass(slots=True)
class WaitTimes:
    """Begins of a step's waits, in the order of their end marks, and of the waits still open after the last mark."""

    begin_ns_W: Integers
    open_waits: list[int]
    open_other_waits: list[int]


def read_columns(pending: PendingMarks) -> MarkColumns | None:
    """Return the marks of a step as columns; None if some must be handled one by one."""
    kinds = pending.data[KIND_AT::MARK_BYTES]
    marks_M = np.frombuffer(pending.data, MARK_DTYPE)
    time_M = marks_M["time"]
    if kinds.translate(None, _PLAIN) or np.maximum.reduce(time_M) > MONOTONIC_NS_MAX:
        return None
    other_M = inside_M = None
    threads = pending.data[KIND_AT + 1 :: MARK_BYTES]
    if threads.count(0) < len(threads):
        other_M = np.frombuffer(threads, np.uint8) > 0
        counts, insides, _ = zip(*pending.runs, strict=True)
        inside_M = np.repeat(insides, counts)
    kind_M = np.frombuffer(kinds.translate(_WITHOUT_QUEUED), np.uint8)
    return MarkColumns(time_M.view(np.int64), kinds, kind_M, marks_M, other_M, inside_M)


def layout_of(marks: MarkColumns, tracker: CommunicationTracker) -> tuple[CommunicationLayout, WaitTimes] | None:
    """Return the layout of the marks and the times of waits; None if they must be handled one by one."""
    if marks.other_M is not None or tracker.has_open_waits or not _is_alternating(marks.kinds):
        return _pair_waits(marks, tracker)
    key = _key(marks)
    layout = tracker.layouts.get(key)
    if layout is None:
        at_V = (marks.kind_M >= _WAIT_BEGIN).nonzero()[0]
        layout = _make_layout(marks, at_V[0::2], at_V[1::2])
        if layout is None:
            return None
        if len(marks.kinds) <= LAYOUT_MARKS_MAX:
            if len(tracker.layouts) == LAYOUTS_MAX:
                tracker.layouts.clear()
            tracker.layouts[key] = layout
    begin_ns_V, ended = marks.time_M[layout.begin_at_V], len(layout.end_at_W)
    return layout, WaitTimes(begin_ns_V[:ended], begin_ns_V[ended:].tolist(), [])


def _is_alternating(kinds: bytearray) -> bool:
    """Whether each wait ends before the next one begins."""
    kinds = kinds.translate(None, _NO_WAITS)
    return kinds == (_WAIT_PAIR * (len(kinds) // 2 + 1))[: len(kinds)]


def _key(marks: MarkColumns) -> tuple[bytes, bytes]:
    """Return the key of a layout: kinds, and subjects relative to that of the first issue (0 for waits)."""
    subject_M = marks.marks_M["subject"]
    subject_M = subject_M - subject_M[max(marks.kinds.find(_ISSUE), 0)]
    subject_M[marks.kind_M >= _WAIT_BEGIN] = 0
    return bytes(marks.kinds), subject_M.tobytes()


def _pair_waits(marks: MarkColumns, tracker: CommunicationTracker) -> tuple[CommunicationLayout, WaitTimes] | None:
    """Return the layout for nested waits and two threads: each end belongs to the innermost wait of its thread."""
    at_V = (marks.kind_M >= _WAIT_BEGIN).nonzero()[0]
    none_V = np.zeros(len(at_V), np.bool_)
    other_V = none_V if marks.other_M is None else marks.other_M[at_V]
    inside_V = none_V if marks.inside_M is None else marks.inside_M[at_V]
    own, others = tracker.open_waits()
    pairs = []
    columns = (at_V, marks.kind_M[at_V], marks.time_M[at_V], other_V, inside_V)
    for at, kind, time_ns, is_other, is_inside in zip(*(column.tolist() for column in columns), strict=True):
        waits = others if is_other else own
        if kind == _WAIT_BEGIN:
            waits.append(NOT_OURS if is_other and not is_inside else time_ns)
            if len(waits) > WAITS_DEEP_MAX:
                return None
        elif waits and (began_ns := waits.pop()) != NOT_OURS:
            pairs.append((began_ns, at))
    pairs_W = np.array(pairs, np.int64).reshape(-1, 2)
    is_begin_V = (marks.kind_M[at_V] == _WAIT_BEGIN) & (~other_V | inside_V)
    layout = _make_layout(marks, at_V[is_begin_V], pairs_W[:, 1])
    return None if layout is None else (layout, WaitTimes(pairs_W[:, 0], own, others))


def _make_layout(marks: MarkColumns, begin_at_V: Integers, end_at_W: Integers) -> CommunicationLayout | None:
    """Return the layout of the marks; None if the ordinals of collectives do not ascend, modulo 2^32."""
    is_issue_M = marks.kind_M == _ISSUE
    if marks.other_M is not None and marks.inside_M is not None:
        is_issue_M &= ~marks.other_M | marks.inside_M
    issue_at_C = is_issue_M.nonzero()[0]
    ordinal_C = _ordinals(marks, issue_at_C, issue_at_C)
    if not all_hold(ordinal_C[1:] > ordinal_C[:-1]):
        return None
    is_end_M = (marks.kind_M >= DONE) & (marks.kind_M <= EXPECT)
    end_at_E, collective_E = _collectives_of(is_end_M.nonzero()[0], marks, issue_at_C)
    done_at_C, awaited_W, awaited_C = _ends(end_at_E, collective_E, marks, issue_at_C, end_at_W)
    is_former_M = is_end_M & (marks.kind_M != EXPECT)
    is_former_M[end_at_E] = False
    queued_at_Q, queued_C = _collectives_of((marks.kind_M == 0).nonzero()[0], marks, issue_at_C)
    return CommunicationLayout(
        issue_at_C=issue_at_C,
        former_at_E=is_former_M.nonzero()[0],
        done_at_C=done_at_C,
        flight_C=(done_at_C == _IN_FLIGHT).nonzero()[0],
        unknown_C=(done_at_C == _UNKNOWN).nonzero()[0],
        begin_at_V=begin_at_V,
        end_at_W=end_at_W,
        issued_W=issue_at_C.searchsorted(end_at_W),
        awaited_W=awaited_W,
        awaited_C=awaited_C,
        queued_at_Q=queued_at_Q,
        queued_C=queued_C,
    )


def _ends(
    end_at_E: Integers, collective_E: Integers, marks: MarkColumns, issue_at_C: Integers, end_at_W: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return `done_at_C`, `awaited_W` and `awaited_C` of a layout.

    Of several ends of a collective, the last one counts.
    """
    done_at_C = np.full(len(issue_at_C), _IN_FLIGHT, np.int64)
    kind_E = marks.kind_M[end_at_E]
    done_at_E = np.where(kind_E == _DONE_UNKNOWN, _UNKNOWN, end_at_E)
    expect_E = (kind_E == EXPECT).nonzero()[0]
    wait_E = end_at_W.searchsorted(end_at_E[expect_E])
    known_at_E = end_at_E.copy()
    known_at_E[expect_E] = NEVER
    done_at_E[expect_E] = issue_at_C[collective_E[expect_E]]  # abandoned at the step's end
    is_awaited_E = wait_E < len(end_at_W)
    expect_E, wait_E = expect_E[is_awaited_E], wait_E[is_awaited_E]
    known_at_E[expect_E] = done_at_E[expect_E] = end_at_W[wait_E]
    awaited_C = collective_E[expect_E]
    order_E = known_at_E.argsort(kind="stable")
    done_at_C[collective_E[order_E]] = done_at_E[order_E]  # the last one of several
    return done_at_C, wait_E, awaited_C


def _collectives_of(at_E: Integers, marks: MarkColumns, issue_at_C: Integers) -> tuple[Integers, Integers]:
    """Return the marks that name a collective issued before them in this step, and the index of that collective."""
    if not len(issue_at_C) or not len(at_E):
        return at_E[:0], at_E[:0]
    ordinal_C, ordinal_E = _ordinals(marks, issue_at_C, issue_at_C), _ordinals(marks, at_E, issue_at_C)
    collective_E = np.minimum(ordinal_C.searchsorted(ordinal_E), len(issue_at_C) - 1)
    is_known_E = (ordinal_C[collective_E] == ordinal_E) & (issue_at_C[collective_E] < at_E)
    return at_E[is_known_E], collective_E[is_known_E]


def _ordinals(marks: MarkColumns, at_E: Integers, issue_at_C: Integers) -> NDArray[np.uint32]:
    """Return how far the collectives that marks name come after the step's first one, modulo 2^32."""
    subject_M: NDArray[np.uint32] = marks.marks_M["subject"]
    return subject_M[at_E] - subject_M[issue_at_C[:1]]
