"""The execution graph: every act of every class of ranks as an operation, and what must end before it begins.

An operation lies in a queue of each of its ranks and starts when all that precede it have ended; a queue's order is
made of edges too, so the executor knows no queues. Passes in which nothing can be disturbed are one operation each
(`coarse`); others are drawn act by act.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.collectives import SEND
from lockstep.simulator.fabric import Board, Flow, Phase
from lockstep.simulator.program import Act, Blocking, Compute, Program, Queued
from lockstep.simulator.schedule import BACKWARD, FORWARD

COMPUTE = 0
FEATURE = 1
GRADIENT = 2
SENDING = 3
"""Queues. Sends between stages have a channel of their own, as frameworks give them their own communicator."""

_NOTHING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks that behave alike: how many, their stage, their share of a device's speed, and the passes they make.

    `passes` has rows as `schedule.passes` returns; chunks are numbered within the stage.
    """

    number: int
    ranks: int
    stage: int
    speed: float
    passes: NDArray[np.int64]
    programs: Sequence[Program]
    update_s: float
    returns: Sequence[Queued]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where the data goes from a chunk (stage, own number) to the next, by the families of sends in both directions."""

    before: tuple[int, int]
    after: tuple[int, int]
    forward_family: int
    backward_family: int
    message_bytes: float


@dataclass(frozen=True, slots=True)
class Inside:
    """A feature within the coarse passes of a class, all its times together: seconds, and bytes of its flow."""

    rank_class: int
    flow: Flow
    seconds: float
    volume_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations as arrays of shape (operations,), their successors in CSR form, and the flows they use.

    `seconds` is the work of a computation and the latency of a communication, `volume_bytes` what a flow then moves,
    `flow` the index in `flows` or -1. `owner` is the class of ranks of a computation, -1 for communication. `inside`
    are the features within coarse passes. `bounds` gives by class the first and the last operation of each
    pass, arrays of shape (passes,).
    """

    queue: NDArray[np.int8]
    seconds: NDArray[np.float64]
    volume_bytes: NDArray[np.float64]
    flow: NDArray[np.int64]
    owner: NDArray[np.int64]
    flows: list[Flow]
    first_successor: NDArray[np.int64]
    successors: NDArray[np.int64]
    indegree: NDArray[np.int64]
    capacity: list[float]
    inside: list[Inside]
    bounds: list[tuple[NDArray[np.int64], NDArray[np.int64]]]

    def __len__(self) -> int:
        return len(self.queue)


