"""Which captures a machine requests, and what it does with none, some or wrong summaries."""

from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK
from coordinator.settings.run_policy import ProfilePolicy
from lockstep.contracts.messages import CaptureResult
from lockstep.diagnosis.verdict import Diagnosis
from tests.coordinator.conftest import anomaly
from tests.coordinator.decide.story import POLICY, Story, found, summary


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (ProfilePolicy(enabled=False), "switched off"),
        (ProfilePolicy(per_run=0), "0 captures per run"),
        (ProfilePolicy(per_day=0), "0 captures per day"),
    ],
)
def test_without_a_capture_the_cause_is_still_diagnosed(policy, why):
    """Forbidden or used up: advice for the cause comes at once, and the incident has the reason why there is no function."""
    story = found(replace(POLICY, profile=policy))
    assert story.log == ["OpenIncident", "UpdateIncident", "Diagnose"]
    story.diagnosed(story.incident.id, function="")
    assert story.state == "diagnosed"
    assert any(why in line for line in story.incident.profile_evidence)


def test_one_capture_at_a_time_and_a_cooldown_between_two():
    """A second incident waits for the first capture and for the cooldown, then has its own."""
    story = found()
    story.evaluate(80, anomaly(), anomaly(1, cause="data", onset=78))
    assert story.log.count("RequestCapture") == 1
    request = story.machine.captures.current.request_id
    for rank in (2, 0, 1):
        story.feed(ev.SummaryEvent, summary=summary(rank, request))
    story.diagnosed(story.incident.id)
    assert story.state == "suspect"
    story.evaluate(81, anomaly(), anomaly(1, cause="data", onset=78))
    assert story.log.count("RequestCapture") == 1
    story.now += POLICY.profile.cooldown_seconds
    (order,) = story.evaluate(82, anomaly(), anomaly(1, cause="data", onset=78))
    assert order.request.ranks == [1, 0, 3]
    assert story.state == "profiling"


def test_a_request_without_an_answer_expires():
    """No summary in time: the incident notes it and is diagnosed without one."""
    story = found()
    story.now += 1000
    story.evaluate(63, anomaly())
    assert story.log[-2:] == ["UpdateIncident", "Diagnose"]
    assert story.machine.captures.current is None
    assert any("expired" in line for line in story.incident.profile_evidence)
    assert story.machine.captures.budget.counts["expired"] == 3
    story.diagnosed(story.incident.id, function="")
    assert story.state == "diagnosed"


def test_a_missing_peer_is_waited_for_only_briefly():
    """With the suspect's summary there, the comparison may cost ten seconds and no more."""
    story = found()
    request = story.machine.captures.current.request_id
    story.feed(ev.SummaryEvent, summary=summary(2, request))
    story.now += POLICY.profile.peer_wait_seconds
    _, diagnose = story.feed(ev.TickEvent)
    assert ([each.rank for each in diagnose.suspects], diagnose.peers) == ([2], ())


def test_refusals_and_broken_traces_end_the_wait():
    """A rank that refuses and a trace that cannot be read are reported with their reasons."""
    story = found()
    request = story.machine.captures.current.request_id
    refused = CaptureResult(run="job", node="n0", rank=2, request_id=request, state="refused", reason="no disk")
    story.feed(ev.CaptureResultEvent, answer=refused)
    story.feed(ev.SummaryEvent, summary=summary(0, request, error="not a trace"))
    shorter = CaptureResult(run="job", node="n0", rank=1, request_id=request, state="done", reason="1 of 3 steps")
    story.feed(ev.CaptureResultEvent, answer=shorter)
    _, diagnose = story.feed(ev.SummaryEvent, summary=summary(1, request))
    assert diagnose.suspects == ()
    assert story.incident.profile_evidence == (
        "rank 0 was not profiled: not a trace",
        "rank 2 was not profiled: no disk",
        "the capture of rank 1 is incomplete: 1 of 3 steps",
    )


def test_a_request_that_cannot_be_sent_is_no_dead_end():
    """Without a broker the incident is diagnosed by its cause."""
    story = found()
    request = story.machine.captures.current.request_id
    story.feed(ev.CaptureFailedEvent, request_id=request, reason="no broker")
    assert story.log[-1] == "Diagnose"


