"""Who is missing, and for how long."""

import numpy as np

from coordinator.detect.ranks.absence import Absence


def values(*missing):
    row = np.ones(8)
    row[list(missing)] = np.nan
    return row


def test_steps_in_a_row_are_counted_for_each_rank():
    """Who comes back begins again; a step in which all are there forgets everybody."""
    absence = Absence()
    assert absence.add(values()) is None
    assert absence.add(values(2, 5)).tolist() == [2, 5]
    absence.add(values(5))
    absence.add(values(2, 5, 7))
    assert absence.since(1).tolist() == [2, 7]
    assert absence.since(3).tolist() == [2, 5, 7]
    assert absence.add(values()) is None
    absence.add(values(5))
    assert absence.since(1).tolist() == [5]


def test_a_rank_may_be_missing_for_good():
    """The count ends somewhere, and never returns to a few steps."""
    absence = Absence()
    for _ in range(1000):
        absence.add(values(3))
    assert absence.since(3).tolist() == []
