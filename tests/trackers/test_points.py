"""Figures of intervals: what becomes one point, by which weights, and what a coordinator may answer wrongly."""

import math

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trackers.incident_notes import parse_incidents
from lockstep.trackers.points import join_points, parse_points
from tests.trackers.samples import BEGIN, NAN, incident, interval, notes_of, points_of


def test_seconds_are_weighted_by_steps_and_rates_by_time():
    """10 steps of 0.1 s and 2 of 1 s: 12 steps of 0.25 s, during 3 s."""
    (joined,) = join_points(
        points_of(
            interval(0, tokens_per_second=300.0),
            interval(10, steps=2, step_seconds=1.0, begin=BEGIN + 1, tokens_per_second=600.0, parts={"data": 0.9}),
        ),
        10.0,
    )
    assert (joined.first_step, joined.last_step, joined.steps) == (0, 11, 12)
    assert joined.values["step_seconds"] == pytest.approx(0.25)
    assert joined.values["tokens_per_second"] == pytest.approx((300 * 1 + 600 * 2) / 3)
    assert joined.values["longest_step_seconds"] == 1.0
    assert joined.values["data_seconds"] == pytest.approx((0.01 * 10 + 0.9 * 2) / 12)
    assert joined.values["dp_wait_seconds"] == 0.02  # of those that measured it


def test_intervals_of_the_clock_and_attempts_are_points_of_their_own():
    """Every step is in one point, in order; steps of a restarted attempt are not mixed with those before."""
    series = [interval(first) for first in range(0, 300, 10)]
    series += [interval(0, begin=BEGIN + 30.0, attempt=1)]
    joined = join_points(points_of(*series), 10.0)
    assert [(each.attempt, each.first_step, each.last_step) for each in joined] == [
        (0, 0, 89),
        (0, 90, 189),
        (0, 190, 289),
        (0, 290, 299),
        (1, 0, 9),
    ]


def test_compute_is_the_sum_of_its_phases_where_they_were_measured():
    """So that every run has the figure, whether or not phases are known."""
    (point,) = points_of(interval(0, parts={"forward": 0.02, "backward": 0.03, "optimizer": 0.01}))
    assert point.values["compute_seconds"] == pytest.approx(0.06)
    assert point.values["optimizer_seconds"] == 0.01


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, "12", True, [1]])
def test_a_figure_that_is_no_finite_number_is_left_out_alone(value):
    """The others of its point stay; null is a figure that was not measured and no fault."""
    answer = {"points": [interval(0, mfu_ratio=value), interval(10, mfu_ratio=None)]}
    points, refused = parse_points(answer, where="here")
    assert refused == {"mfu_ratio"}
    assert [("mfu_ratio" in point.values, point.values["step_seconds"]) for point in points] == [(False, 0.1)] * 2


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"points": None},
        {"points": [3]},
        {"points": [{}]},
        {"points": [interval(0, end_unix_seconds=NAN)]},
        {"points": [interval(0, last_step="x")]},
        {"points": [interval(0, steps=math.inf)]},
        {"points": [interval(0) | {"part_seconds": [1]}]},
    ],
)
def test_another_answer_is_refused_with_its_place(answer):
    """What, where, got, expected."""
    with pytest.raises(MalformedError, match=r"series in here: got .*, expected points of a coordinator"):
        parse_points(answer, where="here")


@pytest.mark.parametrize("answer", [{}, {"incidents": [{}]}, {"incidents": [incident(ranks=["x"])]}, {"incidents": 3}])
def test_other_incidents_are_refused_with_their_place(answer):
    """What, where, got, expected."""
    with pytest.raises(MalformedError, match=r"incidents in here: got .*, expected incidents of a coordinator"):
        parse_incidents(answer, base_url="http://c", where="here")


def test_an_incident_names_rank_host_cause_onset_cost_and_link():
    """What an engineer needs to go on from the tracker."""
    (note,) = notes_of(incident())
    assert note.title == "slow rank of rank 2 on node-3: data, from step 40, open"
    assert note.link == "http://c:9856/incidents/job-1"
    assert note.row()["lost_device_seconds"] == 12.5
    (wide,) = notes_of(incident(ranks=list(range(1000)), host=""))
    assert wide.ranks_text.endswith("15 and 984 more")
