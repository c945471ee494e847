import random

import pytest

from lockstep.contracts.messages import CallNode
from lockstep.trace.names import COMMUNICATION_KIND, OPERATOR_KIND, PYTHON_KIND
from lockstep.trace.reduced_tree import largest_nodes, reduced, work_ns
from lockstep.trace.tree import ROOT


def _node(name, parent, by_step_ns, kind=PYTHON_KIND):
    total_ns = sum(by_step_ns)
    return CallNode(
        parent=parent, name=name, kind=kind, total_ns=total_ns, self_ns=0, count=1, by_step_ns=list(by_step_ns)
    )


TREE = [
    _node("step", ROOT, (100, 100)),
    _node("forward", 0, (40, 50)),
    _node("gather", 1, (20, 25)),
    _node("wait", 2, (15, 20), COMMUNICATION_KIND),
    _node("copy", 3, (5, 5), OPERATOR_KIND),
    _node("backward", 0, (50, 40)),
    _node("scatter", 5, (30, 20)),
    _node("wait", 6, (30, 20), COMMUNICATION_KIND),
    _node("wait", 5, (1, 1), COMMUNICATION_KIND),
]


def test_work_is_what_communication_leaves():
    """What a collective calls is communication as well."""
    assert work_ns(TREE) == [113, 55, 10, 0, 0, 38, 0, 0, 0]


def test_communication_of_one_name_joins_below_the_nearest_kept_caller():
    """Times by step are summed; what is left out stays in its caller's self time."""
    found = reduced(TREE, {0, 1, 5}, least_ns=10)
    assert [(each.name, each.parent, each.total_ns, each.self_ns, each.count) for each in found] == [
        ("step", ROOT, 200, 20, 1),
        ("forward", 0, 90, 55, 1),
        ("wait", 1, 35, 35, 1),
        ("backward", 0, 90, 38, 1),
        ("wait", 3, 52, 52, 2),
    ]
    assert found[4].by_step_ns == [31, 21]


def test_little_communication_is_left_out():
    """Below the least it is its caller's, with all callees."""
    assert [each.name for each in reduced(TREE, {0}, least_ns=88)] == ["step"]


@pytest.mark.parametrize("seed", range(20))
def test_fewer_nodes_have_the_work_of_before(seed):
    """Whatever is cut: callers come first, totals sum up, and no node's work changes while all communication stays."""
    drawn = random.Random(seed)
    nodes = [_node("root", ROOT, (0, 0))]
    for _ in range(40):
        parent = drawn.randrange(len(nodes))
        kind = drawn.choice((PYTHON_KIND, OPERATOR_KIND, COMMUNICATION_KIND))
        nodes.append(_node(f"{drawn.randrange(8)}", parent, (0, 0), kind))
    totals = [[drawn.randrange(100) for _ in range(2)] for _ in nodes]
    for index in reversed(range(1, len(nodes))):
        for step in range(2):
            totals[nodes[index].parent][step] += totals[index][step]
    nodes = [_node(each.name, each.parent, total, each.kind) for each, total in zip(nodes, totals, strict=True)]
    works_ns = work_ns(nodes)
    for count in (30, 20, 10, 3, 1, 0):
        found = largest_nodes(nodes, count)
        assert len(found) <= count
        for index, node in enumerate(found):
            assert node.parent < index
            below_ns = sum(each.total_ns for each in found if each.parent == index)
            assert node.total_ns == node.self_ns + below_ns == sum(node.by_step_ns)
            assert node.self_ns >= 0
    chosen = {0, *drawn.sample(range(len(nodes)), 10)}
    kept = [works_ns[index] for index in sorted(chosen) if nodes[index].kind != COMMUNICATION_KIND]
    found = reduced(nodes, chosen)
    assert [ns for each, ns in zip(found, work_ns(found), strict=True) if each.kind != COMMUNICATION_KIND] == kept
