"""Self time by event, and of pieces outside of a set of times."""

import numpy as np

from lockstep.trace.intervals import Intervals
from lockstep.trace.self_time import innermost_pieces, self_times, time_outside
from tests.trace.made import columns_of, made


def _columns():
    return columns_of(
        [
            made("outer", thread=1, start_ns=0, duration_ns=100),
            made("inner", thread=1, start_ns=20, duration_ns=30),
            made("late", thread=1, start_ns=90, duration_ns=30),
            made("other", thread=2, start_ns=10, duration_ns=50),
            made("point", thread=2, start_ns=70, duration_ns=0),
        ]
    )


def test_what_is_called_is_no_self_time():
    """Callers lose what they call; a callee that ends too late is cut; threads do not touch each other."""
    columns = _columns()
    assert self_times(columns, np.ones(5, bool)).tolist() == [60, 30, 10, 50, 0]
    assert self_times(columns, np.array([1, 0, 0, 1, 0], bool)).tolist() == [100, 0, 0, 50, 0]


def test_a_wait_that_begins_before_a_call_takes_its_own_time_only():
    """Times that are excluded need not nest with the calls."""
    columns = _columns()
    pieces = innermost_pieces(columns, columns.thread == 0)
    left_ns = time_outside(pieces, Intervals(np.array([-10, 15, 60]), np.array([5, 25, 70])))
    by_event = np.bincount(pieces.event, left_ns, 5)
    assert by_event.tolist() == [60 - 5 - 5 - 10, 25, 10, 0, 0]


def test_nothing_chosen_has_no_pieces():
    """Neither events nor excluded times are needed."""
    columns = _columns()
    pieces = innermost_pieces(columns, np.zeros(5, bool))
    assert len(time_outside(pieces, Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64)))) == 0
