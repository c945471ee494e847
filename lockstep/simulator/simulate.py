"""The entry point: predicts a step of a strategy tree on a cluster.

The stages: chunks of the model and their programs on the group topology (`plan`), classes of equal ranks (`symmetry`),
the graph of all classes (`graph_builder`), its timeline (`executor`), and the forecast from the timeline (`forecast`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.execution.executor import execute
from lockstep.simulator.execution.step_graph import build_graph
from lockstep.simulator.forecast import CompiledStep, Forecast, forecast
from lockstep.simulator.hardware.cluster import Cluster, Device
from lockstep.simulator.hardware.symmetry import Partition, collapse, no_collapse
from lockstep.simulator.lowering.context import ContextParallelism
from lockstep.simulator.lowering.plan import Plan, lockstep_axes, plan_of
from lockstep.simulator.lowering.program import DDP_BUCKET_BYTES, RankClass
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.schedule import Schedule, passes_by_stage
from lockstep.simulator.strategy.tree import StrategyTree

SLOW_RANKS_EXACT = 16
"""Largest number of slow ranks that are simulated individually. With more, ranks that wait for each other several times
per pass run at the speed of their slowest: otherwise a hundred slow ranks of 12,288 make 4,864 classes. The steps
differ by 2e-5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a step and of its simulation.

    Gradients are sent in buckets of `bucket_bytes`, all at the end if None; `gradient_buffer_bytes` is the memory that
    holds them meanwhile. ZeRO 3 gathers at most `live_parameters` at once, two units of weights if None; with
    `copied_gather_bytes_per_second` it waits for each gather and copies the result at that rate; without
    `backward_prefetch` its backward pass gathers weights when they are needed (FSDP's BACKWARD_POST), and with
    `zero_copy` its collectives need no copies (Megatron-FSDP). `algorithms` maps kinds of collectives to algorithms,
    ring by default. With `overlap_sends` a stage continues while its message to the next is in transit; if None, it
    does so with several chunks per stage, as in Megatron-LM. With `overlap_tensor`, transfers of sequence parallelism
    overlap their matrix products, and with `late_tensor_sums`, reduce-scatters add their parts when all have arrived
    (PyTorch's async tensor parallelism). With `overlap_experts`, tokens of experts are exchanged while another
    micro-batch computes on all but `exchange_multiprocessors` (Megatron-LM). With `overlap_returns`, updated weights
    are gathered during the next step's first forward pass. `context` is how context parallel ranks exchange keys and
    values and divide tokens, gathered and in halves if None. Up to `slow_ranks_exact` slow ranks are simulated
    individually. The other switches are for comparisons: `sharing` of links, `collapsing` of equal ranks,
    `fuse_passes`, without which every pass is built op by op, and `events_only`, which skips the longest path.
    """

    bucket_bytes: float | None = DDP_BUCKET_BYTES
    algorithms: Mapping[str, str] = field(default_factory=dict)
    overlap_sends: bool | None = None
    overlap_tensor: bool = False
    late_tensor_sums: bool = False
    overlap_experts: bool = False
    exchange_multiprocessors: int | None = None
    overlap_returns: bool = False
    context: ContextParallelism | None = None
    gradient_buffer_bytes: float = 0.0
    live_parameters: float | None = None
    copied_gather_bytes_per_second: float | None = None
    backward_prefetch: bool = True
    zero_copy: bool = False
    sharing: bool = True
    slow_ranks_exact: int = SLOW_RANKS_EXACT
    collapsing: bool = True
    events_only: bool = False
    fuse_passes: bool = True


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
        overlap_factor=job.device.overlap_factor,
        sharing=options.sharing,
        events_only=options.events_only,
    )
    return forecast(job, timeline)


def compile_job(tree: StrategyTree, cluster: Cluster, *, batch: int, options: Options) -> CompiledStep:
    """Return the graph of a step and the data to interpret its timeline."""
    schedule = tree.root.order or Schedule()
    if batch % schedule.micro_batches:
        raise ConfigError(f"batch: got {batch}, expected a multiple of {schedule.micro_batches} micro-batches")
    plan = plan_of(
        tree,
        cluster,
        samples=batch / schedule.micro_batches,
        bucket_bytes=np.inf if options.bucket_bytes is None else options.bucket_bytes,
        algorithms=options.algorithms,
        accumulates=schedule.micro_batches > 1,
        overlap_tensor=options.overlap_tensor,
        late_tensor_sums=options.late_tensor_sums,
        overlap_experts=options.overlap_experts,
        exchange_multiprocessors=options.exchange_multiprocessors,
        context=options.context,
        copied_gather_bytes_per_second=options.copied_gather_bytes_per_second,
        backward_prefetch=options.backward_prefetch,
        zero_copy=options.zero_copy,
    )
    cluster = cluster.shared_by(sum(len(mesh) for mesh in plan.stages))
    group_topology = plan.group_topology.on(cluster)
    own_speeds = _rank_speeds(plan.stages, cluster)
    speeds = own_speeds if (own_speeds < 1).sum() <= options.slow_ranks_exact else _lockstep_speeds(own_speeds, plan)
    kinds = _rank_kinds(plan.stages, speeds)
    partition = (
        collapse(kinds, group_topology.group_sets, group_topology.capacity)
        if options.collapsing
        else no_collapse(len(kinds), group_topology.group_sets, len(group_topology.capacity))
    )
    classes = _classes(
        partition,
        kinds,
        speeds,
        plan,
        schedule=schedule,
        device=cluster.device,
        overlap_returns=options.overlap_returns,
        busy_ratios=speeds / own_speeds,
    )
    chunks = len(next(iter(plan.stages.values())))
    graph = build_graph(
        classes,
        plan.boundaries,
        group_topology.link_model(partition),
        fuse_passes=options.fuse_passes,
        overlap_sends=chunks > 1 if options.overlap_sends is None else options.overlap_sends,
    )
    return CompiledStep(
        graph=graph,
        partition=partition,
        classes=classes,
        parts=[[plan.chunks[index].part for index in own] for own in plan.stages.values()],
        tokens=batch * tree.model.tokens,
        model_flops=batch * tree.model.flops_per_sample,
        device=cluster.device,
        ranks=len(kinds),
        gradient_buffer_bytes=options.gradient_buffer_bytes,
        gathered_bytes_max=np.inf
        if options.live_parameters is None
        else options.live_parameters * tree.model.precision.weight,
    )


def _rank_speeds(stages: Mapping[Mesh, Sequence[int]], cluster: Cluster) -> NDArray[np.float64]:
    """Return the speed of each rank as a share of its device's full speed, an array of shape (ranks,)."""
    speeds = np.ones(sum(len(mesh) for mesh in stages))
    for rank, share in cluster.speed.items():
        if rank < len(speeds):
            speeds[rank] = share
    return speeds


def _lockstep_speeds(speeds: NDArray[np.float64], plan: Plan) -> NDArray[np.float64]:
    """Return the speed of each rank if those that wait for each other in every pass run at that of their slowest."""
    paces = speeds.copy()
    for mesh, own in plan.stages.items():
        groups = mesh.groups(lockstep_axes(plan, own))
        paces[groups] = speeds[groups].min(axis=1, keepdims=True)
    return paces


def _rank_kinds(stages: Mapping[Mesh, Sequence[int]], speeds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a number for the stage and speed of each rank, an array of shape (ranks,)."""
    kinds = np.empty(len(speeds), dtype=np.int64)
    for stage, mesh in enumerate(stages):
        kinds[mesh.ranks()] = stage
    _, level = np.unique(speeds, return_inverse=True)
    return kinds + level * len(stages)


def _classes(
    partition: Partition,
    kinds: NDArray[np.int64],
    speeds: NDArray[np.float64],
    plan: Plan,
    *,
    schedule: Schedule,
    device: Device,
    overlap_returns: bool,
    busy_ratios: NDArray[np.float64],
) -> list[RankClass]:
    _, first, counts = np.unique(partition.ranks, return_index=True, return_counts=True)
    busy = np.bincount(partition.ranks, busy_ratios) / counts
    meshes, owned = list(plan.stages), list(plan.stages.values())
    rows = passes_by_stage(schedule, len(owned), len(owned[0]))  # all stages have equally many chunks
    found = []
    for number, (rank, count) in enumerate(zip(first, counts, strict=True)):
        stage = int(kinds[rank]) % len(owned)
        moved_bytes = sum(plan.chunks[index].part.update_bytes for index in owned[stage])
        found.append(
            RankClass(
                number=number,
                ranks=int(count),
                stage=stage,
                speed=float(speeds[rank]),
                passes=rows[stage],
                programs=[plan.programs[index] for index in owned[stage]],
                update_s=device.update_seconds(moved_bytes),
                returns=plan.returns[meshes[stage]],
                has_neighbours=bool(plan.boundaries),
                overlap_returns_s=sum(plan.programs[index].forward.work_s for index in owned[stage]) * overlap_returns,
                busy_ratio=float(busy[number]),
            )
        )
    return found
