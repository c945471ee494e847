"""Event-driven simulation of operations: one heap, fair sharing of links, overlap that slows down both sides.

Rates are shares of contention-free speed for computation, bytes per second for flows. The remaining work of an
operation is stored as of the moment `since` at which its rate last changed, in seconds or bytes; an event is void once
its operation's `version` has changed.
"""

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.execution.sharing import FlowRates
from lockstep.simulator.lowering.graph import GRADIENT, Graph

_Times = NDArray[np.float64]
_ENDS = -1
"""In place of a version: the operation ends at this time unconditionally."""


class ExecutionState:
    """The state of an event-driven run, to be resumed once."""

    def __init__(self, graph: Graph, overlap_factor: float, *, sharing: bool) -> None:
        count = len(graph)
        self.graph = graph
        self.slow = 1.0 / (1.0 + overlap_factor)
        self.overlaps = overlap_factor > 0
        self.flow_rates = FlowRates(graph.flows, graph.capacity) if sharing else None
        self.fair = self.flow_rates.rates if self.flow_rates else [flow.alone for flow in graph.flows]
        self.members = [flow.members for flow in graph.flows]
        self.is_gradient = (graph.queue == GRADIENT).tolist()
        self.flow = graph.flow.tolist()
        self.owner = graph.owner.tolist()
        self.latency = graph.seconds.tolist()
        self.volume = graph.volume_bytes.tolist()
        self.first = graph.first_successor.tolist()
        self.successors = graph.successors.tolist()
        self.waiting = graph.indegree.tolist()
        self.left = [0.0] * count
        self.since = [0.0] * count
        self.rate = [0.0] * count
        self.version = [0] * count
        self.start = [0.0] * count
        self.end = [0.0] * count
        self.events: list[tuple[float, int, int]] = []
        self.moving = bytearray(count)
        self.running: list[list[int]] = [[] for _ in graph.flows]
        self.computing: dict[int, int] = {}
        self.travelling: dict[int, set[int]] = {}

    def resume(self, start: _Times, end: _Times, flow_end: _Times, now: float) -> tuple[_Times, _Times]:
        """Take over, at `now`, the operations that may have begun but not ended; return their times."""
        self.start, self.end = start.tolist(), end.tolist()
        begun = start < now
        moving = begun & ((flow_end > now) | (self.graph.flow < 0))
        for operation in np.flatnonzero(begun & ~moving).tolist():
            self._travel(operation)
            self.events.append((self.end[operation], operation, _ENDS))
        for operation in np.flatnonzero(moving).tolist():
            left_s = float(flow_end[operation]) - now
            if self.flow[operation] < 0:
                self._compute(operation, now, left_s)
            else:
                self._move(operation, now, left_s * self.graph.flows[self.flow[operation]].alone)
        for operation in np.flatnonzero(~begun & (self.graph.indegree == 0)).tolist():
            self.start[operation] = now
            if self.flow[operation] < 0:
                self._compute(operation, now, self.latency[operation])
            else:
                self._move(operation, now, self.volume[operation])
        heapify(self.events)
        self._drain()
        return np.array(self.start), np.array(self.end)

    def _drain(self) -> None:
        # One loop without calls for operations without contention, and for computing as far as possible: it takes most
        # of benchmarks/simulator_cost.py's time.
        events, versions, end, start, flow = self.events, self.version, self.end, self.start, self.flow
        waiting, first, successors, seconds = self.waiting, self.first, self.successors, self.latency
        moving, overlaps, is_gradient, volume = self.moving, self.overlaps, self.is_gradient, self.volume
        while events:
            now, operation, version = heappop(events)
            number = flow[operation]
            if version != _ENDS:
                if version != versions[operation] or (number >= 0 and not self._leave(operation, now)):
                    continue
                moving[operation] = False
            end[operation] = now
            if overlaps and (number < 0 or is_gradient[operation]):
                self._release(operation, now)
            for successor in successors[first[operation] : first[operation + 1]]:
                waiting[successor] -= 1
                if waiting[successor]:
                    continue
                start[successor] = now
                if flow[successor] >= 0:
                    self._move(successor, now, volume[successor])
                elif overlaps:
                    self._compute(successor, now, seconds[successor])
                else:
                    heappush(events, (now + seconds[successor], successor, _ENDS))

    def _compute(self, operation: int, now: float, left_s: float) -> None:
        """Start a computation that takes `left_s` without contention."""
        if not self.overlaps:
            heappush(self.events, (now + left_s, operation, _ENDS))
            return
        member = self.owner[operation]
        self.computing[member] = operation
        travelling = self.travelling.get(member)
        self._enter(operation, now, left_s, self.slow if travelling else 1.0)
        for other in travelling or ():
            self._rerate(other, now)

    def _move(self, operation: int, now: float, left_bytes: float) -> None:
        """Put a flow with `left_bytes` left on its links."""
        number = self.flow[operation]
        if self.flow_rates is not None:
            for changed in self.flow_rates.enter(number):
                for other in self.running[changed]:
                    self._rerate(other, now)
        self.running[number].append(operation)
        rate = self.fair[number]
        met: list[int] = []
        if self.overlaps and self.is_gradient[operation]:
            self._travel(operation)
            met = [self.computing[member] for member in self.members[number] if member in self.computing]
        self._enter(operation, now, left_bytes, rate * self.slow if met else rate)
        for other in met:
            self._rerate(other, now)

    def _enter(self, operation: int, now: float, left: float, rate: float) -> None:
        """Let an operation move at `rate`, with `left` of it to do, and predict its end."""
        self.left[operation], self.since[operation], self.moving[operation] = left, now, True
        self.rate[operation] = rate
        self.version[operation] = version = self.version[operation] + 1
        heappush(self.events, (now + left / rate, operation, version))

    def _travel(self, operation: int) -> None:
        """Count a gradient as in transit for each of its classes."""
        if self.overlaps and self.is_gradient[operation]:
            for member in self.members[self.flow[operation]]:
                self.travelling.setdefault(member, set()).add(operation)

    def _leave(self, operation: int, now: float) -> bool:
        """Take a flow off its links; return whether it has ended, which it has not while its latency is left."""
        number = self.flow[operation]
        self.moving[operation] = False
        self.running[number].remove(operation)
        self.version[operation] += 1
        if self.flow_rates is not None:
            for changed in self.flow_rates.leave(number):
                for other in self.running[changed]:
                    self._rerate(other, now)
        if self.latency[operation]:
            heappush(self.events, (now + self.latency[operation], operation, _ENDS))
            return False
        return True

    def _release(self, operation: int, now: float) -> None:
        """Restore the rates of operations that were slowed down by this computation or gradient."""
        number = self.flow[operation]
        if number < 0:
            del self.computing[self.owner[operation]]
            for other in self.travelling.get(self.owner[operation], ()):
                self._rerate(other, now)
            return
        for member in self.members[number]:
            self.travelling[member].discard(operation)
            if member in self.computing:
                self._rerate(self.computing[member], now)

    def _rerate(self, operation: int, now: float) -> None:
        """Account for the work done so far, and predict the end at the present rate."""
        if not self.moving[operation]:
            return  # only its latency is left
        number = self.flow[operation]
        rate = 1.0 if number < 0 else self.fair[number]
        if self.overlaps and self._is_disturbed(operation, number):
            rate *= self.slow
        before = self.rate[operation]
        if rate == before:
            return  # it ends when it was to end
        left = self.left[operation] - before * (now - self.since[operation]) if before else self.left[operation]
        self.left[operation] = left = max(left, 0.0)
        self.since[operation], self.rate[operation] = now, rate
        self.version[operation] += 1
        heappush(self.events, (now + left / rate, operation, self.version[operation]))

    def _is_disturbed(self, operation: int, number: int) -> bool:
        if number < 0:
            return bool(self.travelling.get(self.owner[operation]))
        return self.is_gradient[operation] and any(member in self.computing for member in self.members[number])
