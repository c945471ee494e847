"""Event lists in, the whole instruction log out."""

import math
from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.incident_tracker import RunMemory
from coordinator.decide.state import RunMachine
from coordinator.decide.transitions import TRANSITIONS, State, TransitionError, Trigger
from coordinator.detect.findings import FLUCTUATION, SLOW_LINK
from coordinator.detect.hangs.hang import Hang
from coordinator.settings.policy import Policy
from coordinator.settings.run_policy import ProfilePolicy
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.messages import CaptureResult, TraceSummary
from lockstep.contracts.metrics import PROFILE_STATES, RUN_STATES
from lockstep.diagnosis.verdict import Advice, Diagnosis
from tests.coordinator.conftest import finding, judged

T = 1_000_000.0
POLICY = Policy()
ADVICE = (Advice(suggestion="fix it", how="so", predicted_gain_ratio=0.3, source="a table"),)


def summary(rank, request, error=""):
    return TraceSummary(
        run="job",
        node="n0",
        rank=rank,
        request_id=request,
        window_ns=1,
        steps=3,
        trace_bytes=1,
        event_count=1,
        tree=[],
        error=error,
    )


class Story:
    """A machine, its clock and what it asked for; checks the state's invariant after every event."""

    def __init__(self, policy=POLICY, memory=None):
        self.machine = RunMachine("job", policy, memory)
        self.now = T
        self.log = []
        self.feed(ev.AnnounceEvent, topology=from_degrees({"dp": 4}, 4), ranks=(0, 1, 2, 3), is_finished=False)

    def feed(self, form, **values):
        self.now += 1.0
        given = self.machine.handle(form(unix_s=self.now, cause_id=form.__name__, **values))
        assert all(instruction.cause_id == form.__name__ for instruction in given)
        busy = self.machine.captures.current is not None or self.machine.flow.diagnoses.pending
        assert self.machine.state is not State.PROFILING or busy
        self.log += [type(instruction).__name__ for instruction in given]
        return given

    def judge(self, step, *findings, **more):
        return self.feed(ev.StepJudgedEvent, judgement=judged(step, *findings, **more))

    def diagnosed(self, incident_id, function="train.py(10): forward"):
        return self.feed(
            ev.DiagnosedEvent,
            incident_id=incident_id,
            function=function,
            operator="aten::mm",
            evidence=("it stays there",),
            advice=ADVICE,
            confidence="high",
        )

    @property
    def state(self):
        return str(self.machine.state)

    @property
    def incident(self):
        return next(iter(self.machine.tracker.incidents.values()))


def found(policy=POLICY, **more):
    """Return a story up to its first incident, at step 62."""
    story = Story(policy)
    for step in (60, 61):
        story.judge(step, step_seconds=0.1)
    story.judge(62, finding(**more), step_seconds=0.1)
    return story


def test_from_a_slow_rank_to_its_function_and_back():
    """The whole way: found, profiled with a healthy peer, diagnosed, quiet, closed; every state and instruction."""
    story = Story()
    states = [story.state]
    story.judge(60)
    states.append(story.state)
    opened, order = story.judge(62, finding())
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
    story.judge(80, finding())
    assert story.feed(ev.SummaryEvent, summary=summary(2, request.request_id)) == []
    assert story.feed(ev.SummaryEvent, summary=summary(1, request.request_id)) == []
    updated, diagnose = story.feed(ev.SummaryEvent, summary=summary(0, request.request_id))
    assert updated.incident.profile.cost_seconds == pytest.approx(0.006)
    assert ([each.rank for each in diagnose.suspects], [peer.rank for peer in diagnose.peers]) == ([2], [0, 1])
    assert (diagnose.cause, diagnose.excess_seconds) == ("compute", 0.05)
    (updated,) = story.diagnosed(opened.incident.id)
    states.append(story.state)
    assert (updated.incident.function, updated.incident.advice) == ("train.py(10): forward", ADVICE)
    story.judge(81, finding())
    for step in range(82, 82 + POLICY.run.recover_steps):
        closed = story.judge(step)
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


def test_a_finding_is_told_once():
    """An incident stays the same while its finding lasts, and counts what it costs from its onset on."""
    story = found()
    for step in range(63, 70):
        story.judge(step, finding())
    assert story.log.count("OpenIncident") == 1
    assert story.machine.tracker.slow_ranks == [2]
    # 4 ranks, 50 ms a step: 3 steps up to the detection, 7 after it.
    assert story.incident.lost_device_seconds == pytest.approx(4 * 0.05 * 10)
    assert story.machine.tracker.lost_device_seconds == pytest.approx(4 * 0.05 * 10)


