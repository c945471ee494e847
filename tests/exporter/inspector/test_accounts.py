"""Sums by rank, communicator and operation, and who arrived last."""

import random

import pytest

from exporter.inspector.accounts import MEMBERSHIPS_MAX, PENDING_MAX, CollectiveTotals, InspectorAccounts
from exporter.inspector.lines import parse_line
from lockstep.contracts.inspector_metrics import PLACES_MAX
from tests.exporter.inspector.inspected import line

RUN = "job"


def add(accounts: InspectorAccounts, rank: int, **values: object) -> None:
    one = parse_line(line(rank, **values))
    assert one is not None
    accounts.add((RUN, rank), one)


def totals(accounts: InspectorAccounts, rank: int, place: tuple[str, str] = ("dp", "AllReduce")) -> CollectiveTotals:
    return accounts.views()[RUN, rank][place]


@pytest.mark.parametrize("seed", range(3))
def test_the_rank_with_the_shortest_kernel_arrived_last(seed: int):
    """Rank 2 comes 400 µs late to each of 50 collectives, whose lines come in any order."""
    accounts, chance = InspectorAccounts(), random.Random(seed)
    lines = [(rank, number) for number in range(50) for rank in range(4)]
    chance.shuffle(lines)
    for rank, number in lines:
        add(accounts, rank, sequence=number, time_us=100 if rank == 2 else 500 + chance.randrange(20))
    assert [totals(accounts, rank).arrivals for rank in range(4)] == [0, 0, 50, 0]
    assert totals(accounts, 2).arrival_wait_ns == pytest.approx(50 * 410_000, rel=0.02)
    assert [totals(accounts, rank).count for rank in range(4)] == [50] * 4


def test_ranks_that_arrive_together_name_no_one():
    """A link that is slow makes all kernels long: no rank is late."""
    accounts, chance = InspectorAccounts(), random.Random(0)
    for number in range(50):
        for rank in range(4):
            add(accounts, rank, sequence=number, time_us=5000 + chance.randrange(50))
    assert not any(totals(accounts, rank).arrivals for rank in range(4))


def test_communicators_are_apart():
    """The same sequence number in two communicators, and of two operations in one."""
    accounts = InspectorAccounts()
    for rank in range(4):
        late = {0: 100, 1: 900, 2: 900, 3: 900}
        add(accounts, rank, communicator="a", name="tp", time_us=late[rank])
        add(accounts, rank, communicator="b", time_us=late[3 - rank])
        add(accounts, rank, communicator="b", operation="AllGather", time_us=900)
    assert totals(accounts, 0, ("tp", "AllReduce")).arrivals == 1
    assert totals(accounts, 3).arrivals == 1
    assert totals(accounts, 3, ("dp", "AllGather")).arrivals == 0


def test_names_and_memory_are_bounded():
    """Communicators without end share one label; collectives that never become complete leave, the oldest first."""
    accounts = InspectorAccounts()
    for number in range(3 * PLACES_MAX):
        add(accounts, 0, communicator=str(number), name=f"group {number}")
    places = accounts.views()[RUN, 0]
    assert len(places) == PLACES_MAX
    assert sum(each.count for each in places.values()) == 3 * PLACES_MAX
    for number in range(PENDING_MAX + 10):
        add(accounts, 0, sequence=number, communicator="c", name="dp")
    assert len(accounts._pending) == PENDING_MAX


def test_a_communicator_without_a_name_is_called_by_its_size():
    """What a name must not do to a label either."""
    accounts = InspectorAccounts()
    for name in ("", "unknown", "bad\nname"):
        add(accounts, 0, name=name)
    assert set(accounts.views()[RUN, 0]) == {("4 ranks on 1 nodes", "AllReduce")}


def test_time_in_collectives_by_size_and_place():
    """All operations of a communicator together, without those of two ranks; bounded, and gone with the rank."""
    accounts = InspectorAccounts()
    for operation in ("AllReduce", "AllGather", "Send"):
        add(accounts, 1, operation=operation, time_us=100)
    add(accounts, 1, ranks=8, time_us=7)
    assert accounts.times_ns() == {(RUN, 1): {(4, 1): 200_000, (8, 1): 7_000}}
    for ranks in range(2, 2 * MEMBERSHIPS_MAX):
        add(accounts, 1, ranks=ranks)
    assert len(accounts.times_ns()[RUN, 1]) == MEMBERSHIPS_MAX
    accounts.forget_others(set())
    assert accounts.times_ns() == {}
