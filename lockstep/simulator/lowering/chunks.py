"""Chunks: consecutive blocks on one mesh, compiled into the segments of a forward and of a backward pass.

Equal blocks with equal statements in the tree are compiled once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.hardware.collectives import ALL_GATHER
from lockstep.simulator.lowering.context import ContextParallelism
from lockstep.simulator.lowering.costs import added_seconds
from lockstep.simulator.lowering.exchange import exchanged
from lockstep.simulator.lowering.operators import PlacedOperator, PlacedTensor, place_operator
from lockstep.simulator.lowering.segments import (
    SCATTER_AXIS,
    Feature,
    GradientReduction,
    Segment,
    WeightGather,
    Work,
    during_another_pass,
    during_products,
    paced,
    tidied,
)
from lockstep.simulator.models.model import Operator, Precision
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import PARTIAL, Placement, Transfer, shards, transfers
from lockstep.simulator.strategy.tree import FULL, GRADIENT, OPTIMIZER, PARAMETER, Node, StrategyTree, resolve

_SENT_TO, _SENDS = "sent to", "sends"
"""Mark the contents of a chunk that receives its input from another chunk, and of one that is not the last."""


@dataclass(slots=True)
class Part:
    """A block or a chunk on one rank, per micro-batch. Only the compiler changes it, until the chunk is complete.

    `stored_bytes` are kept from forward to backward; `transient_bytes` exist while backward recomputes a unit;
    `workspace_bytes` exist while a block runs, and include these and the workspace of its operators. `weight_bytes`,
    `gradient_bytes` and `optimizer_bytes` are kept all the time; `gathered_bytes` are the weights of the largest unit
    with sharded weights. `update_bytes` is the memory traffic of an optimizer step, `returns` the gathers of weights
    after it.
    """

    forward: list[Segment] = field(default_factory=list)
    backward: list[Segment] = field(default_factory=list)
    stored_bytes: float = 0.0
    transient_bytes: float = 0.0
    workspace_bytes: float = 0.0
    weight_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    gathered_bytes: float = 0.0
    update_bytes: float = 0.0
    flops: float = 0.0
    returns: list[Transfer] = field(default_factory=list)
    output: PlacedTensor = field(default_factory=lambda: PlacedTensor(total_bytes=0.0, placement={}))

    @property
    def static_bytes(self) -> float:
        """Bytes that are kept all the time."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    def append(self, other: "Part") -> None:
        """Append `other`: its forward pass follows, its backward pass precedes."""
        self.forward += other.forward
        self.backward = other.backward + self.backward
        self.stored_bytes += other.stored_bytes
        self.transient_bytes = max(self.transient_bytes, other.transient_bytes)
        self.workspace_bytes = max(self.workspace_bytes, other.workspace_bytes)
        self.weight_bytes += other.weight_bytes
        self.gradient_bytes += other.gradient_bytes
        self.optimizer_bytes += other.optimizer_bytes
        self.gathered_bytes = max(self.gathered_bytes, other.gathered_bytes)
        self.update_bytes += other.update_bytes
        self.flops += other.flops
        self.returns += other.returns
        self.output = other.output


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of the model on the mesh of one stage.

    `received_bytes` are the bytes that one rank receives from the previous chunk. Chunks with equal `contents` on
    meshes of one shape have equal parts.
    """

    mesh: Mesh
    part: Part
    received_bytes: float
    contents: list[object] = field(default_factory=list)


def compile_chunks(
    tree: StrategyTree,
    device: Device,
    *,
    samples: float,
    accumulates: bool = False,
    overlap_tensor: bool = False,
    late_tensor_sums: bool = False,
    overlap_experts: bool = False,
    exchange_multiprocessors: int | None = None,
    context: ContextParallelism | None = None,
    zero_copy: bool = False,
    sends_once: bool = False,
) -> list[Chunk]:
    """Return the chunks of the model in the order of the data flow, for a micro-batch of `samples` over a whole mesh.

    Between stages, each rank along `tp` sends a part of a tensor that is replicated along `tp`, and the receivers
    gather it (Narayanan et al. 2021, section 4.1), as in DeepSpeed's pipeline. With `accumulates`, every micro-batch
    reads and writes the accumulated gradients. With `overlap_tensor`, transfers along `tp` overlap matrix products;
    with `late_tensor_sums`, reduce-scatters add their parts when all have arrived. With `accumulates` and
    `overlap_experts`, tokens of experts are exchanged while another micro-batch computes on the multiprocessors that
    the exchange leaves. With `zero_copy`, sharded weights are gathered into and gradients scattered from the buffers in
    which they are used. With `sends_once`, tokens are sent without a copy for each of their experts.

    Raises
    ------
    ConfigError
        A block has no mesh, or a statement for an operator is impossible.
    """
    compiled: dict[object, Part] = {}
    chunks: list[Chunk] = []
    arriving = PlacedTensor(total_bytes=0.0, placement={})
    first: Mesh | None = None
    for block in tree.root.children.values():
        mesh = block.mesh or tree.root.mesh
        if mesh is None:
            raise ConfigError(f"mesh of {block.name}: got none, expected map() on it or on the root")
        first = first or mesh
        if not chunks or mesh != chunks[-1].mesh:
            if chunks:
                arriving = _settle(chunks[-1].part, arriving, chunks[-1].mesh)
                _gather_before(chunks[-1], arriving)
            chunks.append(_chunk(arriving, mesh))
        alone = mesh != first  # tied weights have a copy on a mesh without their owner
        key = (
            id(block.module),
            mesh.axes,
            alone,
            block.stated(),
            arriving.total_bytes,
            tuple(arriving.placement.items()),
        )
        if key not in compiled:
            compiled[key] = _block(
                block,
                arriving,
                mesh,
                device,
                samples=samples,
                precision=tree.model.precision,
                alone=alone,
                accumulates=accumulates,
                context=context,
                zero_copy=zero_copy,
                sends_once=sends_once,
            )
            if overlap_tensor:
                summing = device if late_tensor_sums else None
                compiled[key].forward = during_products(compiled[key].forward, mesh, summing=summing)
                compiled[key].backward = during_products(compiled[key].backward, mesh, summing=summing)
            if overlap_experts and accumulates:
                compiled[key].forward, compiled[key].backward = during_another_pass(
                    compiled[key].forward,
                    compiled[key].backward,
                    occupied=device.occupied_share(exchange_multiprocessors),
                )
        chunks[-1].part.append(compiled[key])
        chunks[-1].contents.append(key)
        arriving = compiled[key].output
    return chunks


def _scattered(flow: PlacedTensor, mesh: Mesh) -> int:
    """Return the number of parts in which a tensor that is replicated along `SCATTER_AXIS` is sent."""
    return 1 if SCATTER_AXIS in flow.placement else mesh.degree(SCATTER_AXIS)


def _chunk(arriving: PlacedTensor, mesh: Mesh) -> Chunk:
    """Return a chunk that begins with the gather of its input."""
    chunk = Chunk(mesh, Part(), arriving.total_bytes / shards(arriving.placement, mesh) / _scattered(arriving, mesh))
    if arriving.total_bytes and _scattered(arriving, mesh) > 1:
        chunk.part.forward.append(_gather(arriving, mesh))
        chunk.contents.append(_SENT_TO)
    return chunk


def _gather_before(chunk: Chunk, leaving: PlacedTensor) -> None:
    """Let the backward pass of `chunk` begin with the gather of its output's gradients."""
    if _scattered(leaving, chunk.mesh) > 1:
        chunk.part.backward.insert(0, _gather(leaving, chunk.mesh))
        chunk.contents.append(_SENDS)


