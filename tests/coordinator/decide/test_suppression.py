"""What is too young for an incident is pending."""

from dataclasses import replace

import pytest

from coordinator.decide.incident_tracker import IncidentTracker
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK
from coordinator.settings.run_policy import RunPolicy
from tests.coordinator.conftest import START_UNIX_S, anomaly, evaluated

LINK = anomaly(kind=SLOW_LINK, cause="link", scope="group", ranks=(0, 1))


def opened(found, steps, *, step_seconds, policy=None, onset=60):
    """Return the step at which an incident of an anomaly opens that a step result has from two steps after its onset on."""
    tracker = IncidentTracker("job", policy or RunPolicy(), None)
    for step in range(40, steps):
        end_s = START_UNIX_S + step * step_seconds
        anomalies = (replace(found, onset_step=onset),) if step >= onset + 2 else ()
        step_result = replace(evaluated(step, *anomalies, step_seconds=step_seconds), unix_s=end_s)
        if tracker.take(step_result, end_s)[0]:
            return step
    return None


@pytest.mark.parametrize("found", [anomaly(), LINK], ids=["rank", "link"])
@pytest.mark.parametrize(("step_seconds", "step"), [(0.0201, 109), (0.2501, 63), (0.5, 62), (30.0, 62)])
def test_a_anomaly_opens_an_incident_once_it_has_lasted_a_second(found, step_seconds, step):
    """By the ends of its steps: of short ones that is many, of a second and more it is at once."""
    assert opened(found, 200, step_seconds=step_seconds) == step


def test_a_core_that_others_take_for_half_a_second_opens_none():
    """Its steps were longer for 25 steps of 20 ms, and are as before."""
    assert opened(anomaly(), 85, step_seconds=0.02) is None


def test_what_began_before_all_that_is_known_has_lasted():
    """A rank that has been slow for thousands of steps is no young anomaly."""
    assert opened(anomaly(), 5000, step_seconds=0.001, onset=60) == 1059
    tracker = IncidentTracker("job", RunPolicy(), None)
    for step in range(2000):
        tracker.take(replace(evaluated(step), unix_s=START_UNIX_S + step * 0.001), START_UNIX_S)
    late = replace(evaluated(2000, replace(anomaly(), onset_step=3)), unix_s=START_UNIX_S + 2.0)
    assert tracker.take(late, START_UNIX_S)[0]


def test_the_time_is_a_threshold_like_others():
    """With 0 s an anomaly opens an incident in the step that finds it."""
    assert opened(anomaly(), 200, step_seconds=0.02, policy=RunPolicy(pending_seconds=0.0)) == 62


def test_a_pending_rank_takes_nothing_from_an_incident_that_is_open():
    """A core that others take for some steps, while the job is slower as a whole, ends no incident of the job."""
    tracker = IncidentTracker("job", RunPolicy(), None)
    slower = anomaly(kind=FLUCTUATION, cause="link", scope="job", ranks=(), domain=None, seconds=0.2)
    acting = []
    for step in range(40, 200):
        anomalies = [slower] if step >= 62 else []
        anomalies += [replace(anomaly(), onset_step=160)] if 162 <= step < 170 else []
        end_s = START_UNIX_S + step * 0.03
        tracker.take(replace(evaluated(step, *anomalies, step_seconds=0.03), unix_s=end_s), end_s)
        acting += [(step, each.kind) for each in tracker.active if tracker.is_acting(each.id)]
    assert acting == [(step, FLUCTUATION) for step in range(93, 200)]


@pytest.mark.parametrize(
    ("seconds", "onset", "opens"),
    [(0.004, 62, False), (0.004, 90, True), (0.02, 62, True)],
    ids=["an echo", "began by itself", "slow as well"],
)
def test_a_little_more_work_of_ranks_that_wait_is_an_echo(seconds, onset, opens):
    """Next to a rank that is slower by 270 ms: named only if it began by itself, or costs a share worth a person."""
    tracker = IncidentTracker("job", RunPolicy(), None)
    culprit = replace(anomaly(ranks=(3,), seconds=0.27), onset_step=60)
    other = replace(anomaly(ranks=(1,), seconds=seconds), onset_step=onset)
    for step in range(40, 120):
        anomalies = [each for each in (culprit, other) if step >= each.onset_step + 2]
        tracker.take(replace(evaluated(step, *anomalies), unix_s=START_UNIX_S + 0.5 * step), START_UNIX_S + 0.5 * step)
    assert sorted(rank for each in tracker.incidents.values() for rank in each.ranks) == [1, 3][1 - opens :]


def test_an_incident_that_is_open_is_no_echo():
    """A small fault that is known stays known when a large one begins with it."""
    tracker = IncidentTracker("job", RunPolicy(), None)
    small = replace(anomaly(ranks=(1,), seconds=0.004), onset_step=58)
    large = replace(anomaly(ranks=(3,), seconds=0.27), onset_step=64)
    for step in range(40, 120):
        anomalies = [each for each in (small, large) if step >= each.onset_step + 2]
        tracker.take(replace(evaluated(step, *anomalies), unix_s=START_UNIX_S + 0.5 * step), START_UNIX_S + 0.5 * step)
    assert tracker.slow_ranks == [1, 3]


def test_two_culprits_of_a_slower_run_may_be_found_in_one_step():
    """One of them takes over the run's incident; the other one, which began long before, has its own."""
    tracker = IncidentTracker("job", RunPolicy(), None)
    slower = anomaly(kind=FLUCTUATION, cause="compute", scope="job", ranks=(), domain=None, seconds=0.2)
    near = replace(anomaly(ranks=(3,), seconds=0.3), onset_step=60)
    far = replace(anomaly(kind=SLOW_LINK, cause="link", scope="group", ranks=(5, 6), seconds=0.3), onset_step=20)
    for step in range(70):
        anomalies = [replace(slower, onset_step=60)] if step >= 62 else []
        anomalies += [near, far] if step >= 65 else []
        end_s = START_UNIX_S + step
        tracker.take(replace(evaluated(step, *anomalies, step_seconds=1.0), unix_s=end_s), end_s)
    assert sorted((each.kind, each.ranks) for each in tracker.incidents.values()) == [
        (SLOW_LINK, (5, 6)),
        ("slow_rank", (3,)),
    ]


@pytest.mark.parametrize(("step_seconds", "step"), [(0.5, 122), (2.0, 82)])
def test_what_noise_may_explain_is_pending_for_longer_from_the_step_that_found_it(step_seconds, step):
    """Thirty times as long, and twenty steps at least; an onset far back, as of a drift, is no proof."""
    unsure = anomaly(kind=FLUCTUATION, cause="compute", scope="job", ranks=(), domain=None, is_sure=False)
    assert opened(unsure, 200, step_seconds=step_seconds) == step


def test_an_open_incident_of_the_job_goes_on_while_noise_may_explain_it_again():
    """An effect that is no longer beyond all doubt, as that of one long step is not, ends nothing."""
    tracker = IncidentTracker("job", RunPolicy(), None)
    slower = anomaly(kind=FLUCTUATION, cause="compute", scope="job", ranks=(), domain=None)
    for step in range(40, 90):
        anomalies = [replace(slower, onset_step=60, is_sure=step < 66)] if step >= 62 else []
        end_s = START_UNIX_S + step
        tracker.take(replace(evaluated(step, *anomalies), unix_s=end_s), end_s)
    assert [each.kind for each in tracker.active] == [FLUCTUATION]
    assert tracker.incidents_total == 1
