"""Records of whole nodes are moved together, and end where each by itself would."""

import numpy as np
import pytest

from coordinator.intake.seats import Seats, joined, nodes_of, seats_of

RANKS = 32


def of_nodes(*nodes):
    """Return the columns of the ranks of some nodes, node after node."""
    return (np.array(nodes)[:, None] * 8 + np.arange(8)).reshape(-1)


def test_whole_nodes_are_known_in_any_order():
    """Every eight records are a node's, and the job is made of such nodes."""
    assert seats_of(of_nodes(3, 0, 2), RANKS).node_G.tolist() == [3, 0, 2]


@pytest.mark.parametrize(
    ("column", "ranks"),
    [
        (of_nodes(1)[:7], RANKS),  # a record is missing
        (of_nodes(1)[::-1], RANKS),  # another order
        (of_nodes(1, 2) + 4, RANKS),  # shifted by half a node
        (np.r_[of_nodes(1)[:4], of_nodes(2)[:4]], RANKS),  # halves of two nodes
        (np.r_[of_nodes(1)[:7], 16], RANKS),  # one of another node
        (np.zeros(8, dtype=np.intp), RANKS),  # one rank eight times
        (of_nodes(1), RANKS + 1),  # nodes do not divide the job
        (of_nodes(1)[:0], RANKS),  # nobody
    ],
)
def test_anything_else_is_moved_one_by_one(column, ranks):
    """Each of these looks like nodes in one way and is none."""
    assert seats_of(column, ranks).node_G is None


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.float32, np.bool_])
def test_both_ways_of_moving_agree(dtype):
    """Reading, writing values, writing one value for all; the second record of a rank is the one that stays."""
    column = of_nodes(2, 0, 2)
    held = (np.arange(RANKS) % 3).astype(dtype)
    came = (np.arange(len(column)) % 5).astype(dtype)
    for values in (came, 1):
        ends = [held.copy(), held.copy()]
        for end, seats in zip(ends, (seats_of(column, RANKS), Seats(column)), strict=True):
            assert seats.of(held).tolist() == held[column].tolist()
            seats.put(end, values)
        assert ends[0].tolist() == ends[1].tolist() != held.tolist()


def test_a_rank_with_two_records_is_seen():
    """Also where both are part of whole nodes."""
    for column, expected in ((of_nodes(2, 0), True), (of_nodes(2, 0, 2), False)):
        assert seats_of(column, RANKS).are_unique(RANKS) is expected
        assert Seats(column).are_unique(RANKS) is expected


def test_seats_are_joined_as_nodes_only_if_all_are():
    """One part that is none makes all of them columns."""
    whole, half = seats_of(of_nodes(1), RANKS), seats_of(of_nodes(2)[:4], RANKS)
    assert joined([whole, whole]).node_G.tolist() == [1, 1]
    assert nodes_of([whole, half]) is None
    assert joined([whole, half]).column.tolist() == [*of_nodes(1), 16, 17, 18, 19]
