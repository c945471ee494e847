"""Each step once, in order, across restarts and outages; fake trackers and a fake clock."""

import logging

import pytest

from lockstep.contracts.errors import ConfigError, MalformedError, PeerError
from lockstep.trackers.forward_state import hold_state, load_state
from lockstep.trackers.forwarder import INCIDENTS_LISTED_MAX, Forwarder, RunReport, follow
from tests.trackers.samples import BEGIN, NotingTracker, incident, interval, notes_of, points_of

LOG = logging.getLogger("test.forward")
SERIES = [interval(first) for first in range(0, 600, 10)]  # a minute, an interval a second


class Site:
    """A coordinator that knows `report`, forwarded to `tracker` by processes that begin with `start`."""

    def __init__(self, folder):
        self.tracker = NotingTracker()
        self.state = folder / "state.json"
        self.report = RunReport(points=(), incidents=())

    def start(self):
        saved = load_state(self.state, "job", "noting")
        return Forwarder(lambda: self.report, lambda _: self.tracker, saved, self.state, interval_s=10.0, log=LOG)

    def knows(self, *intervals, incidents=(), **values):
        self.report = RunReport(points=points_of(*intervals), incidents=notes_of(*incidents), **values)

    def steps(self):
        return [(point.attempt, point.first_step, point.last_step) for point in self.tracker.points]


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_each_step_is_sent_once_in_order_whenever_asked(site):
    """The coordinator answers with all that it keeps each time; an interval is sent when the next one has begun."""
    forwarder = site.start()
    for count in range(1, len(SERIES) + 1):
        site.knows(*SERIES[:count])
        forwarder.forward(BEGIN + count)
    assert site.steps() == [(0, 0, 89), (0, 90, 189), (0, 190, 289), (0, 290, 389), (0, 390, 489), (0, 490, 589)]
    forwarder.forward(BEGIN + 100)  # no step for long: the rest is sent as it is
    assert site.steps()[-1] == (0, 590, 599)


def test_a_restart_goes_on_after_the_last_step_that_was_sent(site):
    """Whatever the earlier process left unsent comes, and nothing of what it sent."""
    site.knows(*SERIES[:25])
    site.start().forward(BEGIN + 25, is_last=True)
    site.knows(*SERIES)
    after = site.start()
    assert (after.state.last_step, after.state.tracker_run) == (249, "tracked")
    after.forward(BEGIN + 60, is_last=True)
    steps = site.steps()
    assert [first for _, first, _ in steps] == [0, *(last + 1 for _, _, last in steps[:-1])]
    assert steps[-1][2] == 599


def test_the_steps_of_a_restarted_attempt_are_sent_though_their_numbers_begin_again(site, caplog):
    """And no gap is reported."""
    site.knows(*SERIES)
    forwarder = site.start()
    forwarder.forward(BEGIN + 60, is_last=True)
    site.knows(*SERIES, interval(0, begin=BEGIN + 90, attempt=1))
    forwarder.forward(BEGIN + 91, is_last=True)
    assert site.steps()[-1] == (1, 0, 9)
    assert not caplog.records


def test_what_a_tracker_refuses_is_sent_again_and_nothing_twice(site):
    """The state is that of what was sent."""
    forwarder = site.start()
    site.knows(*SERIES[:30], incidents=[incident()])
    site.tracker.failures = 1
    with pytest.raises(PeerError):
        forwarder.forward(BEGIN + 30, is_last=True)
    assert site.tracker.points == []
    assert load_state(site.state, "job", "noting").last_step == -1
    forwarder.forward(BEGIN + 31, is_last=True)
    site.tracker.failures = 1  # between points and incidents: the points have been noted
    site.knows(*SERIES[:30], incidents=[incident(), incident(2)])
    with pytest.raises(PeerError):
        forwarder.forward(BEGIN + 32, is_last=True)
    forwarder.forward(BEGIN + 33, is_last=True)
    assert [last for _, _, last in site.steps()] == [89, 189, 289, 299]
    assert [note.id for note in site.tracker.changed] == ["job-1", "job-2"]


def test_steps_that_the_coordinator_has_no_more_are_reported(site, caplog):
    """A gap is never silent."""
    forwarder = site.start()
    site.knows(*SERIES[:10])
    forwarder.forward(BEGIN + 10, is_last=True)
    site.knows(*SERIES[20:30])
    forwarder.forward(BEGIN + 30, is_last=True)
    assert [record.getMessage() for record in caplog.records] == [
        "steps 100 to 199 were not evaluated, or are no longer known; they are left out"
    ]


