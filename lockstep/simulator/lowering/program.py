"""Programs: the passes of a chunk, with transfers as phases of its groups and gradients in buckets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.lowering.chunks import Chunk
from lockstep.simulator.lowering.group_topology import GroupTopology
from lockstep.simulator.lowering.ops import Await, Blocking, Compute, Op, Pass, Queued
from lockstep.simulator.lowering.segments import Feature, GradientReduction, Segment, WeightGather, Work
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import PARTIAL, Placement, Transfer, transfers

DDP_BUCKET_BYTES = 25 * 2**20
"""Default bucket size of PyTorch's DistributedDataParallel."""
_DDP_FIRST_BUCKET_BYTES = 2**20
"""With the default size, DDP's first bucket is smaller, so that its all-reduce begins early
(`_BucketCapacityConfig.first_bucket_bytes_cap` in torch/nn/parallel/distributed.py)."""


@dataclass(frozen=True, slots=True)
class Program:
    """The passes of one chunk: forward, backward, and backward of the step's last micro-batch, which sums gradients."""

    forward: Pass
    backward: Pass
    last: Pass

    @property
    def queues_always(self) -> bool:
        """Whether the gradient queue is also used by passes before the last micro-batch."""
        return self.forward.is_queuing or self.backward.is_queuing


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClass:
    """Ranks with equal behaviour: their number, their stage, their share of a device's speed, and their passes.

    `passes` has the rows of `schedule.passes`; chunks are numbered within the stage. With `has_neighbours`, the class
    sends to or receives from other stages. `returns` overlap `overlap_returns_s` of the next step's first forward pass.
    `busy_ratio` is the share of the class's computing time at `speed` in which its mean rank computes: ranks that wait
    for a slower one several times per pass run at its speed.
    """

    number: int
    ranks: int
    stage: int
    speed: float
    passes: NDArray[np.int64]
    programs: Sequence[Program]
    update_s: float
    returns: Sequence[Queued]
    has_neighbours: bool = False
    overlap_returns_s: float = 0.0
    busy_ratio: float = 1.0


@dataclass(slots=True)
class _Buckets:
    """Gradients that wait to be sent together, by the axes over which they are summed and sharded."""

    limit_bytes: float
    waiting: dict[tuple[frozenset[str], frozenset[str]], float] = field(default_factory=dict)
    sent: set[tuple[frozenset[str], frozenset[str]]] = field(default_factory=set)

    @property
    def first_limit_bytes(self) -> float:
        """The size of the first bucket of gradients that are not sharded."""
        return _DDP_FIRST_BUCKET_BYTES if self.limit_bytes == DDP_BUCKET_BYTES else self.limit_bytes

    def add(self, summed: GradientReduction) -> Iterator[tuple[frozenset[str], frozenset[str], float]]:
        key = (summed.sums, summed.kept)
        total_bytes = self.waiting.get(key, 0.0) + summed.total_bytes
        self.waiting[key] = total_bytes
        if total_bytes >= (self.first_limit_bytes if key not in self.sent and not summed.kept else self.limit_bytes):
            del self.waiting[key]
            self.sent.add(key)
            yield (*key, total_bytes)

    def flush(self) -> Iterator[tuple[frozenset[str], frozenset[str], float]]:
        for key, total_bytes in self.waiting.items():
            yield (*key, total_bytes)


@dataclass(slots=True)
class _Gathers:
    """The gathers of weights of a pass; each is issued when the weights `ahead` units before it are needed."""

    gathers: Sequence[WeightGather]
    ahead: int
    issued: int = 0
    waited: int = 0

    def ops(self, mesh: Mesh, group_topology: GroupTopology) -> Iterator[Op]:
        """Yield the gathers to issue when the next weights are needed, and the wait for these weights."""
        last = min(self.waited + 1 + self.ahead, len(self.gathers))
        for ticket in range(self.issued, last):
            yield Queued(tuple(group_topology.phases(self.gathers[ticket].transfer, mesh)), ticket)
        self.issued = max(self.issued, last)
        yield Await(self.waited)
        self.waited += 1


