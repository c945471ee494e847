"""A run that is slow from its first step, against its own earlier attempts."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.record.attempt_history import STEPS_MIN, AttemptHistory
from coordinator.record.earlier_attempts import AttemptComparison, compare_attempts
from coordinator.record.step_series import StepSeries, select_intervals
from tests.coordinator.record.test_step_series import RANKS, ROW, row, steps_of
from tests.coordinator.test_runs import play
from tests.coordinator.web import FAULTY, Site, get

UNKNOWN = str
"""The workload of ranks that have not announced what they do."""
USUAL = {name: np.full(RANKS, 0.1) for name in ROW.components}


def attempts(*made, gap_s=60.0, series=None, begin_s=0.0):
    """Return the series of attempts, each (step seconds, seconds of data, steps, more); every one begins at step 0."""
    series = StepSeries() if series is None else series
    for step_s, data_s, count, more in made:
        components = {**USUAL, "data": np.full(RANKS, data_s)}
        for step in range(count):
            made_row = row(step, begin_s + (step + 1) * step_s, **{"tokens": 100.0, "duration": step_s, **more})
            series.observe(replace(made_row, components=components), step_s, lambda: 1e15)
        begin_s += count * step_s + gap_s
    return series.complete()


def compared(complete):
    """Return how the last attempt of the one run there is compares with those before it."""
    history = AttemptHistory()
    history.observe("job", complete, UNKNOWN)
    return compare_attempts("job", history)


def test_a_run_that_is_slow_from_its_first_step_is_slower_than_earlier_ones():
    """By the median of the earlier ones, and in the part that grew."""
    found = compared(attempts((1.0, 0.1, 200, {}), (1.04, 0.1, 200, {}), (1.02, 0.1, 300, {}), (1.3, 0.38, 200, {})))
    assert found is not None
    assert (found.attempts, found.part) == (3, "data")
    assert found.step_seconds == pytest.approx(1.02)
    assert found.slowdown_ratio == pytest.approx(1.3 / 1.02 - 1)
    assert found.part_more_seconds == pytest.approx(0.28)


def test_what_turned_slow_or_was_slow_for_a_while_compares_as_it_was():
    """An attempt is its quicker half: an incident has its own baseline, and one in an earlier attempt is no measure."""
    series = StepSeries()
    for first, step_s in ((0, 1.0), (150, 2.0)):
        steps_of(first, count=150 - first // 3, step_s=step_s, series=series, first=first, tokens=100.0)
    steps_of(1000.0, count=120, step_s=1.0, series=series, tokens=100.0)
    steps_of(1120.0, count=80, step_s=2.0, series=series, first=120, tokens=100.0)
    found = compared(series.complete())
    assert found is not None
    assert found.step_seconds == pytest.approx(1.0)
    assert found.slowdown_ratio == pytest.approx(0.0, abs=0.01)
    assert (found.part, found.part_more_seconds) == ("", 0.0)


@pytest.mark.parametrize(
    "made",
    [
        [],
        [(1.3, 0.1, 200, {})],
        [(1.0, 0.1, STEPS_MIN, {}), (1.3, 0.1, 200, {})],
        [(1.0, 0.1, 200, {}), (1.3, 0.1, STEPS_MIN, {})],
        [(1.0, 0.1, 200, {"tokens": 80.0}), (1.3, 0.1, 200, {})],
        [(1.0, 0.1, 200, {"tokens": np.nan}), (1.3, 0.1, 200, {"tokens": np.nan})],
        [(1.0, 0.1, 200, {"tokens": np.nan, "samples": 4.0}), (1.3, 0.1, 200, {})],
    ],
    ids=["nothing", "no earlier one", "a short one", "not long yet", "other work", "unknown work", "other measures"],
)
def test_what_is_not_compared(made):
    """Only attempts of the same work, long enough to be known."""
    assert compared(attempts(*made)) is None


def test_samples_are_the_work_where_tokens_are_unknown():
    """Images have no tokens."""
    unknown = {"tokens": np.nan, "samples": 4.0}
    found = compared(attempts((1.0, 0.1, 200, unknown), (1.2, 0.1, 200, unknown)))
    assert found is not None
    assert found.slowdown_ratio == pytest.approx(0.2)


def test_the_first_steps_of_an_attempt_that_continues_are_left_out():
    """Its step numbers begin at the checkpoint; ten steps that compile are no measure of the others."""
    series = StepSeries()
    steps_of(0.0, count=1000, step_s=1.0, series=series, tokens=100.0)
    steps_of(1100.0, count=10, step_s=0.2, series=series, first=800, tokens=100.0)
    steps_of(1102.0, count=70, step_s=1.2, series=series, first=810, tokens=100.0)
    found = compared(series.complete())
    assert found is not None
    assert found.slowdown_ratio == pytest.approx(0.2)


def test_an_attempt_stays_known_while_its_intervals_grow_with_age():
    """Of its single interval, the first steps are a small share."""
    old, young = attempts((1.0, 0.1, 400, {})), attempts((1.0, 0.1, 1, {}), (1.2, 0.1, 100, {}))[1:]
    found = compared([*select_intervals(old, max_intervals=1), *young])
    assert found is not None
    assert found.slowdown_ratio == pytest.approx(0.2)


def test_it_is_made_again_after_some_intervals():
    """Not at every look, and with the steps that came meanwhile."""
    series, comparison = StepSeries(), AttemptComparison("job", AttemptHistory())
    steps_of(0.0, count=200, step_s=1.0, series=series, tokens=100.0)
    assert comparison.of_series(series, UNKNOWN) is None
    steps_of(300.0, count=90, step_s=1.2, series=series, tokens=100.0)
    first = comparison.of_series(series, UNKNOWN)
    assert first is not None
    assert first.slowdown_ratio == pytest.approx(0.2)
    series.observe(row(90, 300.0 + 91 * 1.2, tokens=100.0), 1.2, lambda: None)
    assert comparison.of_series(series, UNKNOWN) is first


async def test_the_page_the_api_and_the_metric_show_it():
    """A job that was begun again, a fifth slower from its first step."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 10)
        run = site.runs.by_name["job"]
        attempts((1.0, 0.1, 200, {}), (1.2, 0.28, 200, {}), series=run.series)
        page, answer = await get(site, "/runs/job"), await get(site, "/api/v1/runs/job")
        metrics = await get(site, "/metrics")
    assert (
        '<dt>Earlier attempts</dt><dd>1 s<small class="bad">this one undisturbed +20%, data +180 ms</small></dd>'
        in page
    )
    assert answer["earlier"] == {
        "match": "name",
        "runs": ["job"],
        "attempts": 1,
        "step_seconds": pytest.approx(1.0),
        "slowdown_ratio": pytest.approx(0.2),
        "part": "data",
        "part_more_seconds": pytest.approx(0.18),
    }
    assert 'lockstep_run_earlier_step_duration_seconds{match="name",run="job"} 1.0' in metrics