@dataclass(slots=True)
class _Builder:
    """Operations and edges as they are drawn; arrays come at the end.

    A row holds operations drawn at once: count, queue, seconds, bytes, flow, owner. Where their times differ, `timed`
    has them by the first number. `edges` holds source and target in turn.
    """

    board: Board
    total: int = 0
    rows: list[tuple[int, int, float, float, int, int]] = field(default_factory=list)
    timed: list[tuple[int, NDArray[np.float64]]] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    runs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    seats: dict[tuple[int, int], tuple[int, int, float, float]] = field(default_factory=dict)
    shared: dict[object, int] = field(default_factory=dict)

    def add(self, queue: int, seconds: float, volume: float, flow: int, owner: int, *, count: int = 1) -> int:
        """Draw `count` equal operations; return the number of the first."""
        begin = self.total
        self.total += count
        self.rows.append((count, queue, seconds, volume, flow, owner))
        return begin

    def chain(self, first: int, count: int) -> NDArray[np.int64]:
        """Put operations drawn at once one behind the other; return their numbers."""
        drawn = np.arange(first, first + count)
        self.runs.append((drawn[:-1], drawn[1:]))
        return drawn

    def compute(self, seconds: float, owner: int) -> int:
        return self.add(COMPUTE, seconds, 0.0, _NOTHING, owner)

    def flow_number(self, family: int, group: int, kind: str, volume_bytes: float) -> int:
        flow = self.board.flow(family, group, kind, volume_bytes)
        if id(flow) not in self.numbers:  # the board makes each flow once and keeps it
            self.numbers[id(flow)] = len(self.flows)
            self.flows.append(flow)
        return self.numbers[id(flow)]

    def communicate(self, queue: int, phase: Phase, rank_class: int, key: object) -> int:
        """Return the operation of `phase` for a class's group: drawn by the first of its members to come by."""
        seat = (rank_class, id(phase))  # programs keep their phases
        if seat not in self.seats:
            group = self.board.group_of[phase.family][rank_class]
            number = self.flow_number(phase.family, group, phase.kind, phase.volume_bytes)
            flow = self.flows[number]
            self.seats[seat] = (group, number, flow.latency_s, flow.ratio * phase.volume_bytes)
        group, number, latency_s, volume_bytes = self.seats[seat]
        place = (phase.family, group, key)
        if place not in self.shared:
            self.shared[place] = self.add(queue, latency_s, volume_bytes, number, _NOTHING)
        return self.shared[place]

    def finish(self, inside: list[Inside], bounds: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Graph:
        drawn = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        source = np.concatenate([drawn[:, 0], *(run[0] for run in self.runs)])
        target = np.concatenate([drawn[:, 1], *(run[1] for run in self.runs)])
        count, queue, seconds, volume, flow, owner = (np.array(column) for column in zip(*self.rows, strict=True))
        seconds = np.repeat(seconds.astype(np.float64), count)
        for first, times in self.timed:
            seconds[first : first + len(times)] = times
        order = np.argsort(source, kind="stable")
        return Graph(
            queue=np.repeat(queue.astype(np.int8), count),
            seconds=seconds,
            volume_bytes=np.repeat(volume.astype(np.float64), count),
            flow=np.repeat(flow, count),
            owner=np.repeat(owner, count),
            flows=self.flows,
            first_successor=np.concatenate(([0], np.cumsum(np.bincount(source, minlength=self.total)))),
            successors=target[order],
            indegree=np.bincount(target, minlength=self.total),
            capacity=self.board.capacity,
            inside=inside,
            bounds=bounds,
        )


def build_graph(classes: Sequence[RankClass], boundaries: Sequence[Boundary], board: Board) -> Graph:
    """Return the graph of a step of all classes, `classes[i].number` being i."""
    builder = _Builder(board)
    private = _private_classes(classes, boundaries, board)
    inside: list[Inside] = []
    bounds = []
    for rank_class in classes:
        coarse = _coarse_passes(rank_class, private=rank_class.number in private)
        bounds.append(_Walk(builder, rank_class, inside).draw(coarse))
    for boundary in boundaries:
        _draw_sends(builder, classes, boundary, bounds)
    return builder.finish(inside, bounds)


class _Walk:
    """Draws the passes of one class in order."""

    def __init__(self, builder: _Builder, rank_class: RankClass, inside: list[Inside]) -> None:
        self.builder = builder
        self.rank_class = rank_class
        self.inside = inside
        self.before: int = _NOTHING
        self.entered: int = _NOTHING
        self.queued: int = _NOTHING
        self.waits: list[int] = []
        self.tickets: dict[int, int] = {}

    def draw(self, coarse: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw `coarse` passes as one operation each, the others act by act; return first and last of each pass."""
        passes = self.rank_class.passes
        first, last = np.empty(len(passes), dtype=np.int64), np.empty(len(passes), dtype=np.int64)
        if coarse:
            first[:coarse] = last[:coarse] = self._draw_coarse(passes[:coarse])
            self.before = int(last[coarse - 1])
        final = int(passes[:, 1].max())
        for index in range(coarse, len(passes)):
            direction, micro, chunk = (int(value) for value in passes[index])
            program = self.rank_class.programs[chunk]
            acts = program.forward if direction == FORWARD else program.last if micro == final else program.backward
            self._draw_pass(acts, (direction, micro, chunk))
            first[index], last[index] = self.entered, self.before
        self._draw_update()
        return first, last

    def _draw_coarse(self, passes: NDArray[np.int64]) -> NDArray[np.int64]:
        costs = np.empty((2, len(self.rank_class.programs)))
        number = self.rank_class.number
        for chunk, program in enumerate(self.rank_class.programs):
            for direction, acts in ((FORWARD, program.forward), (BACKWARD, program.backward)):
                costs[direction, chunk] = 0.0
                count = int(((passes[:, 0] == direction) & (passes[:, 2] == chunk)).sum())
                for act in acts:
                    if isinstance(act, Compute):
                        costs[direction, chunk] += act.seconds / self.rank_class.speed
                    elif isinstance(act, Blocking):
                        group = self.builder.board.group_of[act.phase.family][number]
                        flow = self.builder.board.flow(act.phase.family, group, act.phase.kind, act.phase.volume_bytes)
                        spent_s = flow.seconds(act.phase.volume_bytes)
                        costs[direction, chunk] += spent_s
                        volume_bytes = flow.ratio * act.phase.volume_bytes
                        self.inside.append(Inside(number, flow, spent_s * count, volume_bytes * count))
        seconds = costs[passes[:, 0], passes[:, 2]]
        first = self.builder.add(COMPUTE, 0.0, 0.0, _NOTHING, number, count=len(seconds))
        self.builder.timed.append((first, seconds))
        return self.builder.chain(first, len(seconds))

    def _draw_pass(self, acts: Iterable[Act], key: tuple[int, int, int]) -> None:
        self.entered = _NOTHING
        for position, act in enumerate(acts):
            if isinstance(act, Compute):
                seconds = act.seconds / self.rank_class.speed
                self._follow(self.builder.compute(seconds, self.rank_class.number))
            elif isinstance(act, Blocking):
                place = (*key, position)
                self._follow(self.builder.communicate(FEATURE, act.phase, self.rank_class.number, place))
            elif isinstance(act, Queued):
                self._enqueue(act, (*key, position))
            else:
                self.waits.append(self.tickets[act.ticket])
        if self.entered == _NOTHING:  # a chunk without work still passes the data on
            self._follow(self.builder.compute(0.0, self.rank_class.number))

    def _draw_update(self) -> None:
        if self.queued != _NOTHING:
            self.waits.append(self.queued)
        self._follow(self.builder.compute(self.rank_class.update_s / self.rank_class.speed, self.rank_class.number))
        for position, queued in enumerate(self.rank_class.returns):
            self._enqueue(queued, ("returns", position))

    def _follow(self, operation: int) -> None:
        """Put `operation` behind the chain and what it waits for."""
        edges = self.builder.edges
        if self.before != _NOTHING:
            edges += (self.before, operation)
        for wait in self.waits:
            edges += (wait, operation)
        self.waits.clear()
        self.before = operation
        if self.entered == _NOTHING:
            self.entered = operation

    def _enqueue(self, queued: Queued, key: tuple[object, ...]) -> None:
        for index, phase in enumerate(queued.phases):
            operation = self.builder.communicate(GRADIENT, phase, self.rank_class.number, (*key, index))
            for before in (self.queued, self.before if index == 0 else _NOTHING):
                if before != _NOTHING:
                    self.builder.edges += (before, operation)
            self.queued = operation
        if queued.ticket is not None:
            self.tickets[queued.ticket] = self.queued


def _coarse_passes(rank_class: RankClass, *, private: bool) -> int:
    """Return how many passes come before anything can disturb one: all up to the first sum of gradients."""
    if not private or any(program.queues_always for program in rank_class.programs):
        return 0
    passes = rank_class.passes
    final = passes[:, 1].max()
    for index in np.flatnonzero((passes[:, 0] == BACKWARD) & (passes[:, 1] == final)):
        if rank_class.programs[passes[index, 2]].queues_last:
            return int(index)
    return len(passes)


def _private_classes(classes: Sequence[RankClass], boundaries: Sequence[Boundary], board: Board) -> set[int]:
    """Return the classes whose features pass links that nobody else uses, in groups of their own class."""
    visitors: dict[int, set[int]] = {}
    for family in {way for b in boundaries for way in (b.forward_family, b.backward_family)}:
        for group in set(board.group_of[family].values()):
            for link in board.links_of(family, group):
                visitors.setdefault(link, set()).add(_NOTHING)
    features: dict[int, set[tuple[int, int]]] = {}
    for rank_class in classes:
        number = rank_class.number
        for family, blocking in _families(rank_class):
            group = board.group_of[family][number]
            if blocking:
                features.setdefault(number, set()).add((family, group))
            for link in board.links_of(family, group):
                visitors.setdefault(link, set()).add(number)
    return {
        rank_class.number
        for rank_class in classes
        if all(
            board.members(family, group) == (rank_class.number,)
            and all(visitors[link] == {rank_class.number} for link in board.links_of(family, group))
            for family, group in features.get(rank_class.number, ())
        )
    }


def _families(rank_class: RankClass) -> set[tuple[int, bool]]:
    """Return the families that a class takes part in, and whether its passes wait for them."""
    found: set[tuple[int, bool]] = set()
    for program in rank_class.programs:
        for act in (*program.forward, *program.last):
            if isinstance(act, Blocking):
                found.add((act.phase.family, True))
            elif isinstance(act, Queued):
                found |= {(phase.family, False) for phase in act.phases}
    return found | {(phase.family, False) for queued in rank_class.returns for phase in queued.phases}


def _draw_sends(
    builder: _Builder,
    classes: Sequence[RankClass],
    boundary: Boundary,
    bounds: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> None:
    """Draw the messages of one boundary in both directions, each channel in the order of its sender."""
    ways = (
        (FORWARD, boundary.forward_family, boundary.before, boundary.after),
        (BACKWARD, boundary.backward_family, boundary.after, boundary.before),
    )
    for direction, family, source, target in ways:
        for sender, group in builder.board.group_of[family].items():
            if classes[sender].stage != source[0]:
                continue
            receiver = builder.board.members(family, group)[1]
            sent, by_micro = _of_chunk(classes[sender], direction, source[1])
            number = builder.flow_number(family, group, SEND, boundary.message_bytes)
            flow = builder.flows[number]
            count = len(sent)
            begin = builder.add(SENDING, flow.latency_s, boundary.message_bytes, number, _NOTHING, count=count)
            drawn = builder.chain(begin, count)
            builder.runs.append((bounds[sender][1][sent], drawn))
            taken, order = _of_chunk(classes[receiver], direction, target[1])
            first = bounds[receiver][0][taken[np.argsort(order)]]
            builder.runs.append((drawn, first[by_micro]))


def _of_chunk(rank_class: RankClass, direction: int, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the passes of one chunk and direction in order, and the micro-batch of each."""
    passes = rank_class.passes
    found = np.flatnonzero((passes[:, 0] == direction) & (passes[:, 2] == chunk))
    return found, passes[found, 1]
