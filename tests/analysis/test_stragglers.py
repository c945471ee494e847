"""Why a rank holds the job back, and which losses of other ranks cost the job nothing."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.evidence import Evidence
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.stragglers import costing, unexplained_ns
from lockstep.contracts.finding import COMPUTE, CPU, IO, Finding
from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.communication_causes.repetition import Repetition
from tests.analysis.job import FORWARD, MS, RANKS, rank_columns
from tests.analysis.test_differences import waiting

THROTTLED = Evidence(host=HostSpan(span_ns=100, throttled_ns=40, run_queue_wait_ns=0))
QUIET = Evidence(host=HostSpan(span_ns=100, throttled_ns=0, run_queue_wait_ns=0))


def straggler(throttled):
    """Return the finding of rank 2, which sleeps, in a job whose ranks in `throttled` are kept from the CPU as well."""
    ranks = [
        analyse_rank(
            rank_columns(rank, slept_ms={2: 40}), rank=rank, evidence=THROTTLED if rank in throttled else QUIET
        )
        for rank in RANKS
    ]
    (found,) = [each for each in analyse_cluster(ranks).findings if each.ranks == (2,)]
    return found


def test_a_cause_of_the_slow_rank_alone_is_the_reason():
    """Rank 2 alone is throttled, 40 ms of each step: that is why its forward takes longer."""
    found = straggler({2})
    assert (found.cause, found.subject) == ("cpu_contention", FORWARD)
    assert any("its control group was throttled 40.0 %" in sentence for sentence in found.evidence)


def test_what_all_ranks_have_is_no_reason():
    """Where every rank is throttled alike, rank 2 is slower for its forward."""
    found = straggler(set(RANKS))
    assert (found.cause, found.subject) == ("slow_function", FORWARD)
    assert not any("throttled" in sentence for sentence in found.evidence)


def test_a_symptom_without_a_cause_gives_the_reason():
    """Without call trees the rank is named as the one that is waited for, and nothing is made up."""
    ranks = [analyse_rank(rank_columns(rank, slept_ms={2: 40}), rank=rank, has_peers=False) for rank in RANKS]
    (found,) = [each for each in analyse_cluster(ranks).findings if each.ranks == (2,)]
    assert found.cause == "waiting_for_straggler"
    assert "no capture of the suspect arrived" in found.evidence


def loss(rank, lost_ms, *, cause="data_processing", bottleneck=CPU):
    return Finding(bottleneck=bottleneck, cause=cause, ranks=(rank,), evidence=(), lost_ns=round(lost_ms * MS))


EVERY_STEP = Repetition(np.array([(0.0, 0, 50, 45)] * 3), np.array([(50.0, 50, 0, 0)] * 3))
WAITING = [waiting(0, 0, 100, 0, waited_ns=np.array((30, 30, 0, 30)) * MS)]
LOST = [replace(WAITING[0], lost_ns=np.array((0, 0, 30, 0)) * MS)]


@pytest.mark.parametrize(("lost_ms", "costs"), [(29, False), (30, False), (30.1, True)])
def test_a_loss_on_a_rank_that_waits_as_long_costs_nothing(lost_ms, costs):
    """Rank 1 waits 30 ms for rank 2: up to that its loader may take; then it holds the job back itself."""
    kept, left_out = costing([loss(1, lost_ms)], WAITING, {2: 0}, rank_count=4)
    assert bool(kept) is costs
    assert [each.ranks for each in left_out] == ([] if costs else [(1,)])


@pytest.mark.parametrize(("ranks", "steps", "costs"), [(3, (1, 4), False), (3, (2, 4), True), (4, (1, 4), True)])
def test_what_some_ranks_lose_once_is_chance(ranks, steps, costs):
    """Most ranks have a long loader in one step of four: a crowded core, no loss of the job's; all have: its start."""
    findings = [replace(loss(rank, 10), steps=steps) for rank in range(ranks)]
    kept, left_out = costing(findings, [], {}, rank_count=4)
    assert (kept, [each.rule for each in left_out]) == ((findings, []) if costs else ([], ["data_processing"] * ranks))


@pytest.mark.parametrize(("steps", "costs"), [((1, 4), False), ((2, 4), True), (None, True)])
def test_what_a_single_rank_loses_once_is_a_pause(steps, costs):
    """No other rank confirms that one long loader in four steps is the job's start and not a crowded core."""
    kept, left_out = costing([replace(loss(0, 10, bottleneck=IO), steps=steps)], [], {}, rank_count=1)
    assert (len(kept), len(left_out)) == ((1, 0) if costs else (0, 1))
    assert costing([replace(loss(0, 10), steps=steps)], [], {}, rank_count=1)[1] == []


def test_what_occurs_once_on_another_rank_is_nothing_in_common():
    """Rank 1 loses 29 ms in two steps of four and waits as long; that rank 0 does so in one does not make them half."""
    often, once = replace(loss(1, 29), steps=(2, 4)), replace(loss(0, 40), steps=(1, 4))
    kept, left_out = costing([often, once], WAITING, {2: 0}, rank_count=4)
    assert kept == []
    assert [each.ranks for each in left_out] == [(1,), (0,)]


def test_what_half_of_the_ranks_lose_costs_what_the_others_wait():
    """Two of four ranks have a slow loader by chance: no rank waits for them; or the two others do in each collective."""
    findings = [loss(2, 10), loss(3, 10)]
    for caused, costs in (((30, 20, 25, 25), False), ((3, 2, 50, 45), True)):
        group = replace(waiting(*caused, waited_ns=np.zeros(4)), repeated=EVERY_STEP)
        kept, _ = costing(findings, [group], {}, rank_count=4)
        assert (kept == findings) is costs


def test_other_losses_count():
    """Those of the slow rank itself, of most ranks, on the device, and where nothing was matched."""
    for findings, groups in (
        ([loss(2, 10)], WAITING),
        ([loss(0, 10), loss(1, 10), loss(3, 10)], WAITING),
        ([loss(1, 10, bottleneck=COMPUTE)], WAITING),
        ([loss(1, 10)], []),
    ):
        assert costing(findings, groups, {2: 10 * MS}, rank_count=4) == (findings, [])


@pytest.mark.parametrize(
    ("named_ms", "loader_ms", "costs"),
    [(30, 27, False), (12, 27, True), (20, 27, False), (0, 60, True), (40, 1, False)],
)
def test_a_slow_rank_loses_what_its_named_cause_leaves(named_ms, loader_ms, costs):
    """The others wait 30 ms for rank 2; its forward holds some of that, so a loader on the same rank holds the rest."""
    named = [replace(loss(2, named_ms, cause="slow_function"), subject=FORWARD)]
    slow = unexplained_ns(named, LOST, {2})
    assert slow == {2: (30 - named_ms) * MS}
    kept, left_out = costing([loss(2, loader_ms)], WAITING, slow, rank_count=4)
    assert (len(kept), [each.ranks for each in left_out]) == ((1, []) if costs else (0, [(2,)]))


def test_a_symptom_explains_nothing():
    """A rank that is waited for without a known cause, findings of several ranks, and of other ranks."""
    findings = [loss(2, 30, cause="waiting_for_straggler"), replace(loss(0, 30), ranks=(0, 2)), loss(1, 30)]
    assert unexplained_ns(findings, LOST, {2}) == {2: 30 * MS}
