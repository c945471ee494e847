"""Runs an execution graph: the longest path while it is exact, then event simulation.

First all operations are timed without contention (`contention_free`). That is exact up to the first moment at which
flows exceed the capacity of a link, or gradients are in transit while their rank computes; from there on events decide
(`event_simulation`; `timeline.settled` counts the operations that were not simulated). Proteus stretches an operation
as a whole if it overlaps partly; here only the overlapping part is stretched.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.execution.contention_free import (
    NEVER,
    first_compute_overlap,
    first_link_contention,
    longest_path,
)
from lockstep.simulator.execution.event_simulation import ExecutionState
from lockstep.simulator.lowering.graph import Graph

_Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each operation began and ended, in seconds: arrays of shape (operations,).

    `settled` operations began before anything was disturbed.
    """

    start: _Times
    end: _Times
    settled: int

    @property
    def step_s(self) -> float:
        """The end of the last operation."""
        return float(self.end.max(initial=0.0))


def execute(graph: Graph, *, overlap_factor: float = 0.0, sharing: bool = True, events_only: bool = False) -> Timeline:
    """Return the timeline of `graph`.

    `overlap_factor` is Proteus's gamma; without `sharing` every flow has its links to itself. `events_only` leaves the
    longest path out, for comparison.

    Raises
    ------
    ConfigError
        Operations wait for each other in a cycle: the order of the passes cannot be kept.
    """
    start, end, flow_end = longest_path(graph)
    disturbed = 0.0
    if not events_only:
        disturbed = min(
            first_link_contention(graph, start, flow_end) if sharing else NEVER,
            first_compute_overlap(graph, start, end) if overlap_factor else NEVER,
        )
    if disturbed == NEVER:
        return Timeline(start, end, len(graph))
    # What has ended by then is done; the rest gets new numbers and is left to events.
    alive = np.flatnonzero(~((end <= disturbed) & (start < disturbed)))
    run = ExecutionState(_rest(graph, alive), overlap_factor, sharing=sharing)
    start[alive], end[alive] = run.resume(start[alive], end[alive], flow_end[alive], disturbed)
    return Timeline(start, end, int((start < disturbed).sum()))


def _rest(graph: Graph, alive: NDArray[np.int64]) -> Graph:
    """Return the graph of the operations `alive`, whose successors all are."""
    number = np.full(len(graph), -1)
    number[alive] = np.arange(len(alive))
    source = np.repeat(np.arange(len(graph)), np.diff(graph.first_successor))
    kept = number[source] >= 0
    source, target = number[source[kept]], number[graph.successors[kept]]
    return replace(
        graph,
        queue=graph.queue[alive],
        seconds=graph.seconds[alive],
        volume_bytes=graph.volume_bytes[alive],
        flow=graph.flow[alive],
        owner=graph.owner[alive],
        first_successor=np.concatenate(([0], np.cumsum(np.bincount(source, minlength=len(alive))))),
        successors=target,
        indegree=np.bincount(target, minlength=len(alive)),
        rows=np.arange(len(alive)),
    )
