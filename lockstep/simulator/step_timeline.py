"""The timeline of a simulated step for display: the spans of each queue of each class of equal ranks.

A class computes, waits for features (collectives that a pass needs), sums gradients while it computes, and sends to its
neighbours in the pipeline. Fused operations are expanded into computation and collectives.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lockstep.simulator.execution.executor import Timeline, execute
from lockstep.simulator.forecast import CompiledStep
from lockstep.simulator.lowering.fused_passes import OpExpansion
from lockstep.simulator.lowering.graph import COMPUTE, FEATURE, GRADIENT, SENDING
from lockstep.simulator.lowering.program import RankClass
from lockstep.simulator.spec import JobSpec
from lockstep.simulator.strategy.schedule import FORWARD

QUEUES = {COMPUTE: "compute", FEATURE: "feature", GRADIENT: "gradient", SENDING: "send"}
FORWARD_PASS, BACKWARD_PASS, UPDATE = "forward", "backward", "optimizer"
_OPENED_MAX = 400_000
"""Largest number of parts of passes that are shown individually; with more, passes are shown as a whole."""


@dataclass(frozen=True, slots=True)
class Span:
    """An interval, in seconds: a part of a pass, the optimizer, or a collective of `volume_bytes` on a link.

    `micro_batch` and `chunk` are those of the pass, -1 if there is none.
    """

    name: str
    start_s: float
    end_s: float
    micro_batch: int = -1
    chunk: int = -1
    volume_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Lane:
    """Spans of one queue of a class, in order and without overlap; a queue may need several lanes."""

    queue: str
    spans: list[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A class of equal ranks: their number, the first one, their stage, their share of a device's speed."""

    number: int
    stage: int
    ranks: int
    first_rank: int
    speed: float
    lanes: list[Lane]


def simulated_timeline(spec: JobSpec) -> tuple[list[Row], float]:
    """Return the rows of a step of `spec`, in the order of stages, and the step's seconds.

    Raises
    ------
    LockstepError
        The job cannot be simulated.
    """
    job = spec.compiled()
    overlap_factor = job.device.overlap_factor
    timeline = execute(job.graph, overlap_factor=overlap_factor, sharing=spec.options.sharing)
    return timeline_rows(job, timeline), timeline.step_s


def timeline_rows(job: CompiledStep, timeline: Timeline) -> list[Row]:
    """Return the rows of a compiled job and its timeline."""
    moved = _communication(job, timeline)
    opens = sum(_parts(rank_class) for rank_class in job.classes) <= _OPENED_MAX
    rows = []
    for rank_class in job.classes:
        number = rank_class.number
        computing, features = _passes(job, timeline, rank_class, opens=opens)
        by_queue = {FEATURE: features, GRADIENT: [], SENDING: []}
        for operation in moved.get(number, ()):
            by_queue[int(job.graph.queue[operation])].append(_collective(job, timeline, operation))
        lanes = [Lane(QUEUES[COMPUTE], computing)]
        for queue, spans in by_queue.items():
            lanes += [Lane(QUEUES[queue], apart) for apart in _apart(spans)]
        members = np.flatnonzero(job.partition.ranks == number)
        rows.append(
            Row(
                number=number,
                stage=rank_class.stage,
                ranks=rank_class.ranks,
                first_rank=int(members[0]),
                speed=rank_class.speed,
                lanes=lanes,
            )
        )
    return sorted(rows, key=lambda row: (row.stage, row.first_rank))


def _communication(job: CompiledStep, timeline: Timeline) -> dict[int, list[int]]:
    """Return by class the communications of nonzero duration that it takes part in."""
    found: dict[int, list[int]] = {}
    lasting = (job.graph.flow >= 0) & (timeline.end > timeline.start)
    for operation in np.flatnonzero(lasting).tolist():
        for member in job.graph.flows[job.graph.flow[operation]].members:
            found.setdefault(member, []).append(operation)
    return found


def _collective(job: CompiledStep, timeline: Timeline, operation: int) -> Span:
    kind = job.graph.flows[job.graph.flow[operation]].kind
    volume = float(job.graph.volume_bytes[operation])
    return Span(kind, float(timeline.start[operation]), float(timeline.end[operation]), volume_bytes=volume)


def _parts(rank_class: RankClass) -> int:
    ops = sum(len(program.forward.ops) + len(program.backward.ops) for program in rank_class.programs)
    return ops * len(rank_class.passes) // (2 * len(rank_class.programs))


def _passes(
    job: CompiledStep, timeline: Timeline, rank_class: RankClass, *, opens: bool
) -> tuple[list[Span], list[Span]]:
    """Return the computation of a class, and the collectives inside its fused operations."""
    expansions = [ops for ops in job.graph.expansions if ops.rank_class == rank_class.number]
    named = np.concatenate([np.empty(0, dtype=np.int64), *(ops.operations for ops in expansions)])
    owned = np.flatnonzero((job.graph.owner == rank_class.number) & (timeline.end > timeline.start))
    first, last = job.graph.bounds[rank_class.number]
    begins, ends = timeline.start[first], timeline.end[last]
    computing: list[Span] = []
    features: list[Span] = []
    alone = owned[~np.isin(owned, named)]
    at = np.searchsorted(begins, timeline.start[alone], side="right") - 1
    for operation, index in zip(alone.tolist(), at.tolist(), strict=True):
        start_s, end_s = float(timeline.start[operation]), float(timeline.end[operation])
        if start_s >= ends[index]:
            computing.append(Span(UPDATE, start_s, end_s))
        else:
            name, micro, chunk = _named(rank_class, index)
            computing.append(Span(name, start_s, end_s, micro, chunk))
    for ops in expansions:
        for operation, index in zip(ops.operations.tolist(), ops.passes.tolist(), strict=True):
            start_s, end_s = float(timeline.start[operation]), float(timeline.end[operation])
            name, micro, chunk = _named(rank_class, index)
            if not opens:
                computing.append(Span(name, start_s, end_s, micro, chunk))
                continue
            for begin_s, seconds, feature, hides_s in _ops(ops):
                begun_s = start_s + begin_s
                if hides_s:
                    computing.append(Span(name, begun_s, begun_s + hides_s, micro, chunk))
                if feature < 0:
                    computing.append(Span(name, begun_s, begun_s + seconds, micro, chunk))
                else:
                    kind, volume_bytes = ops.flows[feature].kind, ops.volumes_bytes[feature]
                    features.append(Span(kind, begun_s, begun_s + seconds, micro, chunk, volume_bytes))
    return sorted(computing, key=lambda span: span.start_s), features


def _named(rank_class: RankClass, index: int) -> tuple[str, int, int]:
    """Return name, micro-batch and chunk of a pass."""
    direction, micro, chunk = (int(value) for value in rank_class.passes[index])
    return (FORWARD_PASS if direction == FORWARD else BACKWARD_PASS), micro, chunk


def _ops(expansions: OpExpansion) -> Iterator[tuple[float, float, int, float]]:
    """Yield for each op its start relative to its operation, its seconds, its number among the features.

    The last value is how long the class computes meanwhile.
    """
    seconds = np.where(expansions.hides_s > 0, expansions.op_features_s(), expansions.seconds)
    columns = (expansions.begin_s, seconds, expansions.feature, expansions.hides_s)
    return zip(*(column.tolist() for column in columns), strict=True)


def _apart(spans: list[Span]) -> list[list[Span]]:
    """Return the spans in as few lists as possible, without overlap in any list."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: each.start_s):
        free = next((lane for lane in lanes if lane[-1].end_s <= span.start_s), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes
