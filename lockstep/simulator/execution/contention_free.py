"""The contention-free timeline of a graph, and the first moment of contention.

Operations that begin before that moment are timed by the longest path; the rest is simulated (`event_simulation`).
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.execution.topological_levels import start_by_level
from lockstep.simulator.lowering.graph import COMPUTE, GRADIENT, Graph

NEVER = float("inf")
_LEVELS_FROM = 20_000
"""Number of operations from which numpy's cost per level is lower than Python's per operation."""
_ROUNDING = 1e-9
"""Relative error allowed in the sum of what a link carries."""
_Times = NDArray[np.float64]


def longest_path(graph: Graph) -> tuple[_Times, _Times, _Times]:
    """Return start and end of every operation without contention, and when its flow leaves the links."""
    alone = np.array([flow.alone for flow in graph.flows] or [np.inf])
    moving = np.where(graph.flow >= 0, graph.volume_bytes / alone[graph.flow], graph.seconds)
    after = np.where(graph.flow >= 0, graph.seconds, 0.0)
    spent = moving + after
    start = start_by_level(graph, spent) if len(graph) > _LEVELS_FROM else _one_by_one(graph, spent)
    return start, start + spent, start + moving


def _one_by_one(graph: Graph, spent: _Times) -> _Times:
    start, seconds = [0.0] * len(graph), spent.tolist()
    waiting, first, successors = graph.indegree.tolist(), graph.first_successor.tolist(), graph.successors.tolist()
    ready = np.flatnonzero(graph.indegree == 0).tolist()
    done = 0
    while ready:
        operation = ready.pop()
        done += 1
        end = start[operation] + seconds[operation]
        for successor in successors[first[operation] : first[operation + 1]]:
            if start[successor] < end:  # noqa: PLR1730 - max() costs twice as much
                start[successor] = end
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
    if done < len(graph):
        raise ConfigError(f"order of the passes: got {len(graph) - done} operations that wait for each other")
    return np.array(start)


def first_link_contention(graph: Graph, start: _Times, flow_end: _Times) -> float:
    """Return the first moment at which flows would pass more through a link than it carries.

    Up to then fair sharing gives each what it has alone: flows that fill a link alone leave nothing for a second, and
    the others are held back by themselves, not by each other.
    """
    operations = np.flatnonzero((graph.flow >= 0) & (flow_end > start))
    if not len(operations):
        return NEVER
    counts = np.array([len(flow.uses) for flow in graph.flows])
    offsets = np.concatenate(([0], np.cumsum(counts)))
    link_of_use = np.array([link for flow in graph.flows for link, _ in flow.uses], dtype=np.int64)
    share_of_use = np.array(
        [use * flow.alone / graph.capacity[link] for flow in graph.flows for link, use in flow.uses]
    )
    chosen = graph.flow[operations]
    n = counts[chosen]
    index = np.repeat(offsets[chosen] - np.cumsum(n) + n, n) + np.arange(n.sum())
    link, share = np.tile(link_of_use[index], 2), share_of_use[index]
    change = np.concatenate([-share, share])
    time = np.concatenate([np.repeat(flow_end[operations], n), np.repeat(start[operations], n)])
    order = np.argsort(time, kind="stable")  # stable: what leaves at a moment goes before what comes
    # Small numbers sort by radix.
    small = np.uint16 if len(graph.capacity) <= np.iinfo(np.uint16).max else np.int64
    order = order[np.argsort(link[order].astype(small), kind="stable")]
    # The sum goes on from link to link, each of which begins and ends empty.
    crowded = np.cumsum(change[order]) > 1 + _ROUNDING
    return float(time[order][crowded].min(initial=NEVER))


def first_compute_overlap(graph: Graph, start: _Times, end: _Times) -> float:
    """Return the first moment at which a class of ranks computes while gradients of it travel.

    Computations of a class follow each other, up to rounding errors: only pairs with a gradient are compared.
    """
    lasting = end > start
    gradients = np.flatnonzero(lasting & (graph.queue == GRADIENT))
    by_class: dict[int, list[int]] = {}
    for operation in gradients.tolist():
        for member in graph.flows[graph.flow[operation]].members:
            by_class.setdefault(member, []).append(operation)
    computing = lasting & (graph.queue == COMPUTE) & (end > start[gradients].min(initial=NEVER))
    computations = np.flatnonzero(computing)
    computations = computations[np.lexsort((end[computations], graph.owner[computations]))]
    owners = graph.owner[computations]
    first = NEVER
    for member, operations in by_class.items():
        mine = computations[owners.searchsorted(member) : owners.searchsorted(member, side="right")]
        following = end[mine].searchsorted(start[operations], side="right")  # the first not over by then
        meets = np.maximum(np.append(start[mine], NEVER)[following], start[operations])
        first = min(first, float(meets[meets < end[operations]].min(initial=NEVER)))
    return first
