"""Captures of one run's machine: they end, late evidence counts, and none is its own fault."""

from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.capture import capture_from_json
from coordinator.decide.state import State
from coordinator.detect.anomalies import FLUCTUATION
from coordinator.detect.hangs.hang import Hang
from coordinator.settings.run_policy import ProfilePolicy
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.messages import CaptureResult
from tests.coordinator.conftest import anomaly
from tests.coordinator.decide.story import ADVICE, POLICY, Story, found, summary

NODES = {rank: f"n{rank // 2}" for rank in range(4)}


def answer(rank, request_id, state="done", *, first_step=77):
    return CaptureResult(
        run="job", node=NODES[rank], rank=rank, request_id=request_id, state=state, first_step=first_step
    )


def of(form, instructions):
    return [each for each in instructions if isinstance(each, form)]


def quiet(story, first_step):
    """Evaluate healthy steps until the incident closes; return the instructions of that step and its number."""
    for step in range(first_step, first_step + POLICY.run.recover_steps):
        given = story.evaluate(step)
    return given, step


def diagnosed(story, order, *, function):
    """Give the result of one diagnosis."""
    return story.feed(
        ev.DiagnosedEvent,
        incident_id=order.incident_id,
        request_id=order.request_id,
        diagnosis_id=order.diagnosis_id,
        function=function,
        operator="",
        evidence=(f"it stays in {function}",),
        advice=ADVICE,
        confidence="high",
    )


def test_an_incident_closes_when_its_fault_ends_and_the_next_fault_is_a_new_one():
    """A capture under way keeps nothing open; what it has not begun is withdrawn."""
    story = found()
    first = story.incident
    request = story.machine.captures.current
    given, step = quiet(story, 63)
    (closed,) = of(ev.CloseIncident, given)
    assert closed.incident.id == first.id
    (withdrawn,) = of(ev.WithdrawCapture, given)
    taken_back = withdrawn.request
    assert (taken_back.request_id, tuple(taken_back.ranks)) == (request.request_id, request.ranks)
    assert taken_back.is_withdrawn
    assert story.machine.captures.current is None
    story.evaluate(step + 1)
    assert story.state == "healthy"
    story.evaluate(step + 2, anomaly(onset=step + 2))
    assert story.incident.id != first.id
    assert story.log.count("OpenIncident") == 2


def test_a_capture_that_has_begun_amends_its_incident_after_that_has_closed():
    """Summaries that come when the fault is over are those of its time: the closed incident gets function and advice."""
    story = found()
    first = story.incident
    request = story.machine.captures.current
    for step in range(63, 77):
        story.evaluate(step, anomaly())
    for rank in request.ranks:
        story.feed(ev.CaptureResultEvent, answer=answer(rank, request.request_id, "running"))
    given, step = quiet(story, 81)
    assert not of(ev.WithdrawCapture, given)
    orders = []
    for rank in request.ranks:
        orders += of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(rank, request.request_id)))
    assert [each.rank for each in orders[-1].suspects] == [2]
    assert [each.rank for each in orders[-1].peers] == [0, 1]
    (updated,) = diagnosed(story, orders[-1], function="train.py(10): forward")
    assert (updated.incident.id, updated.incident.state, updated.incident.function) == (
        first.id,
        "closed",
        "train.py(10): forward",
    )
    assert updated.incident.profile.request_id == request.request_id
    story.evaluate(step + 1)
    assert story.state == "healthy"


def test_a_summary_that_comes_late_amends_an_open_incident():
    """Peers on busy nodes take longer than the wait for them: the verdict without them is replaced, not kept."""
    story = found()
    request = story.machine.captures.current.request_id
    story.evaluate(76, anomaly())
    story.feed(ev.SummaryEvent, summary=summary(2, request))
    story.now += POLICY.profile.peer_wait_seconds
    first = of(ev.Diagnose, story.feed(ev.TickEvent))[0]
    diagnosed(story, first, function="")
    later = of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(0, request)))[0]
    assert ([each.rank for each in later.suspects], [each.rank for each in later.peers]) == ([2], [0])
    last = of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(1, request)))[0]
    diagnosed(story, last, function="train.py(10): forward")
    assert diagnosed(story, later, function="train.py(99): stale") == []
    assert story.incident.function == "train.py(10): forward"
    assert story.incident.profile_evidence == ("it stays in train.py(10): forward",)
    assert story.state == "diagnosed"
    assert of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(1, request))) == []  # delivered again


@pytest.mark.parametrize("end", ["hang", "restart", "finish", "cancel"])
def test_a_run_that_stalls_or_ends_frees_the_slot_of_its_nodes_at_once(end):
    """The nodes' slot is for one capture at a time: one that cannot come is withdrawn where it was asked for."""
    story = found()
    request = story.machine.captures.current
    story.feed(ev.CaptureResultEvent, answer=answer(0, request.request_id, "done"))
    if end == "hang":
        story.now += POLICY.run.lost_seconds + 1
        late = Hang(cause="unknown", scope="rank", ranks=(3,), domain=("dp", "dp0"), evidence=("rank 3 is late",))
        given = story.feed(ev.StallEvent, hang=late)
    elif end == "restart":
        given = story.feed(ev.RestartedEvent)
    elif end == "finish":
        topology = from_degrees({"dp": 4}, 4)
        given = story.feed(ev.AnnounceEvent, topology=topology, ranks=(0, 1, 2, 3), is_finished=True)
    else:
        given = story.feed(ev.EndedEvent, crash=None, ended_ranks=4)
    (withdrawn,) = of(ev.WithdrawCapture, given)
    assert (withdrawn.request.request_id, set(withdrawn.request.ranks)) == (request.request_id, {1, 2})
    assert of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(2, request.request_id))) == []


def test_coordinator_and_exporter_share_one_deadline():
    """The request carries the seconds after which the coordinator gives it up."""
    story = found()
    capture = story.machine.captures.current
    steps_s = (capture.first_step - 62 + capture.steps) * 0.1
    assert capture.deadline_s == pytest.approx(story.now + steps_s + POLICY.profile.expire_seconds)
    other = Story()
    other.evaluate(60)
    (asked,) = other.feed(ev.CaptureRequestedEvent, ranks=(1,), steps=5)
    assert asked.request.deadline_seconds == pytest.approx(other.machine.captures.current.deadline_s - other.now)


@pytest.mark.parametrize(("seconds", "is_captured"), [(0.05, False), (0.2, True)])
def test_a_larger_incident_pre_empts_the_cool_down_of_a_smaller_one(seconds, is_captured):
    """A fault four times as large does not wait for two minutes because of a small one; one alike does."""
    story = found()
    request = story.machine.captures.current.request_id
    for rank in (2, 0, 1):
        story.feed(ev.SummaryEvent, summary=summary(rank, request))
    story.diagnosed(story.incident.id)
    story.evaluate(63, anomaly())
    story.evaluate(80, anomaly(), anomaly(1, cause="data", onset=78, seconds=seconds, ratio=2.0))
    assert story.log.count("RequestCapture") == 1 + is_captured
    if is_captured:
        assert story.machine.captures.current.suspects == (1,)


def test_a_larger_incident_pre_empts_after_a_restart_of_the_coordinator_too():
    """How large the incident of the last capture was outlives the coordinator."""
    story = found()
    again = Story(memory=story.machine.memory())
    assert again.machine.captures.budget.is_cooling(again.now, 0.05)
    assert not again.machine.captures.budget.is_cooling(again.now, 0.2)


def test_the_largest_of_several_incidents_is_captured_first():
    """What costs most is asked for first, whichever opened first."""
    story = Story()
    story.evaluate(60)
    small, large = anomaly(1, cause="data", seconds=0.01), anomaly(2, seconds=0.3)
    story.evaluate(62, small, large)
    assert story.machine.captures.current.suspects == (2,)