def _gather(flow: PlacedTensor, mesh: Mesh) -> Segment:
    volume_bytes = flow.total_bytes / shards(flow.placement, mesh)
    return Feature(Transfer(ALL_GATHER, frozenset((SCATTER_AXIS,)), volume_bytes))


def _settle(part: Part, leaving: PlacedTensor, mesh: Mesh) -> PlacedTensor:
    """Complete sums before they leave the mesh."""
    home = {axis: at for axis, at in leaving.placement.items() if at != PARTIAL}
    part.forward += [Feature(t) for t in transfers(leaving.total_bytes, leaving.placement, home, mesh)]
    return PlacedTensor(total_bytes=leaving.total_bytes, placement=home)


def _block(
    block: Node,
    arriving: PlacedTensor,
    mesh: Mesh,
    device: Device,
    *,
    samples: float,
    precision: Precision,
    alone: bool,
    accumulates: bool,
    context: ContextParallelism | None,
    zero_copy: bool,
    sends_once: bool,
) -> Part:
    part = Part(output=arriving)
    gathered_bytes = 0.0  # of the whole block, which is gathered as one unit
    stated = [(op, resolve(leaf)) for leaf in _leaves(block) if isinstance(op := leaf.module, Operator)]
    # Consecutive recomputed operators form a unit; between two units something is kept.
    for recomputed, neighbours in groupby(stated, key=lambda each: each[1].recomputation == FULL):
        run, unit = Part(output=part.output), []
        for op, words in neighbours:
            placed = place_operator(
                op,
                words,
                run.output,
                mesh,
                device,
                samples=samples,
                precision=precision,
                context=context,
                sends_once=sends_once,
            )
            weights = placed.weights * (alone or not op.shared_weights)
            own = _operator(placed, weights, mesh, precision, device, accumulates=accumulates, zero_copy=zero_copy)
            if context is not None and op.selective:
                passes = exchanged(op, placed, mesh, device, context, width=precision.activation)
                own.forward, own.backward = passes or (own.forward, own.backward)
            gathered_bytes += own.gathered_bytes
            run.append(own)
            unit.append(placed)
        if recomputed:
            _recompute(run, unit)
        else:
            run.transient_bytes = sum(placed.dropped_bytes for placed in unit)
        run.workspace_bytes += run.transient_bytes
        part.append(run)
    part.gathered_bytes = gathered_bytes
    part.forward = paced(tidied(part.forward), blocking=device.launch_blocking)
    part.backward = paced(tidied(part.backward), blocking=device.launch_blocking)
    return part


