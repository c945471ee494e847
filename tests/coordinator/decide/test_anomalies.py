"""Which anomalies become incidents, and which belong to another one."""

from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK
from coordinator.settings.run_policy import ProfilePolicy
from tests.coordinator.conftest import anomaly
from tests.coordinator.decide.story import POLICY, Story, found


def test_victims_are_not_reported_next_to_their_culprit():
    """A slow rank explains its domain's transfer and the run's step time."""
    link = anomaly(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2, 3), cause="link")
    slower = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    story = Story()
    for step in range(60, 200):
        story.evaluate(step, anomaly(), link, slower)
    assert story.log.count("OpenIncident") == 1
    assert story.incident.kind == "slow_rank"


def test_a_fluctuation_of_a_noisy_job_becomes_an_incident_only_when_it_lasts():
    """Half a minute of a busy host is no incident; a run that stays slower is."""
    slower = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None, is_sure=False)
    story = Story()
    for step in range(60, 90):
        story.evaluate(step, slower)
    assert story.log == []
    for step in range(90, 95):
        story.evaluate(step, slower)
    assert story.log == ["OpenIncident"]


def test_a_fluctuation_of_a_quiet_job_is_reported_at_once_and_understood_later():
    """The culprit that becomes clear a step later takes the incident over, and is profiled like any other."""
    slower = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    story = Story()
    (opened,) = story.evaluate(62, slower)
    assert story.state == "suspect"
    updated, order = story.evaluate(63, slower, anomaly())
    assert (updated.incident.id, updated.incident.kind, updated.incident.ranks) == (
        opened.incident.id,
        "slow_rank",
        (2,),
    )
    assert order.request.ranks == [2, 0, 1]
    assert story.state == "profiling"
    assert len(story.machine.tracker.incidents) == 1


def test_a_fault_that_outlives_a_restart_is_one_incident():
    """It takes the detectors some steps to find it again in the new attempt: until then their silence means nothing."""
    story = found(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.diagnosed(story.incident.id)
    story.feed(ev.RestartedEvent)
    for step in range(50, 50 + POLICY.run.recover_steps + POLICY.run.restart_steps - 1):
        story.evaluate(step)
    story.evaluate(70, anomaly(onset=60))
    assert story.log.count("OpenIncident") == 1
    assert "CloseIncident" not in story.log


def test_the_echo_of_a_culprit_is_not_reported():
    """A run that is still slower for a few steps after its slow rank has recovered opens nothing of its own."""
    slower = replace(anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None), onset_step=60)
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    for step in range(62, 70):
        story.evaluate(step, slower, anomaly())
    for step in range(70, 76):
        story.evaluate(step, slower)
    assert story.log.count("OpenIncident") == 1
    later = replace(slower, onset_step=76)
    story.evaluate(78, later)
    assert story.log.count("OpenIncident") == 2


def test_an_alarm_that_is_only_not_over_yet_costs_nothing_more():
    """What is lost is booked in steps with an effect, by what the step would have been shorter without it."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    cost = anomaly(seconds=0.05, lost_seconds=0.03)
    story.evaluate(60, cost)
    assert story.incident.lost_device_seconds == pytest.approx(4 * 0.03)
    story.evaluate(61, cost)
    assert story.incident.lost_device_seconds == pytest.approx(8 * 0.03)
    story.evaluate(62, replace(cost, acts=False))
    assert story.incident.lost_device_seconds == pytest.approx(8 * 0.03)


def test_what_only_fades_opens_nothing():
    """An alarm that was reported as something else, and is only not over yet when that has ended, is no incident."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.evaluate(60, replace(anomaly(), acts=False))
    assert not story.machine.tracker.incidents
    assert not story.machine.tracker.has_active
    story.evaluate(61, anomaly())
    assert story.incident.detected_step == 61


def test_ranks_of_several_domains_have_none_in_common():
    """An incident of ranks that hold back different domains names no domain."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.evaluate(60, anomaly(ranks=(0,)), anomaly(ranks=(1,)))
    assert story.incident.domain == ("dp", "dp0")
    story.evaluate(61, anomaly(ranks=(0,)), anomaly(ranks=(2,), domain=("dp", "dp1")))
    assert story.incident.domain is None


def test_a_rank_keeps_the_domain_that_it_was_reported_in():
    """Which of its domains waits most changes from step to step; what was reported does not."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.evaluate(60, anomaly(ranks=(0,)))
    story.evaluate(61, anomaly(ranks=(0,), domain=("pp", "pp0")))
    assert story.incident.domain == ("dp", "dp0")


def test_parallel_groups_are_one_incident_whichever_of_them_is_slowest():
    """Behind one slow card the slowest group is another one each step: one incident goes on, and keeps its name."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    card = anomaly(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2), cause="link")
    for step in range(60, 80):
        story.evaluate(step, replace(card, domain=("dp", f"dp{step % 2}"), ranks=(0, 1, 2, 3)[: 3 + step % 2]))
    assert len(story.machine.tracker.incidents) == 1
    assert story.incident.domain == ("dp", "dp0")
    assert story.incident.ranks == (0, 1, 2, 3)
    other = replace(card, domain=("tp", "tp0"), ranks=(0, 1))
    story.evaluate(80, card, other)
    assert len(story.machine.tracker.incidents) == 2  # groups of another kind are another link


@pytest.mark.parametrize(("scope", "ranks"), [("node", (2, 3)), ("job", ())])
def test_slow_groups_become_the_node_or_network_that_makes_them_slow(scope, ranks):
    """A second kind of group in alarm identifies the card a few steps after the first: one incident, understood better."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    groups = anomaly(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2, 3), cause="link")
    story.evaluate(60, groups)
    reason = replace(groups, scope=scope, ranks=ranks, domain=None, evidence=("the card",))
    story.evaluate(63, reason)
    story.evaluate(64, reason)
    reported = story.incident
    assert (reported.scope, reported.ranks, reported.domain, reported.evidence) == (scope, ranks, None, ("the card",))
    assert len(story.machine.tracker.incidents) == 1


def test_groups_that_are_still_slow_by_themselves_are_not_the_nodes():
    """A node explains what it has taken over; a group that is found next to it stays an incident of its own."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    group = anomaly(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2, 3), cause="link")
    story.evaluate(60, group)
    story.evaluate(61, group, replace(group, scope="node", ranks=(2, 3), domain=None, node="n1"))
    assert {each.scope for each in story.machine.tracker.incidents.values()} == {"group", "node"}


def test_slow_ranks_that_are_all_of_their_node_are_one_slow_node():
    """Eight incidents of a host would be eight pages: ranks join as they are found, and the last one makes it a node."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    nodes = {"a": 2, "b": 2}
    both = [anomaly(ranks=(rank,), node="b") for rank in (2, 3)]
    story.evaluate(62, both[0], ranks_of_node=nodes)
    assert story.incident.scope == "rank"
    story.evaluate(63, *both, ranks_of_node=nodes)
    assert (story.incident.scope, story.incident.ranks) == ("node", (2, 3))
    assert story.log.count("OpenIncident") == 1
