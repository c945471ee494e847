"""A run's step time over time: bounded, exact where it must be, and whole after a restart."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from coordinator.record.step_series import (
    INTERVALS_MAX,
    LEVEL_INTERVALS,
    SERIES_MAX_BYTES,
    StepSeries,
    select_intervals,
    series_to_json,
)
from lockstep.contracts.errors import MalformedError
from tests.coordinator.scenarios import START_UNIX_S, Scenario, generate

RANKS = 4
ROW = next(iter(generate(Scenario(degrees="dp=4", steps=1)).rows()))
NO_PEAK = lambda: None  # noqa: E731


def row(step, end_s, **values):
    """Return a step of four ranks that ends at so many seconds; values by name are those of each rank."""
    shared = {name: np.full(RANKS, value) for name, value in values.items()}
    return replace(ROW, step=step, end_unix_s=START_UNIX_S + end_s, **shared)


def steps_of(seconds, *, count, step_s, series=None, first=0, **values):
    """Feed steps of one length, the first of which begins at so many seconds."""
    series = series or StepSeries()
    for place in range(count):
        series.observe(row(first + place, seconds + (place + 1) * step_s, **values), step_s, lambda: 1e9)
    return series


def points(series, **query):
    return series_to_json(select_intervals(series.complete(), **query))


def test_short_steps_share_an_interval_of_a_second():
    """Of 40 steps of 0.1 s: four points of ten steps, no gap between them, the last step of each known."""
    made = points(steps_of(0.0, count=40, step_s=0.1))
    assert [(each["first_step"], each["last_step"], each["steps"]) for each in made[:2]] == [(0, 9, 10), (10, 19, 10)]
    assert [each["step_seconds"] for each in made] == pytest.approx([0.1] * len(made))
    assert [each["begin_unix_seconds"] for each in made[1:]] == [each["end_unix_seconds"] for each in made[:-1]]


def test_a_long_step_is_a_point_at_once():
    """A reader sees a step of 2 s when it ends."""
    (made,) = points(steps_of(0.0, count=1, step_s=2.0))
    assert (made["steps"], made["step_seconds"]) == (1, 2.0)
    assert made["end_unix_seconds"] - made["begin_unix_seconds"] == pytest.approx(2.0)


def test_figures_are_those_of_all_ranks():
    """Tokens and samples of four ranks a second, MFU of the mean device, parts of the mean rank that sum to its step."""
    given = row(0, 2.0, tokens=100.0, samples=10.0, model_flops=1e8, duration=2.0)
    series = StepSeries()
    series.observe(given, 2.0, lambda: 2e8)
    (made,) = points(series)
    assert (made["tokens_per_second"], made["samples_per_second"]) == (200.0, 20.0)
    assert made["mfu_ratio"] == pytest.approx(0.25)
    real = StepSeries()
    natural = ROW
    real.observe(natural, 1.0, NO_PEAK)
    real.observe(replace(natural, step=1, end_unix_s=natural.end_unix_s + 1), 1.0, NO_PEAK)
    shown = points(real)[0]
    assert sum(shown["part_seconds"].values()) == pytest.approx(float(natural.duration.mean()), rel=1e-3)
    assert shown["mfu_ratio"] is None


def test_what_no_rank_measured_is_null_and_a_missing_rank_takes_nothing_away():
    """A lost record does not look like a drop in throughput."""
    tokens = np.array([100.0, np.nan, 100.0, 100.0])
    series = StepSeries()
    series.observe(replace(row(0, 1.0, duration=1.0), tokens=tokens, samples=None), 1.0, NO_PEAK)
    (made,) = points(series)
    assert (made["tokens_per_second"], made["samples_per_second"], made["mfu_ratio"]) == (400.0, None, None)


def test_any_length_is_bounded_and_no_step_is_lost():
    """A run of two days with steps of 10 s: a few hundred points, fine at the end, every step in exactly one."""
    series = steps_of(0.0, count=20_000, step_s=10.0)
    made = points(series)
    assert len(made) < 10 * LEVEL_INTERVALS
    assert sum(each["steps"] for each in made) == 20_000
    assert [each["first_step"] for each in made[1:]] == [each["last_step"] + 1 for each in made[:-1]]
    assert made[-1]["steps"] == 1
    assert made[0]["steps"] <= 2**12
    assert len(series.to_bytes()) <= SERIES_MAX_BYTES


def test_figures_of_a_second_are_those_of_all_its_steps():
    """Ten steps of 0.1 s of which every second one has no tokens and computes longer: not those of the first one."""
    series = StepSeries()
    for step in range(10):
        parts = {**ROW.components, "data": np.full(RANKS, 0.01 + 0.02 * (step % 2))}
        given = row(
            step, 0.1 * (step + 1), tokens=100.0 * (step % 2), samples=step, model_flops=1e7 * step, duration=0.1
        )
        series.observe(replace(given, components=parts), 0.1, lambda: 1e9)
    (made,) = points(series)
    assert made["steps"] == 10
    assert made["tokens_per_second"] == pytest.approx(4 * 50 / 0.1)
    assert made["samples_per_second"] == pytest.approx(4 * 4.5 / 0.1)
    assert made["mfu_ratio"] == pytest.approx(0.45)
    assert made["part_seconds"]["data"] == pytest.approx(0.02)


def test_merged_means_are_those_of_all_steps():
    """A slowdown of half of the steps is in the mean, and the longest step stays visible."""
    series = steps_of(0.0, count=500, step_s=1.0)
    series.observe(row(500, 530.0), 30.0, NO_PEAK)
    steps_of(530.0, count=499, step_s=2.0, series=series, first=501)
    (made,) = points(series, max_intervals=1)
    assert made["step_seconds"] == pytest.approx((500 + 30 + 998) / 1000)
    assert (made["longest_step_seconds"], made["steps"]) == (30.0, 1000)


def test_a_pause_stays_a_gap_and_a_restart_another_attempt():
    """Ten minutes without a step, and step numbers that fall: merged with nothing before them."""
    series = steps_of(0.0, count=100, step_s=1.0)
    steps_of(700.0, count=200, step_s=1.0, series=series, first=50)
    made = points(series)
    gaps = [(a, b) for a, b in pairwise(made) if b["begin_unix_seconds"] - a["end_unix_seconds"] > 1]
    ((before, after),) = gaps
    assert (before["last_step"], after["first_step"]) == (99, 50)
    assert (before["attempt"], after["attempt"]) == (0, 1)


def test_steps_since_and_at_most():
    """A reader that asks again gets what holds newer steps; fewer points hold the same steps."""
    series = steps_of(0.0, count=300, step_s=1.0)
    assert points(series, since_step=295)[0]["last_step"] >= 295
    assert points(series, since_step=300) == []
    few = points(series, max_intervals=10)
    assert len(few) <= 10
    assert (few[0]["first_step"], few[-1]["last_step"], sum(each["steps"] for each in few)) == (0, 299, 300)


def test_a_clock_that_is_set_back_leaves_no_point_in_the_future():
    """Time ascends along the series, whatever clocks do."""
    series = steps_of(10_000.0, count=100, step_s=1.0)
    steps_of(0.0, count=5, step_s=1.0, series=series, first=100)
    ends = [each["end_unix_seconds"] for each in points(series)]
    assert ends == sorted(ends)
    assert len(ends) == 5


def test_worst_pauses_keep_the_bound():
    """A step a minute, each after a pause: nothing merges, and the oldest go."""
    series = StepSeries()
    for step in range(2 * INTERVALS_MAX):
        series.observe(row(step, step * 1e7), 1.0, NO_PEAK)
    assert len(series.complete()) <= INTERVALS_MAX


def test_what_was_kept_comes_back_and_goes_on():
    """After a restart of the coordinator the same points, and the next step joins them."""
    series = steps_of(0.0, count=300, step_s=1.0, tokens=5.0)
    again = StepSeries.from_bytes(series.to_bytes(), where="test")
    assert points(again) == points(series)
    steps_of(300.0, count=1, step_s=1.0, series=again, first=300)
    assert points(again)[-1]["attempt"] == 0
    assert points(StepSeries.from_bytes(StepSeries().to_bytes(), where="test")) == []


@pytest.mark.parametrize(
    "damage", [b"", b"x", lambda d: d[:-1], lambda d: d[:-8] + d, lambda d: d.replace(b"1\n", b"9\n", 1)]
)
def test_damaged_bytes_are_refused_by_name(damage):
    """What this version did not write."""
    data = steps_of(0.0, count=3, step_s=1.0).to_bytes()
    with pytest.raises(MalformedError, match="step series in somewhere"):
        StepSeries.from_bytes(damage(data) if callable(damage) else damage, where="somewhere")
