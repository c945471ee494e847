"""The execution graph: every act of every class of ranks as an operation, and what must end before it begins.

An operation lies in a queue of each of its ranks and starts when all that precede it have ended; a queue's order is
made of edges too, so the executor knows no queues. Passes in which nothing can be disturbed are few operations each
(`coarse`); others are drawn act by act.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.coarse import Inside, Outline, Script, coarse_passes, outline, undisturbed_sets
from lockstep.simulator.collectives import SEND
from lockstep.simulator.fabric import Board, Flow, Phase
from lockstep.simulator.program import Act, Blocking, Compute, Queued, RankClass
from lockstep.simulator.schedule import BACKWARD, FORWARD

COMPUTE = 0
FEATURE = 1
GRADIENT = 2
SENDING = 3
"""Queues. Sends between stages have a channel of their own, as frameworks give them their own communicator."""

_NOTHING = -1
_Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The first and the last operation of each pass."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where the data goes from a chunk (stage, own number) to the next, by the families of sends in both directions."""

    before: tuple[int, int]
    after: tuple[int, int]
    forward_family: int
    backward_family: int
    message_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations as arrays of shape (operations,), their successors in CSR form, and the flows they use.

    `seconds` is the work of a computation and the latency of a communication, `volume_bytes` what a flow then moves,
    `flow` the index in `flows` or -1. `owner` is the class of ranks of a computation, a number behind those of all
    classes where several have it together, -1 for communication. `inside` tells the acts within operations that stand
    for several. `bounds` gives by class the first and the last operation of each
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
    bounds: list[_Bounds]

    def __len__(self) -> int:
        return len(self.queue)


