"""Evaluates a timeline: step time, throughput, breakdown of the time, memory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.execution.executor import Timeline
from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.hardware.symmetry import Partition
from lockstep.simulator.lowering.chunks import Part
from lockstep.simulator.lowering.fused_passes import OpExpansion
from lockstep.simulator.lowering.graph import COMPUTE, Graph
from lockstep.simulator.lowering.program import RankClass
from lockstep.simulator.stage_memory import StageMemory, stage_memory

_BILLION, _HOUR_S = 1e9, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """A compiled step: its graph, the classes of ranks and links, and the parts of the model by stage."""

    graph: Graph
    partition: Partition
    classes: Sequence[RankClass]
    parts: Sequence[Sequence[Part]]
    tokens: float
    model_flops: float
    device: Device
    ranks: int
    gradient_buffer_bytes: float = 0.0
    gathered_bytes_max: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Communication of the mean rank, seconds per step; `exposed` is the part during which it does not compute."""

    total: float = 0.0
    exposed: float = 0.0
    by_kind: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One step as predicted. `peak_memory_bytes` is by stage; `link_bytes` by class of directed links, of one of them.

    `stage_memory_bytes` divides the peaks, `usable_memory_bytes` is what a device has for a job. `bubble_seconds` is
    what the mean rank neither computes nor communicates. `error_band_ratio` is None until a calibration knows it.
    """

    step_seconds: float
    tokens_per_second: float
    mfu_ratio: float
    communication_seconds: Communication
    bubble_seconds: float
    peak_memory_bytes: tuple[float, ...]
    out_of_memory: bool
    stage_memory_bytes: tuple[StageMemory, ...] = ()
    usable_memory_bytes: float = 0.0
    device_hours_per_billion_tokens: float = 0.0
    error_band_ratio: float | None = None
    link_bytes: dict[int, float] = field(default_factory=dict)
    operations: int = 0
    settled_operations: int = 0

    @property
    def free_memory_ratio(self) -> float:
        """Share of the usable memory that the fullest stage leaves free; negative out of memory."""
        return 1 - max(each.needed for each in self.stage_memory_bytes) / self.usable_memory_bytes

    def as_dict(self) -> dict[str, object]:
        """Return the forecast as a JSON-compatible dict."""
        return asdict(self)


def forecast(job: CompiledStep, timeline: Timeline) -> Forecast:
    """Evaluate `timeline` for `job`."""
    step_s = timeline.step_s
    memory = _memory(job)
    peaks = tuple(each.total for each in memory)
    usable_bytes = job.device.usable_memory_bytes
    communication, computing_s = _shares(job, timeline)
    return Forecast(
        step_seconds=step_s,
        tokens_per_second=job.tokens / step_s,
        device_hours_per_billion_tokens=job.ranks * step_s / job.tokens * _BILLION / _HOUR_S,
        mfu_ratio=job.model_flops / (step_s * job.ranks * job.device.flops_per_second),
        communication_seconds=communication,
        bubble_seconds=step_s - computing_s - communication.exposed,
        peak_memory_bytes=peaks,
        out_of_memory=max(each.needed for each in memory) > usable_bytes,
        stage_memory_bytes=memory,
        usable_memory_bytes=usable_bytes,
        link_bytes=_link_bytes(job.graph),
        operations=len(job.graph),
        settled_operations=timeline.settled,
    )


def _memory(job: CompiledStep) -> tuple[StageMemory, ...]:
    by_stage = {rank_class.stage: rank_class for rank_class in job.classes}
    return tuple(
        stage_memory(
            parts,
            by_stage[stage],
            job.device,
            gradient_buffer_bytes=job.gradient_buffer_bytes,
            gathered_bytes_max=job.gathered_bytes_max,
        )
        for stage, parts in enumerate(job.parts)
    )


def _shares(job: CompiledStep, timeline: Timeline) -> tuple[Communication, float]:
    """Return communication and seconds of computation of the mean rank."""
    graph = job.graph
    ranks = np.array([rank_class.ranks for rank_class in job.classes], dtype=np.float64)
    in_expansions, hidden = np.zeros(len(ranks)), np.zeros(len(ranks))
    by_kind: dict[str, float] = {}
    for ops in graph.expansions:
        hidden[ops.rank_class] += ops.hidden_s()
        for flow, spent_s in zip(ops.flows, ops.features_s(), strict=True):
            in_expansions[ops.rank_class] += spent_s
            by_kind[flow.kind] = by_kind.get(flow.kind, 0.0) + spent_s * float(ranks[ops.rank_class])
    total = in_expansions.copy()
    exposed = in_expansions - hidden
    computing = -exposed
    operations, members = _memberships(graph)
    spent = timeline.end - timeline.start
    kinds = [flow.kind for flow in graph.flows]
    for kind in set(kinds):
        chosen = np.array([other == kind for other in kinds])[graph.flow[operations]]
        seconds = np.bincount(members[chosen], spent[operations[chosen]], minlength=len(ranks))
        total += seconds
        by_kind[kind] = by_kind.get(kind, 0.0) + float(seconds @ ranks)
    busy = _busy(timeline, graph, [ops for ops in graph.expansions if ops.is_shared], len(ranks))
    computing += np.bincount(busy.place, busy.end - busy.start, minlength=len(ranks))
    moving = _Intervals(timeline.start[operations], timeline.end[operations], members)
    exposed += _uncovered(moving, busy, len(ranks))
    computing *= np.array([rank_class.busy_ratio for rank_class in job.classes])
    share = ranks / ranks.sum()
    communication = Communication(
        total=float(total @ share),
        exposed=float(exposed @ share),
        by_kind={kind: seconds / float(ranks.sum()) for kind, seconds in sorted(by_kind.items())},
    )
    return communication, float(computing @ share)


class _Intervals(NamedTuple):
    """When something lasts, in seconds, and the class of ranks that it concerns: arrays of shape (intervals,)."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    place: NDArray[np.int64]


