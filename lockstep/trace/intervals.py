"""Arithmetic of intervals: sets of [start, end), int64 ns, as two arrays of equal shape.

A *set* here is disjoint, sorted and without empty members; `merged` makes one of anything. Sets that touch are one.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


class Intervals(NamedTuple):
    """Starts and ends, arrays of shape (n_intervals,)."""

    start_ns: Times
    end_ns: Times

    def measure_ns(self) -> int:
        """Return the sum of the lengths."""
        return int((self.end_ns - self.start_ns).sum())


def merged(start_ns: Times, end_ns: Times) -> Intervals:
    """Return the set that any intervals cover."""
    keep = start_ns < end_ns
    start_ns, end_ns = start_ns[keep], end_ns[keep]
    if not len(start_ns):
        return Intervals(start_ns, end_ns)
    order = np.argsort(start_ns, kind="stable")
    start_ns, reached_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.concatenate(([True], start_ns[1:] > reached_ns[:-1]))
    return Intervals(start_ns[first], reached_ns[np.concatenate((first[1:], [True]))])


def common(one: Intervals, other: Intervals) -> Intervals:
    """Return the intersection of both sets."""
    return _swept(one, other, 1)


def without(one: Intervals, other: Intervals) -> Intervals:
    """Return the part of the first set outside the second."""
    return _swept(one, other, 0)


def _swept(one: Intervals, other: Intervals, wanted: int) -> Intervals:
    """Return where the first set is, and the second is (1) or is not (0)."""
    times = np.concatenate((*one, *other))
    ones, others = len(one.start_ns), len(other.start_ns)
    zeros = np.zeros
    in_one = np.concatenate((np.ones(ones, np.int8), -np.ones(ones, np.int8), zeros(2 * others, np.int8)))
    in_other = np.concatenate((zeros(2 * ones, np.int8), np.ones(others, np.int8), -np.ones(others, np.int8)))
    order = np.argsort(times, kind="stable")
    times = times[order]
    inside = (np.cumsum(in_one[order]) == 1) & (np.cumsum(in_other[order]) == wanted)
    pieces = inside[:-1]  # of several changes at one time all but the last begin an empty piece, which merging drops
    return merged(times[:-1][pieces], times[1:][pieces])
