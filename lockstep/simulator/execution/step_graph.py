"""Builds the graph of a step: passes that nothing can disturb as few operations each (`coarse`), others op by op."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.execution.graph_builder import GraphBuilder
from lockstep.simulator.hardware.collectives import SEND
from lockstep.simulator.lowering.coarse import Inside, Outline, coarse_passes, contention_free_sets, outline
from lockstep.simulator.lowering.graph import SENDING, Boundary, Bounds, Graph
from lockstep.simulator.lowering.link_model import LinkModel, Phase
from lockstep.simulator.lowering.ops import NOTHING, Compute, Pass, PassTemplate, Queued
from lockstep.simulator.lowering.program import RankClass
from lockstep.simulator.strategy.schedule import BACKWARD, FORWARD

_Places = NDArray[np.int64]
_RETURNS = "returns"
_outline = lru_cache(maxsize=512)(outline)
"""Sets of equal speeds share their outlines, and alternatives their scripts, which plans keep."""


def build_graph(
    classes: Sequence[RankClass],
    boundaries: Sequence[Boundary],
    link_model: LinkModel,
    *,
    coarse: bool = True,
    overlap_sends: bool = True,
) -> Graph:
    """Return the graph of a step of all classes, `classes[i].number` being i; without `coarse`, op by op.

    Without `overlap_sends` a stage begins no pass before the message of the one before has been sent.
    """
    step_graph = _StepGraph(classes, GraphBuilder(link_model))
    sending = {way for each in boundaries for way in (each.forward_family, each.backward_family)}
    sets = contention_free_sets(classes, sending, link_model) if coarse else []
    begun: dict[int, Bounds] = {}
    inside: list[Inside] = []
    for index, members in enumerate(sets):
        together = _Together(step_graph, [classes[number] for number in members], len(classes) + index)
        begun.update(zip(members, together.draw(inside), strict=True))
    bounds = [_Walk(step_graph, rank_class).draw(begun.get(rank_class.number)) for rank_class in classes]
    for boundary in boundaries:
        step_graph.draw_sends(boundary, bounds, overlap=overlap_sends)
    return step_graph.builder.finish(inside, bounds)


class _StepGraph:
    """The builder, and what classes that are alike have in common."""

    def __init__(self, classes: Sequence[RankClass], builder: GraphBuilder) -> None:
        self.classes = classes
        self.builder = builder
        self._updates: dict[tuple[tuple[Queued, ...], float], PassTemplate] = {}
        self._coarse: dict[int, int] = {}
        self._chosen: dict[tuple[int, int, int], tuple[_Places, _Places, _Places]] = {}

    def update(self, rank_class: RankClass) -> PassTemplate:
        """Return the optimizer's step, with the weights that return afterwards, as a pass."""
        returns = tuple(self._returns(rank_class))
        key = (returns, rank_class.update_s)
        if key not in self._updates:
            self._updates[key] = PassTemplate.of([Compute(rank_class.update_s), *returns])
        return self._updates[key]

    def _returns(self, rank_class: RankClass) -> Iterator[Queued]:
        """Yield the gathers of updated weights, without the share that the next step's first forward pass hides.

        That is counted at a device's full speed, so that all classes of a group have the same.
        """
        overlap_s = rank_class.overlap_returns_s
        if not overlap_s:
            yield from rank_class.returns
            return
        link_model = self.builder.link_model
        for queued in rank_class.returns:
            phases = []
            for phase in queued.phases:
                group = link_model.group_of[phase.group_set][rank_class.number]
                seconds = link_model.flow(phase.group_set, group, phase.kind, phase.volume_bytes).seconds(
                    phase.volume_bytes
                )
                shown = max(0.0, 1 - overlap_s / seconds)
                overlap_s = max(0.0, overlap_s - seconds)
                if shown:
                    phases.append(Phase(phase.kind, phase.group_set, phase.volume_bytes * shown))
            if phases:
                yield Queued(tuple(phases), queued.ticket)

    def coarse_passes(self, rank_class: RankClass) -> int:
        """Return how many passes of a class nothing can disturb; classes of a stage have the same."""
        if rank_class.stage not in self._coarse:
            self._coarse[rank_class.stage] = coarse_passes(rank_class)
        return self._coarse[rank_class.stage]

    def chosen(self, rank_class: RankClass, direction: int, chunk: int) -> tuple[_Places, _Places, _Places]:
        """Return the passes of one chunk and direction in order, the micro-batch of each, and them by micro-batch."""
        key = (rank_class.stage, direction, chunk)
        if key not in self._chosen:
            passes = rank_class.passes
            found = np.flatnonzero((passes[:, 0] == direction) & (passes[:, 2] == chunk))
            micro = passes[found, 1]
            self._chosen[key] = (found, micro, found[np.argsort(micro)])
        return self._chosen[key]

    def draw_sends(self, boundary: Boundary, bounds: list[Bounds], *, overlap: bool) -> None:
        """Draw the messages of one boundary in both directions, each channel in the order of its sender.

        Without `overlap` the sender's next pass waits for the message.
        """
        builder = self.builder
        ways = (
            (FORWARD, boundary.forward_family, boundary.before, boundary.after),
            (BACKWARD, boundary.backward_family, boundary.after, boundary.before),
        )
        for direction, group_set, source, target in ways:
            for sender, group in builder.link_model.group_of[group_set].items():
                if self.classes[sender].stage != source[0]:
                    continue
                receiver = builder.link_model.members(group_set, group)[1]
                sent, micro, _ = self.chosen(self.classes[sender], direction, source[1])
                number = builder.flow_number(group_set, group, SEND, boundary.message_bytes)
                drawn, arriving = builder.send(SENDING, number, boundary.message_bytes, len(sent))
                _, _, taken = self.chosen(self.classes[receiver], direction, target[1])
                begins, ends = bounds[sender]
                builder.runs.append((ends[sent], drawn))
                if not overlap:
                    followed = sent[sent < len(begins) - 1]
                    builder.runs.append((drawn[: len(followed)], begins[followed + 1]))
                builder.runs.append((arriving, bounds[receiver][0][taken[micro]]))


