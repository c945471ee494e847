"""The door: from a strategy tree on a cluster to a forecast of one step.

The way: chunks of the model (`chunks`), their programs on the fabric (`program`, `fabric`), classes of equal ranks
(`symmetry`), the graph of all classes (`graph`), its timeline (`executor`), and what the timeline means (`forecast`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.chunks import Chunk, compile_chunks
from lockstep.simulator.cluster import Cluster, Device
from lockstep.simulator.executor import execute
from lockstep.simulator.fabric import Fabric
from lockstep.simulator.forecast import Forecast, Job, forecast
from lockstep.simulator.graph import Boundary, RankClass, build_graph
from lockstep.simulator.mesh import Mesh
from lockstep.simulator.placement import Transfer
from lockstep.simulator.program import Program, Queued, compile_program, compile_returns
from lockstep.simulator.schedule import Schedule, passes
from lockstep.simulator.symmetry import Partition, collapse, no_collapse
from lockstep.simulator.tree import StrategyTree

DDP_BUCKET_BYTES = 25 * 2**20
"""What PyTorch's DistributedDataParallel puts in a bucket unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a step is run and simulated.

    `bucket_bytes` of gradients are sent together, all at the end if None. `algorithms` maps kinds of collectives to
    algorithms; ring where not named. The switches are for comparisons: `sharing` of links, `collapsing` of equal ranks,
    and `events_only`, which leaves the longest path out.
    """

    bucket_bytes: float | None = DDP_BUCKET_BYTES
    algorithms: Mapping[str, str] = field(default_factory=dict)
    sharing: bool = True
    collapsing: bool = True
    events_only: bool = False


def simulate(tree: StrategyTree, cluster: Cluster, *, batch: int, options: Options | None = None) -> Forecast:
    """Return the forecast of a step of `batch` samples.

    Raises
    ------
    ConfigError
        The tree cannot be compiled, does not fit the cluster, or the batch cannot be divided.
    """
    options = options or Options()
    job = compile_job(tree, cluster, batch=batch, options=options)
    timeline = execute(
        job.graph,
        overlap_factor=cluster.device.overlap_factor,
        sharing=options.sharing,
        events_only=options.events_only,
    )
    return forecast(job, timeline)


def compile_job(tree: StrategyTree, cluster: Cluster, *, batch: int, options: Options) -> Job:
    """Return the graph of a step and what is needed to read its timeline."""
    schedule = tree.root.order or Schedule()
    if batch % schedule.micro_batches:
        raise ConfigError(f"batch: got {batch}, expected a multiple of {schedule.micro_batches} micro-batches")
    chunks = compile_chunks(tree, cluster.device, samples=batch / schedule.micro_batches)
    stages = _stages(chunks, cluster)
    fabric = Fabric(cluster, options.algorithms, stages)
    bucket_bytes = np.inf if options.bucket_bytes is None else options.bucket_bytes
    made: dict[object, Program] = {}
    for chunk in chunks:
        key = (chunk.mesh.axes, tuple(chunk.contents))
        made[key] = made.get(key) or compile_program(chunk, fabric, bucket_bytes=bucket_bytes)
    programs = [made[chunk.mesh.axes, tuple(chunk.contents)] for chunk in chunks]
    returns = {mesh: compile_returns(_returns(own, chunks), mesh, fabric) for mesh, own in stages.items()}
    boundaries = _boundaries(chunks, stages, fabric)
    kinds, speeds = _rank_kinds(stages, cluster)
    partition = (
        collapse(kinds, fabric.families, fabric.capacity)
        if options.collapsing
        else no_collapse(len(kinds), fabric.families, len(fabric.capacity))
    )
    classes = _classes(
        partition,
        kinds,
        speeds,
        stages,
        schedule=schedule,
        chunks=chunks,
        programs=programs,
        device=cluster.device,
        returns=returns,
    )
    graph = build_graph(classes, boundaries, fabric.board(partition))
    return Job(
        graph=graph,
        partition=partition,
        classes=classes,
        parts=[[chunks[index].part for index in own] for own in stages.values()],
        tokens=batch * tree.model.tokens,
        model_flops=batch * tree.model.flops_per_sample,
        device=cluster.device,
        ranks=len(kinds),
    )


def _stages(chunks: Sequence[Chunk], cluster: Cluster) -> dict[Mesh, list[int]]:
    """Return the meshes in order of appearance, each with its chunks."""
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


def _boundaries(chunks: Sequence[Chunk], stages: Mapping[Mesh, list[int]], fabric: Fabric) -> list[Boundary]:
    place = {index: (stage, number) for stage, own in enumerate(stages.values()) for number, index in enumerate(own)}
    ways = [(here.mesh, there.mesh) for here, there in pairwise(chunks)]
    forward = fabric.sends(ways)
    backward = fabric.sends([(there, here) for here, there in ways])
    return [
        Boundary(place[index], place[index + 1], forward[index], backward[index], chunks[index + 1].received_bytes)
        for index in range(len(ways))
    ]


def _rank_kinds(stages: Mapping[Mesh, list[int]], cluster: Cluster) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a number for stage and speed of each rank, and the speed."""
    count = sum(len(mesh) for mesh in stages)
    kinds = np.empty(count, dtype=np.int64)
    for stage, mesh in enumerate(stages):
        kinds[mesh.ranks()] = stage
    speeds = np.ones(count)
    for rank, share in cluster.speed.items():
        if rank < count:
            speeds[rank] = share
    _, level = np.unique(speeds, return_inverse=True)
    return kinds + level * len(stages), speeds


def _classes(
    partition: Partition,
    kinds: NDArray[np.int64],
    speeds: NDArray[np.float64],
    stages: Mapping[Mesh, list[int]],
    *,
    schedule: Schedule,
    chunks: Sequence[Chunk],
    programs: Sequence[Program],
    device: Device,
    returns: Mapping[Mesh, tuple[Queued, ...]],
) -> list[RankClass]:
    _, first, counts = np.unique(partition.ranks, return_index=True, return_counts=True)
    meshes, owned = list(stages), list(stages.values())
    rows = [passes(schedule, len(stages), stage, len(own)) for stage, own in enumerate(owned)]
    found = []
    for number, (rank, count) in enumerate(zip(first, counts, strict=True)):
        stage = int(kinds[rank]) % len(stages)
        moved_bytes = sum(chunks[index].part.update_bytes for index in owned[stage])
        found.append(
            RankClass(
                number=number,
                ranks=int(count),
                stage=stage,
                speed=float(speeds[rank]),
                passes=rows[stage],
                programs=[programs[index] for index in owned[stage]],
                update_s=device.seconds(0.0, moved_bytes),
                returns=returns[meshes[stage]],
            )
        )
    return found
