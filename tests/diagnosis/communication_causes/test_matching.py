"""Collectives of several ranks side by side."""

import numpy as np

from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.trace.columns import ABSENT
from tests.diagnosis.communication_causes.made import DP, WALL_NS, rank_of

NO = [ABSENT]


def spans(count, *, first=0, every=100, lasting=10):
    return [(first + at * every, lasting) for at in range(count)]


def test_numbers_match_whatever_the_order():
    """Captures that begin apart meet by number; what only one rank has is left out and counted."""
    table = match_collectives([rank_of(1, spans(3), numbers=[5, 6, 7]), rank_of(0, spans(3), numbers=[6, 7, 8])])
    assert table.ranks == (0, 1)
    assert len(table) == 2
    assert (table.start_ns - WALL_NS).tolist() == [[0, 100], [100, 200]]
    assert table.left_out == {DP: 2}


def test_a_number_that_repeats_is_counted():
    """Coalesced collectives share a number: the second meets the second."""
    table = match_collectives([rank_of(0, spans(3), numbers=[5, 5, 6]), rank_of(1, spans(3), numbers=[5, 5, 6])])
    assert (table.start_ns - WALL_NS).tolist() == [[0, 0], [100, 100], [200, 200]]


def test_order_matches_equal_captures():
    """Without numbers, equal sequences of kinds and sizes are the same collectives."""
    sizes = [4, 8, 4, 8]
    parts = [rank_of(rank, spans(4), sizes=sizes, numbers=NO * 4, shared=False) for rank in range(3)]
    table = match_collectives(parts)
    assert len(table) == 4
    assert table.bytes.tolist() == sizes
    assert table.present.all()


def test_a_capture_that_begins_later_is_shifted():
    """Sizes show where the shorter capture lies in the longer one."""
    long = rank_of(0, spans(6), sizes=[1, 2, 3, 4, 5, 6], numbers=NO * 6, shared=False)
    short = rank_of(1, spans(3), sizes=[3, 4, 5], numbers=NO * 3, shared=False)
    table = match_collectives([long, short])
    assert (table.start_ns - WALL_NS).tolist() == [[200, 0], [300, 100], [400, 200]]
    assert table.left_out == {DP: 3}


def test_a_common_clock_finds_the_shift_that_sizes_leave_open():
    """Of all shifts that fit, the one where all leave together."""
    early = rank_of(0, spans(6), numbers=NO * 6)
    late = rank_of(1, spans(5, first=203), numbers=NO * 5)
    table = match_collectives([early, late])
    assert table.clock_is_shared
    assert (table.start_ns - WALL_NS).tolist() == [[200, 203], [300, 303], [400, 403], [500, 503]]


def test_without_a_clock_an_open_shift_leaves_the_group_out():
    """Equal sizes and unequal counts: several shifts fit, so nothing is matched."""
    table = match_collectives(
        [rank_of(0, spans(6), numbers=NO * 6, shared=False), rank_of(1, spans(5), numbers=NO * 5, shared=False)]
    )
    assert len(table) == 0
    assert table.left_out == {DP: 11}


def test_orders_that_disagree_leave_the_group_out():
    """Another order of sizes is not the same work."""
    table = match_collectives(
        [
            rank_of(0, spans(4), sizes=[1, 2, 3, 4], numbers=NO * 4),
            rank_of(1, spans(4), sizes=[4, 3, 2, 1], numbers=NO * 4),
        ]
    )
    assert len(table) == 0


def test_groups_stay_apart_and_sends_are_left_out():
    """Tensor and data parallel groups have their own numbers; a rank outside a group is absent in its rows."""
    tp, dp = ("tp", (0, 1)), ("dp", (0, 2))
    kinds = ["all_reduce", "all_reduce", "send"]
    parts = [
        rank_of(0, spans(3), groups=[tp, dp, dp], kinds=kinds, numbers=[0, 0, 1]),
        rank_of(1, spans(1), groups=[tp], numbers=[0]),
        rank_of(2, spans(2), groups=[dp, dp], kinds=["all_reduce", "send"], numbers=[0, 1]),
    ]
    table = match_collectives(parts)
    assert table.groups == [tp, dp]
    assert table.present.tolist() == [[True, True, False], [True, False, True]]
    assert table.size.tolist() == [2, 2]
    assert table.rows_of(dp).tolist() == [1]


def test_clocks_of_two_hosts_are_not_one():
    """Wall clocks of two machines differ by more than a collective lasts."""
    one, two = rank_of(0, spans(2), host="a"), rank_of(1, spans(2), host="b")
    assert not match_collectives([one, two]).clock_is_shared
    assert not match_collectives([rank_of(0, spans(2), host=""), rank_of(1, spans(2), host="")]).clock_is_shared


def test_one_rank_or_none_shares_nothing():
    """The table is empty, with its shape."""
    for parts in ([], [rank_of(0, spans(2))]):
        table = match_collectives(parts)
        assert len(table) == 0
        assert table.start_ns.shape == (0, len(parts))


def test_the_order_of_ranks_does_not_matter():
    """Columns are by rank, rows by time."""
    rng = np.random.default_rng(3)
    parts = [rank_of(rank, [(int(at), 5) for at in np.sort(rng.integers(0, 999, 9))]) for rank in range(4)]
    one, two = match_collectives(parts), match_collectives(parts[::-1])
    assert (one.start_ns == two.start_ns).all()