def capturing(story):
    """Bring a story to its capture: the ranks have begun, and the profiler takes its time."""
    request = story.machine.captures.current
    for step in range(63, request.first_step):
        story.evaluate(step, anomaly(), step_seconds=0.1)
    for rank in request.ranks:
        story.feed(
            ev.CaptureResultEvent, answer=answer(rank, request.request_id, "running", first_step=request.first_step)
        )
    return request


def late(*ranks):
    return Hang(cause="unknown", scope="rank", ranks=ranks, domain=("dp", "dp0"), evidence=(f"{ranks} are late",))


def test_a_capture_opens_no_hang_of_its_own():
    """A rank that writes its trace holds the others up: that is no hang until the capture's deadline has passed."""
    story = found()
    request = capturing(story)
    story.now += 30
    assert story.feed(ev.StallEvent, hang=late(2)) == []
    assert story.state == "profiling"
    story.feed(ev.SummaryEvent, summary=summary(2, request.request_id))
    story.now += POLICY.profile.peer_wait_seconds  # the capture is put away, a peer still writes
    story.feed(ev.TickEvent)
    assert not of(ev.OpenIncident, story.feed(ev.StallEvent, hang=late(0)))
    story.now = request.deadline_s
    (opened,) = of(ev.OpenIncident, story.feed(ev.StallEvent, hang=late(0)))
    assert opened.incident.kind == "hang"


def test_a_hang_of_a_rank_that_is_not_captured_opens_at_once():
    """Only what the profiler can do is waited for."""
    story = found()
    capturing(story)
    story.now += POLICY.run.lost_seconds - 1
    assert of(ev.OpenIncident, story.feed(ev.StallEvent, hang=late(3)))


def test_a_hang_before_the_capture_began_opens_at_once():
    """Ranks that wait for their first captured step do nothing yet."""
    story = found()
    story.now += 30
    assert of(ev.OpenIncident, story.feed(ev.StallEvent, hang=late(2)))


def test_evidence_is_of_one_time():
    """What was measured when the capture began is held against it, not what is left of the fault when it is read."""
    story = found(seconds=0.075)
    request = capturing(story)
    story.evaluate(request.first_step + 5, anomaly(seconds=0.004), step_seconds=0.5)
    orders = []
    for rank in request.ranks:
        orders += of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(rank, request.request_id)))
    (order,) = orders
    assert (order.excess_seconds, order.step_seconds) == (0.05, 0.1)  # of the steps up to the capture's first


def test_a_capture_of_steps_without_the_fault_explains_nothing():
    """The fault ended before the first captured step, and came back: those steps are no evidence of it."""
    story = found()
    request = story.machine.captures.current
    for step in range(63, 73):
        story.evaluate(step, anomaly())
    for step in range(73, request.first_step):
        story.evaluate(step, replace(anomaly(), acts=False))
    for rank in request.ranks:
        story.feed(ev.CaptureResultEvent, answer=answer(rank, request.request_id, first_step=request.first_step))
    orders = []
    for rank in request.ranks:
        orders += of(ev.Diagnose, story.feed(ev.SummaryEvent, summary=summary(rank, request.request_id)))
    (order,) = orders
    assert (order.suspects, order.peers) == ((), ())
    assert any("ended before" in line for line in story.incident.profile_evidence)


