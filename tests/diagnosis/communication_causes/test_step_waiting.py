"""For which rank of a pipeline stage the others wait, whatever they wait in."""

import numpy as np
import pytest

from lockstep.diagnosis.communication_causes.step_waiting import StepTimes, stage_waiting
from lockstep.diagnosis.communication_causes.waiting import evaluate_waiting
from tests.diagnosis.communication_causes.made import MS

STEPS, STEP_MS = 5, 200
STAGE_OF = {0: 0, 1: 0, 2: 1, 3: 1}
WINDOW_NS = STEPS * STEP_MS * MS


def times(own_ms, numbers=range(STEPS), step_ms=STEP_MS):
    """Return the steps of a rank that needs so long of each, and waits for the rest."""
    own_ns = np.broadcast_to(np.array(own_ms, np.float64) * MS, (len(numbers),))
    return StepTimes(np.array(numbers, np.int64), own_ns, step_ms * MS - own_ns)


def waiting(own_ms, world_size=4):
    return stage_waiting({rank: times(each) for rank, each in own_ms.items()}, STAGE_OF, world_size)


def named(own_ms):
    """Return the ranks that are named, with what each costs in ms a step."""
    return {each.ranks: each.lost_ns / MS / STEPS for each in evaluate_waiting(waiting(own_ms), WINDOW_NS)}


@pytest.mark.parametrize("culprit", STAGE_OF)
def test_who_needs_longest_is_waited_for(culprit):
    """All others wait at least as long as it needs longer than its peer, in whatever."""
    own_ms = dict.fromkeys(STAGE_OF, 100) | {culprit: 180}
    assert named(own_ms) == {(culprit,): pytest.approx(80)}
    (finding,) = evaluate_waiting(waiting(own_ms), WINDOW_NS)
    assert finding.confidence == "high"
    assert finding.subject == f"pipeline stage {STAGE_OF[culprit]}"
    assert "over the own time of 5 steps" in finding.evidence[0]


def test_a_stage_with_more_work_is_no_slow_rank():
    """The last stage needs twice as long by design."""
    assert named({0: 80, 1: 80, 2: 180, 3: 181}) == {}


def test_who_is_slower_in_a_stage_that_waits_anyway_costs_nothing():
    """The first stage waits 100 ms of each step for the last one; 60 ms more on one of its ranks lengthen none."""
    assert named({0: 140, 1: 80, 2: 180, 3: 180}) == {}


def test_slow_ranks_of_two_stages_are_both_named():
    """To repair one of them gains what the other does not hold: the slower costs all, the other what its slack leaves."""
    assert named({0: 180, 1: 100, 2: 170, 3: 100}) == {(0,): pytest.approx(80), (2,): pytest.approx(60)}


def test_ranks_that_are_slower_in_turn_are_not_named():
    """The noise of a host: each is the slowest in some steps."""
    turns = {0: [180, 100, 180, 100, 100], 1: [100, 180, 100, 100, 180], 2: [100] * 5, 3: [100] * 5}
    assert [each for each in evaluate_waiting(waiting(turns), WINDOW_NS) if each.confidence != "low"] == []


def test_steps_that_some_rank_lacks_do_not_count():
    """A capture that began a step later on one rank."""
    steps = {rank: times(100 + 80 * (rank == 1)) for rank in (0, 1, 2)} | {3: times(100, range(1, STEPS + 2))}
    (stage,) = [each for each in stage_waiting(steps, STAGE_OF, 4) if each.ranks == (0, 1)]
    assert (stage.collectives, stage.caused_ns.tolist()) == (STEPS - 1, [0.0, 80.0 * MS * (STEPS - 1)])
    assert stage_waiting(steps | {3: times(100, range(50, 55))}, STAGE_OF, 4) == []


def test_a_stage_of_one_rank_has_no_peer():
    """It is compared with nothing."""
    assert stage_waiting({rank: times(100) for rank in (0, 1)}, {0: 0, 1: 1}, 2) == []


def test_ranks_that_were_not_captured_cost_confidence():
    """The one that all wait for may not be there."""
    (finding,) = evaluate_waiting(waiting(dict.fromkeys(STAGE_OF, 100) | {2: 180}, world_size=8), WINDOW_NS)
    assert finding.confidence == "medium"