def test_answers_and_summaries_of_other_requests_are_ignored():
    """Late or forged messages change nothing."""
    story = found()
    request = story.machine.captures.current.request_id
    assert story.feed(ev.SummaryEvent, summary=summary(2, request + 1)) == []
    assert story.feed(ev.SummaryEvent, summary=summary(3, request)) == []
    assert not story.machine.captures.current.summaries


def test_groups_and_runs_are_captured():
    """The ends of a slow link are suspects; of a job that is slower as a whole, some of its ranks."""
    story = found(kind=SLOW_LINK, scope="group", ranks=(0, 1), cause="link")
    assert story.log == ["OpenIncident", "RequestCapture"]
    assert story.incident.domain == ("dp", "dp0")
    assert (story.machine.captures.current.suspects, story.machine.captures.current.ranks) == ((0, 1), (0, 1, 2, 3))
    story = Story()
    slower = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    for step in range(62, 62 + POLICY.run.join_steps):
        story.evaluate(step, slower)
    assert story.log == ["OpenIncident"]
    (order,) = story.evaluate(62 + POLICY.run.join_steps, slower)
    assert order.request.shapes
    assert (story.machine.captures.current.suspects, story.state) == ((0, 1, 2, 3), "profiling")


def test_a_capture_of_the_wrong_ranks_explains_nothing():
    """A job that was slower as a whole while its ranks were asked, and has its culprit now: that one is asked next."""
    slower = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    story = Story(replace(POLICY, profile=ProfilePolicy(job_ranks=1, peers=0), run=replace(POLICY.run, join_steps=5)))
    for step in range(62, 68):
        story.evaluate(step, slower)
    assert story.machine.captures.current.ranks == (0,)
    story.evaluate(67, slower, anomaly(onset=62))
    story.feed(ev.SummaryEvent, summary=summary(0, story.machine.captures.current.request_id))
    assert (story.state, story.incident.ranks, story.incident.diagnosed) == ("suspect", (2,), False)
    story.now += POLICY.profile.cooldown_seconds
    story.evaluate(70, slower, anomaly(onset=62))
    assert story.machine.captures.current.ranks == (2,)


def test_an_operator_can_ask_for_a_capture():
    """A capture of healthy ranks changes no state; a second one, or one of a dead run, is refused with the reason."""
    story = Story()
    (refused,) = story.feed(ev.CaptureRequestedEvent, ranks=(1,), steps=5)
    assert refused.reason == "the run is warming"
    story.evaluate(60)
    (order,) = story.feed(ev.CaptureRequestedEvent, ranks=(1, 3), steps=5, shapes=True)
    request = order.request
    assert (request.ranks, request.steps, request.shapes, story.state) == ([1, 3], 5, True, "healthy")
    (refused,) = story.feed(ev.CaptureRequestedEvent, ranks=(1,), steps=5)
    assert "under way" in refused.reason
    story.feed(ev.CaptureResultEvent, answer=CaptureResult(
        run="job", node="n0", rank=3, request_id=request.request_id, state="running"
    ))  # fmt: skip
    progress = story.machine.captures.current.progress()
    assert [(rank["rank"], rank["state"]) for rank in progress["ranks"]] == [(1, "asked"), (3, "running")]
    assert story.feed(ev.SummaryEvent, summary=summary(1, request.request_id)) == []
    (diagnose,) = story.feed(ev.SummaryEvent, summary=summary(3, request.request_id))
    assert ([each.rank for each in diagnose.peers], diagnose.incident_id, story.state) == ([1, 3], "", "healthy")
    assert story.machine.captures.current is None
    answer = Diagnosis(function="f", operator="", path=[], evidence=[], advice=[], confidence="low")
    story.feed(
        ev.DiagnosedEvent, incident_id="", request_id=request.request_id, asked=answer, function="f", operator="",
        evidence=(), advice=(), confidence="low",
    )  # fmt: skip
    progress = story.machine.captures.past[-1].progress()
    assert ([rank["state"] for rank in progress["ranks"]], progress["diagnosis"]["function"]) == (
        ["summarised"] * 2,
        "f",
    )
    assert story.machine.captures.budget.counts["done"] == 2
