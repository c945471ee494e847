# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Partitions the time of large steps: like breakdown.py, with the communication as arrays, for many steps at once.

An operation on the few hundred values of a step costs about as much as one on a thousand, so all steps that a read has
found are handled together. They lie one after the other on a common axis, each in a window of its own: what is sorted,
searched and accumulated in one step then never reaches into another.

Shapes: N steps, C collectives, A asynchronous ones, W waits, S spans, B backwards, L limits, P pieces of waits,
I intervals of taken time, G pairs of a step and a domain, D domains. Times are ns on the common axis.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lockstep.accounting.breakdown import DOMAIN_COUNT, StepBreakdown, attribute, clip, subtract
from lockstep.accounting.domain_totals import DomainTotals, total
from lockstep.accounting.events import (
    BACKWARD,
    DATA,
    IN_FLIGHT,
    PHASE_COUNT,
    UNKNOWN_NS,
    IssuedCollective,
    StepEvents,
    Traffic,
)
from lockstep.accounting.step_arrays import Integers, StepArrays, all_hold, any_holds

STEPS_MAX = 256
"""Steps that are handled at once."""
_WINDOW_BITS = 44
_WINDOW_NS = 1 << _WINDOW_BITS
"""Part of the axis that a step has, 4.9 hours; that of step n begins at n + 1 of them."""
_MARGIN_NS = _WINDOW_NS >> 2
"""Room in a window before the step begins."""
_NEVER_NS = np.iinfo(np.int64).max


class LargeStep(NamedTuple):
    """A step whose communication is in `arrays`; `events` holds everything else. Times in ns."""

    start_ns: int
    end_ns: int
    events: StepEvents
    arrays: StepArrays


def attribute_steps(steps: Sequence[LargeStep]) -> list[tuple[StepBreakdown, DomainTotals]]:
    """Return what `attribute` and `total` return, for each of the steps."""
    found: list[tuple[StepBreakdown, DomainTotals]] = []
    for first in range(0, len(steps), STEPS_MAX):
        found += _attribute(steps[first : first + STEPS_MAX])
    return found


def union_ns(begin_ns: Integers, finish_ns: Integers, start_ns: int) -> int:
    """Return the length of the union of ascending intervals, from `start_ns` on."""
    return int(_exposed(np.maximum(begin_ns, start_ns), finish_ns).sum())


def _exposed(begin_ns: Integers, finish_ns: Integers) -> Integers:
    """Return how much of each of ascending intervals no earlier one covers; `begin_ns` is overwritten.

    An interval that is empty stays empty and changes no other.
    """
    length_ns = finish_ns - _cut(begin_ns, finish_ns)
    np.maximum(length_ns, 0, out=length_ns)
    return length_ns


def _cut(begin_ns: Integers, finish_ns: Integers) -> Integers:
    """Move the begins of ascending intervals, in place, behind the ends of all earlier ones."""
    np.maximum(begin_ns[1:], np.maximum.accumulate(finish_ns[:-1]), out=begin_ns[1:])
    return begin_ns