def test_ranks_that_fall_together_share_an_incident_and_others_do_not():
    """A slow node is one incident; another cause, or a later rank, is another."""
    story = found()
    story.judge(63, finding(), finding(3, onset=61), finding(1, cause="data"))
    incidents = story.machine.tracker.incidents.values()
    assert [(i.ranks, i.cause) for i in incidents] == [((2, 3), "compute"), ((1,), "data")]
    story.judge(100, finding(), finding(3), finding(1, cause="data"), finding(0, onset=98))
    assert len(story.machine.tracker.incidents) == 3


def test_a_cause_changes_only_when_another_one_holds():
    """One odd step does not rename an incident; several in a row do, until a diagnosis settled it."""
    story = found()
    story.judge(63, finding(cause="host"))
    story.judge(64, finding())
    assert story.incident.cause == "compute"
    for step in range(65, 65 + POLICY.run.cause_steps):
        story.judge(step, finding(cause="data"))
    assert story.incident.cause == "data"


@pytest.mark.parametrize(("function", "cause"), [("", "data"), ("read", "compute")])
def test_only_a_diagnosis_that_says_something_settles_the_cause(function, cause):
    """Without a capture, as in the replay of a log, there is no function: then what holds later is believed."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.judge(60, finding())
    told = {"operator": "", "evidence": (), "advice": (), "confidence": ""}
    story.feed(ev.DiagnosedEvent, incident_id=story.incident.id, function=function, **told)
    for step in range(61, 61 + POLICY.run.cause_steps):
        story.judge(step, finding(cause="data"))
    assert story.incident.cause == cause


@pytest.mark.parametrize(("cause", "acts"), [("host", False), ("unknown", True)])
def test_an_incident_keeps_its_cause_unless_another_one_is_known(cause, acts):
    """In the steps before it closes nothing is longer any more; and that no part explains it is no other cause."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.judge(60, finding())
    for step in range(61, 62 + POLICY.run.cause_steps):
        story.judge(step, finding(cause=cause, acts=acts))
    assert story.incident.cause == "compute"


def test_disturbed_steps_and_steps_before_noise_is_known_change_nothing():
    """A finding of a step that is not judged opens nothing, and quiet ones close nothing."""
    story = Story()
    story.judge(10, finding(), warm=False)
    assert (story.state, story.log) == ("warming", [])
    story = found()
    for step in range(63, 90):
        story.judge(step, disturbed=True)
    assert story.machine.tracker.has_active


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (ProfilePolicy(enabled=False), "switched off"),
        (ProfilePolicy(per_run=0), "0 captures"),
        (ProfilePolicy(per_day=0), "of a day"),
    ],
)
def test_without_a_capture_the_cause_is_still_diagnosed(policy, why):
    """Forbidden or used up: advice for the cause comes at once, and the incident says why there is no function."""
    story = found(replace(POLICY, profile=policy))
    assert story.log == ["OpenIncident", "UpdateIncident", "Diagnose"]
    story.diagnosed(story.incident.id, function="")
    assert story.state == "diagnosed"
    assert any(why in line for line in story.incident.profile_evidence)


def test_one_capture_at_a_time_and_a_cooldown_between_two():
    """A second incident waits for the first capture and for the cooldown, then has its own."""
    story = found()
    story.judge(80, finding(), finding(1, cause="data", onset=78))
    assert story.log.count("RequestCapture") == 1
    request = story.machine.captures.current.request_id
    for rank in (2, 0, 1):
        story.feed(ev.SummaryEvent, summary=summary(rank, request))
    story.diagnosed(story.incident.id)
    assert story.state == "suspect"
    story.judge(81, finding(), finding(1, cause="data", onset=78))
    assert story.log.count("RequestCapture") == 1
    story.now += POLICY.profile.cooldown_seconds
    (order,) = story.judge(82, finding(), finding(1, cause="data", onset=78))
    assert order.request.ranks == [1, 0, 3]
    assert story.state == "profiling"


