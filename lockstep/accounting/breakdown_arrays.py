# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The partition of a large step's time: what breakdown.py does, with its communication as arrays.

Shapes: C collectives, W waits, S backwards, L limits, P pieces of waits.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.accounting.breakdown import StepBreakdown, TakenTime, add_phases, clip, subtract
from lockstep.accounting.communication_arrays import Integers, StepArrays
from lockstep.accounting.domain_totals import DomainTotals
from lockstep.accounting.events import BACKWARD, IN_FLIGHT, UNKNOWN_NS, StepEvents

_Intervals = tuple[Integers, Integers, Integers]
"""Start, end and domain."""


def attribute_arrays(start_ns: int, end_ns: int, events: StepEvents, arrays: StepArrays) -> StepBreakdown:
    """Return what `attribute` returns, where `events` has all but the communication."""
    breakdown = StepBreakdown()
    taken = clip(events.collections, start_ns, end_ns)
    breakdown.collection_ns = sum(end - begin for begin, end in taken)
    begin_ns_P, end_ns_P, domain_P = _disjoint(_blocked(end_ns, events, arrays), start_ns, end_ns)
    if taken:
        pieces = zip(begin_ns_P.tolist(), end_ns_P.tolist(), domain_P.tolist(), strict=True)
        begin_ns_P, end_ns_P, domain_P = np.array(subtract(list(pieces), taken), np.int64).reshape(-1, 3).T
    length_ns_P = end_ns_P - begin_ns_P
    for domain in np.bincount(domain_P).nonzero()[0].tolist():
        breakdown.wait_ns[domain] = int(length_ns_P[domain_P == domain].sum())
    if taken:  # disjoint: both ends are in the same order
        begin_ns_P, end_ns_P = (
            np.sort(np.concatenate(both))
            for both in zip((begin_ns_P, end_ns_P), np.array(taken, np.int64).T, strict=True)
        )
    before_ns_P = (end_ns_P - begin_ns_P).cumsum()
    _add_flight(breakdown, start_ns, end_ns, arrays)
    taken_time = TakenTime(begin_ns_P.tolist(), end_ns_P.tolist(), [0, *before_ns_P.tolist()])
    add_phases(breakdown, start_ns, end_ns, events, taken_time)
    return breakdown


def _blocked(end_ns: int, events: StepEvents, arrays: StepArrays) -> _Intervals:
    """Return where the thread was blocked, as `breakdown._blocked` does."""
    issue_ns_C, done_ns_C, is_sync_C, domain_C = _own(arrays)
    times = [time for _, begin, end in events.spans for time in (begin, end)]
    limit_ns_L = np.concatenate((issue_ns_C, arrays.begin_ns_W, arrays.end_ns_W, [*times, end_ns]))
    limit_ns_L.sort(kind="stable")  # of a few ascending runs, a tenth of the time
    start_ns_C = issue_ns_C
    wait_end_ns_C = np.minimum(done_ns_C, _limits_behind(issue_ns_C, limit_ns_L))
    is_wait_C = is_sync_C & (done_ns_C > 0) & (issue_ns_C < end_ns)
    backwards = [(begin, end) for phase, begin, end in events.spans if phase == BACKWARD]
    if backwards and not is_sync_C.all():
        begin_ns_S, end_ns_S = np.array(backwards, np.int64).T
        last_ns_S = issue_ns_C[issue_ns_C.searchsorted(end_ns_S, "right") - 1]
        limit_ns_S = np.where(last_ns_S < end_ns, _limits_behind(last_ns_S, limit_ns_L), last_ns_S)
        span_C = np.minimum(end_ns_S.searchsorted(issue_ns_C), len(backwards) - 1)
        is_inside_C = ~is_sync_C & (begin_ns_S[span_C] <= issue_ns_C) & (issue_ns_C <= end_ns_S[span_C])
        is_cut_C = (done_ns_C == IN_FLIGHT) | (done_ns_C > limit_ns_S[span_C])
        start_ns_C = np.where(is_inside_C, last_ns_S[span_C], start_ns_C)
        wait_end_ns_C = np.where(is_inside_C, np.where(is_cut_C, limit_ns_S[span_C], done_ns_C), wait_end_ns_C)
        is_wait_C |= is_inside_C
    return (
        np.concatenate((start_ns_C[is_wait_C], arrays.begin_ns_W)),
        np.concatenate((wait_end_ns_C[is_wait_C], arrays.end_ns_W)),
        np.concatenate((domain_C[is_wait_C], _known_domains(arrays))),
    )