class _Axis:
    """Steps on the common axis; `order_C` lists collectives by step and domain, `first_G` where each pair begins."""

    def __init__(self, steps: Sequence[LargeStep]) -> None:
        arrays_N, count = [step.arrays for step in steps], len(steps)
        index_N = np.arange(count)
        count_C = [len(arrays.issue_ns_C) for arrays in arrays_N]
        self.steps, self.count = steps, count
        self.start_ns_N, self.end_ns_N = np.array([step[:2] for step in steps], np.int64).T
        self.shift_ns_N = ((index_N + 1) << _WINDOW_BITS) + _MARGIN_NS - self.start_ns_N
        self.start_ns_N, self.end_ns_N = self.start_ns_N + self.shift_ns_N, self.end_ns_N + self.shift_ns_N
        self.step_C = index_N.repeat(count_C)
        self.step_W = index_N.repeat([len(arrays.begin_ns_W) for arrays in arrays_N])
        shift_ns_C, shift_ns_W = self.shift_ns_N[self.step_C], self.shift_ns_N[self.step_W]
        self.issue_ns_C = np.concatenate([arrays.issue_ns_C for arrays in arrays_N]) + shift_ns_C
        self.done_ns_C = np.concatenate([arrays.done_ns_C for arrays in arrays_N])
        self.is_done_C = self.done_ns_C > IN_FLIGHT
        np.add(self.done_ns_C, shift_ns_C, out=self.done_ns_C, where=self.is_done_C)
        self.domain_C = np.concatenate([arrays.domain_C for arrays in arrays_N])
        self.synchronous_C = np.concatenate([arrays.synchronous_C for arrays in arrays_N])
        self.begin_ns_W = np.concatenate([arrays.begin_ns_W for arrays in arrays_N]) + shift_ns_W
        self.finish_ns_W = np.concatenate([arrays.end_ns_W for arrays in arrays_N]) + shift_ns_W
        self.domain_W = np.concatenate([arrays.domain_W for arrays in arrays_N])
        spans = [(n, *span) for n, step in enumerate(steps) for span in step.events.spans]
        self.step_S, self.phase_S, begin_ns_S, finish_ns_S = np.array(spans, np.int64).reshape(-1, 4).T
        self.begin_ns_S = begin_ns_S + self.shift_ns_N[self.step_S]
        self.finish_ns_S = finish_ns_S + self.shift_ns_N[self.step_S]
        self.own_C = None
        if any(arrays.is_aside_C is not None for arrays in arrays_N):
            is_aside = [a.issue_ns_C < 0 if a.is_aside_C is None else a.is_aside_C for a in arrays_N]
            self.own_C = (~np.concatenate(is_aside)).nonzero()[0]
        moved = [(n, domain, more) for n, arrays in enumerate(arrays_N) for domain, more, *_ in arrays.moved]
        self.step_G, self.domain_G, self.count_G = np.array(moved, np.int64).reshape(-1, 3).T
        self.first_G = self.count_G.cumsum() - self.count_G
        offset_N = np.cumsum(count_C) - count_C
        self.order_C = np.concatenate([arrays.by_domain_C for arrays in arrays_N]) + offset_N.repeat(count_C)

    def outside(self) -> set[int]:
        """Return the steps whose times do not all lie in their windows: they last for hours, or are implausible."""
        last_ns_C = np.where(self.is_done_C, self.done_ns_C, self.issue_ns_C)
        times = (self.issue_ns_C, last_ns_C, self.begin_ns_W, self.finish_ns_W, self.begin_ns_S, self.finish_ns_S)
        steps = (self.step_C, self.step_C, self.step_W, self.step_W, self.step_S, self.step_S)
        step = np.concatenate((*steps, np.arange(self.count)))
        is_outside = (np.concatenate((*times, self.end_ns_N)) >> _WINDOW_BITS) - 1 != step
        return set(step[is_outside].tolist()) if any_holds(is_outside) else set()


def _attribute(steps: Sequence[LargeStep]) -> list[tuple[StepBreakdown, DomainTotals]]:
    axis = _Axis(steps)
    outside = axis.outside()
    if outside:
        others = [step for n, step in enumerate(steps) if n not in outside]
        inside = iter(_attribute(others) if others else ())
        return [_attribute_outside(step) if n in outside else next(inside) for n, step in enumerate(steps)]
    taken = [(n, clip(step.events.collections, step.start_ns, step.end_ns)) for n, step in enumerate(steps)]
    breakdowns = [StepBreakdown() for _ in steps]
    for breakdown, (_, collections) in zip(breakdowns, taken, strict=True):
        breakdown.collection_ns = sum(end - begin for begin, end in collections)
    begin_ns_P, finish_ns_P, where_P = _disjoint(axis)
    intervals = [
        (begin + shift_ns, end + shift_ns)
        for (_, collections), shift_ns in zip(taken, axis.shift_ns_N.tolist(), strict=True)
        for begin, end in collections
    ]
    if intervals:
        pieces = zip(begin_ns_P.tolist(), finish_ns_P.tolist(), where_P.tolist(), strict=True)
        begin_ns_P, finish_ns_P, where_P = np.array(subtract(list(pieces), intervals), np.int64).reshape(-1, 3).T
    wait_ns_ND = np.zeros((axis.count, DOMAIN_COUNT), np.int64)
    np.add.at(wait_ns_ND.reshape(-1), where_P, finish_ns_P - begin_ns_P)
    begin_ns_I, finish_ns_I = begin_ns_P, finish_ns_P
    if intervals:  # disjoint: both ends are in the same order
        begin_ns_I, finish_ns_I = (
            np.sort(np.concatenate(both))
            for both in zip((begin_ns_P, finish_ns_P), np.array(intervals, np.int64).T, strict=True)
        )
    phases: list[list[int]] = _phases(axis, begin_ns_I, finish_ns_I).tolist()
    flight_ns_ND = np.zeros((axis.count, DOMAIN_COUNT), np.int64)
    flight_ns_ND[axis.step_G, axis.domain_G] = _flight_ns(axis)
    waits: list[list[int]] = wait_ns_ND.tolist()
    flights: list[list[int]] = np.maximum(flight_ns_ND, wait_ns_ND).tolist()
    for step, breakdown, own, wait_ns, flight_ns in zip(steps, breakdowns, phases, waits, flights, strict=True):
        breakdown.wait_ns, breakdown.in_flight_ns, breakdown.phase_ns = wait_ns, flight_ns, own
        breakdown.data_ns = own[DATA]
        breakdown.compute_ns = sum(own) - own[DATA]
        attributed = breakdown.collection_ns + sum(wait_ns) + sum(own)
        breakdown.host_ns = step.end_ns - step.start_ns - attributed
    return list(zip(breakdowns, _totals(axis), strict=True))