def compile_program(
    chunk: Chunk,
    group_topology: GroupTopology,
    *,
    bucket_bytes: float,
    copied_gather_bytes_per_second: float | None = None,
    backward_prefetch: bool = True,
) -> Program:
    """Return the program of `chunk`, and add its groups to `group_topology`; buckets have `bucket_bytes` of gradients.

    With `copied_gather_bytes_per_second`, the pass gathers weights when they are needed, waits for them and copies them
    at that rate; otherwise they are gathered one unit ahead, in backward only with `backward_prefetch`.
    """
    part = chunk.part
    made: dict[object, list[Op]] = {}
    forward, backward = part.forward, part.backward
    ahead = 1 if backward_prefetch else 0
    if copied_gather_bytes_per_second is not None:
        forward, backward = (list(_waited_for(each, copied_gather_bytes_per_second)) for each in (forward, backward))
    return Program(
        Pass(tuple(_ops(forward, chunk.mesh, group_topology, bucket_bytes, made, last=False, ahead=1))),
        Pass(tuple(_ops(backward, chunk.mesh, group_topology, bucket_bytes, made, last=False, ahead=ahead))),
        Pass(tuple(_ops(backward, chunk.mesh, group_topology, bucket_bytes, made, last=True, ahead=ahead))),
    )


def _waited_for(segments: list[Segment], copied_bytes_per_second: float) -> Iterator[Segment]:
    """Yield the segments with a wait for each gather of weights, and a copy of its result before its use."""
    for segment in segments:
        if isinstance(segment, WeightGather):
            yield Feature(segment.transfer)
            yield Work(segment.transfer.volume_bytes / copied_bytes_per_second)
        else:
            yield segment


def compile_returns(returns: list[Transfer], mesh: Mesh, group_topology: GroupTopology) -> tuple[Queued, ...]:
    """Return the gathers of updated weights, one for each kind and group."""
    volume: dict[tuple[str, frozenset[str]], float] = {}
    for transfer in returns:
        key = (transfer.kind, transfer.axes)
        volume[key] = volume.get(key, 0.0) + transfer.volume_bytes
    return tuple(Queued(tuple(group_topology.phases(Transfer(*key, total), mesh))) for key, total in volume.items())


def _ops(
    segments: list[Segment],
    mesh: Mesh,
    group_topology: GroupTopology,
    bucket_bytes: float,
    made: dict[object, list[Op]],
    *,
    last: bool,
    ahead: int,
) -> Iterator[Op]:
    """Yield the ops of a pass; consecutive work is one op up to the next segment that has ops of its own.

    Weights are gathered `ahead` units before their use. `made` caches ops by segment and by bucket, so that equal
    blocks share them.
    """
    buckets = _Buckets(bucket_bytes)
    gathers = _Gathers([segment for segment in segments if isinstance(segment, WeightGather)], ahead)
    pending_s = copy_s = 0.0
    for segment in segments:
        if isinstance(segment, Work):
            pending_s += segment.seconds
            continue
        ops: list[Op] = []
        if isinstance(segment, Feature):
            ops = made.get(id(segment)) or made.setdefault(id(segment), list(_blocking(segment, mesh, group_topology)))
        elif isinstance(segment, GradientReduction):
            if last or segment.every_pass:
                pending_s += segment.copy_s
                for bucket in buckets.add(segment):
                    ops += made.get(bucket) or made.setdefault(bucket, [_sum(bucket, mesh, group_topology)])
        else:
            ops, copy_s = list(gathers.ops(mesh, group_topology)), segment.copy_s
        if ops and pending_s:
            yield Compute(pending_s)
            pending_s = 0.0
        yield from ops
        pending_s, copy_s = pending_s + copy_s, 0.0
    if pending_s:
        yield Compute(pending_s)
    yield from (_sum(bucket, mesh, group_topology) for bucket in buckets.flush())


def _blocking(feature: Feature, mesh: Mesh, group_topology: GroupTopology) -> Iterator[Op]:
    """Yield the phases of a feature; its parallel work overlaps the first."""
    hides_s = feature.hides_s
    for phase in group_topology.phases(feature.transfer, mesh):
        yield Blocking(replace(phase, latency_share=feature.latency_share), hides_s)
        hides_s = 0.0


def _sum(bucket: tuple[frozenset[str], frozenset[str], float], mesh: Mesh, group_topology: GroupTopology) -> Queued:
    sums, kept, total_bytes = bucket
    have: Placement = dict.fromkeys(sums, PARTIAL)
    want: Placement = dict.fromkeys(kept, 0)
    found = [phase for t in transfers(total_bytes, have, want, mesh) for phase in group_topology.phases(t, mesh)]
    return Queued(tuple(found))
