# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Partitions the time of a large step: like breakdown.py, with the communication as arrays.

Shapes: C collectives, A asynchronous ones, W waits, S backwards, L limits, P pieces of waits, D domains.
"""

from collections.abc import Iterator

import numpy as np

from lockstep.accounting.breakdown import DOMAIN_COUNT, StepBreakdown, TakenTime, add_phases, clip, subtract
from lockstep.accounting.domain_totals import DomainTotals
from lockstep.accounting.events import BACKWARD, IN_FLIGHT, UNKNOWN_NS, StepEvents
from lockstep.accounting.step_arrays import Bools, Integers, StepArrays, all_hold, any_holds

_NEVER_NS = np.iinfo(np.int64).max
_Intervals = tuple[Integers, Integers, Integers]
"""Start, end and domain."""


def attribute_arrays(start_ns: int, end_ns: int, events: StepEvents, arrays: StepArrays) -> StepBreakdown:
    """Return the same as `attribute`; `events` holds everything except the communication."""
    breakdown = StepBreakdown()
    taken = clip(events.collections, start_ns, end_ns)
    breakdown.collection_ns = sum(end - begin for begin, end in taken)
    begin_ns_P, end_ns_P, domain_P = _disjoint(_blocked(end_ns, events, arrays), start_ns, end_ns)
    if taken:
        pieces = zip(begin_ns_P.tolist(), end_ns_P.tolist(), domain_P.tolist(), strict=True)
        begin_ns_P, end_ns_P, domain_P = np.array(subtract(list(pieces), taken), np.int64).reshape(-1, 3).T
    length_ns_P = end_ns_P - begin_ns_P
    wait_ns_D = np.zeros(DOMAIN_COUNT, np.int64)
    np.add.at(wait_ns_D, domain_P, length_ns_P)
    breakdown.wait_ns = wait_ns_D.tolist()
    if taken:  # disjoint: both ends are in the same order
        begin_ns_P, end_ns_P = (
            np.sort(np.concatenate(both))
            for both in zip((begin_ns_P, end_ns_P), np.array(taken, np.int64).T, strict=True)
        )
        length_ns_P = end_ns_P - begin_ns_P
    _add_flight(breakdown, start_ns, end_ns, arrays)
    taken_time = TakenTime(begin_ns_P.tolist(), end_ns_P.tolist(), [0, *length_ns_P.cumsum().tolist()])
    add_phases(breakdown, start_ns, end_ns, events, taken_time)
    return breakdown


def _blocked(end_ns: int, events: StepEvents, arrays: StepArrays) -> _Intervals:
    """Return when the thread was blocked, like `breakdown._blocked`, plus some empty intervals."""
    issue_ns_C, done_ns_C, is_sync_C, domain_C = _own(arrays)
    times = [time for _, begin, end in events.spans for time in (begin, end)]
    limit_ns_L = np.concatenate((issue_ns_C, arrays.begin_ns_W, arrays.end_ns_W, [*times, end_ns]))
    limit_ns_L.sort(kind="stable")  # ten times as fast for a few ascending runs
    # The interval of a collective that was not done ends before it starts, i.e. is empty.
    wait_end_ns_C = np.minimum(done_ns_C, _limits_behind(issue_ns_C, limit_ns_L))
    start_ns_C = issue_ns_C
    if not all_hold(is_sync_C):
        start_ns_C = issue_ns_C.copy()
        index_A = (~is_sync_C).nonzero()[0]
        waits = _waits_in_backwards(end_ns, events, issue_ns_C, done_ns_C, index_A=index_A, limit_ns_L=limit_ns_L)
        start_ns_C[index_A], wait_end_ns_C[index_A] = waits
    return (
        np.concatenate((start_ns_C, arrays.begin_ns_W)),
        np.concatenate((wait_end_ns_C, arrays.end_ns_W)),
        np.concatenate((domain_C, _known_domains(arrays))),
    )


def _waits_in_backwards(
    end_ns: int,
    events: StepEvents,
    issue_ns_C: Integers,
    done_ns_C: Integers,
    *,
    index_A: Integers,
    limit_ns_L: Integers,
) -> tuple[Integers, Integers]:
    """Return start and end of the waits for asynchronous collectives; those outside of backwards have none."""
    issue_ns_A, done_ns_A = issue_ns_C[index_A], done_ns_C[index_A]
    backwards = [(begin, end) for phase, begin, end in events.spans if phase == BACKWARD]
    if not backwards:
        return issue_ns_A, issue_ns_A
    begin_ns_S, end_ns_S = np.array(backwards, np.int64).T
    last_ns_S = issue_ns_C[issue_ns_C.searchsorted(end_ns_S, "right") - 1]
    limit_ns_S = np.where(last_ns_S < end_ns, _limits_behind(last_ns_S, limit_ns_L), last_ns_S)
    span_A = np.minimum(end_ns_S.searchsorted(issue_ns_A), len(backwards) - 1)
    is_inside_A = (begin_ns_S[span_A] <= issue_ns_A) & (issue_ns_A <= end_ns_S[span_A])
    limit_ns_A = limit_ns_S[span_A]
    is_cut_A = (done_ns_A == IN_FLIGHT) | (done_ns_A > limit_ns_A)
    wait_end_ns_A = np.where(is_cut_A, limit_ns_A, done_ns_A)
    if not all_hold(is_inside_A):
        wait_end_ns_A = np.where(is_inside_A, wait_end_ns_A, UNKNOWN_NS)
    return last_ns_S[span_A], wait_end_ns_A


def _own(arrays: StepArrays) -> tuple[Integers, Integers, Bools, Integers]:
    """Return (issue, done, synchronous, domain) of the collectives whose issue may block: all but those aside."""
    columns = (arrays.issue_ns_C, arrays.done_ns_C, arrays.synchronous_C, arrays.domain_C)
    if arrays.is_aside_C is None:
        return columns
    is_own_C = ~arrays.is_aside_C
    issue_ns_C, done_ns_C, is_sync_C, domain_C = columns
    return issue_ns_C[is_own_C], done_ns_C[is_own_C], is_sync_C[is_own_C], domain_C[is_own_C]


def _limits_behind(time_ns: Integers, limit_ns_L: Integers) -> Integers:
    """Return the first limit after each time; the last limit if there is none."""
    return limit_ns_L.take(limit_ns_L.searchsorted(time_ns, "right"), mode="clip")


def _known_domains(arrays: StepArrays) -> Integers:
    """Return the domain of each wait; a guess is replaced by that of the collective done nearest to the wait's end."""
    domain_W = arrays.domain_W
    is_guess_W = domain_W < 0
    if not any_holds(is_guess_W):
        return domain_W
    domain_W = np.where(is_guess_W, ~domain_W, domain_W)
    is_done_C = arrays.done_ns_C > 0
    if len(arrays.moved) < 2 or not any_holds(is_done_C):  # noqa: PLR2004  (no choice)
        return domain_W
    done_ns, domain = arrays.done_ns_C[is_done_C], arrays.domain_C[is_done_C]
    ascends = all_hold(done_ns[1:] > done_ns[:-1])
    if not ascends:
        order = np.lexsort((domain, done_ns))
        done_ns, domain = done_ns[order], domain[order]
    middle = done_ns[1:] + done_ns[:-1]  # twice the time up to which the earlier collective is nearer
    if not ascends:
        middle -= done_ns[1:] == done_ns[:-1]  # of several done at once, the last one, if the wait ended then or later
    return np.where(is_guess_W, domain[middle.searchsorted(2 * arrays.end_ns_W)], domain_W)


