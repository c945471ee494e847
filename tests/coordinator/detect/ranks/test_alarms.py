"""The table of what is in alarm."""

import numpy as np

from coordinator.detect.ranks.alarms import Alarms


def raised(*series):
    alarms = Alarms()
    for step, each in enumerate(series):
        alarms.add(np.array([each]), np.array([0.05], dtype=np.float32), np.array([step]))
    return alarms


def test_alarms_are_found_by_series_in_whatever_order_they_came():
    """Level and onset are a series' own; who is in no alarm has neither."""
    alarms = raised(7, 2, 5)
    assert alarms.series_A.tolist() == [2, 5, 7]
    assert [alarms.of(series)[1] for series in (7, 2, 5, 3)] == [0, 1, 2, -1]
    assert 5 in alarms
    assert 3 not in alarms
    assert alarms.without(np.array([9, 2, 4, 7])).tolist() == [9, 4]


def test_an_alarm_ends_after_so_many_quiet_steps_in_a_row():
    """A loud step in between begins the count again, and moves the level; quiet ones do not."""
    alarms = raised(2, 5)
    nothing = np.zeros(2, dtype=np.float32)
    for quiet in ([True, True], [True, False], [True, True]):
        alarms.update(slice(None), np.array(quiet), nothing)
    assert alarms.has_quiet
    assert alarms.clear(3).tolist() == [2]
    assert alarms.series_A.tolist() == [5]
    assert alarms.of(5)[0] < 0.05
    assert alarms.is_quiet(5)
    alarms.update(np.array([False]), nothing[:0] > 0, nothing[:0])  # it has no value in this step
    assert alarms.clear(2).tolist() == []


def test_memory_is_kept_and_another_jobs_is_not():
    """What was raised goes on; a series that is not there is not taken."""
    after = Alarms()
    after.load_state_dict(raised(7, 2).state_dict(), 8)
    assert (after.series_A.tolist(), after.of(7)[1]) == ([2, 7], 0)
    small = Alarms()
    small.load_state_dict(raised(7, 2).state_dict(), 4)
    assert len(small) == 0
