"""Runs an execution graph: one heap of events, links shared fairly, overlap felt by both sides.

First everything is timed as if nobody disturbed anybody, by longest path, which takes numpy no time. That is the
truth up to the first moment at which flows want more of a link than it has, or gradients travel while their rank
computes; from there on events decide (`timeline.settled` holds how many operations were never asked again). Proteus
stretches an operation as a whole where it overlaps in part; here the overlapped part is stretched.
"""

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.graph import COMPUTE, GRADIENT, Graph
from lockstep.simulator.sharing import fair_rates

_NEVER = float("inf")
_WAVES_FROM = 20_000
"""Operations from which on numpy's cost for each wave is less than Python's for each operation."""
_ROUNDING = 1e-9
"""By which share of its capacity the sum of what a link carries may be wrong."""
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
        Operations wait for each other in a circle: the order of the passes cannot be kept.
    """
    start, end, flow_end = longest_path(graph)
    disturbed = 0.0
    if not events_only:
        disturbed = min(
            _first_crowding(graph, start, flow_end) if sharing else _NEVER,
            _first_overlap(graph, start, end) if overlap_factor else _NEVER,
        )
    if disturbed == _NEVER:
        return Timeline(start, end, len(graph))
    # What has ended by then is done; the rest is numbered anew and left to events.
    alive = np.flatnonzero(~((end <= disturbed) & (start < disturbed)))
    run = _Run(_rest(graph, alive), overlap_factor, sharing=sharing)
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
    )


def longest_path(graph: Graph) -> tuple[_Times, _Times, _Times]:
    """Return start and end of every operation, and when its flow leaves the links, if nothing disturbs anything."""
    alone = np.array([flow.alone for flow in graph.flows] or [np.inf])
    moving = np.where(graph.flow >= 0, graph.volume_bytes / alone[graph.flow], graph.seconds)
    after = np.where(graph.flow >= 0, graph.seconds, 0.0)
    spent = moving + after
    start = _by_wave(graph, spent) if len(graph) > _WAVES_FROM else _one_by_one(graph, spent)
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
            start[successor] = max(start[successor], end)
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
    _check_order(graph, done)
    return np.array(start)


def _by_wave(graph: Graph, spent: _Times) -> _Times:
    """Take all operations that are ready at once: large graphs are wide."""
    start = np.zeros(len(graph))
    waiting, first, successors = graph.indegree.copy(), graph.first_successor, graph.successors
    counts, numbers = np.diff(first), np.arange(len(successors))
    mark = np.empty(len(graph), dtype=np.int64)
    ready = np.flatnonzero(waiting == 0)
    done = 0
    while len(ready):
        done += len(ready)
        n_edges = counts[ready]
        ends = n_edges.cumsum()
        # The edges of all ready operations, one after the other.
        targets = successors[(first[ready] - ends + n_edges).repeat(n_edges) + numbers[: ends[-1]]]
        np.maximum.at(start, targets, (start[ready] + spent[ready]).repeat(n_edges))
        np.subtract.at(waiting, targets, 1)
        found = targets[waiting[targets] == 0]
        mark[found] = numbers[: len(found)]  # of an operation that is there twice, the last stays
        ready = found[mark[found] == numbers[: len(found)]]
    _check_order(graph, done)
    return start


def _check_order(graph: Graph, done: int) -> None:
    if done < len(graph):
        raise ConfigError(f"order of the passes: got {len(graph) - done} operations that wait for each other")


def _first_crowding(graph: Graph, start: _Times, flow_end: _Times) -> float:
    """Return the first moment at which flows would pass more through a link than it carries.

    Up to then fair sharing gives each what it has alone: flows that fill a link alone leave nothing for a second, and
    the others are held back by themselves, not by each other.
    """
    operations = np.flatnonzero((graph.flow >= 0) & (flow_end > start))
    if not len(operations):
        return _NEVER
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
    return float(time[order][crowded].min(initial=_NEVER))


def _first_overlap(graph: Graph, start: _Times, end: _Times) -> float:
    """Return the first moment at which a class of ranks computes while gradients of it travel."""
    computing = graph.queue == COMPUTE
    first = _NEVER
    gradients = np.flatnonzero(graph.queue == GRADIENT)
    by_class: dict[int, list[int]] = {}
    for operation in gradients:
        for member in graph.flows[graph.flow[operation]].members:
            by_class.setdefault(member, []).append(int(operation))
    for member, operations in by_class.items():
        mine = np.concatenate([np.flatnonzero(computing & (graph.owner == member)), operations])
        first = min(first, _first_in_common(np.zeros(len(mine)), start[mine], end[mine]))
    return first


def _first_in_common(place: NDArray[np.generic], start: _Times, end: _Times) -> float:
    """Return the first moment at which two of the intervals of one place overlap."""
    lasting = end > start
    place, start, end = place[lasting], start[lasting], end[lasting]
    order = np.lexsort((start, place))
    place, start, end = place[order], start[order], end[order]
    # Where intervals of a place overlap at all, the first that do are neighbours by start.
    meets = (place[1:] == place[:-1]) & (start[1:] < end[:-1])
    return float(start[1:][meets].min(initial=_NEVER))


class _Run:
    """The state of an event-driven run.

    Rates are shares of undisturbed speed for computation, bytes a second for flows. `left` is the work that an
    operation had at `since`, in seconds or bytes; an event is void once its operation's `version` has moved on. `fair`
    keeps by the numbers of flows that share what each of them gets: the same meet again for every bucket.
    """

    def __init__(self, graph: Graph, overlap_factor: float, *, sharing: bool) -> None:
        count = len(graph)
        self.graph = graph
        self.slow = 1.0 / (1.0 + overlap_factor)
        self.sharing = sharing
        self.queue = graph.queue.tolist()
        self.number = graph.flow.tolist()
        self.flow = [graph.flows[number] if number >= 0 else None for number in self.number]
        self.owner = graph.owner.tolist()
        self.latency = graph.seconds.tolist()
        self.volume = graph.volume_bytes.tolist()
        self.first = graph.first_successor.tolist()
        self.successors = graph.successors.tolist()
        self.waiting = graph.indegree.tolist()
        self.left = [0.0] * count
        self.since = [0.0] * count
        self.rate = [0.0] * count
        self.base = [0.0] * count
        self.version = [0] * count
        self.start = [0.0] * count
        self.end = [0.0] * count
        self.events: list[tuple[float, int, int, bool]] = []
        self.on_link: dict[int, set[int]] = {}
        self.computing: dict[int, int] = {}
        self.travelling: dict[int, set[int]] = {}
        self.moving: set[int] = set()
        self.fair: dict[tuple[int, ...], dict[int, float]] = {}

    def resume(self, start: _Times, end: _Times, flow_end: _Times, now: float) -> tuple[_Times, _Times]:
        """Take over at `now` operations that may have begun but not ended; return when they did."""
        self.start, self.end = start.tolist(), end.tolist()
        begun = start < now
        moving = begun & ((flow_end > now) | (self.graph.flow < 0))
        for operation in np.flatnonzero(begun & ~moving).tolist():
            self._latent(operation)
            self.events.append((float(end[operation]), operation, 0, True))
        for operation in np.flatnonzero(moving).tolist():
            self._enter(operation, now, float(flow_end[operation]) - now)
        for operation in np.flatnonzero(~begun & (self.graph.indegree == 0)).tolist():
            self._begin(operation, now)
        heapify(self.events)
        self._drain()
        return np.array(self.start), np.array(self.end)

    def _drain(self) -> None:
        while self.events:
            now, operation, version, complete = heappop(self.events)
            if complete:
                self._complete(operation, now)
            elif version == self.version[operation] and operation in self.moving:
                self._leave(operation, now)

    def _begin(self, operation: int, now: float) -> None:
        self.start[operation] = now
        flow = self.flow[operation]
        volume = self.latency[operation] if flow is None else self.volume[operation] / flow.alone
        self._enter(operation, now, volume)

    def _enter(self, operation: int, now: float, left_s: float) -> None:
        """Put an operation to work that would take `left_s` undisturbed."""
        self.since[operation] = now
        self.moving.add(operation)
        flow = self.flow[operation]
        if flow is None:
            member = self.owner[operation]
            self.computing[member] = operation
            self.left[operation], self.base[operation] = left_s, 1.0
            beside = self.travelling.get(member)
            if not beside:
                self.rate[operation] = 1.0
                heappush(self.events, (now + left_s, operation, self.version[operation], False))
                return
            self._rerate(operation, now)
            for other in beside:
                self._rerate(other, now)
            return
        self.left[operation], self.base[operation] = left_s * flow.alone, flow.alone
        met = False
        for link, _ in flow.uses:
            users = self.on_link.setdefault(link, set())
            met = met or bool(users)
            users.add(operation)
        self._latent(operation)
        if met and self.sharing:
            self._share(operation, now)
        self._rerate(operation, now)
        if self.queue[operation] == GRADIENT:
            for member in flow.members:
                if member in self.computing:
                    self._rerate(self.computing[member], now)

    def _latent(self, operation: int) -> None:
        """Count a gradient as travelling with each of its classes."""
        flow = self.flow[operation]
        if self.queue[operation] == GRADIENT and flow is not None:
            for member in flow.members:
                self.travelling.setdefault(member, set()).add(operation)

    def _leave(self, operation: int, now: float) -> None:
        """Take an operation whose work is done off its links, or off its device."""
        flow = self.flow[operation]
        self.moving.discard(operation)
        if flow is None:
            self._complete(operation, now)
            return
        met: set[int] = set()
        for link, _ in flow.uses:
            self.on_link[link].discard(operation)
            met |= self.on_link[link]
        if met and self.sharing:
            self._share_among(self._connected(met), now)
        if self.latency[operation]:
            heappush(self.events, (now + self.latency[operation], operation, 0, True))
        else:
            self._complete(operation, now)

    def _complete(self, operation: int, now: float) -> None:
        self.end[operation] = now
        flow = self.flow[operation]
        if flow is None:
            member = self.owner[operation]
            del self.computing[member]
            for other in self.travelling.get(member, ()):
                self._rerate(other, now)
        elif self.queue[operation] == GRADIENT:
            for member in flow.members:
                self.travelling[member].discard(operation)
                if member in self.computing:
                    self._rerate(self.computing[member], now)
        for successor in self.successors[self.first[operation] : self.first[operation + 1]]:
            self.waiting[successor] -= 1
            if self.waiting[successor] == 0:
                self._begin(successor, now)

    def _share(self, operation: int, now: float) -> None:
        self._share_among(self._connected({operation}), now)

    def _connected(self, operations: set[int]) -> list[int]:
        """Return all flows that share links with these, directly or through others."""
        found, fresh = set(operations), list(operations)
        while fresh:
            flow = self.flow[fresh.pop()]
            assert flow is not None
            for link, _ in flow.uses:
                new = self.on_link[link] - found
                found |= new
                fresh += new
        return sorted(found)

    def _share_among(self, operations: list[int], now: float) -> None:
        numbers = [self.number[operation] for operation in operations]
        together = tuple(sorted(numbers))
        if together not in self.fair:
            flows = self.graph.flows
            rates = fair_rates([flows[number] for number in together], self.graph.capacity)
            self.fair[together] = dict(zip(together, rates, strict=True))
        fair = self.fair[together]
        for operation, number in zip(operations, numbers, strict=True):
            rate = fair[number]
            if rate != self.base[operation]:
                self.base[operation] = rate
                self._rerate(operation, now)

    def _rerate(self, operation: int, now: float) -> None:
        """Account for the work done so far, and foretell the end at the rate from now on."""
        if operation not in self.moving:
            return  # only its latency is left
        flow = self.flow[operation]
        if flow is None:
            disturbed = bool(self.travelling.get(self.owner[operation]))
        else:
            disturbed = self.queue[operation] == GRADIENT and any(m in self.computing for m in flow.members)
        rate = self.base[operation] * (self.slow if disturbed else 1.0)
        if rate == self.rate[operation]:
            return  # it ends when it was to end
        self.left[operation] = max(0.0, self.left[operation] - self.rate[operation] * (now - self.since[operation]))
        self.since[operation] = now
        self.rate[operation] = rate
        self.version[operation] += 1
        heappush(self.events, (now + self.left[operation] / rate, operation, self.version[operation], False))
