from dataclasses import replace

import pytest

from exporter.capturing.captures import Captures
from lockstep.contracts.messages import ProfileRequest

LIMIT_NS = 1000
RANKS = {0: "running", 1: "running", 2: "failed"}
REQUEST = ProfileRequest(run="run", node="n", request_id=5, ranks=[1, 0], first_step=-1, steps=3)


@pytest.fixture
def captures() -> Captures:
    return Captures(LIMIT_NS)


def test_a_request_becomes_an_order(captures: Captures):
    """What was asked is ordered, and the capture runs until every rank has answered."""
    verdict = captures.judge(REQUEST, RANKS, 0)
    assert verdict.refusals == {}
    assert verdict.order is not None
    assert (verdict.order.ranks, verdict.order.steps, verdict.order.request_id) == ([0, 1], 3, 5)
    captures.note("run", 0, 5, "done")
    captures.note("run", 1, 5, "running")
    assert captures.running_id("run") == 5
    captures.note("run", 1, 5, "refused")
    assert captures.running_id("run") is None


def test_an_unknown_run_is_refused_by_name(captures: Captures):
    """Every asked rank gets an answer that names the run."""
    verdict = captures.judge(REQUEST, None, 0)
    assert verdict.order is None
    assert set(verdict.refusals) == {0, 1}
    assert "'run' is unknown on node 'n'" in verdict.refusals[0]


def test_ranks_that_cannot_are_refused_and_the_others_go_on(captures: Captures):
    """A rank that is elsewhere or whose agent failed is named; those that are here are ordered."""
    verdict = captures.judge(replace(REQUEST, ranks=[0, 2, 9]), RANKS, 0)
    assert verdict.order is not None
    assert verdict.order.ranks == [0]
    assert "rank 9 of run 'run' is not on node 'n'" in verdict.refusals[9]
    assert "failed" in verdict.refusals[2]


def test_one_capture_at_a_time(captures: Captures):
    """Another request meanwhile is refused with the reason, whichever run of the node it is for."""
    captures.judge(REQUEST, RANKS, 0)
    verdict = captures.judge(replace(REQUEST, request_id=6), RANKS, 10)
    assert verdict.order is None
    assert "request 5 is being captured" in verdict.refusals[0]
    other = captures.judge(replace(REQUEST, run="other"), RANKS, 10)
    assert other.order is None
    assert "request 5 of run 'run' is being captured" in other.refusals[1]
    assert captures.judge(replace(REQUEST, run="other"), RANKS, LIMIT_NS).order is not None


def test_a_request_delivered_twice_is_one_request(captures: Captures):
    """QoS 1 may deliver again: neither a second order nor a refusal."""
    captures.judge(REQUEST, RANKS, 0)
    verdict = captures.judge(REQUEST, RANKS, 1)
    assert (verdict.order, verdict.refusals) == (None, {})


def test_a_capture_that_never_ends_makes_room(captures: Captures):
    """Behind the limit the next request is taken, exactly at it."""
    captures.judge(REQUEST, RANKS, 0)
    later = replace(REQUEST, request_id=6)
    assert captures.judge(later, RANKS, LIMIT_NS - 1).order is None
    assert captures.judge(later, RANKS, LIMIT_NS).order is not None


def test_an_answer_to_another_request_ends_nothing(captures: Captures):
    """Late answers of an earlier capture are not taken for this one."""
    captures.judge(replace(REQUEST, ranks=[0]), RANKS, 0)
    captures.note("run", 0, 4, "done")
    assert captures.running_id("run") == 5


@pytest.mark.parametrize(
    "values",
    [{"steps": 0}, {"request_id": -1}, {"request_id": 1 << 63}, {"first_step": -2}, {"first_step": 1 << 63}],
)
def test_a_request_that_ranks_would_not_take_is_refused_here(captures: Captures, values: dict):
    """The reason names the field, and nothing runs."""
    verdict = captures.judge(replace(REQUEST, **values), RANKS, 0)
    assert verdict.order is None
    assert next(iter(values)) in verdict.refusals[0]
    assert captures.running_id("run") is None
