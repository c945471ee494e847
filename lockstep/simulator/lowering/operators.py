"""One operator of the tree on its mesh: its computation on a rank, the transfers of its inputs, and its output.

Placements follow the data. An axis that the tree does not mention splits the operator in the same way as its input, if
possible; partial sums of the previous operator are completed. Backward mirrors forward: the gradient of a tensor that
was replicated for a split operator consists of partial sums.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.hardware.collectives import ALL_GATHER
from lockstep.simulator.hardware.products import Shape
from lockstep.simulator.lowering.context import ContextParallelism
from lockstep.simulator.lowering.costs import OperatorCost, operator_seconds
from lockstep.simulator.models.model import BATCH, Extent, MatrixProduct, Operator, OperatorInput, Precision
from lockstep.simulator.models.primitives import KEPT_WHOLE
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import PARTIAL, Placement, Transfer, shards, transfers
from lockstep.simulator.strategy.tree import FULL, PER_OPERATOR, SELECTIVE, ResolvedStrategy

_FP8_BYTES = 1
_PRODUCTS_AGAIN = 0.5
"""Recomputation per operator keeps the outputs of every second product (torchtitan, `selective` with option `op`)."""
_KERNEL_LAUNCH = 21 / 88
"""The host issues a kernel of PyTorch in 21 us (LLMCompass) where a framework's operator takes 88 us (`launch_s`)."""
_REPEAT_KERNELS, _REPEAT_BACKWARD_KERNELS = 1.0, 3.0
"""Of each expert in Transformer Engine's GroupedLinear: a product (`multi_stream_cublas_gemm`); in backward two, and
the hook of the gradient of its weights, which are a parameter of their own (`weight{i}`)."""
_CURRENT_CASTS, _BLOCK_CASTS = 3.0, 1.0
"""Kernels that cast the tensor of one expert: the largest element, the scale and the cast, or only the last. With
scales of earlier steps one kernel casts the tensors of all (`fused_multi_quantize`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTensor:
    """The tensor between two operators: its bytes over the whole mesh, and its placement."""

    total_bytes: float
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOperator:
    """An operator on one rank of its mesh, per micro-batch; seconds are those of a device at full speed.

    The host issues its kernels in `host_forward_s` and `host_backward_s`. `before` are the transfers of its inputs, of
    which backward repeats `gathers_again`; `after` are those of their gradients. `product` is whether it is a matrix
    product with weights. `weights` is the number of parameters without sharding; their gradients are partial sums along
    `sums`, and `memory` has the axes over which items are sharded. `again_s` is forward work that backward repeats by
    selective recomputation; `input_bytes` must be kept to recompute the forward pass. `workspace_bytes` exist while the
    operator runs: its own, and the gradients of its input and output; `dropped_bytes` are not kept, but exist again
    while backward needs them.
    """

    before: tuple[Transfer, ...]
    gathers_again: tuple[Transfer, ...]
    after: tuple[Transfer, ...]
    forward_s: float
    backward_s: float
    again_s: float
    host_forward_s: float
    host_backward_s: float
    flops: float
    product: bool
    weights: float
    sums: frozenset[str]
    memory: Mapping[str, frozenset[str]]
    stored_input_bytes: float
    stored_own_bytes: float
    input_bytes: float
    workspace_bytes: float
    dropped_bytes: float
    recomputed: bool
    output: PlacedTensor


def place_operator(
    op: Operator,
    stated: ResolvedStrategy,
    arriving: PlacedTensor,
    mesh: Mesh,
    device: Device,
    *,
    samples: float,
    precision: Precision,
    context: ContextParallelism | None = None,
    sends_once: bool = False,
) -> PlacedOperator:
    """Return `op` with the tree's statements, for its input tensor and the micro-batch's `samples` on the mesh.

    With `sends_once`, tokens are not copied for each of their experts before they are sent.

    Raises
    ------
    ConfigError
        A dimension is split into more parts than its size, or not evenly.
    """
    if sends_once and op.permuted_elements:
        op = op.without_permutation()
    split = _splits(op, stated, arriving.placement, mesh)
    parts = {dim: _parts(op, dim, split, mesh, samples) for dim in set(split.values())}
    before: list[Transfer] = []
    after: list[Transfer] = []
    stored: Placement = {}
    for read in op.reads:
        wanted = _at_positions(split, read.dims)
        total_bytes = arriving.total_bytes * read.share
        before += transfers(total_bytes, arriving.placement, wanted, mesh)
        given = {axis: wanted.get(axis, PARTIAL) for axis in split}  # the dual: replicated inputs come back as sums
        home = {axis: at for axis, at in arriving.placement.items() if at != PARTIAL}
        after += transfers(total_bytes, given, home, mesh)
        stored = stored or {**wanted, **home}
    all_parts, stored_parts = _product(parts.values()), shards(stored, mesh)
    weights = op.weights / _weight_parts(op, split, mesh)
    sizes = {BATCH: samples, **op.dims}
    local = {dim: size / parts.get(dim, 1) for dim, size in sizes.items()}
    work = OperatorCost(
        flops=op.flops * samples / all_parts,
        moved_bytes=op.moved_elements * samples * precision.activation / all_parts,
        weight_bytes=weights * precision.weight,
        shapes=tuple(_shape(product, local) for product in op.products),
        is_fp8=op.narrow and precision.product == _FP8_BYTES,
        current_scaling=precision.current_scaling,
        input_elements=arriving.total_bytes / precision.activation / stored_parts,
        output_elements=op.output_elements * samples / all_parts,
        causal_factor=context.causal_factor(parts.get("s", 1)) if context else 1.0,
        attention_kernels=context.kernels(parts.get("s", 1)) if context else 1.0,
    )
    forward_s, backward_s = operator_seconds(op, work, device)
    launches, backward_launches = _launches(op, work, precision)
    again, kept_own, kept_input = _kept(op, stated.recomputation)
    output = {axis: op.writes.index(dim) if dim in op.writes else PARTIAL for axis, dim in split.items()}
    leaving = PlacedTensor(total_bytes=op.output_elements * samples * precision.activation, placement=output)
    gradients_bytes = arriving.total_bytes / stored_parts + leaving.total_bytes / shards(output, mesh)
    input_bytes = op.stored_input_bytes * samples * _stored_ratio(op, precision) / stored_parts
    own_bytes = op.stored_own_bytes * samples / all_parts
    return PlacedOperator(
        before=tuple(before),
        gathers_again=_gathers_again(op, stated.recomputation, before),
        after=tuple(after),
        forward_s=forward_s,
        backward_s=backward_s,
        again_s=forward_s * again,
        host_forward_s=device.launch_s * launches,
        host_backward_s=device.launch_s * (backward_launches + launches * again),
        flops=work.flops * (1 + op.backward_ratio),
        product=bool(op.products) and bool(op.weight_dims),
        weights=weights,
        sums=frozenset(axis for axis, dim in split.items() if dim not in op.weight_dims and mesh.degree(axis) > 1),
        memory=stated.memory,
        stored_input_bytes=input_bytes * kept_input,
        stored_own_bytes=own_bytes * kept_own,
        input_bytes=max(op.stored_input_bytes * samples, arriving.total_bytes) / stored_parts,
        workspace_bytes=op.workspace_bytes * samples / all_parts + gradients_bytes,
        dropped_bytes=input_bytes * (1 - kept_input) + own_bytes * (1 - kept_own),
        recomputed=stated.recomputation == FULL,
        output=leaving,
    )


def _launches(op: Operator, work: OperatorCost, precision: Precision) -> tuple[float, float]:
    """Return the operators that the host issues in forward and backward, with the kernels of separate products."""
    backward = op.launches * op.backward_ratio if op.backward_launches is None else op.backward_launches
    if not op.separate_repeats:
        return op.launches, backward
    casts = work.is_fp8 * (_CURRENT_CASTS * precision.current_scaling + _BLOCK_CASTS * precision.block_scaling)
    each = _KERNEL_LAUNCH * sum(shape.count for shape in work.shapes)
    return op.launches + each * (_REPEAT_KERNELS + casts), backward + each * (_REPEAT_BACKWARD_KERNELS + casts)


def _stored_ratio(op: Operator, precision: Precision) -> float:
    """Return the ratio of the input bytes that a linear layer keeps to those in the activations' format.

    Transformer Engine keeps the cast input of an FP8 product (`saved_inputmat_t`). Attention also keeps its own output.
    """
    if precision.stored_product is None or precision.product != _FP8_BYTES or not op.narrow:
        return 1.0
    return precision.stored_product / precision.activation + (op.kept_input_share == KEPT_WHOLE)


def _kept(op: Operator, recomputation: str) -> tuple[float, float, float]:
    """Return the share of the forward pass that backward repeats, and the shares of own tensors and input kept."""
    if recomputation == SELECTIVE and op.selective:
        return 1.0, 0.0, 1.0
    if recomputation != PER_OPERATOR:
        return 0.0, 1.0, 1.0
    if op.fused_attention:
        return 0.0, 1.0, op.kept_input_share
    return (_PRODUCTS_AGAIN if op.products else 1.0), 0.0, op.kept_input_share


def _gathers_again(op: Operator, recomputation: str, before: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """Return the gathers that backward repeats: recomputation per operator keeps reduce-scatters' results only.

    torchtitan's list of kept operators has `reduce_scatter_tensor` but not `all_gather_into_tensor`. It has attention.
    """
    if recomputation != PER_OPERATOR or op.fused_attention:
        return ()
    return tuple(transfer for transfer in before if transfer.kind == ALL_GATHER)


def _splits(op: Operator, stated: ResolvedStrategy, arriving: Placement, mesh: Mesh) -> dict[str, str]:
    """Return by axis the dimension that it splits: the stated one, otherwise that of the input tensor."""
    first: OperatorInput = op.reads[0]
    found = {}
    for axis in mesh.axes:
        dim = stated.splits.get(axis.name)
        if axis.name not in stated.splits:
            position = arriving.get(axis.name, PARTIAL)
            dim = first.dims[position] if 0 <= position < len(first.dims) else None
        if dim is not None and axis.size > 1 and (dim == BATCH or dim in op.dims):
            found[axis.name] = dim
    return found


def _parts(op: Operator, dim: str, split: Mapping[str, str], mesh: Mesh, samples: float) -> float:
    parts = 1
    for axis, split_dim in split.items():
        parts *= mesh.degree(axis) if split_dim == dim else 1
    size = samples if dim == BATCH else op.dims[dim]
    if size % parts:
        axes = " x ".join(axis for axis, split_dim in split.items() if split_dim == dim and mesh.degree(axis) > 1)
        got = f"{parts} parts of {size:.12g}"
        raise ConfigError(f"split of {dim!r} in {op.name}: got {got}, expected a divisor (it is split over {axes})")
    return parts


def _shape(product: MatrixProduct, sizes: Mapping[str, float]) -> Shape:
    def size(extents: tuple[Extent, ...]) -> float:
        return _product(sizes[extent] if isinstance(extent, str) else extent for extent in extents)

    return Shape(
        rows=size(product.rows),
        columns=size(product.columns),
        inner=size(product.inner),
        count=size(product.repeats),
        interleaved=product.interleaved,
        grouped=product.grouped,
    )


def _weight_parts(op: Operator, split: Mapping[str, str], mesh: Mesh) -> float:
    return _product(mesh.degree(axis) for axis, dim in split.items() if dim in op.weight_dims)


def _at_positions(split: Mapping[str, str], dims: tuple[str, ...]) -> Placement:
    return {axis: dims.index(dim) for axis, dim in split.items() if dim in dims}


def _product(values: Iterable[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return product
