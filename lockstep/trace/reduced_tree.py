"""Reduces a call tree to the nodes with most work, and the communication below them.

Ranks are compared by their work, i.e. a call's time outside communication. Frames that only lead to a collective have
none, and FSDP or a functional collective has thirty of them, which would displace the calls that differ. So
communication becomes a callee of the nearest remaining caller.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from lockstep.contracts.messages import CallNode
from lockstep.trace.names import COMMUNICATION_KIND
from lockstep.trace.tree import ROOT


def work_ns(nodes: Sequence[CallNode]) -> list[int]:
    """Return each node's total outside communication, ns: 0 for communication and what it calls.

    A caller's work is never below its callee's.
    """
    is_inside: list[bool] = []
    for node in nodes:
        is_inside.append(node.kind == COMMUNICATION_KIND or (node.parent != ROOT and is_inside[node.parent]))
    stands_ns = [0] * len(nodes)
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        stands_ns[index] = node.total_ns if is_inside[index] else stands_ns[index]
        if node.parent != ROOT:
            stands_ns[node.parent] += stands_ns[index]
    return [node.total_ns - ns for node, ns in zip(nodes, stands_ns, strict=True)]


def reduced(nodes: Sequence[CallNode], kept: Collection[int], *, least_ns: float = 0) -> list[CallNode]:
    """Return the nodes at `kept`, and communication of at least `least_ns` below the nearest of them, one of a name.

    The time of other nodes stays in their callers' self time.
    """
    place: list[int] = []
    made: list[CallNode] = []
    communication: dict[tuple[int, str], int] = {}
    for index, node in enumerate(nodes):
        above = place[node.parent] if node.parent != ROOT else ROOT
        is_communication = node.kind == COMMUNICATION_KIND
        at = communication.setdefault((above, node.name), len(made)) if is_communication else len(made)
        if at < len(made):
            made[at] = _joined(made[at], node)
        elif is_communication or index in kept:
            made.append(replace(node, parent=above))
        else:
            at = above
        place.append(at)
    return _only(
        made, [at for at, node in enumerate(made) if node.kind != COMMUNICATION_KIND or node.total_ns >= least_ns]
    )


def largest_nodes(nodes: list[CallNode], count: int) -> list[CallNode]:
    """Return at most `count` nodes: communication, and of the others those with most work, callers before callees."""
    if count >= len(nodes):
        return nodes
    works_ns = work_ns(nodes)
    calls = [index for index, node in enumerate(nodes) if node.kind != COMMUNICATION_KIND]
    calls.sort(key=lambda index: (-works_ns[index], index))
    found = reduced(nodes, set(calls[: max(count - len(nodes) + len(calls), 0)]))
    return _only(found, range(min(count, len(found))))


def _joined(one: CallNode, other: CallNode) -> CallNode:
    return replace(
        one,
        total_ns=one.total_ns + other.total_ns,
        count=one.count + other.count,
        by_step_ns=[sum(each) for each in zip(one.by_step_ns, other.by_step_ns, strict=True)],
    )


def _only(nodes: Sequence[CallNode], chosen: Sequence[int]) -> list[CallNode]:
    """Return some nodes, each with all its callers, with what their callees leave of them."""
    place = {index: at for at, index in enumerate(chosen)}
    self_ns = [nodes[index].total_ns for index in chosen]
    for index in chosen:
        if nodes[index].parent != ROOT:
            self_ns[place[nodes[index].parent]] -= nodes[index].total_ns
    return [
        replace(nodes[index], parent=place.get(nodes[index].parent, ROOT), self_ns=self_ns[at])
        for at, index in enumerate(chosen)
    ]