def _leaves(node: Node) -> Iterable[Node]:
    if isinstance(node.module, Operator):
        yield node
    for child in node.children.values():
        yield from _leaves(child)


def _operator(
    placed: PlacedOperator,
    weights: float,
    mesh: Mesh,
    precision: Precision,
    device: Device,
    *,
    accumulates: bool,
    zero_copy: bool,
) -> Part:
    """Return the part of one operator; if it `accumulates`, its gradients are added to those of other micro-batches.

    Sharded weights are copied from the gathered buffer to the tensors in use, and their gradients to the buffer that is
    scattered (PyTorch's FSDP: issue 157027 finds both copies on the critical path), unless `zero_copy` (Megatron-FSDP
    keeps both in the buffers of its collectives). A rank accumulates the gradients that it keeps.
    """
    kept = {item: placed.memory.get(item, frozenset()) & placed.sums for item in (OPTIMIZER, GRADIENT, PARAMETER)}
    is_sharded = bool(kept[PARAMETER])
    copying = None if zero_copy or not is_sharded else device
    fetch = _fetch(weights * precision.weight, kept[PARAMETER], mesh, copying=copying)
    added_s = added_seconds(weights / _degree(kept[GRADIENT], mesh), precision, device) if accumulates else 0.0
    work = Work(placed.again_s + placed.backward_s + added_s, placed.product, placed.host_backward_s)
    backward: list[Segment] = [*fetch, *map(Feature, placed.gathers_again), work, *map(Feature, placed.after)]
    if weights and placed.sums:
        in_parts = kept[OPTIMIZER] | kept[GRADIENT]
        sent_bytes = weights * precision.sent_gradient
        copy_s = copying.memory_seconds(weights * precision.activation + sent_bytes) if copying else 0.0
        backward.append(
            GradientReduction(sent_bytes, placed.sums, in_parts, every_pass=bool(kept[GRADIENT]), copy_s=copy_s)
        )
    updated = weights / _degree(kept[OPTIMIZER], mesh)
    late = kept[OPTIMIZER] - kept[PARAMETER]
    return Part(
        forward=[*fetch, *map(Feature, placed.before), _forward(placed)],
        backward=backward,
        stored_bytes=placed.stored_input_bytes + placed.stored_own_bytes,
        workspace_bytes=placed.workspace_bytes,
        weight_bytes=weights * precision.weight / _degree(kept[PARAMETER], mesh),
        gradient_bytes=weights * precision.gradient / _degree(kept[GRADIENT], mesh),
        optimizer_bytes=updated * precision.optimizer,
        gathered_bytes=weights * precision.weight * is_sharded,
        update_bytes=updated * (2 * precision.optimizer + precision.gradient + precision.weight),
        flops=placed.flops,
        returns=[gathered.transfer for gathered in _fetch(weights * precision.weight, late, mesh)],
        output=placed.output,
    )


def _forward(placed: PlacedOperator) -> Work:
    return Work(placed.forward_s, placed.product, placed.host_forward_s)


def _fetch(
    total_bytes: float, axes: frozenset[str], mesh: Mesh, *, copying: Device | None = None
) -> list[WeightGather]:
    """Return the gathers of weights sharded over `axes`; a device that is `copying` reads and writes them once."""
    have: Placement = dict.fromkeys(axes, 0)
    copy_s = copying.memory_seconds(2 * total_bytes) if copying else 0.0
    return [WeightGather(transfer, copy_s) for transfer in transfers(total_bytes, have, {}, mesh)]


def _recompute(part: Part, unit: list[PlacedOperator]) -> None:
    """Keep only the unit's input; its backward pass begins with its forward pass."""
    kept_bytes = unit[0].input_bytes
    unit_bytes = sum(placed.stored_input_bytes + placed.stored_own_bytes for placed in unit)
    part.stored_bytes += kept_bytes - unit_bytes
    part.transient_bytes = unit_bytes - kept_bytes
    again: list[Segment] = [segment for segment in part.forward if not isinstance(segment, WeightGather)]
    part.backward = again + part.backward


def _degree(axes: frozenset[str], mesh: Mesh) -> float:
    degree = 1
    for axis in axes:
        degree *= mesh.degree(axis)
    return degree