def test_an_incident_is_sent_when_it_opens_changes_and_closes(site):
    """What it costs grows all the time and is a figure, not an event; the host stays known when it is closed."""
    forwarder = site.start()
    for changed in (
        incident(),
        incident(lost_device_seconds=50.0),
        incident(function="load"),
        incident(state="closed", host="", function="load"),
    ):
        site.knows(*SERIES[:10], incidents=[changed])
        forwarder.forward(BEGIN + 10, is_last=True)
    notes = site.tracker.changed
    assert [(note.state, note.function, note.host) for note in notes] == [
        ("open", "", "node-3"),
        ("open", "load", "node-3"),
        ("closed", "load", "node-3"),
    ]
    assert site.tracker.points[-1].values["incidents_open"] == 1.0
    assert site.tracker.points[-1].values["lost_device_seconds"] == 12.5
    site.start().forward(BEGIN + 20)
    assert len(site.tracker.changed) == 3


def test_a_table_of_incidents_and_what_is_remembered_of_them_are_bounded(site):
    """The youngest are listed; of those that the coordinator has dropped nothing is kept."""
    site.knows(incidents=[incident(number) for number in range(INCIDENTS_LISTED_MAX + 50)])
    site.start().forward(BEGIN)
    assert [note.id for note in site.tracker.listed[:1]] == ["job-50"]
    assert len(site.tracker.listed) == INCIDENTS_LISTED_MAX
    site.knows()
    site.start().forward(BEGIN + 1)
    saved = load_state(site.state, "job", "noting")
    assert (saved.revisions, saved.hosts) == ({}, {})


def test_an_outage_is_waited_for_longer_each_time_and_ends_with_the_run(site, caplog):
    """Half to all of 10, 20, 40 ... at most 300 s; one line a minute; then the whole run is there."""
    waits, now = [], [BEGIN]

    def wait(seconds):
        waits.append(seconds)
        now[0] += seconds
        return len(waits) > 50

    site.knows(*SERIES, is_over=True)
    site.tracker.failures = 8
    assert follow(site.start(), now_s=lambda: now[0], wait=wait, interval_s=10.0, draw=lambda: 1.0, log=LOG)
    assert waits == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 10.0]
    assert site.steps()[-1] == (0, 590, 599)
    assert "tracker at there: got 503, expected 200; trying again in 10 s" in caplog.text


def test_what_comes_after_a_run_has_ended_is_still_sent(site):
    """Records are evaluated when they arrive, which may be later than the end of their processes."""
    site.knows(*SERIES[:10], is_over=True)

    def wait(_):
        if site.tracker.points:
            site.knows(*SERIES[:20], is_over=True)
        return False

    assert follow(site.start(), now_s=lambda: BEGIN, wait=wait, interval_s=10.0, draw=lambda: 0.0, log=LOG)
    assert site.steps()[-1][2] == 199


def test_a_process_that_is_to_end_does(site):
    """Whatever the coordinator does."""
    site.knows(*SERIES)
    waits = iter([False, False, True])
    assert not follow(
        site.start(), now_s=lambda: BEGIN, wait=lambda _: next(waits), interval_s=10.0, draw=lambda: 0.0, log=LOG
    )


def test_figures_that_are_no_numbers_are_reported_by_name(site, caplog):
    """Once a minute."""
    site.knows(*SERIES[:3], refused=frozenset({"mfu_ratio"}))
    forwarder = site.start()
    forwarder.forward(BEGIN)
    forwarder.forward(BEGIN + 1)
    assert [record.getMessage() for record in caplog.records] == [
        "mfu_ratio: got non-finite numbers; these figures are left out"
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 9}', '{"version": 1}', '{"version": 1, "run": 3, "x": 1}']
)
def test_a_damaged_state_file_is_refused_and_left_as_it_is(tmp_path, text):
    """It holds how far a run was sent: nothing is sent twice by guessing."""
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(MalformedError, match=r"state.json"):
        load_state(path, "job", "wandb")
    assert path.read_text() == text


def test_the_state_of_another_run_or_process_is_refused(site):
    """Two processes would send all steps twice."""
    site.start().forward(BEGIN)
    with pytest.raises(ConfigError, match="got the state of run job to noting, expected of other to noting"):
        load_state(site.state, "other", "noting")
    with (
        hold_state(site.state),
        pytest.raises(ConfigError, match="with which another process forwards"),
        hold_state(site.state),
    ):
        pass
    with pytest.raises(ConfigError, match="expected a file to write to"), hold_state(site.state / "below"):
        pass