@dataclass(slots=True)
class _Builder:
    """Operations and edges as they are drawn; arrays come at the end.

    A row holds operations drawn at once: count, queue, seconds, bytes, flow, owner. `edges` holds source and target in
    turn, `runs` arrays of both.
    """

    board: Board
    total: int = 0
    rows: list[tuple[int, int, float, float, int, int]] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    runs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    seats: dict[tuple[int, int], tuple[int, int, float, float]] = field(default_factory=dict)
    shared: dict[object, int] = field(default_factory=dict)
    scripts: dict[int, Script] = field(default_factory=dict)

    def add(self, queue: int, seconds: float, volume: float, flow: int, owner: int, *, count: int = 1) -> int:
        """Draw `count` equal operations; return the number of the first."""
        begin = self.total
        self.total += count
        self.rows.append((count, queue, seconds, volume, flow, owner))
        return begin

    def script(self, acts: Sequence[Act]) -> Script:
        """Return the script of acts; stages that are alike have one program."""
        if id(acts) not in self.scripts:
            self.scripts[id(acts)] = Script.of(acts)
        return self.scripts[id(acts)]

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

    def finish(self, inside: list[Inside], bounds: list[_Bounds]) -> Graph:
        drawn = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        source = np.concatenate([drawn[:, 0], *(run[0] for run in self.runs)])
        target = np.concatenate([drawn[:, 1], *(run[1] for run in self.runs)])
        count, queue, seconds, volume, flow, owner = (np.array(column) for column in zip(*self.rows, strict=True))
        order = np.argsort(source, kind="stable")
        return Graph(
            queue=np.repeat(queue.astype(np.int8), count),
            seconds=np.repeat(seconds.astype(np.float64), count),
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


def build_graph(
    classes: Sequence[RankClass], boundaries: Sequence[Boundary], board: Board, *, coarse: bool = True
) -> Graph:
    """Return the graph of a step of all classes, `classes[i].number` being i; without `coarse`, act by act."""
    builder = _Builder(board)
    sending = {way for each in boundaries for way in (each.forward_family, each.backward_family)}
    sets = undisturbed_sets(classes, sending, board) if coarse else []
    begun: dict[int, _Bounds] = {}
    inside: list[Inside] = []
    for index, members in enumerate(sets):
        together = _Together(builder, [classes[number] for number in members], len(classes) + index)
        begun.update(zip(members, together.draw(inside), strict=True))
    bounds = [_Walk(builder, rank_class).draw(begun.get(rank_class.number)) for rank_class in classes]
    for boundary in boundaries:
        _draw_sends(builder, classes, boundary, bounds)
    return builder.finish(inside, bounds)


class _Together:
    """Draws the first passes of a set of classes, in which nothing can disturb them; `owner` is the set's number."""

    def __init__(self, builder: _Builder, members: Sequence[RankClass], owner: int) -> None:
        self.builder = builder
        self.members = members
        self.owner = owner
        self.passes = members[0].passes[: coarse_passes(members[0])]
        shape = (len(members), len(self.passes))
        self.first, self.last = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)

    def draw(self, inside: list[Inside]) -> list[_Bounds]:
        """Draw the passes, tell what is inside them, and return by class the first and last of each."""
        for chunk, program in enumerate(self.members[0].programs):
            for direction, acts in ((FORWARD, program.forward), (BACKWARD, program.backward)):
                of_kind = (self.passes[:, 0] == direction) & (self.passes[:, 2] == chunk)
                if of_kind.any():
                    inside += self._draw_kind(acts, np.flatnonzero(of_kind))
        for first, last in zip(self.first, self.last, strict=True):
            self.builder.runs.append((last[:-1], first[1:]))
        return list(zip(self.first, self.last, strict=True))

    def _draw_kind(self, acts: Sequence[Act], passes: NDArray[np.int64]) -> Iterator[Inside]:
        """Draw all passes of one chunk and direction."""
        script, board, one = self.builder.script(acts), self.builder.board, self.members[0].number
        flows = tuple(
            board.flow(phase.family, board.group_of[phase.family][one], phase.kind, phase.volume_bytes)
            for phase in script.phases
        )
        features_s = [flow.seconds(phase.volume_bytes) for flow, phase in zip(flows, script.phases, strict=True)]
        drawn = outline(script, [member.speed for member in self.members], features_s)
        shared = None
        if drawn.together_s is not None:
            shared = self._add(drawn.together_s, self.owner, len(passes))
        for index, member in enumerate(self.members):
            whole = self._draw_member(drawn, index, passes, shared)
            if script.phases:
                yield Inside(
                    rank_class=member.number,
                    passes=passes,
                    operations=whole,
                    begin_s=drawn.begin_s[index],
                    seconds=drawn.seconds[index],
                    feature=script.feature[drawn.first : drawn.behind],
                    flows=flows,
                    volumes_bytes=tuple(f.ratio * p.volume_bytes for f, p in zip(flows, script.phases, strict=True)),
                    busy_s=drawn.busy_s[index],
                    is_shared=shared is not None,
                    carries=index == 0,
                )

    def _draw_member(
        self, drawn: Outline, index: int, passes: NDArray[np.int64], shared: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """Draw what one class does by itself before and after `shared`; return the operations of several acts."""
        number = self.members[index].number
        row = [] if shared is None else [shared]
        if shared is None or drawn.head_s[index]:
            row.insert(0, self._add(drawn.head_s[index], number, len(passes)))
        if drawn.tail_s[index]:
            row.append(self._add(drawn.tail_s[index], number, len(passes)))
        self.first[index, passes], self.last[index, passes] = row[0], row[-1]
        self.builder.runs += pairwise(row)
        return row[0] if shared is None else shared

    def _add(self, seconds: float, owner: int, count: int) -> NDArray[np.int64]:
        first = self.builder.add(COMPUTE, seconds, 0.0, _NOTHING, owner, count=count)
        return np.arange(first, first + count)


class _Walk:
    """Draws the passes of one class in order."""

    def __init__(self, builder: _Builder, rank_class: RankClass) -> None:
        self.builder = builder
        self.rank_class = rank_class
        self.before: int = _NOTHING
        self.entered: int = _NOTHING
        self.queued: int = _NOTHING
        self.waits: list[int] = []
        self.tickets: dict[int, int] = {}

    def draw(self, begun: _Bounds | None) -> _Bounds:
        """Draw the passes that are not `begun` act by act; return the first and last operation of every pass."""
        passes = self.rank_class.passes
        first, last = np.empty(len(passes), dtype=np.int64), np.empty(len(passes), dtype=np.int64)
        coarse = 0
        if begun is not None and len(begun[0]):
            coarse = len(begun[0])
            first[:coarse], last[:coarse] = begun
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


def _draw_sends(
    builder: _Builder,
    classes: Sequence[RankClass],
    boundary: Boundary,
    bounds: list[_Bounds],
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
