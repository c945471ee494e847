"""Localisation's answer held against who is waited for."""

import numpy as np
import pytest

from lockstep.analysis.confirm import confirm
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.finding import CPU, Finding
from lockstep.diagnosis.localisation.findings import SLOW_COLLECTIVE, SLOW_FUNCTION
from lockstep.trace.patterns.pattern import OUTSIDE

WINDOWS_NS = dict.fromkeys(range(4), 1_000_000)


def finding(*ranks, cause=SLOW_FUNCTION, subject="f", lost_ns=100_000):
    return Finding(bottleneck=CPU, cause=cause, ranks=ranks, evidence=(), subject=subject, lost_ns=lost_ns)


def waiting(*caused_ns, collectives=10):
    count = len(caused_ns)
    zeros = np.zeros(count)
    return GroupWaiting(
        group=("0", tuple(range(count))),
        ranks=tuple(range(count)),
        collectives=collectives,
        compute_ratio=0.4,
        elapsed_ratio=0.4,
        transit_ratio=float("nan"),
        waited_ns=zeros,
        caused_ns=np.array(caused_ns, np.float64),
        lost_ns=zeros,
        last=np.zeros(count, np.int64),
        duration_ns=zeros,
        is_whole=True,
    )


def holds(found, groups, **more):
    kept, refused = confirm([found], groups, **({"slow": (), "windows_ns": WINDOWS_NS} | more))
    assert len(kept) + len(refused) == 1
    return bool(kept)


def test_a_difference_that_nobody_waits_for_is_refused():
    """All ranks wait for each other in turn: what rank 1 does otherwise costs nothing."""
    assert not holds(finding(1), [waiting(25, 30, 25, 20)])


def test_who_is_named_as_slow_counts():
    """The rule of waiting has named rank 1: its function is the cause."""
    assert holds(finding(1), [waiting(25, 30, 25, 20)], slow={1})


@pytest.mark.parametrize(("ranks", "holding"), [((0,), False), ((0, 1), True), ((0, 1, 2), False)])
def test_several_slow_ranks_share_the_blame(ranks, holding):
    """Two of four cause 85 % together; a third one beside them says no more than chance."""
    assert holds(finding(*ranks), [waiting(45, 40, 3, 12)]) is holding


def test_what_all_do_is_nobodys_difference():
    """A function beyond its expected range on every rank stands."""
    assert holds(finding(0, 1, 2, 3), [waiting(25, 30, 25, 20)])


def test_without_shared_collectives_nothing_speaks_against_it():
    """No group, one with too few collectives, one of other ranks: the difference stands."""
    assert holds(finding(1), [])
    assert holds(finding(1), [waiting(25, 30, 25, 20, collectives=2)])
    assert holds(finding(3), [waiting(30, 70)])


def test_slow_collectives_are_judged_by_themselves():
    """A collective that is slow on some ranks is no behaviour of these ranks."""
    assert holds(finding(1, cause=SLOW_COLLECTIVE), [waiting(25, 30, 25, 20)])


def test_waiting_for_a_slow_rank_is_no_slow_collective():
    """Ranks 0 and 3 stand in it until rank 1 comes; where rank 1 itself is in it, or in another group, it counts."""
    group = waiting(5, 90, 3, 2)
    assert not holds(finding(0, 3, cause=SLOW_COLLECTIVE), [group], slow={1})
    assert holds(finding(0, 1, cause=SLOW_COLLECTIVE), [group], slow={1})
    assert holds(finding(0, 3, cause=SLOW_COLLECTIVE), [group], slow={7})


def test_trifles_are_left_out():
    """Below 1 % of the window nothing is told, at 1 % it is."""
    assert not holds(finding(1, lost_ns=9_999), [])
    assert holds(finding(1, lost_ns=10_000), [])


def test_time_in_no_call_is_no_function():
    """On all ranks alike it says that stacks were not recorded; on one rank alone it is a difference."""
    assert not holds(finding(0, 1, 2, 3, subject=OUTSIDE), [])
    assert holds(finding(1, subject=OUTSIDE), [])


def test_what_another_rule_explains_is_told_once():
    """The loader's own rule has named the loader: localisation does not repeat it."""
    assert confirm([finding(1)], [], slow=(), windows_ns=WINDOWS_NS, explained={"f"}) == ([], [])