def _disjoint(axis: _Axis) -> tuple[Integers, Integers, Integers]:
    """Return when the threads were blocked: begins, ends, and index of step and domain; each instant once."""
    begin_ns, finish_ns, domain, step = _blocked(axis)
    order = begin_ns.argsort(kind="stable")
    step, domain = step[order], domain[order]
    finish_ns = np.minimum(finish_ns[order], axis.end_ns_N[step])
    begin_ns = _cut(np.maximum(begin_ns[order], axis.start_ns_N[step]), finish_ns)
    is_piece = begin_ns < finish_ns
    return begin_ns[is_piece], finish_ns[is_piece], (step * DOMAIN_COUNT + domain)[is_piece]


def _blocked(axis: _Axis) -> tuple[Integers, Integers, Integers, Integers]:
    """Return begins, ends, domains and steps of waits, like `breakdown._blocked`, plus some empty intervals."""
    columns: tuple[Integers, ...] = (axis.issue_ns_C, axis.done_ns_C, axis.synchronous_C, axis.domain_C, axis.step_C)
    if axis.own_C is not None:  # the issue of those aside blocks nothing
        columns = tuple(column[axis.own_C] for column in columns)
    issue_ns_C, done_ns_C, is_sync_C, domain_C, step_C = columns
    limits = _Limits(axis, issue_ns_C)
    # The interval of a collective that was not done ends before it starts, i.e. is empty.
    finish_ns_C = np.minimum(done_ns_C, limits.behind(issue_ns_C, step_C))
    start_ns_C = issue_ns_C
    index_A = (~is_sync_C).nonzero()[0]
    if len(index_A):
        start_ns_C = issue_ns_C.copy()
        start_ns_C[index_A], finish_ns_C[index_A] = _waits_in_backwards(
            axis, limits, issue_ns_C, index_A=index_A, done_ns_A=done_ns_C[index_A], step_A=step_C[index_A]
        )
    return (
        np.concatenate((start_ns_C, axis.begin_ns_W)),
        np.concatenate((finish_ns_C, axis.finish_ns_W)),
        np.concatenate((domain_C, _known_domains(axis))),
        np.concatenate((step_C, axis.step_W)),
    )


class _Limits:
    """All times at which the threads are known not to be blocked, ascending."""

    def __init__(self, axis: _Axis, issue_ns_C: Integers) -> None:
        times = (issue_ns_C, axis.begin_ns_W, axis.finish_ns_W, axis.begin_ns_S, axis.finish_ns_S, axis.end_ns_N)
        self._time_ns_L = np.concatenate(times)
        self._time_ns_L.sort(kind="stable")  # ten times as fast for ascending runs
        self._last_N = self._time_ns_L.searchsorted(np.arange(2, axis.count + 2) << _WINDOW_BITS) - 1

    def behind(self, time_ns: Integers, step: Integers) -> Integers:
        """Return the first limit of the step after each time; its last limit if there is none."""
        return self._time_ns_L[np.minimum(self._time_ns_L.searchsorted(time_ns, "right"), self._last_N[step])]