def test_what_lockstep_itself_slows_opens_no_incident():
    """While a node summarises traces its ranks may be slower by it: a rank of another node is not excused."""
    story = found()
    story.feed(
        ev.AnnounceEvent,
        topology=from_degrees({"dp": 4}, 4),
        ranks=(0, 1, 2, 3),
        is_finished=False,
        nodes=NODES,
    )
    request = story.machine.captures.current
    story.feed(ev.CaptureResultEvent, answer=answer(2, request.request_id, "done"))
    same_node, other_node = anomaly(3, cause="host", onset=78, ratio=0.3), anomaly(1, cause="data", onset=78)
    slower = anomaly(kind=FLUCTUATION, scope="job", ranks=(), domain=None, onset=78, ratio=0.3)
    story.evaluate(80, anomaly(), same_node, other_node, slower)
    assert {each.ranks for each in story.machine.tracker.incidents.values()} == {(2,), (1,)}
    story.feed(ev.SummaryEvent, summary=summary(2, request.request_id))
    story.evaluate(81, anomaly(), same_node, other_node)
    assert {each.ranks for each in story.machine.tracker.incidents.values()} == {(2,), (1,), (3,)}


@pytest.mark.parametrize(("ratio", "is_found"), [(0.34, False), (0.36, True), (9.0, True)])
def test_a_rank_that_is_slower_than_a_summary_makes_it_is_found_at_once(ratio, is_found):
    """A summary takes a quarter of a core at most, for minutes on a busy node: larger faults do not wait for it."""
    story = found()
    topology = from_degrees({"dp": 4}, 4)
    story.feed(ev.AnnounceEvent, topology=topology, ranks=(0, 1, 2, 3), is_finished=False, nodes=NODES)
    request = story.machine.captures.current
    story.feed(ev.CaptureResultEvent, answer=answer(2, request.request_id, "done"))
    story.evaluate(80, anomaly(), anomaly(3, cause="data", onset=78, ratio=ratio))
    assert any(each.ranks == (3,) for each in story.machine.tracker.incidents.values()) == is_found


def test_a_summary_that_never_comes_excuses_nothing_after_the_deadline():
    """A node whose exporter died summarises nothing."""
    story = found()
    topology = from_degrees({"dp": 4}, 4)
    story.feed(ev.AnnounceEvent, topology=topology, ranks=(0, 1, 2, 3), is_finished=False, nodes=NODES)
    request = story.machine.captures.current
    story.feed(ev.CaptureResultEvent, answer=answer(2, request.request_id, "done"))
    story.now = request.deadline_s
    story.evaluate(80, anomaly(), anomaly(3, cause="host", onset=78, ratio=0.3))
    assert len(story.machine.tracker.incidents) == 2


def test_an_operators_capture_takes_late_summaries_too():
    """Who asked for a capture gets what comes late as well."""
    story = Story(replace(POLICY, profile=ProfilePolicy(expire_seconds=10.0)))
    story.evaluate(60)
    (asked,) = story.feed(ev.CaptureRequestedEvent, ranks=(1, 3), steps=3)
    request = asked.request
    story.feed(ev.SummaryEvent, summary=summary(1, request.request_id))
    story.now += 30
    (order,) = story.feed(ev.TickEvent)
    assert [each.rank for each in order.peers] == [1]
    (order,) = story.feed(ev.SummaryEvent, summary=summary(3, request.request_id))
    assert [each.rank for each in order.peers] == [1, 3]
    assert story.machine.state is State.HEALTHY


def test_a_leader_that_takes_over_sends_the_request_of_a_memory_capture_as_it_was():
    """Also after a restart; the time that is left counts from the first request."""
    story = Story()
    story.evaluate(60)
    story.feed(ev.CaptureRequestedEvent, ranks=(1, 3), steps=3)
    capture = replace(story.machine.captures.current, memory=True)
    stored = capture_from_json(capture.to_json())
    left_s = capture.deadline_s - story.now
    assert stored.request(story.now) == capture.request(story.now)
    assert (stored.request(story.now).memory, stored.request(story.now).ranks) == (True, [1, 3])
    assert stored.request(story.now + 5).deadline_seconds == pytest.approx(left_s - 5)
    assert stored.request(capture.deadline_s + 1).deadline_seconds == 0
