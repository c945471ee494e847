"""What a timeline means: step time, throughput, where the time went, memory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.chunks import Part
from lockstep.simulator.cluster import Device
from lockstep.simulator.coarse import Inside
from lockstep.simulator.executor import Timeline
from lockstep.simulator.graph import COMPUTE, Graph
from lockstep.simulator.memory import peak_bytes
from lockstep.simulator.program import RankClass
from lockstep.simulator.symmetry import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A compiled step: its graph, the classes of ranks and links, and by stage the parts of the model there."""

    graph: Graph
    partition: Partition
    classes: Sequence[RankClass]
    parts: Sequence[Sequence[Part]]
    tokens: float
    model_flops: float
    device: Device
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Seconds of a step that the mean rank communicates; `exposed` is the part in which it does not compute."""

    total: float = 0.0
    exposed: float = 0.0
    by_kind: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One step as predicted. `peak_memory_bytes` is by stage; `link_bytes` by class of directed links, of one of them.

    `bubble_seconds` is what the mean rank neither computes nor communicates. `error_band_ratio` is None until a
    calibration knows it.
    """

    step_seconds: float
    tokens_per_second: float
    mfu_ratio: float
    communication_seconds: Communication
    bubble_seconds: float
    peak_memory_bytes: tuple[float, ...]
    out_of_memory: bool
    error_band_ratio: float | None = None
    link_bytes: dict[int, float] = field(default_factory=dict)
    operations: int = 0
    settled_operations: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the forecast as JSON takes it."""
        return asdict(self)


def forecast(job: Job, timeline: Timeline) -> Forecast:
    """Return what `timeline` means for `job`."""
    step_s = timeline.step_s
    peaks = _peaks(job, timeline)
    communication, computing_s = _shares(job, timeline)
    return Forecast(
        step_seconds=step_s,
        tokens_per_second=job.tokens / step_s,
        mfu_ratio=job.model_flops / (step_s * job.ranks * job.device.flops_per_second),
        communication_seconds=communication,
        bubble_seconds=step_s - computing_s - communication.exposed,
        peak_memory_bytes=peaks,
        out_of_memory=max(peaks) > job.device.memory_bytes,
        link_bytes=_link_bytes(job.graph),
        operations=len(job.graph),
        settled_operations=timeline.settled,
    )


def _peaks(job: Job, timeline: Timeline) -> tuple[float, ...]:
    peaks = [0.0] * len(job.parts)
    for rank_class, (first, last) in zip(job.classes, job.graph.bounds, strict=True):
        parts = job.parts[rank_class.stage]
        static_bytes = sum(part.static_bytes for part in parts) + max(part.transient_bytes for part in parts)
        active_bytes = peak_bytes(
            rank_class.passes, timeline.start[first], timeline.end[last], [part.stored_bytes for part in parts]
        )
        peaks[rank_class.stage] = max(peaks[rank_class.stage], static_bytes + active_bytes)
    return tuple(peaks)


def _shares(job: Job, timeline: Timeline) -> tuple[Communication, float]:
    """Return communication and seconds of computation of the mean rank."""
    graph = job.graph
    ranks = np.array([rank_class.ranks for rank_class in job.classes], dtype=np.float64)
    inside = np.zeros(len(ranks))
    by_kind: dict[str, float] = {}
    shared: dict[int, list[Inside]] = {}
    for acts in graph.inside:
        for flow, spent_s in zip(acts.flows, acts.features_s(), strict=True):
            inside[acts.rank_class] += spent_s
            by_kind[flow.kind] = by_kind.get(flow.kind, 0.0) + spent_s * float(ranks[acts.rank_class])
        if acts.is_shared:
            shared.setdefault(acts.rank_class, []).append(acts)
    total = inside.copy()
    exposed = inside.copy()
    computing = -inside
    operations, members = _memberships(graph)
    spent = timeline.end - timeline.start
    kinds = [flow.kind for flow in graph.flows]
    for kind in set(kinds):
        chosen = np.array([other == kind for other in kinds])[graph.flow[operations]]
        seconds = np.bincount(members[chosen], spent[operations[chosen]], minlength=len(ranks))
        total += seconds
        by_kind[kind] = by_kind.get(kind, 0.0) + float(seconds @ ranks)
    mine = _by_class(graph.owner, np.flatnonzero((graph.queue == COMPUTE) & (graph.owner < len(ranks))), len(ranks))
    theirs = _by_class(members, np.arange(len(members)), len(ranks))
    for number in range(len(ranks)):
        own, others = mine[number], operations[theirs[number]]
        busy = [(timeline.start[own], timeline.end[own])]
        busy += [_stretches(timeline, acts) for acts in shared.get(number, ())]
        begin, end = (np.concatenate(column) for column in zip(*busy, strict=True))
        computing[number] += (end - begin).sum()
        exposed[number] += _uncovered(timeline.start[others], timeline.end[others], begin, end)
    share = ranks / ranks.sum()
    communication = Communication(
        total=float(total @ share),
        exposed=float(exposed @ share),
        by_kind={kind: seconds / float(ranks.sum()) for kind, seconds in sorted(by_kind.items())},
    )
    return communication, float(computing @ share)


def _stretches(timeline: Timeline, acts: Inside) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when a class is busy, with features too, within operations of a set of classes."""
    start = timeline.start[acts.operations][:, None]
    begin, end = (start + offset for offset in acts.busy_s)
    return begin.ravel(), end.ravel()


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


def _by_class(classes: NDArray[np.int64], chosen: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Return `chosen` positions by class."""
    order = chosen[np.argsort(classes[chosen], kind="stable")]
    return np.split(order, np.searchsorted(classes[order], np.arange(1, count)))


def _uncovered(
    start: NDArray[np.float64], end: NDArray[np.float64], own_start: NDArray[np.float64], own_end: NDArray[np.float64]
) -> float:
    """Return how long any of the intervals lasts while none of the own does, which do not overlap each other."""
    if not len(start):
        return 0.0
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    begin, finish = start[first], end[np.concatenate((first[1:], [True]))]
    edges = np.stack([own_start, own_end], axis=1)[np.argsort(own_start)].ravel()
    done = np.cumsum(np.stack([np.zeros(len(own_start)), np.sort(own_end) - np.sort(own_start)], axis=1).ravel())
    covered = np.interp(finish, edges, done) - np.interp(begin, edges, done)
    return float((finish - begin - covered).sum())


def _link_bytes(graph: Graph) -> dict[int, float]:
    volumes = np.bincount(
        graph.flow[graph.flow >= 0], graph.volume_bytes[graph.flow >= 0], minlength=len(graph.flows)
    ).tolist()
    moved = list(zip(graph.flows, volumes, strict=True))
    for acts in graph.inside:
        moved += zip(acts.flows, acts.carried_bytes(), strict=True)
    carried: dict[int, float] = {}
    for flow, volume_bytes in moved:
        for link, use in flow.uses:
            carried[link] = carried.get(link, 0.0) + volume_bytes * use
    return carried