def _waits_in_backwards(
    axis: _Axis, limits: _Limits, issue_ns_C: Integers, *, index_A: Integers, done_ns_A: Integers, step_A: Integers
) -> tuple[Integers, Integers]:
    """Return start and end of the waits for asynchronous collectives; those outside of backwards have none."""
    issue_ns_A = issue_ns_C[index_A]
    is_backward_S = axis.phase_S == BACKWARD
    begin_ns_B, end_ns_B, step_B = (
        column[is_backward_S] for column in (axis.begin_ns_S, axis.finish_ns_S, axis.step_S)
    )
    if not len(step_B):
        return issue_ns_A, issue_ns_A
    last_ns_B = issue_ns_C[issue_ns_C.searchsorted(end_ns_B, "right") - 1]
    limit_ns_B = np.where(last_ns_B < axis.end_ns_N[step_B], limits.behind(last_ns_B, step_B), last_ns_B)
    last_N = step_B.searchsorted(np.arange(axis.count), "right") - 1
    backward_A = np.minimum(end_ns_B.searchsorted(issue_ns_A), last_N[step_A])  # that of another step is elsewhere
    limit_ns_A = limit_ns_B[backward_A]
    is_inside_A = (begin_ns_B[backward_A] <= issue_ns_A) & (issue_ns_A <= end_ns_B[backward_A])
    is_cut_A = (done_ns_A == IN_FLIGHT) | (done_ns_A > limit_ns_A)
    finish_ns_A = np.where(is_cut_A, limit_ns_A, done_ns_A)
    return last_ns_B[backward_A], np.where(is_inside_A, finish_ns_A, UNKNOWN_NS)


def _known_domains(axis: _Axis) -> Integers:
    """Return the domain of each wait; a guess is replaced by that of the collective done nearest to the wait's end."""
    is_guess_W = axis.domain_W < 0
    if not any_holds(is_guess_W):
        return axis.domain_W
    domain_W = np.where(is_guess_W, ~axis.domain_W, axis.domain_W)
    done_ns, domain, step = (column[axis.is_done_C] for column in (axis.done_ns_C, axis.domain_C, axis.step_C))
    index_N = np.arange(axis.count)
    first_N, last_N = step.searchsorted(index_N), step.searchsorted(index_N, "right") - 1
    has_choice_N = (np.bincount(axis.step_G, minlength=axis.count) > 1) & (first_N <= last_N)
    chosen_W = (is_guess_W & has_choice_N[axis.step_W]).nonzero()[0]
    if not len(chosen_W):
        return domain_W
    ascends = all_hold(done_ns[1:] > done_ns[:-1])
    if not ascends:
        order = np.lexsort((domain, done_ns))
        done_ns, domain = done_ns[order], domain[order]
    middle = done_ns[1:] + done_ns[:-1]  # twice the time up to which the earlier collective is nearer
    if not ascends:
        middle -= done_ns[1:] == done_ns[:-1]  # of several done at once, the last one, if the wait ended then or later
    step_W = axis.step_W[chosen_W]
    nearest_W = middle.searchsorted(2 * axis.finish_ns_W[chosen_W])
    domain_W[chosen_W] = domain[np.minimum(np.maximum(nearest_W, first_N[step_W]), last_N[step_W])]
    return domain_W


def _phases(axis: _Axis, begin_ns_I: Integers, finish_ns_I: Integers) -> Integers:
    """Return the time of each step's phases without the intervals, which are disjoint: shape (N, PHASE_COUNT)."""
    begin_ns_S = np.maximum(axis.begin_ns_S, axis.start_ns_N[axis.step_S])
    end_ns_S = np.minimum(axis.finish_ns_S, axis.end_ns_N[axis.step_S])
    until_ns = np.concatenate(([0], (finish_ns_I - begin_ns_I).cumsum()))
    ends_ns = np.concatenate(([0], finish_ns_I))  # of the interval before each

    def taken_until(time_ns: Integers) -> Integers:
        index = begin_ns_I.searchsorted(time_ns)
        return until_ns[index] - np.maximum(ends_ns[index] - time_ns, 0)

    own_ns_S = end_ns_S - begin_ns_S - (taken_until(end_ns_S) - taken_until(begin_ns_S))
    own_ns_S[begin_ns_S >= end_ns_S] = 0
    phase_ns = np.zeros((axis.count, PHASE_COUNT), np.int64)
    np.add.at(phase_ns, (axis.step_S, axis.phase_S), own_ns_S)
    return phase_ns


