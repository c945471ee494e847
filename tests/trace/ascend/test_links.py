import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace.ascend.links import Clock, Flows, innermost, rows_at
from lockstep.trace.columns import ABSENT


def _nested(shape, start=0):
    """Return nested intervals as (start, end), by a list of lists; each has a gap on either side."""
    intervals, at = [], start
    for inner in shape:
        begin = at + 1
        below, at = _nested(inner, begin)
        at += 1
        intervals += [(begin, at), *below]
    return intervals, at + 1


_SHAPES = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=20)


@given(st.lists(_SHAPES, max_size=5), st.randoms(use_true_random=False))
def test_innermost_is_the_smallest_interval_around(shape, random):
    """The answer is that of a search through all intervals, whatever the order of the rows."""
    intervals, end = _nested(shape)
    random.shuffle(intervals)
    wanted = np.arange(end + 2)
    starts, ends = (np.array([each[side] for each in intervals], np.int64) for side in (0, 1))
    found = innermost(starts, ends, wanted)
    for moment, row in zip(wanted.tolist(), found.tolist(), strict=True):
        around = [(e - s, i) for i, (s, e) in enumerate(intervals) if s <= moment < e]
        assert row == (min(around)[1] if around else ABSENT)


def test_keys_of_threads_do_not_mix():
    """The same moment in two threads has two keys, and moments outside are the edges."""
    clock = Clock(2, 100, 200)
    keys = clock.keys(np.array([0, 1, 0, 1]), np.array([150, 150, -5, 10**6]))
    assert len(set(keys.tolist())) == 4
    assert np.array_equal(np.argsort(keys), [2, 0, 1, 3])
    assert not Clock(1 << 20, 0, 1 << 60).usable


def test_rows_are_found_by_key():
    """Keys that no row has are absent, also where there is no row at all."""
    assert rows_at(np.array([5, 3, 9]), np.array([9, 4, 3, 99])).tolist() == [2, ABSENT, 1, ABSENT]
    assert rows_at(np.array([], np.int64), np.array([1])).tolist() == [ABSENT]


def test_flows_pair_ends_with_their_begin():
    """Ends without a begin are left out; one begin may have several ends."""
    ids = np.array([7, 7, 8, 7, 9])
    begins = np.array([True, False, False, False, True])
    begin, end = Flows(ids, ids, ids, begins).pairs()
    assert list(zip(begin.tolist(), end.tolist(), strict=True)) == [(0, 1), (0, 3)]
    begin, end = Flows(ids, ids, ids, ~np.ones(5, np.bool_)).pairs()
    assert (len(begin), len(end)) == (0, 0)
