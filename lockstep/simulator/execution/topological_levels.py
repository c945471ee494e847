"""The longest path through a large graph: all operations that are ready at once, level by level."""

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.lowering.graph import Graph

_Times = NDArray[np.float64]


def start_by_level(graph: Graph, spent: _Times) -> _Times:
    """Return when each operation starts that takes `spent` seconds, arrays of shape (operations,).

    Raises
    ------
    ConfigError
        Operations wait for each other in a circle.
    """
    start: _Times = np.zeros(len(graph))
    waiting = graph.indegree.copy()
    edges = np.diff(graph.first_successor)
    numbers = np.arange(len(graph.successors))
    mark = np.empty(len(graph), dtype=np.int64)
    ready = np.flatnonzero(waiting == 0)
    done = 0
    while len(ready):
        done += len(ready)
        counts = edges[ready]
        ends = counts.cumsum()
        # The edges of all ready operations, one after the other.
        place = (graph.first_successor[ready] - ends + counts).repeat(counts) + numbers[: ends[-1]]
        targets = graph.successors[place]
        np.maximum.at(start, targets, (start[ready] + spent[ready]).repeat(counts))
        np.subtract.at(waiting, targets, 1)
        found = targets[waiting[targets] == 0]
        mark[found] = numbers[: len(found)]  # of an operation that is there twice, the last stays
        ready = found[mark[found] == numbers[: len(found)]]
    if done < len(graph):
        raise ConfigError(f"order of the passes: got {len(graph) - done} operations that wait for each other")
    return start
