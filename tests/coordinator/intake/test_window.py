"""Pending steps: where a window begins, and what has arrived of a step."""

import numpy as np
import pytest

from coordinator.intake.columns import Records
from coordinator.intake.window import BatchReceipt, RecordWindow


@pytest.fixture
def window():
    """Return a window of eight steps that begins with step 10."""
    made = RecordWindow(8)
    assert made.opens_for(10)
    return made


def add(window, step, *ranks):
    return [window.add(rank, step, 0, BatchReceipt()) for rank in ranks]


def test_an_empty_window_opens_anywhere():
    """Nothing fits before the first record, and any step may be the first."""
    window = RecordWindow(8)
    assert 0 not in window.span
    assert not window.is_just_before(0)
    assert window.opens_for(1 << 61)
    assert window.span.start == 1 << 61


@pytest.mark.parametrize(("step", "opens"), [(9, True), (5, True), (4, False), (2, False), (18, False)])
def test_a_window_opens_towards_older_steps_that_fit_with_what_is_pending(window, step, opens):
    """Steps 10 to 12 are pending: with steps before 5 they are more than eight; younger ones never move it."""
    add(window, 12, 0)
    assert window.opens_for(step) is opens
    assert window.span.start == (step if opens else 10)


def test_once_a_step_is_handed_out_the_window_only_goes_on(window):
    """What has been evaluated cannot be reported again."""
    (pending, _) = add(window, 10, 3, 4)
    assert window.hand_out() is pending
    assert window.hand_out() is None
    assert window.span == range(12, 20)
    assert not window.opens_for(11)
    assert window.is_just_before(11)
    assert not window.is_just_before(3)


def test_records_are_known_by_rank_and_step(window):
    """A rank's last step is its greatest, whatever the order."""
    add(window, 12, 3)
    add(window, 11, 3, 4)
    assert window.holds(3, 12)
    assert not window.holds(4, 12)
    assert window.last_step == {3: 12, 4: 11}
    assert window.pending_records == 3


def test_a_step_remembers_when_so_many_ranks_had_reported(window):
    """The time of the gathering with which the count was reached; of the window, that of the earliest such step."""
    none = np.zeros(2, dtype=np.int64)
    records = Records(none, none, none, none, none, (), np.zeros((0, 2), dtype=np.float32))
    for now_s, ranks in ((1.0, (0, 1)), (5.0, (2,))):
        (pending, *_) = add(window, 10, *ranks)
        pending.collect(records, now_s)
    assert [pending.arrived_s(count) for count in (1, 2, 3, 4)] == [1.0, 1.0, 5.0, float("inf")]
    assert window.arrived_s(3) == 5.0
    assert pending.rows == []
