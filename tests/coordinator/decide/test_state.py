"""Event lists in, the whole instruction log out."""

import json
import math
from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.incident_tracker import SavedRun
from coordinator.decide.saved_run import saved_run_from_json
from coordinator.decide.state import RunMachine
from coordinator.decide.transitions import TRANSITIONS, State, TransitionError, Trigger
from coordinator.detect.hangs.hang import Hang
from coordinator.settings.run_policy import ProfilePolicy
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.messages import CaptureResult
from lockstep.contracts.metrics import PROFILE_STATES, RUN_STATES
from tests.coordinator.conftest import anomaly
from tests.coordinator.decide.story import ADVICE, POLICY, Story, found, summary


def test_from_a_slow_rank_to_its_function_and_back():
    """The whole way: found, profiled with a healthy peer, diagnosed, quiet, closed; every state and instruction."""
    story = Story()
    states = [story.state]
    story.evaluate(60)
    states.append(story.state)
    opened, order = story.evaluate(62, anomaly())
    request = order.request
    states.append(story.state)
    assert (opened.incident.onset_step, opened.incident.detected_step) == (60, 62)
    assert request.ranks == [2, 0, 1]
    assert not request.shapes
    assert request.first_step == 62 + math.ceil(POLICY.profile.lead_seconds)
    assert request.steps == POLICY.profile.steps
    for rank in request.ranks:
        answer = CaptureResult(
            run="job", node="n0", rank=rank, request_id=request.request_id, state="done", cost_ns=2_000_000
        )
        assert story.feed(ev.CaptureResultEvent, answer=answer) == []
    story.evaluate(80, anomaly())
    assert story.feed(ev.SummaryEvent, summary=summary(2, request.request_id)) == []
    assert story.feed(ev.SummaryEvent, summary=summary(1, request.request_id)) == []
    updated, diagnose = story.feed(ev.SummaryEvent, summary=summary(0, request.request_id))
    assert updated.incident.profile.cost_seconds == pytest.approx(0.006)
    assert ([each.rank for each in diagnose.suspects], [peer.rank for peer in diagnose.peers]) == ([2], [0, 1])
    assert (diagnose.cause, diagnose.excess_seconds) == ("compute", 0.05)
    (updated,) = story.diagnosed(opened.incident.id)
    states.append(story.state)
    assert (updated.incident.function, updated.incident.advice) == ("train.py(10): forward", ADVICE)
    story.evaluate(81, anomaly())
    for step in range(82, 82 + POLICY.run.recover_steps):
        closed = story.evaluate(step)
        states.append(story.state)
    assert closed[0].incident.closed_step == 81 + POLICY.run.recover_steps
    assert closed[0].incident.state == "closed"
    assert states[:4] == ["warming", "healthy", "profiling", "diagnosed"]
    assert states[4:] == ["recovering"] * (POLICY.run.recover_steps - 1) + ["healthy"]
    assert story.log == [
        "OpenIncident",
        "RequestCapture",
        "UpdateIncident",
        "Diagnose",
        "UpdateIncident",
        "CloseIncident",
    ]
    assert story.machine.captures.budget.counts == {"requested": 3, "done": 3, "refused": 0, "expired": 0}


def test_a_anomaly_opens_one_incident():
    """An incident stays the same while its anomaly lasts, and counts what it costs from its onset on."""
    story = found()
    for step in range(63, 70):
        story.evaluate(step, anomaly())
    assert story.log.count("OpenIncident") == 1
    assert story.machine.tracker.slow_ranks == [2]
    # 4 ranks, 50 ms a step: 3 steps up to the detection, 7 after it.
    assert story.incident.lost_device_seconds == pytest.approx(4 * 0.05 * 10)
    assert story.machine.tracker.lost_device_seconds == pytest.approx(4 * 0.05 * 10)


def test_ranks_that_fall_together_share_an_incident_and_others_do_not():
    """A slow node is one incident; another cause, or a later rank, is another."""
    story = found()
    story.evaluate(63, anomaly(), anomaly(3, onset=61), anomaly(1, cause="data"))
    incidents = story.machine.tracker.incidents.values()
    assert [(i.ranks, i.cause) for i in incidents] == [((2, 3), "compute"), ((1,), "data")]
    story.evaluate(100, anomaly(), anomaly(3), anomaly(1, cause="data"), anomaly(0, onset=98))
    assert len(story.machine.tracker.incidents) == 3


