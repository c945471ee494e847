"""Groups of a run, each once: identity, limits, and what is unpacked of them."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from coordinator.intake.groups import MEMBERS_PER_RANK_MAX, NO_GROUP, SPANS_MIN, SPANS_PER_RANK_MAX, GroupTable
from lockstep.contracts.domains import Domain
from lockstep.contracts.messages import GroupInfo


def group(*spans, kind="dp", name="dp0"):
    return GroupInfo(kind=kind, name=name, ranks=[list(span) for span in spans])


def replaced(table, former, *groups, world=8, ranks=8):
    return table.replace(former, groups, world_size=world, rank_count=ranks, where="test")


def test_a_group_is_known_by_kind_name_and_ranks():
    """Nodes that announce the same group share one entry; one that differs in anything is another."""
    table = GroupTable()
    first = replaced(table, (), group((0, 8, 1)))
    assert replaced(table, (), group((0, 8, 1))) == first
    others = [group((0, 8, 2)), group((0, 8, 1), name="dp1"), group((0, 8, 1), kind="tp")]
    ids = replaced(table, (), *others)
    assert len({*first, *ids}) == 4
    assert len(table) == 4
    assert table.domain(first[0], 8) == Domain("dp", "dp0", tuple(range(8)))


def test_ids_stand_in_the_order_announced():
    """Issues name a group by its place; one of an unknown kind or without ranks has a place and no id."""
    table = GroupTable()
    ids = replaced(table, (), group((0, 2, 1), kind="later"), group((0, 4, 1)), group(), group((4, 8, 1)))
    assert [group_id == NO_GROUP for group_id in ids] == [True, False, True, False]
    assert [table.domain(group_id, 8).ranks for group_id in ids[1::2]] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_group_goes_with_the_last_node_that_announced_it():
    """Its id is given to no other one, so that what was measured in it is not taken for another group's."""
    table = GroupTable()
    first = replaced(table, (), group((0, 8, 1)))
    second = replaced(table, (), group((0, 8, 1)))
    revision = table.revision
    assert replaced(table, first) == ()
    assert (len(table), table.revision) == (1, revision)
    replaced(table, second)
    assert (len(table), table.domain(first[0], 8)) == (0, None)
    assert table.revision > revision
    assert replaced(table, (), group((0, 8, 1))) != first


def test_groups_outside_of_the_world_are_not_unpacked():
    """The node's ranks may announce a million; what the run has is what counts, and costs memory."""
    table = GroupTable()
    ids = replaced(table, (), group((0, 1 << 20, 1)), world=1 << 20)
    tracemalloc.start()
    try:
        assert table.domain(ids[0], 8) is None
        assert table.domains(8) == []
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_ranks_are_unpacked_once():
    """All who ask get the same object."""
    table = GroupTable()
    ids = replaced(table, (), group((0, 8, 1)))
    assert table.domains(8)[0] is table.domain(ids[0], 8)


def test_the_least_name_stands_for_groups_of_the_same_ranks():
    """Whichever node announces first: the name does not depend on the order of nodes."""
    for names in (["b", "a", "c"], ["c", "b", "a"]):
        table = GroupTable()
        for name in names:
            replaced(table, (), group((0, 8, 1), name=name))
        assert table.domains(8) == [Domain("dp", "a", tuple(range(8)))]


def test_ranges_are_limited_by_how_many_ranks_announce_them():
    """What does not fit gets no place; it fits when more ranks are there, or when others have gone."""
    table = GroupTable()
    many = [[3 * n, 3 * n + 1, 1] for n in range(SPANS_MIN)]
    first = replaced(table, (), group(*many), world=1 << 17, ranks=1)
    assert first != (NO_GROUP,)
    assert replaced(table, (), group((0, 8, 1)), world=1 << 17, ranks=1) == (NO_GROUP,)
    assert replaced(table, (), group((0, 8, 1)), world=1 << 17, ranks=SPANS_MIN // SPANS_PER_RANK_MAX + 1) == (1,)
    replaced(table, first, world=1 << 17, ranks=1)
    assert replaced(table, (), group((0, 8, 2)), world=1 << 17, ranks=1) == (2,)


def test_a_node_that_invents_groups_keeps_no_real_one_out():
    """Five hundred groups of nearly everybody by one node: those of all nodes come first, and the memory has its limit."""
    world, nodes = 64, 8
    table = GroupTable()
    invented = [group((first, last, 1), kind="cp", name="x") for first in range(20) for last in range(40, 65)]
    replaced(table, (), *invented, world=world, ranks=world)
    for node in range(nodes):
        own = group((8 * node, 8 * node + 8, 1), kind="tp", name=f"tp{node}")
        replaced(table, (), group((0, 64, 1), kind="world", name="all"), own, world=world, ranks=world)
    domains = table.domains(world)
    assert sum(domain.kind == "tp" for domain in domains) == nodes
    assert sum(domain.kind == "world" for domain in domains) == 1
    assert MEMBERS_PER_RANK_MAX * world * 0.9 < sum(len(d.ranks) for d in domains) <= MEMBERS_PER_RANK_MAX * world


few_groups = st.lists(
    st.builds(
        lambda first, last, kind, name: group((first, first + last, 1), kind=kind, name=name),
        st.integers(0, 3), st.integers(1, 4), st.sampled_from(["dp", "tp", "later"]), st.sampled_from("ab"),
    ),
    max_size=4,
)  # fmt: skip


@given(announced=st.lists(st.tuples(st.integers(0, 2), few_groups), max_size=20))
def test_the_table_holds_what_is_announced_at_present(announced):
    """Whatever nodes announce and withdraw, repeated groups of one announcement included."""
    table, ids_of, groups_of = GroupTable(), {}, {}
    for node, groups in announced:
        ids_of[node] = replaced(table, ids_of.get(node, ()), *groups)
        groups_of[node] = groups
    known = {(g.kind, g.name, str(g.ranks)) for groups in groups_of.values() for g in groups if g.kind != "later"}
    assert len(table) == len(known)
    for node, groups in groups_of.items():
        for each, group_id in zip(groups, ids_of[node], strict=True):
            domain = table.domain(group_id, 8)
            assert (domain is None) == (each.kind == "later")
            assert domain is None or (domain.kind, domain.name) == (each.kind, each.name)