def test_a_request_without_an_answer_expires():
    """No summary in time: the incident says so and is diagnosed without one."""
    story = found()
    story.now += 1000
    story.judge(63, finding())
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
    """A rank that refuses and a trace that cannot be read are told with their reasons."""
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
    slower = finding(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    for step in range(62, 62 + POLICY.run.join_steps):
        story.judge(step, slower)
    assert story.log == ["OpenIncident"]
    (order,) = story.judge(62 + POLICY.run.join_steps, slower)
    assert order.request.shapes
    assert (story.machine.captures.current.suspects, story.state) == ((0, 1, 2, 3), "profiling")


def test_a_capture_of_the_wrong_ranks_explains_nothing():
    """A job that was slower as a whole while its ranks were asked, and has its culprit now: that one is asked next."""
    slower = finding(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    story = Story(replace(POLICY, profile=ProfilePolicy(job_ranks=1, peers=0), run=replace(POLICY.run, join_steps=5)))
    for step in range(62, 68):
        story.judge(step, slower)
    assert story.machine.captures.current.ranks == (0,)
    story.judge(67, slower, finding(onset=62))
    story.feed(ev.SummaryEvent, summary=summary(0, story.machine.captures.current.request_id))
    assert (story.state, story.incident.ranks, story.incident.diagnosed) == ("suspect", (2,), False)
    story.now += POLICY.profile.cooldown_seconds
    story.judge(70, slower, finding(onset=62))
    assert story.machine.captures.current.ranks == (2,)


def test_victims_are_not_told_beside_their_culprit():
    """A slow rank explains its domain's transfer and the run's step time."""
    link = finding(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2, 3), cause="link")
    slower = finding(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    story = Story()
    for step in range(60, 200):
        story.judge(step, finding(), link, slower)
    assert story.log.count("OpenIncident") == 1
    assert story.incident.kind == "slow_rank"


def test_a_fluctuation_of_a_noisy_job_becomes_an_incident_only_when_it_lasts():
    """Half a minute of a busy host is no incident; a run that stays slower is."""
    slower = finding(kind=FLUCTUATION, scope="job", ranks=(), domain=None, is_sure=False)
    story = Story()
    for step in range(60, 90):
        story.judge(step, slower)
    assert story.log == []
    for step in range(90, 95):
        story.judge(step, slower)
    assert story.log == ["OpenIncident"]


def test_a_fluctuation_of_a_quiet_job_is_told_at_once_and_understood_later():
    """The culprit that becomes clear a step later takes the incident over, and is profiled like any other."""
    slower = finding(kind=FLUCTUATION, scope="job", ranks=(), domain=None)
    story = Story()
    (opened,) = story.judge(62, slower)
    assert story.state == "suspect"
    updated, order = story.judge(63, slower, finding())
    assert (updated.incident.id, updated.incident.kind, updated.incident.ranks) == (
        opened.incident.id,
        "slow_rank",
        (2,),
    )
    assert order.request.ranks == [2, 0, 1]
    assert story.state == "profiling"
    assert len(story.machine.tracker.incidents) == 1


def test_a_fault_that_outlives_a_restart_is_one_incident():
    """It takes the detectors some steps to find it again in the new attempt: until then their silence says nothing."""
    story = found(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.diagnosed(story.incident.id)
    story.feed(ev.RestartedEvent)
    for step in range(50, 50 + POLICY.run.recover_steps + POLICY.run.restart_steps - 1):
        story.judge(step)
    story.judge(70, finding(onset=60))
    assert story.log.count("OpenIncident") == 1
    assert "CloseIncident" not in story.log


def test_the_echo_of_a_culprit_is_not_told():
    """A run that is still slower for a few steps after its slow rank has recovered opens nothing of its own."""
    slower = replace(finding(kind=FLUCTUATION, scope="job", ranks=(), domain=None), onset_step=60)
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    for step in range(62, 70):
        story.judge(step, slower, finding())
    for step in range(70, 76):
        story.judge(step, slower)
    assert story.log.count("OpenIncident") == 1
    later = replace(slower, onset_step=76)
    story.judge(78, later)
    assert story.log.count("OpenIncident") == 2


def test_an_alarm_that_is_only_not_over_yet_costs_nothing_more():
    """What is lost is booked in steps with an effect, by what the step would have been shorter without it."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    cost = finding(seconds=0.05, lost_seconds=0.03)
    story.judge(60, cost)
    assert story.incident.lost_device_seconds == pytest.approx(4 * 0.03)
    story.judge(61, cost)
    assert story.incident.lost_device_seconds == pytest.approx(8 * 0.03)
    story.judge(62, replace(cost, acts=False))
    assert story.incident.lost_device_seconds == pytest.approx(8 * 0.03)


def test_what_only_fades_opens_nothing():
    """An alarm that was told as something else, and is only not over yet when that has ended, is no incident."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.judge(60, replace(finding(), acts=False))
    assert not story.machine.tracker.incidents
    assert not story.machine.tracker.has_active
    story.judge(61, finding())
    assert story.incident.detected_step == 61


def test_ranks_of_several_domains_have_none_in_common():
    """An incident of ranks that hold back different domains names no domain."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.judge(60, finding(ranks=(0,)), finding(ranks=(1,)))
    assert story.incident.domain == ("dp", "dp0")
    story.judge(61, finding(ranks=(0,)), finding(ranks=(2,), domain=("dp", "dp1")))
    assert story.incident.domain is None


def test_a_rank_keeps_the_domain_that_it_was_told_in():
    """Which of its domains waits most changes from step to step; what was told does not."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.judge(60, finding(ranks=(0,)))
    story.judge(61, finding(ranks=(0,), domain=("pp", "pp0")))
    assert story.incident.domain == ("dp", "dp0")


def test_parallel_groups_are_one_incident_whichever_of_them_is_slowest():
    """Behind one slow card the slowest group is another one each step: one incident goes on, and keeps its name."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    card = finding(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2), cause="link")
    for step in range(60, 80):
        story.judge(step, replace(card, domain=("dp", f"dp{step % 2}"), ranks=(0, 1, 2, 3)[: 3 + step % 2]))
    assert len(story.machine.tracker.incidents) == 1
    assert story.incident.domain == ("dp", "dp0")
    assert story.incident.ranks == (0, 1, 2, 3)
    other = replace(card, domain=("tp", "tp0"), ranks=(0, 1))
    story.judge(80, card, other)
    assert len(story.machine.tracker.incidents) == 2  # groups of another kind are another link


@pytest.mark.parametrize(("scope", "ranks"), [("node", (2, 3)), ("job", ())])
def test_slow_groups_become_the_node_or_network_that_makes_them_slow(scope, ranks):
    """A second kind of group in alarm tells the card a few steps after the first: one incident, understood better."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    groups = finding(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2, 3), cause="link")
    story.judge(60, groups)
    reason = replace(groups, scope=scope, ranks=ranks, domain=None, evidence=("the card",))
    story.judge(63, reason)
    story.judge(64, reason)
    told = story.incident
    assert (told.scope, told.ranks, told.domain, told.evidence) == (scope, ranks, None, ("the card",))
    assert len(story.machine.tracker.incidents) == 1


def test_groups_that_are_still_slow_by_themselves_are_not_the_nodes():
    """A node explains what it has taken over; a group that is found beside it stays an incident of its own."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    group = finding(kind=SLOW_LINK, scope="group", ranks=(0, 1, 2, 3), cause="link")
    story.judge(60, group)
    story.judge(61, group, replace(group, scope="node", ranks=(2, 3), domain=None, node="n1"))
    assert {told.scope for told in story.machine.tracker.incidents.values()} == {"group", "node"}


def test_slow_ranks_that_are_all_of_their_node_are_one_slow_node():
    """Eight incidents of a host would be eight pages: ranks join as they are found, and the last one makes it a node."""
    story = Story(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    nodes = {"a": 2, "b": 2}
    both = [finding(ranks=(rank,), node="b") for rank in (2, 3)]
    story.judge(62, both[0], ranks_of_node=nodes)
    assert story.incident.scope == "rank"
    story.judge(63, *both, ranks_of_node=nodes)
    assert (story.incident.scope, story.incident.ranks) == ("node", (2, 3))
    assert story.log.count("OpenIncident") == 1


def test_a_relapse_goes_on_with_the_same_incident():
    """Quiet for less than the hysteresis is not over."""
    story = found(replace(POLICY, profile=ProfilePolicy(enabled=False)))
    story.diagnosed(story.incident.id)
    for step in range(63, 67):
        story.judge(step)
    assert story.state == "recovering"
    story.judge(67, finding())
    assert story.state == "diagnosed"
    assert story.log.count("OpenIncident") == 1


def test_silence_is_lost_and_steps_bring_it_back():
    """A run without steps is lost, its capture given up; its next steps are judged as before."""
    story = found()
    story.now += POLICY.run.lost_seconds
    story.feed(ev.TickEvent)
    assert story.state == "lost"
    assert story.machine.captures.current is None
    story.judge(63, finding())
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
    story.feed(ev.StandstillEvent, hang=hang)
    assert story.state == "hung"
    story.now += 10 * POLICY.run.lost_keep_seconds
    assert story.feed(ev.TickEvent, is_alive=True) == []
    assert [type(i).__name__ for i in story.feed(ev.TickEvent)] == ["CloseIncident", "ForgetRun"]


def test_a_restart_keeps_incidents_until_the_new_attempt_was_judged():
    """The same hardware may be slow again: an incident goes on, or closes when the new attempt is quiet."""
    for again in (True, False):
        story = found()
        story.feed(ev.RestartedEvent)
        assert story.state == "warming"
        story.judge(5, warm=False)
        for step in range(21, 40):
            story.judge(step, *([finding(onset=20)] if again else []))
        assert story.log.count("OpenIncident") == 1
        assert len(story.machine.tracker.incidents) == int(again)


def test_the_end_of_a_run_closes_its_incidents():
    """A job that ends well leaves nothing open, and is forgotten in time."""
    story = found()
    finished = {"topology": from_degrees({"dp": 4}, 4), "ranks": (0, 1, 2, 3), "is_finished": True}
    assert [type(i).__name__ for i in story.feed(ev.AnnounceEvent, **finished)] == ["WithdrawCapture", "CloseIncident"]
    assert story.state == "finished"
    assert story.judge(63, finding()) == []
    story.now += POLICY.run.keep_seconds
    assert [type(i).__name__ for i in story.feed(ev.TickEvent)] == ["ForgetRun"]


def test_a_restart_of_the_coordinator_repeats_nothing():
    """With its memory, a new machine goes on with the open incident, its budget and its counts."""
    before = found()
    memory = before.machine.memory()
    story = Story(memory=RunMemory(**{name: getattr(memory, name) for name in memory.__dataclass_fields__}))
    story.judge(70)
    assert story.state == "recovering"
    story.judge(71, finding())
    assert "OpenIncident" not in story.log
    assert story.incident.id == before.incident.id
    assert story.machine.tracker.incidents_total == 1
    assert story.machine.captures.budget.counts["requested"] == 3


def test_an_operator_can_ask_for_a_capture():
    """A capture of healthy ranks changes no state; a second one, or one of a dead run, is refused with the reason."""
    story = Story()
    (refused,) = story.feed(ev.CaptureAskedEvent, ranks=(1,), steps=5)
    assert refused.reason == "the run is warming"
    story.judge(60)
    (order,) = story.feed(ev.CaptureAskedEvent, ranks=(1, 3), steps=5, shapes=True)
    request = order.request
    assert (request.ranks, request.steps, request.shapes, story.state) == ([1, 3], 5, True, "healthy")
    (refused,) = story.feed(ev.CaptureAskedEvent, ranks=(1,), steps=5)
    assert "under way" in refused.reason
    story.feed(ev.CaptureResultEvent, answer=CaptureResult(
        run="job", node="n0", rank=3, request_id=request.request_id, state="running"
    ))  # fmt: skip
    told = story.machine.captures.current.progress()
    assert [(rank["rank"], rank["state"]) for rank in told["ranks"]] == [(1, "asked"), (3, "running")]
    assert story.feed(ev.SummaryEvent, summary=summary(1, request.request_id)) == []
    (diagnose,) = story.feed(ev.SummaryEvent, summary=summary(3, request.request_id))
    assert ([each.rank for each in diagnose.peers], diagnose.incident_id, story.state) == ([1, 3], "", "healthy")
    assert story.machine.captures.current is None
    answer = Diagnosis(function="f", operator="", path=[], evidence=[], advice=[], confidence="low")
    story.feed(
        ev.DiagnosedEvent, incident_id="", request_id=request.request_id, asked=answer, function="f", operator="",
        evidence=(), advice=(), confidence="low",
    )  # fmt: skip
    told = story.machine.captures.past[-1].progress()
    assert ([rank["state"] for rank in told["ranks"]], told["diagnosis"]["function"]) == (["summarised"] * 2, "f")
    assert story.machine.captures.budget.counts["done"] == 2


def test_the_table_knows_every_state_and_a_missing_transition_is_named():
    """Every state can be reached and left, names are the metric's, and a bug says run, state and trigger."""
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

    def tell():
        story = found()
        given = [story.judge(step, finding(), finding(1, cause="data")) for step in range(63, 80)]
        return given, story.machine.memory()

    assert tell() == tell()
