"""A run that is slower as a whole while one of its ranks is slow: both are reported, and each costs its own."""

from dataclasses import replace

import pytest

from coordinator.decide.incident_tracker import IncidentTracker
from coordinator.decide.residual_growth import residual_growth
from coordinator.decide.saved_run import SavedRun
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK, SLOW_RANK, UNSYNCHRONISED_GC
from coordinator.settings.run_policy import RunPolicy
from tests.coordinator.conftest import anomaly, evaluated

POLICY = RunPolicy()
RANK = anomaly(onset=60, seconds=0.08, lost_seconds=0.08)


def slower(growth_seconds, *, cause="data", onset=60):
    """Return a run whose step of 1 s is longer by more than its slow rank, and whose middle rank's work grew."""
    return anomaly(
        kind=FLUCTUATION,
        cause=cause,
        scope="job",
        ranks=(),
        domain=None,
        onset=onset,
        seconds=0.2,
        numbers={"baseline_step_seconds": 1.0, f"{cause}_growth_seconds": growth_seconds},
    )


def slower_steps(growth_seconds, *, cause):
    """Return a run whose steps of 1 s are longer, by waiting or by nothing that is known."""
    run = slower(0.0, cause=cause)
    return replace(run, numbers=run.numbers | {"step_growth_seconds": growth_seconds})


class Book:
    """A tracker given a step each two seconds, by all clocks."""

    def __init__(self, memory=None):
        self.tracker = IncidentTracker("job", POLICY, memory)
        self.opened = []

    def take(self, steps, *anomalies):
        for step in steps:
            end_s = 1000.0 + 2 * step
            now = replace(evaluated(step, *anomalies, reporting=8, step_seconds=2.0), unix_s=end_s)
            opened, _, _ = self.tracker.take(now, end_s)
            self.opened += [(incident.kind, step) for incident in opened]

    def incident(self, kind):
        return next(each for each in self.tracker.incidents.values() if each.kind == kind)


@pytest.mark.parametrize(
    ("growth_seconds", "is_told"),
    [(0.03 + 0.4 * 0.08 + 0.001, True), (0.03 + 0.4 * 0.08 - 0.001, False), (0.0, False)],
)
def test_the_middle_rank_must_have_grown_beyond_what_a_culprit_explains(growth_seconds, is_told):
    """Ranks that wait for a slow one look slower themselves, by a share of what it costs."""
    grown = residual_growth(slower(growth_seconds), [RANK], 8)
    assert (grown is not None) == is_told
    if grown is not None:
        assert (grown.excess_seconds, grown.excess_ratio) == (growth_seconds, growth_seconds)
        assert any("all ranks" in line for line in grown.evidence)


@pytest.mark.parametrize("cause", ["link", "unknown"])
@pytest.mark.parametrize("culprits", [[RANK], [RANK, replace(RANK, ranks=(3,))]])
def test_waits_must_have_grown_by_twice_what_their_culprits_cost(cause, culprits):
    """All wait for a slow rank, and longer than it is slow while a pipeline fills; more than that is the network's."""
    costs_s = sum(culprit.lost_seconds for culprit in culprits)
    limit_s = 0.03 + 2 * costs_s
    assert residual_growth(slower_steps(limit_s - 0.001, cause=cause), culprits, 8) is None
    grown = residual_growth(slower_steps(limit_s + 0.001, cause=cause), culprits, 8)
    assert grown is not None
    assert grown.excess_seconds == pytest.approx(limit_s + 0.001 - costs_s)


def test_a_rank_that_is_a_little_slow_does_not_end_the_incident_of_a_slow_network():
    """Steps grew six-fold by waiting; ranks that host noise makes slow by a tenth of that come and go."""
    book = Book()
    slow_network = replace(slower_steps(0.9, cause="link"), is_sure=True)
    book.take(range(62, 90), slow_network)
    for first in (90, 210, 330):
        book.take(range(first, first + 60), slow_network, replace(RANK, onset_step=first - 15))
        book.take(range(first + 60, first + 120), slow_network)
    assert book.opened.count((FLUCTUATION, 62)) == 1
    assert [kind for kind, _ in book.opened].count(FLUCTUATION) == 1


def test_many_slow_ranks_tell_nothing_of_the_others():
    """Where a third is slow, the middle rank may be one of them."""
    many = [anomaly(rank, seconds=0.08) for rank in range(3)]
    assert residual_growth(slower(0.3), many, 9) is not None
    assert residual_growth(slower(0.3), many, 8) is None


def test_a_job_that_turns_slow_beside_a_slow_rank_is_told():
    """After the steps that a run without a culprit is given too, with its own onset and its own cost."""
    book = Book()
    book.take(range(62, 110), RANK, slower(0.0))
    book.take(range(110, 160), RANK, slower(0.09))
    assert book.opened == [(SLOW_RANK, 62), (FLUCTUATION, 110 + POLICY.unsure_steps)]
    run = book.incident(FLUCTUATION)
    assert (run.onset_step, run.cause, run.scope) == (110, "data", "job")
    assert run.lost_device_seconds == pytest.approx(8 * 0.09 * 50)
    book.take(range(160, 170), RANK, slower(0.0))
    assert [each.kind for each in book.tracker.incidents.values()] == [SLOW_RANK]