def test_a_cause_changes_only_when_another_one_holds():
    """One odd step does not rename an incident; several in a row do, until a diagnosis settled it."""
    story = found()
    story.evaluate(63, anomaly(cause="host"))
    story.evaluate(64, anomaly())
    assert story.incident.cause == "compute"
    for step in range(65, 65 + POLICY.run.cause_steps):
        story.evaluate(step, anomaly(cause="data"))
    assert story.incident.cause == "data"


@pytest.mark.parametrize(("function", "cause"), [("", "data"), ("read", "compute")])
def test_only_a_diagnosis_that_says_something_settles_the_cause(function, cause):
    """Without a capture, as in the replay of a log, there is no function: then what holds later is believed."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.evaluate(60, anomaly())
    plain = {"operator": "", "evidence": (), "advice": (), "confidence": ""}
    story.feed(ev.DiagnosedEvent, incident_id=story.incident.id, function=function, **plain)
    for step in range(61, 61 + POLICY.run.cause_steps):
        story.evaluate(step, anomaly(cause="data"))
    assert story.incident.cause == cause


def test_a_diagnosis_settles_no_cause_that_was_never_known():
    """A busy host may hide which part is longer while the incident opens and is captured: later steps show it, and settle it."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.evaluate(60, anomaly(cause="unknown"))
    found = {"function": "read", "root_cause": "data_reading", "confidence": "high"}
    story.feed(ev.DiagnosedEvent, incident_id=story.incident.id, operator="", evidence=(), advice=(), **found)
    steps = POLICY.run.cause_steps
    for step in range(61, 61 + steps):
        story.evaluate(step, anomaly(cause="data"))
    for step in range(61 + steps, 61 + 2 * steps):
        story.evaluate(step, anomaly(cause="host"))
    assert (story.incident.cause, story.incident.root_cause) == ("data", "data_reading")
    assert story.incident.confidence == "high"  # the diagnosis', which has compared calls


