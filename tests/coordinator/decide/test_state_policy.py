"""The machine's answer to other thresholds and to explanations: events in, instructions out."""

from coordinator.decide import events as ev
from coordinator.detect.hangs.hang import Hang
from coordinator.settings.policy import Policy
from coordinator.settings.thresholds import apply
from tests.coordinator.conftest import anomaly
from tests.coordinator.decide.story import Story


def changed(story, **values):
    policy = apply(Policy(), {name.replace("__", "."): value for name, value in values.items()})
    return story.feed(ev.PolicyChangedEvent, policy=policy)


def warm():
    story = Story()
    for step in range(3):
        story.evaluate(step)
    return story


def test_a_change_by_itself_orders_nothing():
    """State, incidents and captures are what they were."""
    story = warm()
    story.evaluate(3, anomaly(onset=1))
    before = story.state, story.machine.captures.current, story.incident
    assert changed(story, run__recover_steps=3) == []
    assert (story.state, story.machine.captures.current, story.incident) == before


def test_an_open_incident_closes_by_the_steps_in_force():
    """Three quiet steps are enough once three are asked for."""
    story = warm()
    changed(story, profile__enabled=False)
    story.evaluate(3, anomaly(onset=1))
    story.diagnosed(story.incident.id)
    changed(story, profile__enabled=False, run__recover_steps=3)
    story.log.clear()
    for step in range(4, 7):
        story.evaluate(step)
    assert story.log == ["CloseIncident"]


def test_a_switch_forbids_captures_from_the_next_incident_on():
    """The one under way is left to end; the next incident is diagnosed without one, and states why."""
    story = warm()
    changed(story, profile__enabled=False)
    given = story.evaluate(3, anomaly(onset=1))
    assert [type(each).__name__ for each in given] == ["OpenIncident", "UpdateIncident", "Diagnose"]
    assert story.incident.profile_evidence == ("not profiled: profiling is switched off",)


def test_an_explanation_is_kept_with_its_incident():
    """It is reported on, and stays through later changes of the incident."""
    story = warm()
    story.evaluate(3, anomaly(onset=1))
    (told,) = story.feed(ev.ExplainedEvent, incident_id=story.incident.id, explanation={"rule": "x"})
    assert told.incident.explanation == {"rule": "x"}
    story.evaluate(4, anomaly(onset=1, ratio=0.9))
    assert (story.incident.slowdown_ratio, story.incident.explanation) == (0.9, {"rule": "x"})


def test_an_explanation_of_a_closed_incident_is_dropped():
    """It came too late to be of use."""
    assert warm().feed(ev.ExplainedEvent, incident_id="job-0-0", explanation={"rule": "x"}) == []


def test_a_hang_that_nobody_may_look_for_any_more_is_closed():
    """Its detector is switched off, or its run is out of scope; switched on again, a run still blocked is reported again."""
    for switch in ({"detectors__hang": False}, {"scope__runs": ("prod-*",)}):
        story = warm()
        story.now += 100.0
        hang = Hang(cause="unknown", scope="rank", ranks=(1,), domain=None, evidence=("rank 1 is late",))
        assert story.feed(ev.StallEvent, hang=hang)
        (closed,) = changed(story, **switch)
        assert (closed.incident.kind, closed.incident.state) == ("hang", "closed")
        changed(story)
        assert [type(each).__name__ for each in story.feed(ev.StallEvent, hang=hang)] == ["OpenIncident"]