class _Together:
    """Builds the first passes of a set of classes, in which nothing can disturb them; `owner` is the set's number."""

    def __init__(self, step_graph: _StepGraph, members: Sequence[RankClass], owner: int) -> None:
        self.step_graph = step_graph
        self.builder = step_graph.builder
        self.members = members
        self.owner = owner
        self.count = step_graph.coarse_passes(members[0])
        shape = (len(members), self.count)
        self.first, self.last = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)

    def draw(self, inside: list[Inside]) -> list[Bounds]:
        """Draw the passes, record what is inside them, and return by class the first and last of each."""
        for chunk, program in enumerate(self.members[0].programs):
            for direction, ops in ((FORWARD, program.forward), (BACKWARD, program.backward)):
                of_kind, _, _ = self.step_graph.chosen(self.members[0], direction, chunk)
                of_kind = of_kind[: of_kind.searchsorted(self.count)]
                if len(of_kind):
                    inside += self._draw_kind(ops, of_kind)
        for first, last in zip(self.first, self.last, strict=True):
            self.builder.runs.append((last[:-1], first[1:]))
        return list(zip(self.first, self.last, strict=True))

    def _draw_kind(self, ops: Pass, passes: _Places) -> Iterator[Inside]:
        """Draw all passes of one chunk and direction."""
        script, link_model, one = ops.script, self.builder.link_model, self.members[0].number
        flows = tuple(
            link_model.flow(phase.group_set, link_model.group_of[phase.group_set][one], phase.kind, phase.volume_bytes)
            for phase in script.phases
        )
        features_s = tuple(f.seconds(p.volume_bytes) for f, p in zip(flows, script.phases, strict=True))
        volumes_bytes = tuple(f.ratio * p.volume_bytes for f, p in zip(flows, script.phases, strict=True))
        drawn = _outline(script, tuple(member.speed for member in self.members), features_s)
        shared = None
        if drawn.together_s is not None:
            shared = self.builder.add(drawn.together_s, self.owner, len(passes))
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
                    volumes_bytes=volumes_bytes,
                    counts=script.counts,
                    busy_s=drawn.busy_s[index],
                    is_shared=shared is not None,
                    carries=index == 0,
                    hides_s=drawn.hides_s[index],
                )

    def _draw_member(self, drawn: Outline, index: int, passes: _Places, shared: _Places | None) -> _Places:
        """Draw what one class does by itself before and after `shared`; return the operations of several ops."""
        number = self.members[index].number
        row = [] if shared is None else [shared]
        if shared is None or drawn.head_s[index]:
            row.insert(0, self.builder.add(drawn.head_s[index], number, len(passes)))
        if drawn.tail_s[index]:
            row.append(self.builder.add(drawn.tail_s[index], number, len(passes)))
        self.first[index, passes], self.last[index, passes] = row[0], row[-1]
        self.builder.runs += pairwise(row)
        return row[0] if shared is None else shared


