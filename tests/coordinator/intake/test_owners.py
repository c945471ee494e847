"""Records of ranks that belong to other nodes are found at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coordinator.intake.owners import Owners
from coordinator.intake.topology import Membership
from tests.coordinator.conftest import START_UNIX_S, announce

NODES = ["n0", "n1", "stranger"]


def foreign(owners, *sent):
    """Return which records are foreign; each batch is its node and its ranks."""
    ranks = np.array([rank for _, own in sent for rank in own], dtype=np.int64)
    return owners.foreign([node for node, _ in sent], [len(own) for _, own in sent], ranks).tolist()


def test_records_of_another_nodes_rank_are_foreign():
    """A node's own ranks are not, nor are ranks without an owner or outside of every world: those are refused elsewhere."""
    membership = Membership()
    membership.apply_announcement(announce(0, 1, world=8), START_UNIX_S)
    membership.apply_announcement(announce(2, 3, world=8, node="n1"), START_UNIX_S)
    owners = membership.owners
    assert foreign(owners, ("n0", [0, 1]), ("n1", [2, 3])) == [False] * 4
    assert foreign(owners, ("n0", [0, 2]), ("n1", [1]), ("stranger", [3])) == [False, True, True, True]
    assert foreign(owners, ("n0", [7, 8, -1, 1 << 40, -(1 << 63)])) == [False] * 5
    assert foreign(owners, ("n0", [])) == []
    assert foreign(owners) == []


def test_the_owner_of_a_moved_rank_is_the_new_one():
    """A restart elsewhere makes the new node's records its own, and those of the old node foreign."""
    membership = Membership()
    membership.apply_announcement(announce(0, 1), START_UNIX_S)
    membership.apply_announcement(announce(0, node="n1", heartbeat_s=START_UNIX_S + 100), START_UNIX_S + 100)
    assert foreign(membership.owners, ("n0", [0, 1]), ("n1", [0, 1])) == [True, False, False, True]


def test_a_world_without_a_shape_owns_nothing():
    """No array is made for a world that too few ranks vouch for."""
    membership = Membership()
    membership.apply_announcement(announce(0, world=1 << 20), START_UNIX_S)
    assert foreign(membership.owners, ("stranger", [0])) == [False]


@given(
    owned=st.dictionaries(st.integers(0, 9), st.sampled_from(NODES[:2])),
    sent=st.lists(st.tuples(st.sampled_from(NODES), st.lists(st.integers(-2, 12)))),
    world=st.integers(0, 10),
)
def test_the_array_is_what_a_look_up_of_each_record_is(owned, sent, world):
    """Any owners, any batches."""
    owners = Owners()
    owners.resize(world, owned)
    inside = {rank: node for rank, node in owned.items() if rank < world}
    assert foreign(owners, *sent) == [inside.get(rank, node) != node for node, ranks in sent for rank in ranks]
