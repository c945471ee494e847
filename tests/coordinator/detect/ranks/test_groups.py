"""Groups of ranks and their references."""

import numpy as np
import pytest

from coordinator.detect.ranks.groups import Groups, mean_of, median_of, middle


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


def test_mean_is_of_what_is_known():
    """As numpy has it, to the last bit; of nothing it is not known."""
    values = np.random.default_rng(1).random(1001).astype(np.float32)
    assert mean_of(values) == float(values.mean())
    assert mean_of(values[::3]) == float(values[::3].mean())
    values[5:9] = np.nan
    assert mean_of(values) == float(values[~np.isnan(values)].mean())
    assert np.isnan([mean_of(values[5:9]), mean_of(values[:0])]).all()


def test_members_may_stand_in_any_order():
    """Interleaved groups give what contiguous ones give."""
    values = np.array([1.0, 100.0, 2.0, 200.0, 3.0, 300.0])
    assert Groups([0, 1] * 3).median(values).tolist() == [2.0, 200.0]


@pytest.mark.parametrize("shape", [(1, 8, 16), (4, 8, 2), (8, 3, 1), (1, 2, 300), (2, 2, 300)])
@pytest.mark.parametrize("missing", [0.0, 0.1, 1.0])
def test_regular_groups_are_read_as_listed_ones(shape, missing):
    """The groups that degrees make need no index: renumbering the ranks, which makes them irregular, changes nothing."""
    outer, count, inner = shape
    rng = np.random.default_rng(1)
    group = np.arange(outer * count * inner) // inner % count
    values = rng.random(len(group), dtype=np.float32)
    values[rng.random(len(group)) < missing] = np.nan
    order = rng.permutation(len(group))
    regular, listed = Groups(group), Groups(group[order])
    for name in ("reference", "median", "least", "known"):
        found, expected = getattr(regular, name)(values), getattr(listed, name)(values[order])
        assert np.array_equal(found, expected, equal_nan=True)
    figures = rng.random(count)
    assert regular.spread(figures)[order].tolist() == listed.spread(figures).tolist()
    assert regular.of(order).tolist() == listed.group_R.tolist()
    view, own = regular.broadcast(values, figures)
    assert np.array_equal((view - own).reshape(-1), values - figures[group], equal_nan=True)


def test_a_quick_median_is_numpys():
    """Of odd and even numbers of values, in their own precision."""
    rng = np.random.default_rng(2)
    for length in range(1, 20):
        for kind in (np.float32, np.float64):
            values = rng.random(length).astype(kind)
            assert median_of(values) == float(np.median(values))
    assert np.isnan(median_of(np.zeros(0)))