class _Walk:
    """Builds the passes of one class in order, op by op.

    `before` and `queued` are the last operations of the pass and of the queue, `waits` what the next must wait for.
    """

    def __init__(self, step_graph: _StepGraph, rank_class: RankClass) -> None:
        self.step_graph = step_graph
        self.builder = step_graph.builder
        self.rank_class = rank_class
        self.before = self.queued = NOTHING
        self.waits: list[int] = []

    def draw(self, begun: Bounds | None) -> Bounds:
        """Draw the passes that are not `begun`; return the first and last operation of every pass."""
        passes = self.rank_class.passes
        first, last = np.empty(len(passes), dtype=np.int64), np.empty(len(passes), dtype=np.int64)
        coarse = 0
        if begun is not None and len(begun[0]):
            coarse = len(begun[0])
            first[:coarse], last[:coarse] = begun
            self.before = int(last[coarse - 1])
        final = int(passes[:, 1].max())
        for index, (direction, micro, chunk) in enumerate(passes[coarse:].tolist(), coarse):
            program = self.rank_class.programs[chunk]
            ops = program.forward if direction == FORWARD else program.last if micro == final else program.backward
            first[index], last[index] = self._draw(ops.pattern, (direction, micro, chunk))
        if self.queued != NOTHING:
            self.waits.append(self.queued)
        self._draw(self.step_graph.update(self.rank_class), _RETURNS)
        return first, last

    def _draw(self, pattern: PassTemplate, key: object) -> tuple[int, int]:
        """Draw one pass behind the one before; return its first and last operation."""
        builder, rank_class = self.builder, self.rank_class
        drawn = np.empty(pattern.count, dtype=np.int64)
        begin = builder.add_each(pattern.work_s / rank_class.speed, rank_class.number)
        drawn[pattern.computing] = np.arange(begin, begin + len(pattern.work_s))
        for calls in pattern.calls:
            begin = builder.communicate(calls, rank_class.number, key)
            drawn[calls.places] = np.arange(begin, begin + len(calls.places))
        source, target = pattern.edges
        builder.runs.append((drawn[source], drawn[target]))
        first, last = int(drawn[pattern.first]), int(drawn[pattern.last])
        for wait in self.waits:
            builder.edges += (wait, first)
        self.waits = drawn[pattern.awaited].tolist()
        if self.before != NOTHING:
            for entering in drawn[pattern.entering].tolist():
                builder.edges += (self.before, entering)
        self.before = last
        if pattern.first_queued != NOTHING:
            if self.queued != NOTHING:
                builder.edges += (self.queued, int(drawn[pattern.first_queued]))
            self.queued = int(drawn[pattern.last_queued])
        return first, last