def _disjoint(waits: _Intervals, start_ns: int, end_ns: int) -> _Intervals:
    """Return the union of waits inside the step; each instant belongs to the wait that began first."""
    begin_ns, finish_ns, domain = waits
    order = begin_ns.argsort(kind="stable")
    finish_ns = np.minimum(finish_ns[order], end_ns)
    begin_ns = union(begin_ns[order], finish_ns, start_ns)
    is_piece = begin_ns < finish_ns
    return begin_ns[is_piece], finish_ns[is_piece], domain[order[is_piece]]


def union(begin_ns: Integers, finish_ns: Integers, start_ns: int) -> Integers:
    """Return the begins of ascending intervals after removing overlaps with earlier ones, from `start_ns` on.

    An interval that is empty stays empty and changes no other.
    """
    begin_ns = np.maximum(begin_ns, start_ns)
    np.maximum(begin_ns[1:], np.maximum.accumulate(finish_ns[:-1]), out=begin_ns[1:])
    return begin_ns


def union_ns(begin_ns: Integers, finish_ns: Integers, start_ns: int) -> int:
    """Return the length of the union of ascending intervals, from `start_ns` on."""
    length_ns = finish_ns - union(begin_ns, finish_ns, start_ns)
    return int(np.maximum(length_ns, 0, out=length_ns).sum())


def _add_flight(breakdown: StepBreakdown, start_ns: int, end_ns: int, arrays: StepArrays) -> None:
    """Fill `in_flight_ns`."""
    issue_ns_C, done_ns_C = arrays.issue_ns_C, arrays.done_ns_C
    finish_ns_C = np.minimum(np.where(done_ns_C == IN_FLIGHT, end_ns, done_ns_C), end_ns)
    issue_ns_C, finish_ns_C = issue_ns_C[arrays.by_domain_C], finish_ns_C[arrays.by_domain_C]
    for domain, its in _domains(arrays):
        breakdown.in_flight_ns[domain] = union_ns(issue_ns_C[its], finish_ns_C[its], start_ns)
    for domain, wait_ns in enumerate(breakdown.wait_ns):
        breakdown.in_flight_ns[domain] = max(breakdown.in_flight_ns[domain], wait_ns)


def _domains(arrays: StepArrays) -> Iterator[tuple[int, slice]]:
    """Yield each domain, and the slice of `arrays.by_domain_C` with its collectives."""
    end = 0
    for domain, count, *_ in arrays.moved:
        yield domain, slice(end, end := end + count)


def total_arrays(arrays: StepArrays) -> DomainTotals:
    """Return the same as `domain_totals.total`."""
    totals = DomainTotals()
    for moved in arrays.moved:
        totals.add(*moved)
    took_ns_C = arrays.done_ns_C - arrays.issue_ns_C
    is_done_C = arrays.done_ns_C > IN_FLIGHT
    if not all_hold(is_done_C):
        is_unknown_C = arrays.done_ns_C == UNKNOWN_NS
        totals.in_flight.update(arrays.domain_C[~(is_done_C | is_unknown_C)].tolist())
        totals.unknown.update(arrays.domain_C[is_unknown_C].tolist())
        took_ns_C[~is_done_C] = _NEVER_NS
    took_ns_C = took_ns_C[arrays.by_domain_C]
    for domain, its in _domains(arrays):
        shortest_ns = int(took_ns_C[its].min())
        if shortest_ns < _NEVER_NS:
            totals.shortest_ns[domain] = shortest_ns
    return totals