def _busy(timeline: Timeline, graph: Graph, shared: Sequence[OpExpansion], count: int) -> _Intervals:
    """Return when each of `count` classes is busy, with features too within fused operations of a lockstep set."""
    owned = np.flatnonzero((graph.queue == COMPUTE) & (graph.owner < count))
    found = [_Intervals(timeline.start[owned], timeline.end[owned], graph.owner[owned])]
    for ops in shared:
        start = timeline.start[ops.operations][:, None]
        begin, end = ((start + offset).ravel() for offset in ops.busy_s)
        found.append(_Intervals(begin, end, np.full(len(begin), ops.rank_class)))
    return _Intervals(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _memberships(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each communication once for every class that takes part: operations and classes."""
    operations = np.flatnonzero(graph.flow >= 0)
    members = [np.array(flow.members, dtype=np.int64) for flow in graph.flows]
    if not members:
        return operations, np.empty(0, dtype=np.int64)
    flows = graph.flow[operations]
    counts = np.array([len(classes) for classes in members])
    offsets = np.cumsum(counts) - counts
    n = counts[flows]
    shift = np.repeat(offsets[flows] - np.cumsum(n) + n, n)
    return np.repeat(operations, n), np.concatenate(members)[shift + np.arange(int(n.sum()))]


def _uncovered(moving: _Intervals, busy: _Intervals, count: int) -> NDArray[np.float64]:
    """Return for each of `count` classes how long any of `moving` lasts while none of `busy` does.

    The busy intervals of a class do not overlap each other. Classes are laid one behind the other on one axis.
    """
    if not len(moving.start):
        return np.zeros(count)
    apart = 2 * max(float(moving.end.max()), float(busy.end.max(initial=0.0)))
    offset = moving.place * apart
    start, end = moving.start + offset, moving.end + offset
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    begin, finish = start[first], end[np.concatenate((first[1:], [True]))]
    offset = busy.place * apart
    own_start, own_end = np.sort(busy.start + offset), np.sort(busy.end + offset)
    edges = np.stack([own_start, own_end], axis=1).ravel()
    done = np.cumsum(np.stack([np.zeros(len(own_start)), own_end - own_start], axis=1).ravel())
    covered = np.interp(finish, edges, done) - np.interp(begin, edges, done)
    alone = np.bincount(moving.place[order][first], finish - begin - covered, minlength=count)
    return np.asarray(alone, dtype=np.float64)


def _link_bytes(graph: Graph) -> dict[int, float]:
    volumes = np.bincount(
        graph.flow[graph.flow >= 0], graph.volume_bytes[graph.flow >= 0], minlength=len(graph.flows)
    ).tolist()
    moved = {id(flow): volume for flow, volume in zip(graph.flows, volumes, strict=True)}
    flows = {id(flow): flow for flow in graph.flows}
    for ops in graph.expansions:
        if ops.carries:
            for flow, volume in zip(ops.flows, ops.carried_bytes(), strict=True):
                flows[id(flow)] = flow
                moved[id(flow)] = moved.get(id(flow), 0.0) + volume
    carried: dict[int, float] = {}
    for number, flow in flows.items():
        for link, use in flow.uses:
            carried[link] = carried.get(link, 0.0) + moved[number] * use
    return carried
