from dataclasses import replace

import pytest

from exporter.capturing.captures import Candidate, Captures
from lockstep.contracts.capture import OPTIMIZER, StepBoundary
from lockstep.contracts.limits import TERM_AHEAD_OF_NODE_SECONDS_MAX
from lockstep.contracts.messages import CaptureRequest

DEADLINE_S = 120.0
DEADLINE_NS = 120 * 10**9
NOW_S = 1_800_000_000.0
BOUNDARIES = [StepBoundary(OPTIMIZER, 2, 14, 7), StepBoundary(OPTIMIZER, 1, 8, 8)]
RANKS = {
    0: Candidate("running", BOUNDARIES[0], 1),
    1: Candidate("running", BOUNDARIES[1], 1),
    2: Candidate("unwatched", BOUNDARIES[0], 1),
    3: Candidate("running", None, 1),
}
REQUEST = CaptureRequest(
    run="run", node="n", request_id=5, ranks=[1, 0], first_step=-1, steps=3, deadline_seconds=DEADLINE_S
)


@pytest.fixture
def captures() -> Captures:
    return Captures()


def test_a_request_becomes_an_order(captures: Captures):
    """What was asked is ordered, and the capture runs until every rank has answered."""
    verdict = captures.admit(REQUEST, RANKS, 0, NOW_S)
    assert verdict.refusals == {}
    assert verdict.order is not None
    assert (verdict.order.ranks, verdict.order.steps, verdict.order.request_id) == ([0, 1], 3, 5)
    assert verdict.order.boundaries == BOUNDARIES
    captures.note("run", 0, 5, "done")
    captures.note("run", 1, 5, "running")
    assert captures.running_id("run") == 5
    captures.note("run", 1, 5, "refused")
    assert captures.running_id("run") is None


def test_an_unknown_run_is_refused_by_name(captures: Captures):
    """Every asked rank gets an answer that names the run."""
    verdict = captures.admit(REQUEST, None, 0, NOW_S)
    assert verdict.order is None
    assert set(verdict.refusals) == {0, 1}
    assert "'run' is unknown on node 'n'" in verdict.refusals[0]


def test_ranks_that_cannot_are_refused_and_the_others_go_on(captures: Captures):
    """One that is elsewhere, whose agent failed or whose steps have no numbers is named; the others are ordered."""
    verdict = captures.admit(replace(REQUEST, ranks=[0, 2, 3, 9]), RANKS, 0, NOW_S)
    assert verdict.order is not None
    assert verdict.order.ranks == [0]
    assert "rank 9 of run 'run' is not on node 'n'" in verdict.refusals[9]
    assert "unwatched" in verdict.refusals[2]
    assert "the steps of rank 3 of run 'run' cannot be foreseen" in verdict.refusals[3]
    assert verdict.order.boundaries == BOUNDARIES[:1]


def test_one_capture_at_a_time(captures: Captures):
    """Another request meanwhile is refused with the reason, whichever run of the node it is for."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    verdict = captures.admit(replace(REQUEST, request_id=6), RANKS, 10, NOW_S)
    assert verdict.order is None
    assert "request 5 is being captured" in verdict.refusals[0]
    other = captures.admit(replace(REQUEST, run="other"), RANKS, 10, NOW_S)
    assert other.order is None
    assert "request 5 of run 'run' is being captured" in other.refusals[1]
    later = replace(REQUEST, run="other", request_id=7)
    assert captures.admit(later, RANKS, DEADLINE_NS, NOW_S).order is not None


def test_a_request_delivered_twice_is_one_request(captures: Captures):
    """QoS 1 may deliver again, and two coordinators may ask: neither a second order nor a refusal, then or later."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    for term in (0, 1):
        verdict = captures.admit(replace(REQUEST, term=term), RANKS, 1, NOW_S)
        assert (verdict.order, verdict.refusals) == (None, {})
    for rank in REQUEST.ranks:
        captures.note("run", rank, 5, "done")
    verdict = captures.admit(REQUEST, RANKS, 2, NOW_S)
    assert (verdict.order, verdict.refusals, verdict.is_outdated) == (None, {}, False)


def test_another_request_under_the_same_id_is_refused(captures: Captures):
    """Its answers would look like those of the first."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    verdict = captures.admit(replace(REQUEST, steps=4), RANKS, 1, NOW_S)
    assert (verdict.order, verdict.is_outdated) == (None, True)
    assert "request 5 of run 'run' had different content" in verdict.refusals[0]
    assert captures.admit(replace(REQUEST, run="other"), RANKS, DEADLINE_NS, NOW_S).order is not None


def test_a_request_of_a_term_that_is_over_is_refused(captures: Captures):
    """A leader that was replaced gets an answer that states that; one of the same term is as good as the first."""
    captures.admit(replace(REQUEST, term=3), None, 0, NOW_S)
    assert captures.term == 3
    verdict = captures.admit(replace(REQUEST, request_id=6, term=2), RANKS, 0, NOW_S)
    assert (verdict.order, verdict.is_outdated) == (None, True)
    assert verdict.refusals == dict.fromkeys(REQUEST.ranks, "term 2 is over, term 3 is in force")
    assert captures.admit(replace(REQUEST, request_id=7, term=3), RANKS, 0, NOW_S).order is not None
    assert captures.term == 3


def test_requests_remembered_have_an_end(captures: Captures):
    """One that came long ago is decided again: memory has a limit, whatever peers make up."""
    for number in range(300):
        captures.admit(replace(REQUEST, request_id=number), None, 0, NOW_S)
    assert captures.admit(replace(REQUEST, request_id=299), None, 0, NOW_S).refusals == {}
    assert captures.admit(replace(REQUEST, request_id=0), None, 0, NOW_S).refusals != {}


def test_a_capture_that_never_ends_makes_way(captures: Captures):
    """Behind the limit the next request is taken, exactly at it."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    assert captures.admit(replace(REQUEST, request_id=6), RANKS, DEADLINE_NS - 1, NOW_S).order is None
    assert captures.admit(replace(REQUEST, request_id=7), RANKS, DEADLINE_NS, NOW_S).order is not None


def test_an_answer_to_another_request_ends_nothing(captures: Captures):
    """Late answers of an earlier capture are not taken for this one."""
    captures.admit(replace(REQUEST, ranks=[0]), RANKS, 0, NOW_S)
    captures.note("run", 0, 4, "done")
    assert captures.running_id("run") == 5


@pytest.mark.parametrize(
    "values",
    [{"steps": 0}, {"request_id": -1}, {"request_id": 1 << 63}, {"first_step": -2}, {"first_step": 1 << 63}],
)
def test_a_request_that_ranks_would_not_take_is_refused_here(captures: Captures, values: dict):
    """The reason names the field, and nothing runs."""
    verdict = captures.admit(replace(REQUEST, **values), RANKS, 0, NOW_S)
    assert verdict.order is None
    assert next(iter(values)) in verdict.refusals[0]
    assert captures.running_id("run") is None


@pytest.mark.parametrize("term", [int(NOW_S) + TERM_AHEAD_OF_NODE_SECONDS_MAX + 1, 1 << 62, (1 << 63) - 1])
def test_a_term_far_ahead_of_the_clock_is_refused_and_locks_no_one_out(captures: Captures, term: int):
    """One forged order must not make the node deaf to every leader: terms are unix seconds."""
    verdict = captures.admit(replace(REQUEST, term=term), RANKS, 0, NOW_S)
    assert (verdict.order, verdict.is_outdated) == (None, True)
    assert f"term {term} is not a leader's" in verdict.refusals[0]
    leader = replace(REQUEST, request_id=6, term=int(NOW_S))
    assert captures.admit(leader, RANKS, 0, NOW_S).order is not None


def test_a_term_that_the_clock_has_not_reached_is_not_in_force(captures: Captures):
    """It was stored by a clock that has been set back since; the next leader's term takes its place."""
    captures.term = 1 << 62
    assert captures.term_in_force(NOW_S) == 0
    assert captures.admit(replace(REQUEST, term=int(NOW_S)), RANKS, 0, NOW_S).order is not None
    assert captures.term == captures.term_in_force(NOW_S) == int(NOW_S)


def test_the_deadline_of_a_capture_is_the_requests(captures: Captures):
    """Coordinator and node give it up together, and the order is taken back from ranks that have not begun."""
    captures.admit(replace(REQUEST, deadline_seconds=5.0), RANKS, 0, NOW_S)
    assert captures.take_expired(5 * 10**9 - 1) == []
    ((run, order),) = captures.take_expired(5 * 10**9)
    assert (run, order.request_id, order.ranks) == ("run", 5, [])
    assert captures.running_id("run") is None
    assert captures.take_expired(6 * 10**9) == []


def test_a_request_delivered_again_later_is_still_one_request(captures: Captures):
    """A new leader orders again what is under way, with what is left of the deadline."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    verdict = captures.admit(replace(REQUEST, deadline_seconds=7.0), RANKS, 1, NOW_S)
    assert (verdict.order, verdict.refusals, verdict.is_outdated) == (None, {}, False)


def test_a_withdrawn_capture_frees_the_node_at_once(captures: Captures):
    """A run that stalls keeps no other run's capture away."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    verdict = captures.admit(replace(REQUEST, is_withdrawn=True), RANKS, 1, NOW_S)
    assert verdict.order is not None
    assert (verdict.order.request_id, verdict.order.ranks, verdict.refusals) == (5, [], {})
    assert captures.admit(replace(REQUEST, run="other", request_id=6), RANKS, 1, NOW_S).order is not None


def test_only_the_leader_withdraws_and_only_what_runs(captures: Captures):
    """A leader that was replaced, or another number, ends nothing."""
    captures.admit(replace(REQUEST, term=9), RANKS, 0, NOW_S)
    outdated = captures.admit(replace(REQUEST, term=8, is_withdrawn=True), RANKS, 1, NOW_S)
    assert (outdated.order, outdated.is_outdated) == (None, True)
    other = captures.admit(replace(REQUEST, term=9, request_id=4, is_withdrawn=True), RANKS, 1, NOW_S)
    assert (other.order, other.refusals) == (None, {})
    assert captures.running_id("run") == 5


def test_ranks_that_ended_keep_no_slot(captures: Captures):
    """A process that is gone, or is another attempt's, captures nothing any more."""
    captures.admit(REQUEST, RANKS, 0, NOW_S)
    assert captures.drop_ended("run", {0: 1, 1: 1}) == []
    assert captures.drop_ended("run", {1: 1}) == [0]
    assert captures.running_id("run") == 5
    assert captures.drop_ended("run", {1: 2}) == [1]
    assert captures.running_id("run") is None
    assert captures.drop_ended("run", {}) == []
