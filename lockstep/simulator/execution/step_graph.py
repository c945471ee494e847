"""Builds the graph of a step: passes without contention as few fused operations each, others op by op."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.execution.graph_builder import GraphBuilder
from lockstep.simulator.hardware.collectives import SEND
from lockstep.simulator.lowering.fused_passes import (
    OpExpansion,
    PassSummary,
    fusable_passes,
    lockstep_sets,
    summarise_pass,
)
from lockstep.simulator.lowering.graph import SENDING, Boundary, Bounds, Graph
from lockstep.simulator.lowering.link_model import LinkModel, Phase
from lockstep.simulator.lowering.ops import NO_OPERATION, Compute, Pass, PassTemplate, Queued
from lockstep.simulator.lowering.program import RankClass
from lockstep.simulator.strategy.schedule import BACKWARD, FORWARD

_Indices = NDArray[np.int64]
_RETURNS = "returns"
_summarise_pass = lru_cache(maxsize=512)(summarise_pass)
"""Lockstep sets of equal speeds share their summaries, and alternatives their op lists, which plans keep."""


def build_graph(
    classes: Sequence[RankClass],
    boundaries: Sequence[Boundary],
    link_model: LinkModel,
    *,
    fuse_passes: bool = True,
    overlap_sends: bool = True,
) -> Graph:
    """Return the graph of a step of all classes, `classes[i].number` being i; without `fuse_passes`, op by op.

    Without `overlap_sends` a stage begins no pass before the message of the one before has been sent.
    """
    step_graph = _StepGraph(classes, GraphBuilder(link_model))
    sending = {way for each in boundaries for way in (each.forward_group_set, each.backward_group_set)}
    sets = lockstep_sets(classes, sending, link_model) if fuse_passes else []
    fused: dict[int, Bounds] = {}
    expansions: list[OpExpansion] = []
    for index, members in enumerate(sets):
        together = _LockstepSetBuilder(step_graph, [classes[number] for number in members], len(classes) + index)
        fused.update(zip(members, together.build(expansions), strict=True))
    bounds = [_PassBuilder(step_graph, rank_class).build(fused.get(rank_class.number)) for rank_class in classes]
    for boundary in boundaries:
        step_graph.add_sends(boundary, bounds, overlap=overlap_sends)
    return step_graph.builder.finish(expansions, bounds)


class _StepGraph:
    """The builder, and what classes that are alike have in common."""

    def __init__(self, classes: Sequence[RankClass], builder: GraphBuilder) -> None:
        self.classes = classes
        self.builder = builder
        self._updates: dict[tuple[tuple[Queued, ...], float], PassTemplate] = {}
        self._fusable: dict[int, int] = {}
        self._chosen: dict[tuple[int, int, int], tuple[_Indices, _Indices, _Indices]] = {}

    def update(self, rank_class: RankClass) -> PassTemplate:
        """Return the optimizer's step, with the weights that return afterwards, as a pass."""
        returns = tuple(self._returns(rank_class))
        key = (returns, rank_class.update_s)
        if key not in self._updates:
            self._updates[key] = PassTemplate.from_ops([Compute(rank_class.update_s), *returns])
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

    def fusable_passes(self, rank_class: RankClass) -> int:
        """Return how many passes of a class nothing can disturb; classes of a stage have the same."""
        if rank_class.stage not in self._fusable:
            self._fusable[rank_class.stage] = fusable_passes(rank_class)
        return self._fusable[rank_class.stage]

    def chosen(self, rank_class: RankClass, direction: int, chunk: int) -> tuple[_Indices, _Indices, _Indices]:
        """Return the passes of one chunk and direction in order, the micro-batch of each, and them by micro-batch."""
        key = (rank_class.stage, direction, chunk)
        if key not in self._chosen:
            passes = rank_class.passes
            found = np.flatnonzero((passes[:, 0] == direction) & (passes[:, 2] == chunk))
            micro = passes[found, 1]
            self._chosen[key] = (found, micro, found[np.argsort(micro)])
        return self._chosen[key]

    def add_sends(self, boundary: Boundary, bounds: list[Bounds], *, overlap: bool) -> None:
        """Add the messages of one boundary in both directions, each channel in the order of its sender.

        Without `overlap` the sender's next pass waits for the message.
        """
        builder = self.builder
        ways = (
            (FORWARD, boundary.forward_group_set, boundary.before, boundary.after),
            (BACKWARD, boundary.backward_group_set, boundary.after, boundary.before),
        )
        for direction, group_set, source, target in ways:
            for sender, group in builder.link_model.group_of[group_set].items():
                if self.classes[sender].stage != source[0]:
                    continue
                receiver = builder.link_model.members(group_set, group)[1]
                sent, micro, _ = self.chosen(self.classes[sender], direction, source[1])
                number = builder.flow_number(group_set, group, SEND, boundary.message_bytes)
                sends, arrivals = builder.send(SENDING, number, boundary.message_bytes, len(sent))
                _, _, taken = self.chosen(self.classes[receiver], direction, target[1])
                begins, ends = bounds[sender]
                builder.runs.append((ends[sent], sends))
                if not overlap:
                    followed = sent[sent < len(begins) - 1]
                    builder.runs.append((sends[: len(followed)], begins[followed + 1]))
                builder.runs.append((arrivals, bounds[receiver][0][taken[micro]]))


