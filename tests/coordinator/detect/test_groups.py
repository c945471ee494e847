"""Groups of ranks and their references."""

import numpy as np

from coordinator.detect.groups import Groups, middle


def test_reference_is_a_low_member_of_each_group():
    """The smaller of two, the second of four, the third of eight; missing members do not count."""
    values = np.array([2.0, 1.0, 40.0, 10.0, 30.0, 20.0, np.nan, 7.0])
    groups = Groups([0, 0, 5, 5, 5, 5, 9, 9])
    assert groups.reference(values).tolist() == [1.0, 20.0, 7.0]
    assert Groups([0] * 8).reference(np.arange(8.0)).tolist() == [2.0]


def test_a_group_without_values_has_no_reference():
    """Missing stays missing."""
    assert np.isnan(Groups([0, 1]).reference(np.array([1.0, np.nan])))[1]


def test_median_and_middle_leave_missing_values_out():
    """The lower median of what is known."""
    assert Groups([0] * 4).median(np.array([4.0, 1.0, 2.0, 3.0])).tolist() == [2.0]
    assert middle(np.array([[1.0, np.nan], [9.0, np.nan], [5.0, 3.0]])).tolist() == [5.0, 3.0]
    assert np.isnan(middle(np.full((3, 1), np.nan)))[0]


def test_members_may_stand_in_any_order():
    """Interleaved groups give what contiguous ones give."""
    values = np.array([1.0, 100.0, 2.0, 200.0, 3.0, 300.0])
    assert Groups([0, 1] * 3).median(values).tolist() == [2.0, 200.0]