def test_a_slow_rank_does_not_end_the_incident_of_its_job():
    """A job slower since long goes on being reported when one of its ranks turns slow besides."""
    book = Book()
    book.take(range(62, 90), slower(0.09))
    book.take(range(90, 130), slower(0.09), replace(RANK, onset_step=89))
    assert book.opened == [(FLUCTUATION, 62), (SLOW_RANK, 90)]
    assert {each.kind for each in book.tracker.incidents.values()} == {FLUCTUATION, SLOW_RANK}
    assert len({each.id for each in book.tracker.incidents.values()}) == 2


def test_a_culprit_that_explains_its_run_takes_the_incident_over():
    """A slow rank found some steps after its run takes the run's incident over, and nothing stays of it."""
    book = Book()
    book.take(range(62, 66), slower(0.05))
    book.take(range(66, 120), slower(0.05), RANK)
    assert book.opened == [(FLUCTUATION, 62)]
    assert [each.kind for each in book.tracker.incidents.values()] == [SLOW_RANK]


@pytest.mark.parametrize("cause", ["link", "unknown", "data", "host"])
@pytest.mark.parametrize("found_step", [62, 66])
def test_a_rank_that_explains_a_tenth_of_its_slow_job_does_not_hide_it(cause, found_step):
    """Ranks that share a slow network or a slow host turn a little slow in the same step, some more than others."""
    job = slower_steps(0.9, cause=cause) if cause in {"link", "unknown"} else slower(0.9, cause=cause)
    book = Book()
    book.take(range(62, found_step), job)
    book.take(range(found_step, 120), RANK, job)
    assert sorted(kind for kind, _ in book.opened) == [FLUCTUATION, SLOW_RANK]
    run = book.incident(FLUCTUATION)
    assert (run.onset_step, run.cause, run.scope, run.ranks) == (60, cause, "job", ())


def test_a_job_stays_reported_while_small_culprits_come_together_or_go():
    """A card of a node that costs little, two ranks, and one that is repaired before the job is."""
    job = replace(slower_steps(0.9, cause="link"), is_sure=True)
    card = anomaly(kind=SLOW_LINK, cause="link", scope="node", ranks=(0, 1), domain=None, onset=60, seconds=0.05)
    for culprits in ([replace(card, node="a")], [RANK, replace(RANK, ranks=(3,), onset_step=64)], [RANK]):
        book = Book()
        book.take(range(62, 100), *culprits, job)
        book.take(range(100, 130), job)
        assert [kind for kind, _ in book.opened] == [culprits[0].kind, FLUCTUATION]
        assert [each.kind for each in book.tracker.incidents.values()] == [FLUCTUATION]


def collecting(cost_seconds):
    """Return ranks that collect one after the other, which costs the job some time in each step."""
    return anomaly(
        kind=UNSYNCHRONISED_GC, cause="gc", scope="job", ranks=(), domain=None, onset=60, seconds=cost_seconds
    )


@pytest.mark.parametrize(
    ("cost_seconds", "kinds"), [(0.04, {FLUCTUATION, UNSYNCHRONISED_GC}), (0.6, {UNSYNCHRONISED_GC})]
)
def test_collections_explain_no_more_of_a_slow_job_than_they_cost(cost_seconds, kinds):
    """Ranks wait for one that collects, as for a slow one."""
    book = Book()
    book.take(range(62, 120), collecting(cost_seconds), slower_steps(0.9, cause="link"))
    assert {kind for kind, _ in book.opened} == kinds


@pytest.mark.parametrize("growth_seconds", [0.09, 0.9])
def test_a_job_that_collects_longer_is_its_unsynchronised_collections(growth_seconds):
    """The two measure the same seconds."""
    book = Book()
    book.take(range(62, 120), collecting(0.04), slower(growth_seconds, cause="gc"))
    assert [kind for kind, _ in book.opened] == [UNSYNCHRONISED_GC]


def test_a_restart_of_the_coordinator_goes_on_counting():
    """Since when all ranks have grown next to a culprit is kept, and reported as the onset."""
    book = Book()
    book.take(range(62, 110), RANK, slower(0.0))
    book.take(range(110, 120), RANK, slower(0.09))
    tracker = book.tracker
    memory = SavedRun(
        incidents=tuple(tracker.incidents.values()), incidents_total=1, incident_tracker=tracker.state_dict()
    )
    again = Book(memory)
    again.take(range(120, 140), RANK, slower(0.09))
    assert again.opened == [(FLUCTUATION, 130)]
    assert again.incident(FLUCTUATION).onset_step == 110