@pytest.mark.parametrize(("cause", "acts"), [("host", False), ("unknown", True)])
def test_an_incident_keeps_its_cause_unless_another_one_is_known(cause, acts):
    """In the steps before it closes nothing is longer any more; and that no part explains it is no other cause."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.evaluate(60, anomaly())
    for step in range(61, 62 + POLICY.run.cause_steps):
        story.evaluate(step, anomaly(cause=cause, acts=acts))
    assert story.incident.cause == "compute"


def test_disturbed_steps_and_steps_before_noise_is_known_change_nothing():
    """An anomaly of a step that is not evaluated opens nothing, and quiet ones close nothing."""
    story = Story()
    story.evaluate(10, anomaly(), warm=False)
    assert (story.state, story.log) == ("warming", [])
    story = found()
    for step in range(63, 90):
        story.evaluate(step, disturbed=True)
    assert story.machine.tracker.has_active


def test_a_relapse_goes_on_with_the_same_incident():
    """Quiet for less than the hysteresis is not over."""
    story = found(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.diagnosed(story.incident.id)
    for step in range(63, 67):
        story.evaluate(step)
    assert story.state == "recovering"
    story.evaluate(67, anomaly())
    assert story.state == "diagnosed"
    assert story.log.count("OpenIncident") == 1


def test_silence_is_lost_and_steps_bring_it_back():
    """A run without steps is lost, its capture given up; its next steps are evaluated as before."""
    story = found()
    story.now += POLICY.run.lost_seconds
    story.feed(ev.TickEvent)
    assert story.state == "lost"
    assert story.machine.captures.current is None
    story.evaluate(63, anomaly())
    assert story.state in ("suspect", "profiling")
    story.now += POLICY.run.lost_seconds
    story.feed(ev.TickEvent)
    assert story.feed(ev.TickEvent) == []
    story.now += POLICY.run.lost_keep_seconds
    assert [type(i).__name__ for i in story.feed(ev.TickEvent)] == ["ForgetRun"]


def test_a_run_without_a_step_is_forgotten_like_a_lost_one():
    """There is no last step from which it could be lost; it began when it was announced."""
    story = Story()
    story.now += POLICY.run.lost_keep_seconds - 1.0
    assert story.feed(ev.TickEvent) == []
    assert [type(i).__name__ for i in story.feed(ev.TickEvent)] == ["ForgetRun"]


def test_a_hang_stays_open_while_its_processes_live():
    """Forgotten, it would be found again a moment later: a page that resolves and fires once an hour."""
    story = Story()
    story.feed(ev.TickEvent)
    story.now += POLICY.run.lost_seconds + 1
    hang = Hang(cause="unknown", scope="rank", ranks=(2,), domain=("dp", "dp0"), evidence=("rank 2 is late",))
    story.feed(ev.StallEvent, hang=hang)
    assert story.state == "hung"
    story.now += 10 * POLICY.run.lost_keep_seconds
    assert story.feed(ev.TickEvent, is_alive=True) == []
    assert [type(i).__name__ for i in story.feed(ev.TickEvent)] == ["CloseIncident", "ForgetRun"]


def test_a_restart_keeps_incidents_until_the_new_attempt_was_evaluated():
    """The same hardware may be slow again: an incident goes on, or closes when the new attempt is quiet."""
    for again in (True, False):
        story = found()
        story.feed(ev.RestartedEvent)
        assert story.state == "warming"
        story.evaluate(5, warm=False)
        for step in range(21, 40):
            story.evaluate(step, *([anomaly(onset=20)] if again else []))
        assert story.log.count("OpenIncident") == 1
        assert len(story.machine.tracker.incidents) == int(again)


def test_the_end_of_a_run_closes_its_incidents():
    """A job that ends well leaves nothing open, and is forgotten in time."""
    story = found()
    finished = {"topology": from_degrees({"dp": 4}, 4), "ranks": (0, 1, 2, 3), "is_finished": True}
    assert [type(i).__name__ for i in story.feed(ev.AnnounceEvent, **finished)] == ["WithdrawCapture", "CloseIncident"]
    assert story.state == "finished"
    assert story.evaluate(63, anomaly()) == []
    story.now += POLICY.run.keep_seconds
    assert [type(i).__name__ for i in story.feed(ev.TickEvent)] == ["ForgetRun"]


def test_a_restart_of_the_coordinator_repeats_nothing():
    """With its memory, a new machine goes on with the open incident, its budget and its counts."""
    before = found()
    memory = before.machine.memory()
    story = Story(memory=SavedRun(**{name: getattr(memory, name) for name in memory.__dataclass_fields__}))
    story.evaluate(70)
    assert story.state == "recovering"
    story.evaluate(71, anomaly())
    assert "OpenIncident" not in story.log
    assert story.incident.id == before.incident.id
    assert story.machine.tracker.incidents_total == 1
    assert story.machine.captures.budget.counts["requested"] == 3


def test_the_length_of_attempts_outlives_a_restart_of_the_coordinator():
    """What tests spend once an attempt follows from all of the run's attempts; a restart of ours ends none of them."""
    before = Story()
    for step in range(10, 20):
        before.evaluate(step)
    before.feed(ev.RestartedEvent)
    before.evaluate(10)
    saved = json.loads(json.dumps(before.machine.memory().to_json()))
    after = Story(memory=saved_run_from_json(saved, ()))
    after.evaluate(11)
    assert before.machine.stall.attempt_length.counts == (1, 10, 1)
    assert after.machine.stall.attempt_length.counts == (1, 10, 2)
    del saved["attempt_counts"]
    assert saved_run_from_json(saved, ()).attempt_counts == (0, 0, 0)


def test_the_table_knows_every_state_and_a_missing_transition_is_named():
    """Every state can be reached and left, names are the metric's, and an error names run, state and trigger."""
    assert {str(state) for state in State} == set(RUN_STATES)
    assert set(TRANSITIONS.values()) == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)
    machine = RunMachine("job", POLICY)
    with pytest.raises(TransitionError, match="run job: got SETTLED in WARMING"):
        machine._move(Trigger.SETTLED)
    assert machine.state is State.WARMING
    assert set(machine.captures.budget.counts) <= set(PROFILE_STATES)


def test_same_events_give_the_same_instructions():
    """The machine has no clock and no chance in it."""

    def play():
        story = found()
        given = [story.evaluate(step, anomaly(), anomaly(1, cause="data")) for step in range(63, 80)]
        return given, story.machine.memory()

    assert play() == play()