class _LockstepSetBuilder:
    """Builds the fused passes of a lockstep set, those without contention; `owner` is the set's number."""

    def __init__(self, step_graph: _StepGraph, members: Sequence[RankClass], owner: int) -> None:
        self.step_graph = step_graph
        self.builder = step_graph.builder
        self.members = members
        self.owner = owner
        self.count = step_graph.fusable_passes(members[0])
        shape = (len(members), self.count)
        self.first, self.last = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)

    def build(self, expansions: list[OpExpansion]) -> list[Bounds]:
        """Add the passes, record what they expand to, and return by class the first and last operation of each."""
        for chunk, program in enumerate(self.members[0].programs):
            for direction, ops in ((FORWARD, program.forward), (BACKWARD, program.backward)):
                chosen_passes, _, _ = self.step_graph.chosen(self.members[0], direction, chunk)
                chosen_passes = chosen_passes[: chosen_passes.searchsorted(self.count)]
                if len(chosen_passes):
                    expansions += self._add_passes(ops, chosen_passes)
        for first, last in zip(self.first, self.last, strict=True):
            self.builder.runs.append((last[:-1], first[1:]))
        return list(zip(self.first, self.last, strict=True))

    def _add_passes(self, ops: Pass, passes: _Indices) -> Iterator[OpExpansion]:
        """Add all passes of one chunk and direction."""
        op_list, link_model, one = ops.op_list, self.builder.link_model, self.members[0].number
        flows = tuple(
            link_model.flow(
                phase.group_set,
                link_model.group_of[phase.group_set][one],
                phase.kind,
                phase.volume_bytes,
                latency_share=phase.latency_share,
            )
            for phase in op_list.phases
        )
        features_s = tuple(f.seconds(p.volume_bytes) for f, p in zip(flows, op_list.phases, strict=True))
        volumes_bytes = tuple(f.ratio * p.volume_bytes for f, p in zip(flows, op_list.phases, strict=True))
        summary = _summarise_pass(op_list, tuple(member.speed for member in self.members), features_s)
        shared = None
        if summary.shared_s is not None:
            shared = self.builder.add(summary.shared_s, self.owner, len(passes))
        for index, member in enumerate(self.members):
            whole = self._add_member(summary, index, passes, shared)
            if op_list.phases:
                yield OpExpansion(
                    rank_class=member.number,
                    passes=passes,
                    operations=whole,
                    begin_s=summary.begin_s[index],
                    seconds=summary.seconds[index],
                    feature=op_list.feature[summary.first : summary.end],
                    flows=flows,
                    volumes_bytes=volumes_bytes,
                    counts=op_list.counts,
                    busy_s=summary.busy_s[index],
                    is_shared=shared is not None,
                    carries=index == 0,
                    hides_s=summary.hides_s[index],
                )

    def _add_member(self, summary: PassSummary, index: int, passes: _Indices, shared: _Indices | None) -> _Indices:
        """Add what one class does by itself before and after `shared`; return the fused operations."""
        number = self.members[index].number
        row = [] if shared is None else [shared]
        if shared is None or summary.head_s[index]:
            row.insert(0, self.builder.add(summary.head_s[index], number, len(passes)))
        if summary.tail_s[index]:
            row.append(self.builder.add(summary.tail_s[index], number, len(passes)))
        self.first[index, passes], self.last[index, passes] = row[0], row[-1]
        self.builder.runs += pairwise(row)
        return row[0] if shared is None else shared


class _PassBuilder:
    """Builds the passes of one class in order, op by op.

    `before` and `queued` are the last operations of the pass and of the queue, `waits` what the next must wait for.
    """

    def __init__(self, step_graph: _StepGraph, rank_class: RankClass) -> None:
        self.step_graph = step_graph
        self.builder = step_graph.builder
        self.rank_class = rank_class
        self.before = self.queued = NO_OPERATION
        self.waits: list[int] = []

    def build(self, fused: Bounds | None) -> Bounds:
        """Add the passes that are not `fused`; return the first and last operation of every pass."""
        passes = self.rank_class.passes
        first, last = np.empty(len(passes), dtype=np.int64), np.empty(len(passes), dtype=np.int64)
        n_fused = 0
        if fused is not None and len(fused[0]):
            n_fused = len(fused[0])
            first[:n_fused], last[:n_fused] = fused
            self.before = int(last[n_fused - 1])
        final = int(passes[:, 1].max())
        for index, (direction, micro, chunk) in enumerate(passes[n_fused:].tolist(), n_fused):
            program = self.rank_class.programs[chunk]
            ops = program.forward if direction == FORWARD else program.last if micro == final else program.backward
            first[index], last[index] = self._build_pass(ops.template, (direction, micro, chunk))
        if self.queued != NO_OPERATION:
            self.waits.append(self.queued)
        self._build_pass(self.step_graph.update(self.rank_class), _RETURNS)
        return first, last

    def _build_pass(self, template: PassTemplate, key: object) -> tuple[int, int]:
        """Add one pass after the previous one; return its first and last operation."""
        builder, rank_class = self.builder, self.rank_class
        operations = np.empty(template.count, dtype=np.int64)
        begin = builder.add_each(template.work_s / rank_class.speed, rank_class.number)
        operations[template.computing] = np.arange(begin, begin + len(template.work_s))
        for calls in template.calls:
            begin = builder.communicate(calls, rank_class.number, key)
            operations[calls.indices] = np.arange(begin, begin + len(calls.indices))
        source, target = template.edges
        builder.runs.append((operations[source], operations[target]))
        first, last = int(operations[template.first]), int(operations[template.last])
        for wait in self.waits:
            builder.edges += (wait, first)
        self.waits = operations[template.awaited].tolist()
        if self.before != NO_OPERATION:
            for entering in operations[template.entering].tolist():
                builder.edges += (self.before, entering)
        self.before = last
        if template.first_queued != NO_OPERATION:
            if self.queued != NO_OPERATION:
                builder.edges += (self.queued, int(operations[template.first_queued]))
            self.queued = int(operations[template.last_queued])
        return first, last
