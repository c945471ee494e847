"""The plan of a job, independent of speeds: chunks, stages and programs of a strategy on a shape of cluster.

What-ifs that heal a link or slow a rank do not change the plan, so the last few plans are cached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.cluster import Cluster, Device
from lockstep.simulator.hardware.collectives import ALL_TO_ALL, ONCE
from lockstep.simulator.lowering.chunks import Chunk, compile_chunks
from lockstep.simulator.lowering.context import ContextParallelism
from lockstep.simulator.lowering.graph import Boundary
from lockstep.simulator.lowering.group_topology import GroupTopology
from lockstep.simulator.lowering.ops import Queued
from lockstep.simulator.lowering.program import Program, compile_program, compile_returns
from lockstep.simulator.models.model import Precision
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import Transfer
from lockstep.simulator.strategy.tree import StrategyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Chunks in the order of the data flow and their programs, meshes in order of appearance with the chunks of each.

    A plan is shared by all forecasts and must not be changed. `group_topology` is that of the first request's cluster.
    """

    chunks: Sequence[Chunk]
    programs: Sequence[Program]
    stages: Mapping[Mesh, Sequence[int]]
    returns: Mapping[Mesh, tuple[Queued, ...]]
    boundaries: Sequence[Boundary]
    group_topology: GroupTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanInputs:
    """All that a plan depends on, as a value; modules compare by identity, so `kept` holds references to them."""

    stated: object
    modules: tuple[int, ...]
    meshes: tuple[Mesh | None, ...]
    precision: Precision
    device: Device
    shape: object
    algorithms: frozenset[tuple[str, str]]
    bucket_bytes: float
    samples: float
    accumulates: bool
    overlap_tensor: bool
    late_tensor_sums: bool
    overlap_experts: bool
    exchange_multiprocessors: int | None
    context: ContextParallelism | None
    copied_gather_bytes_per_second: float | None
    backward_prefetch: bool
    zero_copy: bool
    kept: tuple[object, ...] = field(compare=False)
    tree: StrategyTree = field(compare=False)
    cluster: Cluster = field(compare=False)


def plan_of(
    tree: StrategyTree,
    cluster: Cluster,
    *,
    samples: float,
    bucket_bytes: float,
    algorithms: Mapping[str, str],
    accumulates: bool = False,
    overlap_tensor: bool = False,
    late_tensor_sums: bool = False,
    overlap_experts: bool = False,
    exchange_multiprocessors: int | None = None,
    context: ContextParallelism | None = None,
    copied_gather_bytes_per_second: float | None = None,
    backward_prefetch: bool = True,
    zero_copy: bool = False,
) -> Plan:
    """Return the plan for micro-batches of `samples`, gradients sent in buckets of `bucket_bytes`.

    With `accumulates`, gradients are added to those of the previous micro-batches. With `overlap_tensor`, transfers
    along `tp` overlap matrix products; with `late_tensor_sums`, reduce-scatters add their parts afterwards; with
    `overlap_experts`, tokens are exchanged on `exchange_multiprocessors` while another micro-batch computes on the
    others. With `copied_gather_bytes_per_second`, weights are gathered when they are needed and copied at that rate;
    without `backward_prefetch`, backward gathers them when they are needed; with `zero_copy`, they are gathered into
    the buffers in use. `context` is gathered in halves if None.

    Raises
    ------
    ConfigError
        The tree cannot be compiled, or does not fit the cluster.
    """
    blocks = list(tree.root.children.values())
    return _compiled(
        _PlanInputs(
            stated=tree.root.stated(),
            modules=tuple(id(block.module) for block in blocks),
            meshes=(tree.root.mesh, *(block.mesh for block in blocks)),
            precision=tree.model.precision,
            device=cluster.device,
            shape=cluster.shape,
            algorithms=frozenset(algorithms.items()),
            bucket_bytes=bucket_bytes,
            samples=samples,
            accumulates=accumulates,
            overlap_tensor=overlap_tensor,
            late_tensor_sums=late_tensor_sums,
            overlap_experts=overlap_experts,
            exchange_multiprocessors=exchange_multiprocessors,
            context=context,
            copied_gather_bytes_per_second=copied_gather_bytes_per_second,
            backward_prefetch=backward_prefetch,
            zero_copy=zero_copy,
            kept=tuple(block.module for block in blocks),
            tree=tree,
            cluster=cluster,
        )
    )


