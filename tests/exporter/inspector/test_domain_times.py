"""Which kind of domain a communicator is of."""

from exporter.inspector.domain_times import times_by_kind
from lockstep.contracts.domains import pack_ranks
from lockstep.contracts.messages import GroupInfo


def group(kind, *ranks):
    return GroupInfo(kind=kind, name=f"{kind}-{ranks[0]}", ranks=pack_ranks(ranks))


TENSOR, DATA = group("tp", 4, 5, 6, 7), group("dp", 1, 5, 9, 13)


def test_a_communicator_is_the_group_of_its_size_and_of_the_rank_s_place():
    """Rank 6 is third of its tensor-parallel four, second of eight data-parallel replicas."""
    replicas = group("dp", *range(2, 34, 4))
    found = times_by_kind({(4, 2): 100, (8, 1): 7, (8, 3): 1000, (64, 6): 5}, [TENSOR, replicas], 6)
    assert found == {"tp": 100, "dp": 7}


def test_groups_that_are_alike_are_none_of_both():
    """Rank 5 is second of both fours; two groups of one kind are that kind."""
    assert times_by_kind({(4, 1): 100}, [TENSOR, DATA], 5) == {}
    assert times_by_kind({(4, 1): 100}, [TENSOR, group("tp", 3, 5, 8, 9)], 5) == {"tp": 100}


def test_a_rank_in_no_such_group_has_no_time():
    """Groups of other ranks, and none at all."""
    assert times_by_kind({(4, 1): 100}, [TENSOR], 9) == {}
    assert times_by_kind({(4, 1): 100}, [], 5) == {}
    assert times_by_kind({}, [TENSOR], 5) == {}
