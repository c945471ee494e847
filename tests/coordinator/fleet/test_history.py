"""Thirty made runs: who was named, how often, for what, and over which runs; within bounds."""

import random

from coordinator.fleet.history import (
    DEVICE,
    KEPT_S,
    LINK,
    NODE,
    RECENT_S,
    SIGHTINGS_MAX,
    SUBJECTS_MAX,
    FleetHistory,
    Sighting,
    Subject,
    history_line,
)

DAY_S = 86_400.0
NOW_S = 1_790_000_000.0
BAD = Subject(NODE, "n17")


def sighting(subject=BAD, *, incident="i1", run="llm", kind="slow_rank", cause="compute", days_ago=1.0):
    return Sighting(
        subject=subject,
        incident_id=incident,
        run=run,
        incident_kind=kind,
        cause=cause,
        opened_unix_s=NOW_S - days_ago * DAY_S,
    )


def thirty_runs():
    """Return sightings of 30 runs in 60 days: node n17 is named in every third, other nodes by chance."""
    chance = random.Random(7)
    made = []
    for number in range(30):
        ago = 2.0 * number
        run = f"run-{number}"
        if number % 3 == 0:
            made.append(sighting(incident=f"bad-{number}", run=run, days_ago=ago))
        made.append(
            sighting(Subject(NODE, f"n{chance.randrange(100, 900)}"), incident=f"x-{number}", run=run, days_ago=ago)
        )
    return made


def test_the_node_of_every_third_run_stands_first():
    """Named three times in 14 days (0, 6 and 12 days ago), ten times in all."""
    first, *others = FleetHistory(thirty_runs(), NOW_S).records(NOW_S)
    assert (first.subject, first.recent, len(first.sightings)) == (BAD, 3, 10)
    assert first.runs == tuple(f"run-{number}" for number in range(0, 30, 3))
    assert all(record.recent <= 1 for record in others)


def test_an_incident_reports_what_came_before_it_alone():
    """Not itself, not what is older than a fortnight, not what came later."""
    history = FleetHistory(thirty_runs(), NOW_S)
    earlier = history.earlier(BAD, "bad-0", NOW_S)
    assert [each.incident_id for each in earlier] == ["bad-3", "bad-6"]
    assert [each.incident_id for each in history.earlier(BAD, "bad-3", NOW_S - 6 * DAY_S)] == ["bad-6", "bad-9"]
    assert history.earlier(Subject(NODE, "new"), "i", NOW_S) == []
    assert history.earlier(Subject(DEVICE, "n17"), "i", NOW_S) == []


def test_the_line_states_how_often_where_and_for_what():
    """As a person would count."""
    earlier = [
        sighting(incident="a", run="llm-7"),
        sighting(incident="b", run="sft", kind="crash", cause="process"),
        sighting(incident="c", run="sft", kind="crash", cause="process"),
    ]
    text = history_line(BAD, "llm-9", earlier)
    assert text == (
        "node n17 is named for the 4th time in 14 days, in 2 other runs (llm-7, sft): 2 x crash by process, "
        "slow rank by compute"
    )
    assert "2nd time in 14 days, in this run: slow rank" in history_line(Subject(LINK, "a - b"), "llm-7", earlier[:1])
    assert "12th time" in history_line(BAD, "llm-7", earlier[:1] * 11)
    assert "in 6 other runs (r0, r1, r2, r3 and others)" in history_line(
        BAD, "x", [sighting(run=f"r{i}") for i in range(6)]
    )


def test_another_form_of_an_incident_replaces_its_sighting():
    """Its cause became clear."""
    history = FleetHistory()
    for cause in ("unknown", "compute"):
        history.add(sighting(cause=cause))
    (record,) = history.records(NOW_S)
    assert [each.cause for each in record.sightings] == ["compute"]


def test_it_is_bounded():
    """By age, by subject and in all: the youngest stay."""
    history = FleetHistory([sighting(incident=f"i{at}", days_ago=at / 10) for at in range(2 * SIGHTINGS_MAX)], NOW_S)
    (record,) = history.records(NOW_S)
    assert [each.incident_id for each in record.sightings] == [f"i{at}" for at in range(SIGHTINGS_MAX)]
    subjects = [sighting(Subject(NODE, f"n{at}"), days_ago=at / 100) for at in range(SUBJECTS_MAX + 50)]
    history = FleetHistory(subjects, NOW_S)
    names = {record.subject.name for record in history.records(NOW_S)}
    assert names == {f"n{at}" for at in range(SUBJECTS_MAX)}
    history.trim(NOW_S + KEPT_S + DAY_S)
    assert history.records(NOW_S) == []
    assert FleetHistory([sighting(days_ago=15)], NOW_S).records(NOW_S)[0].recent == 0
    assert RECENT_S == 14 * DAY_S
