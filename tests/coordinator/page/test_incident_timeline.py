"""When incidents began and ended, on the axis of the run's charts."""

import pytest

from coordinator.page.incident_timeline import TIMELINE_MAX, incident_timeline
from tests.coordinator.record.test_step_series import START_UNIX_S, steps_of
from tests.coordinator.test_store import incident

SERIES = steps_of(0.0, count=100, step_s=2.0)


def opened(second, number=1, **more):
    return incident(number, opened_unix_ns=round((START_UNIX_S + second) * 1e9), **more)


def test_an_onset_is_where_its_step_was():
    """Step 60 began at second 120; the incident was found later, and closed."""
    (found,) = incident_timeline([opened(126.0, state="closed", closed_unix_ns=10**18 * 2)], SERIES.complete(), 2.0)
    assert found["begin_unix_seconds"] == pytest.approx(START_UNIX_S + 120)
    assert found["end_unix_seconds"] == 2e9
    assert found["title"] == "Slow rank: rank 2-3, compute"


def test_steps_of_an_earlier_attempt_are_not_mistaken():
    """Step 60 of the second attempt is the one before the incident opened."""
    series = steps_of(0.0, count=100, step_s=2.0)
    steps_of(1000.0, count=80, step_s=2.0, series=series)
    first, second = incident_timeline([opened(1130.0, 2), opened(126.0)], series.complete(), 2.0)
    assert (first["id"], second["id"]) == ("job-1", "job-2")
    assert second["begin_unix_seconds"] == pytest.approx(START_UNIX_S + 1120)


def test_an_onset_that_no_interval_holds_is_placed_by_its_steps():
    """Two steps before it was found; an open one has no end."""
    (found,) = incident_timeline([opened(126.0)], [], 2.0)
    assert found["begin_unix_seconds"] == pytest.approx(START_UNIX_S + 122)
    assert found["end_unix_seconds"] is None


def test_the_timeline_is_bounded():
    """A run with thousands of incidents has as many on its page as can be looked at."""
    assert len(incident_timeline([opened(1.0, each) for each in range(500)], [], 1.0)) == TIMELINE_MAX