def _flight_ns(axis: _Axis) -> Integers:
    """Return for how long collectives of each pair of step and domain were in flight, a union."""
    if not len(axis.first_G):
        return axis.first_G
    end_ns_C = axis.end_ns_N[axis.step_C]
    finish_ns_C = np.minimum(np.where(axis.done_ns_C == IN_FLIGHT, end_ns_C, axis.done_ns_C), end_ns_C)
    begin_ns_C = np.maximum(axis.issue_ns_C, axis.start_ns_N[axis.step_C])
    # Each pair has a window of its own; what was not done ends before it.
    shift_ns_C = ((np.arange(len(axis.first_G)) - axis.step_G) << _WINDOW_BITS).repeat(axis.count_G)
    exposed_ns_C = _exposed(begin_ns_C[axis.order_C] + shift_ns_C, finish_ns_C[axis.order_C] + shift_ns_C)
    return np.add.reduceat(exposed_ns_C, axis.first_G)


def _totals(axis: _Axis) -> list[DomainTotals]:
    """Return the same as `domain_totals.total` for each step."""
    totals = [DomainTotals() for _ in axis.steps]
    for own, step in zip(totals, axis.steps, strict=True):
        for moved in step.arrays.moved:
            own.add(*moved)
    if not len(axis.first_G):
        return totals
    took_ns_C = axis.done_ns_C - axis.issue_ns_C
    if not all_hold(axis.is_done_C):
        took_ns_C[~axis.is_done_C] = _NEVER_NS
        where_C = axis.step_C * DOMAIN_COUNT + axis.domain_C
        is_unknown_C = axis.done_ns_C == UNKNOWN_NS
        for where in np.bincount(where_C[is_unknown_C]).nonzero()[0].tolist():
            totals[where // DOMAIN_COUNT].unknown.add(where % DOMAIN_COUNT)
        for where in np.bincount(where_C[~(axis.is_done_C | is_unknown_C)]).nonzero()[0].tolist():
            totals[where // DOMAIN_COUNT].in_flight.add(where % DOMAIN_COUNT)
    shortest_ns_G = np.minimum.reduceat(took_ns_C[axis.order_C], axis.first_G).tolist()
    for n, domain, shortest_ns in zip(axis.step_G.tolist(), axis.domain_G.tolist(), shortest_ns_G, strict=True):
        if shortest_ns < _NEVER_NS:
            totals[n].shortest_ns[domain] = shortest_ns
    return totals


def _attribute_outside(step: LargeStep) -> tuple[StepBreakdown, DomainTotals]:
    """Return the same for a step that does not fit its window, one collective after the other."""
    start_ns, end_ns, events, arrays = step
    copy = StepEvents()
    copy.spans, copy.collections = events.spans, events.collections
    columns = (arrays.issue_ns_C, arrays.done_ns_C, arrays.domain_C, arrays.synchronous_C)
    for issue_ns, done_ns, domain, is_synchronous in zip(*(column.tolist() for column in columns), strict=True):
        collective = IssuedCollective(issue_ns, Traffic(domain, 0, 0, is_synchronous))
        collective.done_ns = done_ns
        copy.collectives.append(collective)
    if arrays.is_aside_C is not None:
        is_aside = arrays.is_aside_C.tolist()
        copy.aside = [each for each, aside in zip(copy.collectives, is_aside, strict=True) if aside]
        copy.collectives = [each for each, aside in zip(copy.collectives, is_aside, strict=True) if not aside]
    waits = (arrays.begin_ns_W, arrays.end_ns_W, arrays.domain_W)
    copy.blocked = list(zip(*(column.tolist() for column in waits), strict=True))
    totals = total(copy)
    for domain, _, payload_bytes, bus_bytes in arrays.moved:
        totals.add(domain, 0, payload_bytes, bus_bytes)
    return attribute(start_ns, end_ns, copy), totals
