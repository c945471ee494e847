import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace.intervals import common, merged, without

_ANY = st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 15)), max_size=12)


def _set(spans):
    starts = np.array([start for start, _ in spans], np.int64)
    return merged(starts, starts + np.array([length for _, length in spans], np.int64))


def _points(intervals):
    return {t for start, end in zip(*intervals, strict=True) for t in range(start, end)}


@given(_ANY)
def test_merged_covers_the_same_in_disjoint_sorted_intervals(spans):
    """Merging keeps every point, and leaves a gap between any two intervals."""
    found = _set(spans)
    assert _points(found) == {t for start, length in spans for t in range(start, start + length)}
    assert (found.start_ns < found.end_ns).all()
    assert (found.start_ns[1:] > found.end_ns[:-1]).all()
    assert found.measure_ns() == len(_points(found))


@given(_ANY, _ANY)
def test_common_and_without_are_those_of_the_points(one, other):
    """Intersection and difference agree with sets of points, and together give the first set back."""
    a, b = _set(one), _set(other)
    assert _points(common(a, b)) == _points(a) & _points(b)
    assert _points(without(a, b)) == _points(a) - _points(b)
    assert common(a, b).measure_ns() + without(a, b).measure_ns() == a.measure_ns()