def lockstep_axes(plan: Plan, own: Sequence[int]) -> frozenset[str]:
    """Return the mesh axes along which ranks wait for each other in every pass of a stage's chunks `own`."""
    programs = [plan.programs[index] for index in own]
    passes = [each for program in programs for each in (program.forward, program.backward)]
    met = [
        frozenset[str]().union(
            *(plan.group_topology.axes_of(group_set) for group_set, is_blocking in each.group_sets if is_blocking)
        )
        for each in passes
    ]
    return frozenset.intersection(*met)


def clear_cache() -> None:
    """Clear the cache of plans, as in a new process."""
    _compiled.cache_clear()


@lru_cache(maxsize=64)
def _compiled(inputs: _PlanInputs) -> Plan:
    chunks = compile_chunks(
        inputs.tree,
        inputs.device,
        samples=inputs.samples,
        accumulates=inputs.accumulates,
        overlap_tensor=inputs.overlap_tensor,
        late_tensor_sums=inputs.late_tensor_sums,
        overlap_experts=inputs.overlap_experts,
        exchange_multiprocessors=inputs.exchange_multiprocessors,
        context=inputs.context,
        zero_copy=inputs.zero_copy,
        sends_once=dict(inputs.algorithms).get(ALL_TO_ALL) in ONCE,
    )
    stages = _stages(chunks, inputs.cluster)
    group_topology = GroupTopology(inputs.cluster, dict(inputs.algorithms), stages, routing=inputs.tree.model.routing)
    made: dict[object, Program] = {}
    for chunk in chunks:
        key = (chunk.mesh.axes, tuple(chunk.contents))
        made[key] = made.get(key) or compile_program(
            chunk,
            group_topology,
            bucket_bytes=inputs.bucket_bytes,
            copied_gather_bytes_per_second=inputs.copied_gather_bytes_per_second,
            backward_prefetch=inputs.backward_prefetch,
        )
    return Plan(
        chunks=chunks,
        programs=[made[chunk.mesh.axes, tuple(chunk.contents)] for chunk in chunks],
        stages=stages,
        returns={mesh: compile_returns(_returns(own, chunks), mesh, group_topology) for mesh, own in stages.items()},
        boundaries=_boundaries(chunks, stages, group_topology),
        group_topology=group_topology,
    )


def _stages(chunks: Sequence[Chunk], cluster: Cluster) -> dict[Mesh, list[int]]:
    """Return the meshes in order of appearance, with the chunks of each."""
    stages: dict[Mesh, list[int]] = {}
    for index, chunk in enumerate(chunks):
        stages.setdefault(chunk.mesh, []).append(index)
    ranks = np.sort(np.concatenate([mesh.ranks() for mesh in stages]))
    if not np.array_equal(ranks, np.arange(len(ranks))):
        raise ConfigError(f"meshes: got ranks {ranks[:8].tolist()}..., expected each from 0 to {len(ranks) - 1} once")
    if len(ranks) > cluster.size:
        raise ConfigError(f"ranks: got {len(ranks)}, expected at most the {cluster.size} devices of {cluster.name}")
    if len({len(own) for own in stages.values()}) > 1:
        raise ConfigError(f"chunks of stages: got {[len(own) for own in stages.values()]}, expected as many for each")
    return stages


def _returns(own: Sequence[int], chunks: Sequence[Chunk]) -> list[Transfer]:
    return [transfer for index in own for transfer in chunks[index].part.returns]


def _boundaries(
    chunks: Sequence[Chunk], stages: Mapping[Mesh, list[int]], group_topology: GroupTopology
) -> list[Boundary]:
    place = {index: (stage, number) for stage, own in enumerate(stages.values()) for number, index in enumerate(own)}
    ways = [(here.mesh, there.mesh) for here, there in pairwise(chunks)]
    forward = group_topology.sends(ways)
    backward = group_topology.sends([(there, here) for here, there in ways])
    return [
        Boundary(place[index], place[index + 1], forward[index], backward[index], chunks[index + 1].received_bytes)
        for index in range(len(ways))
    ]
