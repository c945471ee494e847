# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Reads the communication of a large step as arrays, instead of mark by mark as communication_marks.py does.

Marks in an unusual order are left to communication_marks.py; both give the same records
(tests/accounting/test_arrays.py). communication_layout.py finds which marks belong together.

Shapes: M marks, C collectives, W waits, E ends of collectives, V marks that begin or end a wait.
"""

from collections import defaultdict
from itertools import count

import numpy as np
from numpy.typing import NDArray

from lockstep.accounting.communication import CommunicationTracker
from lockstep.accounting.communication_layout import DONE, NEVER, MarkColumns, layout_of, read_columns
from lockstep.accounting.events import IN_FLIGHT, UNKNOWN_NS
from lockstep.accounting.pending_marks import PendingMarks
from lockstep.accounting.step_arrays import (
    Bools,
    CommunicationLayout,
    CommunicationPoints,
    Integers,
    IssuePattern,
    StepArrays,
    in_issue_order,
    pattern_of,
)

PATTERNS_MAX = 4
"""Cached patterns of steps: of training, of evaluation, and with one micro-batch more or less."""
PATTERN_COLLECTIVES_MAX = 4096
"""Limit of the collectives of a cached pattern, 20 bytes each."""


def read_arrays(pending: PendingMarks, tracker: CommunicationTracker) -> StepArrays | None:
    """Return the communication of a complete step, and update `tracker` as if the marks had been handled one by one.

    None, without side effects, if the kinds or the order of the marks require handling them one by one.
    """
    marks = read_columns(pending) if tracker.is_plain else None
    found = None if marks is None else layout_of(marks, tracker)
    if marks is None or found is None:
        return None
    layout, waits = found
    issue_at_C, end_at_W = layout.issue_at_C, layout.end_at_W
    pattern = _pattern_of(marks.marks_M["detail"][issue_at_C], marks.marks_M["argument"][issue_at_C], tracker)
    if pattern is None:
        return None
    time_M = marks.time_M
    if tracker.keeps_former and len(layout.former_at_E):
        _end_former(layout.former_at_E, marks, tracker)
    arrays = StepArrays(
        issue_ns_C=time_M[issue_at_C],
        done_ns_C=_done_ns(time_M, layout),
        ordinal_C=marks.marks_M["subject"][issue_at_C],
        domain_C=pattern.domain_C,
        synchronous_C=pattern.synchronous_C,
        moved=pattern.moved,
        by_domain_C=pattern.by_domain_C,
        begin_ns_W=waits.begin_ns_W,
        end_ns_W=time_M[end_at_W],
        domain_W=_domains_of_waits(layout, pattern, tracker),
    )
    if not tracker.has_communicated:  # waits before the first collective belong to no domain
        is_kept_W = end_at_W > (issue_at_C[0] if len(issue_at_C) else NEVER)
        _forget_waits(arrays, is_kept_W)
        end_at_W = end_at_W[is_kept_W]
    if tracker.keeps_former:
        arrays.points = _points(pending, time_M, layout, np.concatenate((layout.begin_at_V, end_at_W)))
    tracker.take_over([domain for domain, *_ in pattern.moved], pattern.domain_C[-1:].tolist())
    tracker.set_waits(waits.open_waits, waits.open_other_waits)
    return in_issue_order(arrays)


def _pattern_of(
    detail_C: NDArray[np.uint16], argument_C: Integers, tracker: CommunicationTracker
) -> IssuePattern | None:
    """Return the pattern of the issues, the cached object if there is one; None if a mark is malformed."""
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


def _done_ns(time_M: Integers, layout: CommunicationLayout) -> Integers:
    """Return when each collective was done."""
    done_ns_C = time_M[layout.done_at_C]
    done_ns_C[layout.flight_C] = IN_FLIGHT
    done_ns_C[layout.unknown_C] = UNKNOWN_NS
    return done_ns_C


def _domains_of_waits(layout: CommunicationLayout, pattern: IssuePattern, tracker: CommunicationTracker) -> Integers:
    """Return the domain of the collective expected at each wait's end; otherwise that of the last issue, as a guess."""
    domain_W = ~np.concatenate(([tracker.last_domain], pattern.domain_C))[layout.issued_W]
    domain_W[layout.awaited_W] = pattern.domain_C[layout.awaited_C]  # the last one of several
    return domain_W


def _end_former(end_at_E: Integers, marks: MarkColumns, tracker: CommunicationTracker) -> None:
    """Note the ends of collectives of former steps, which a device may not have finished."""
    for ordinal, kind, time_ns in zip(
        marks.marks_M["subject"][end_at_E].tolist(),
        marks.kind_M[end_at_E].tolist(),
        marks.time_M[end_at_E].tolist(),
        strict=True,
    ):
        tracker.end(ordinal, time_ns if kind == DONE else UNKNOWN_NS)


def _points(
    pending: PendingMarks, time_M: Integers, layout: CommunicationLayout, wait_at_V: Integers
) -> CommunicationPoints:
    """Return the marks for which a device has events."""
    position_M = np.concatenate([np.arange(first, first + marks_of_run) for marks_of_run, _, first in pending.runs])
    count_C = len(layout.issue_at_C)
    queued_at_C, queued_ns_C = np.full(count_C, -1, np.int64), np.zeros(count_C, np.int64)
    queued_at_C[layout.queued_C] = position_M[layout.queued_at_Q]
    queued_ns_C[layout.queued_C] = time_M[layout.queued_at_Q]
    return CommunicationPoints(
        position_M[layout.issue_at_C], queued_at_C, queued_ns_C, position_M[wait_at_V], time_M[wait_at_V]
    )


def _forget_waits(arrays: StepArrays, is_kept_W: Bools) -> None:
    arrays.begin_ns_W, arrays.end_ns_W = arrays.begin_ns_W[is_kept_W], arrays.end_ns_W[is_kept_W]
    arrays.domain_W = arrays.domain_W[is_kept_W]
