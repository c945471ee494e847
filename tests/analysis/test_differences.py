"""Localisation's answer held against who is waited for, and against what rules explain already."""

import numpy as np
import pytest

from lockstep.analysis.differences import new_differences
from lockstep.analysis.rank import RankAnalysis
from lockstep.contracts.finding import CPU, IO, Finding
from lockstep.diagnosis.communication_causes.repetition import Repetition
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.localisation.findings import SLOW_COLLECTIVE, SLOW_DEVICE, SLOW_FUNCTION
from lockstep.trace.columns import TraceMetadata
from lockstep.trace.patterns.pattern import OUTSIDE
from lockstep.trace.step_breakdown import Breakdown

WINDOW_NS = 1_000_000
COMPUTE_NS = 300_000
PARTS = ("compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns", "memory_ns")
MORE_PARTS = ("compute_communication_overlap_ns", "compute_active_ns", "communication_active_ns", "host_active_ns")


def rank(number, *findings):
    """Return a rank whose device computes for 0.3 of its 1 ms."""
    parts = dict.fromkeys((*PARTS, *MORE_PARTS), 0)
    return RankAnalysis(
        rank=number,
        metadata=TraceMetadata(),
        event_count=0,
        dropped_count=0,
        trace_bytes=0,
        steps=None,
        window_ns=(0, WINDOW_NS),
        breakdown=Breakdown(**(parts | {"compute_active_ns": COMPUTE_NS})),
        steps_breakdown=(),
        findings=findings,
    )


RANKS = {number: rank(number) for number in range(4)}
MANY = {number: rank(number) for number in range(16)}


def finding(*ranks, cause=SLOW_FUNCTION, subject="f", lost_ns=100_000):
    return Finding(bottleneck=CPU, cause=cause, ranks=ranks, evidence=(), subject=subject, lost_ns=lost_ns)


def waiting(*caused_ns, collectives=10, waited_ns=None, transmits_ns=((0, 0, 0, 0),), first=0, transit_ratio=np.nan):
    count = len(caused_ns)
    ranks = tuple(range(first, first + count))
    zeros = np.zeros(count)
    waited = zeros if waited_ns is None else np.array(waited_ns, np.float64)
    return GroupWaiting(
        group=("0", ranks),
        ranks=ranks,
        collectives=collectives,
        compute_ratio=0.4,
        elapsed_ratio=0.4,
        transit_ratio=transit_ratio,
        waited_ns=waited,
        caused_ns=np.array(caused_ns, np.float64),
        once_ns=zeros,
        lost_ns=zeros,
        awaited=np.zeros(count, np.int64),
        repeated=Repetition(np.zeros((0, count)), np.zeros((0, count))),
        duration_ns=zeros,
        transmits_ns=np.array(transmits_ns, np.float64),
        is_whole=True,
    )


def holds(found, groups, **more):
    kept, refused = new_differences([found], groups, **({"collectives": groups, "slow": (), "ranks": RANKS} | more))
    assert len(kept) + len(refused) == 1
    return bool(kept)


def test_a_difference_that_no_one_waits_for_is_refused():
    """All ranks wait for each other in turn: what rank 1 does otherwise costs nothing."""
    assert not holds(finding(1), [waiting(25, 30, 25, 20)])


def test_what_a_slow_rank_does_is_given_with_its_cause():
    """The call trees have explained rank 1: its functions are parts of that, and so is the same function elsewhere."""
    assert not holds(finding(1), [waiting(5, 90, 3, 2)], slow={1})
    cause = finding(1, subject="g")
    assert not holds(finding(0, 1, 2, 3, subject="g"), [waiting(5, 90, 3, 2)], slow={1}, explained=[cause])
    assert holds(finding(0, 1, 2, 3, subject="h"), [waiting(5, 90, 3, 2)], slow={1}, explained=[cause])


@pytest.mark.parametrize(("ranks", "holding"), [((0,), False), ((0, 1), True), ((0, 1, 2), False)])
def test_several_slow_ranks_share_the_blame(ranks, holding):
    """Two of four cause 85 % together; a third one next to them shows no more than chance."""
    assert holds(finding(*ranks), [waiting(45, 40, 3, 12)]) is holding


def test_what_all_do_is_nobodys_difference():
    """A function beyond its expected range on every rank stands."""
    assert holds(finding(0, 1, 2, 3), [waiting(25, 30, 25, 20)])


