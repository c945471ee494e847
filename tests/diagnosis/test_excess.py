from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.diagnosis.excess import Scope, compare, counted_totals, paths
from tests.diagnosis.summaries import summary

_ALL = Scope()


def _walked(tree, excess_ms):
    return [tree.nodes[index].name for index in tree.walk(excess_ms * 1e6)]


def test_waiting_of_the_peers_does_not_hide_the_excess():
    """Ranks that end a step together have equal totals at the root; the walk still goes where the suspect works."""
    slow = summary(2, ("main", 0, ("forward", 5, ("slow", 30)), ("backward", 10)))
    peer = summary(1, ("main", 0, ("forward", 5), ("backward", 40)))
    tree = compare(slow, [peer], _ALL)
    assert tree.own_ns[0] == tree.peers_ns[0]
    assert _walked(tree, 30) == ["main", "forward", "slow"]
    assert tree.explained_ns == 30e6


@pytest.mark.parametrize(("part_ms", "expected"), [(18.0, ["main", "f", "a"]), (17.9, ["main", "f"])])
def test_walk_stops_where_no_callee_holds_most(part_ms, expected):
    """A callee is entered at 60 % of the excess and not just below."""
    slow = summary(2, ("main", 0, ("f", 0, ("a", part_ms), ("b", 30 - part_ms))))
    assert _walked(compare(slow, [summary(1, ("main", 0))], _ALL), 30) == expected


def test_noise_over_many_nodes_does_not_hide_the_one():
    """Ten callees that are each 2 ms slower by chance do not outweigh one that is 30 ms slower."""
    noise = [(f"n{i}", 7) for i in range(10)]
    slow = summary(2, ("main", 0, ("f", 40), *noise))
    peer = summary(1, ("main", 0, ("f", 10), *[(f"n{i}", 5) for i in range(10)]))
    tree = compare(slow, [peer], _ALL)
    assert tree.explained_ns == 50e6
    assert _walked(tree, 30) == ["main", "f"]
    assert _walked(tree, 0) == ["main", "f"]


def test_one_odd_peer_does_not_decide():
    """The yardstick is the peers' median."""
    slow = summary(2, ("main", 0, ("f", 30), ("g", 5)))
    normal, odd = summary(1, ("main", 0, ("f", 3), ("g", 5))), summary(3, ("main", 0, ("f", 90), ("g", 0)))
    tree = compare(slow, [normal, odd, replace(normal, rank=4)], _ALL)
    assert tree.peers_ns == [8e6, 3e6, 5e6]
    assert _walked(tree, 27) == ["main", "f"]


def test_captures_of_different_length_compare_by_step():
    """A peer captured over more steps is not slower for it."""
    slow = summary(2, ("main", 0, ("f", 30)))
    peer = replace(summary(1, ("main", 0, ("f", 30))), steps=4)
    assert compare(slow, [peer], _ALL).peers_ns == [15e6, 15e6]


def test_scopes_take_and_leave():
    """`only` counts subtrees of a kind wherever they hang, `without` takes them out of everything above."""
    one = summary(
        2, ("main", 1, ("load", 2, ("enumerate(DataLoader)#X", 4, ("read", 8))), ("f", 16, ("Python GC", 32)))
    )
    step = [total / 2e6 for total in counted_totals(one.tree, Scope(only=frozenset({"data"})))]
    assert step == [12, 12, 12, 8, 0, 0]
    step = [total / 2e6 for total in counted_totals(one.tree, Scope(without=frozenset({"data", "gc"})))]
    assert step == [19, 2, 0, 8, 16, 0]
    step = [total / 2e6 for total in counted_totals(one.tree, Scope(named=frozenset({"f"})))]
    assert step == [48, 0, 0, 0, 48, 32]


def test_paths_distinguish_callers():
    """The same name under two callers is two paths."""
    one = summary(0, ("a", 1, ("x", 1)), ("b", 1, ("x", 1)))
    assert len(set(paths(one.tree))) == 4


_MS = st.integers(0, 50)


@given(own=st.lists(_MS, min_size=3, max_size=3), peers=st.lists(st.lists(_MS, min_size=3, max_size=3), min_size=1))
def test_held_is_never_less_than_the_difference_nor_negative(own, peers):
    """What a node holds bounds its own excess and its children's from above, in any order of the peers."""

    def build(rank, times):
        return summary(rank, ("main", times[0], ("f", times[1], ("g", times[2]))))

    others = [build(rank, times) for rank, times in enumerate(peers)]
    tree = compare(build(99, own), others, _ALL)
    for index, held in enumerate(tree.held_ns):
        assert held >= max(0, tree.own_ns[index] - tree.peers_ns[index])
        assert held >= sum(tree.held_ns[child] for child in tree.children.get(index, []))
    assert compare(build(99, own), others[::-1], _ALL).held_ns == tree.held_ns