def _own(arrays: StepArrays) -> tuple[Integers, Integers, NDArray[np.bool_], Integers]:
    """Return (issue, done, synchronous, domain) of the collectives whose issue may block, which those aside do not."""
    columns = (arrays.issue_ns_C, arrays.done_ns_C, arrays.synchronous_C, arrays.domain_C)
    if arrays.is_aside_C is None or not arrays.is_aside_C.any():
        return columns
    is_own_C = ~arrays.is_aside_C
    issue_ns_C, done_ns_C, is_sync_C, domain_C = columns
    return issue_ns_C[is_own_C], done_ns_C[is_own_C], is_sync_C[is_own_C], domain_C[is_own_C]


def _limits_behind(time_ns: Integers, limit_ns_L: Integers) -> Integers:
    """Return the first limit behind each time; of those behind all, the last one."""
    return limit_ns_L[np.minimum(limit_ns_L.searchsorted(time_ns, "right"), len(limit_ns_L) - 1)]


def _known_domains(arrays: StepArrays) -> Integers:
    """Return the domain of each wait: a guessed one becomes that of the collective done nearest to the wait's end."""
    domain_W = arrays.domain_W
    is_guess_W = domain_W < 0
    if not is_guess_W.any():
        return domain_W
    domain_W = np.where(is_guess_W, ~domain_W, domain_W)
    is_done_C = arrays.done_ns_C > 0
    if len(arrays.moved) < 2 or not is_done_C.any():  # noqa: PLR2004  (no choice)
        return domain_W
    done_ns, domain = arrays.done_ns_C[is_done_C], arrays.domain_C[is_done_C]
    order = np.lexsort((domain, done_ns))
    done_ns, domain = done_ns[order], domain[order]
    behind_W = done_ns.searchsorted(arrays.end_ns_W, "right")
    before_W = np.maximum(behind_W - 1, 0)
    behind_W = np.minimum(behind_W, len(done_ns) - 1)
    is_behind_W = np.abs(done_ns[behind_W] - arrays.end_ns_W) < np.abs(done_ns[before_W] - arrays.end_ns_W)
    return np.where(is_guess_W, domain[np.where(is_behind_W, behind_W, before_W)], domain_W)


def _disjoint(waits: _Intervals, start_ns: int, end_ns: int) -> _Intervals:
    """Return the union of waits inside the step, each instant given to the wait that began first."""
    begin_ns, finish_ns, domain = waits
    finish_ns = np.minimum(finish_ns, end_ns)
    order = begin_ns.argsort(kind="stable")
    order = order[begin_ns[order] < finish_ns[order]]
    begin_ns, finish_ns = union(begin_ns[order], finish_ns[order], start_ns)
    is_piece = begin_ns < finish_ns
    return begin_ns[is_piece], finish_ns[is_piece], domain[order][is_piece]


def union(begin_ns: Integers, finish_ns: Integers, start_ns: int) -> tuple[Integers, Integers]:
    """Begin each of some ascending intervals where those before it have ended."""
    reached_ns = np.maximum.accumulate(np.concatenate(([start_ns], finish_ns)))
    return np.maximum(begin_ns, reached_ns[:-1]), finish_ns


def _add_flight(breakdown: StepBreakdown, start_ns: int, end_ns: int, arrays: StepArrays) -> None:
    """Fill `in_flight_ns`."""
    issue_ns_C, done_ns_C = arrays.issue_ns_C, arrays.done_ns_C
    finish_ns_C = np.where((done_ns_C == IN_FLIGHT) | (done_ns_C > end_ns), end_ns, done_ns_C)
    is_flight_C = (done_ns_C != UNKNOWN_NS) & (finish_ns_C > issue_ns_C)
    for domain, *_ in arrays.moved:
        chosen_C = is_flight_C & (arrays.domain_C == domain)
        begin_ns, finish_ns = union(issue_ns_C[chosen_C], finish_ns_C[chosen_C], start_ns)
        breakdown.in_flight_ns[domain] = int(np.maximum(finish_ns - begin_ns, 0).sum())
    for domain, wait_ns in enumerate(breakdown.wait_ns):
        breakdown.in_flight_ns[domain] = max(breakdown.in_flight_ns[domain], wait_ns)


def total_arrays(arrays: StepArrays) -> DomainTotals:
    """Return what `domain_totals.total` returns."""
    totals = DomainTotals()
    for moved in arrays.moved:
        totals.add(*moved)
    took_ns_C = arrays.done_ns_C - arrays.issue_ns_C
    is_done_C = arrays.done_ns_C > IN_FLIGHT
    is_unknown_C = arrays.done_ns_C == UNKNOWN_NS
    totals.in_flight.update(arrays.domain_C[~(is_done_C | is_unknown_C)].tolist())
    for domain, *_ in arrays.moved:
        took_ns = took_ns_C[is_done_C & (arrays.domain_C == domain)]
        if len(took_ns):
            totals.shortest_ns[domain] = int(took_ns.min())
    totals.unknown.update(arrays.domain_C[is_unknown_C].tolist())
    return totals