def test_without_shared_collectives_nothing_speaks_against_it():
    """No group, one with too few collectives, one of other ranks: the difference stands."""
    assert holds(finding(1, cause=SLOW_DEVICE), [])
    assert holds(finding(1, cause=SLOW_DEVICE), [waiting(25, 30, 25, 20, collectives=2)])
    assert holds(finding(3, cause=SLOW_DEVICE), [waiting(30, 70)])


@pytest.mark.parametrize("groups", [[], [waiting(100, 0, 0, 0)], [waiting(100, 0)]])
def test_a_host_function_of_one_of_few_ranks_is_no_difference(groups):
    """A pause of the host holds a function of one rank for as long as a fault: only its calls in each step differ."""
    assert not holds(finding(0), groups)
    assert holds(finding(0), groups, ranks=MANY)
    assert holds(finding(0, 1), [])
    assert holds(finding(0, cause=SLOW_DEVICE), groups)


def test_slow_collectives_are_evaluated_by_themselves():
    """A collective that is slow on some ranks is no behaviour of these ranks."""
    assert holds(finding(1, cause=SLOW_COLLECTIVE), [waiting(25, 30, 25, 20)])


def test_waiting_for_another_rank_is_no_slow_collective():
    """Ranks 0 and 3 stand in it until rank 1 comes; where rank 1 itself is in it, or nothing was matched, it counts."""
    group = waiting(5, 90, 3, 2, waited_ns=(100_000, 0, 100_000, 100_000))
    assert not holds(finding(0, 3, cause=SLOW_COLLECTIVE), [group])
    assert holds(finding(0, 1, cause=SLOW_COLLECTIVE), [group])
    assert holds(finding(0, 3, cause=SLOW_COLLECTIVE), [])


def test_a_collective_that_usually_takes_as_long_is_not_slow():
    """It counts where ranks of a group transmit longer than its others in most of its collectives."""
    slow = finding(1, cause=SLOW_COLLECTIVE)
    usual, late = (500_000, 501_000, 499_000, 500_000), (500_000, 800_000, 499_000, 500_000)
    assert not holds(slow, [waiting(25, 30, 25, 20, transmits_ns=(usual, late, usual))])
    assert holds(slow, [waiting(25, 30, 25, 20, transmits_ns=(late, late, usual))])


@pytest.mark.parametrize(("first_ns", "second_ns", "holding"), [(0, 0, False), (300_000, 0, True), (0, 300_000, True)])
def test_a_collective_of_several_groups_is_evaluated_in_each(first_ns, second_ns, holding):
    """Pairs of two pipeline stages: the ranks named are one of each, and no group has both."""
    pairs = [
        waiting(50, 50, transmits_ns=[(500_000, 500_000 + longer_ns)] * 3, first=first)
        for first, longer_ns in ((0, first_ns), (2, second_ns))
    ]
    slow = finding(1, 3, cause=SLOW_COLLECTIVE)
    assert holds(slow, pairs) is holding
    assert holds(slow, pairs[:1])
    alike = [waiting(50, 50, first=first, transit_ratio=0.05) for first in (0, 2)]
    assert not holds(slow, alike)


def test_trifles_are_left_out():
    """Below 1 % of the window nothing is reported, at 1 % it is."""
    assert not holds(finding(1, 2, lost_ns=9_999), [])
    assert holds(finding(1, 2, lost_ns=10_000), [])


def test_time_in_no_call_is_no_function():
    """On all ranks alike it states that stacks were not recorded; the call trees evaluate it where ranks wait for it."""
    assert not holds(finding(1, subject=OUTSIDE), [waiting(5, 90, 3, 2)])
    assert not holds(finding(0, 1, 2, 3, subject=OUTSIDE), [])
    assert holds(finding(1, subject=OUTSIDE), [], ranks=MANY)


def test_one_loss_is_given_once():
    """700 us without a computing device, of which a rule explains most: a function of 400 has no room next to it."""

    def with_loader(lost_ns):
        loader = Finding(bottleneck=IO, cause="data_processing", ranks=(1,), evidence=(), lost_ns=lost_ns)
        return MANY | {1: rank(1, loader)}

    assert holds(finding(1, lost_ns=400_000), [], ranks=with_loader(500_000))
    assert not holds(finding(1, lost_ns=400_000), [], ranks=with_loader(500_001))
    assert holds(finding(0, 1, lost_ns=400_000), [], ranks=with_loader(700_000))  # rank 0 has no loader
