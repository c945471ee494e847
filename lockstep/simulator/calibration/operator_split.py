"""How a job's computing divides between matrix products and all else, by the model and by captures.

Operators are placed as `chunks` places them, but stay apart. Which is which the device decides: what it is bound by
with nothing but its peaks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from lockstep.simulator.calibration.measured import OperatorTimes
from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.lowering.costs import added_seconds, pace_ratio
from lockstep.simulator.lowering.operators import PlacedTensor, place_operator
from lockstep.simulator.models.model import Operator, Precision
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import PARTIAL
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import OPTIMIZER, Node, StrategyTree, resolve


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Of one rank: of a micro-batch in products and in other operators, and the bytes that its optimizer moves."""

    matrix: float
    other: float
    update_bytes: float


class _Place(NamedTuple):
    mesh: Mesh
    device: Device
    samples: float
    precision: Precision
    alone: bool
    accumulates: bool


def operator_split(tree: StrategyTree, device: Device, *, batch: int, ranks: Sequence[int] = ()) -> OperatorTimes:
    """Return what a step of `batch` samples computes, seconds: the mean over `ranks`, over all if there are none.

    Raises
    ------
    ConfigError
        The tree cannot be compiled.
    """
    schedule = tree.root.order or Schedule()
    count = schedule.micro_batches
    of_mesh = _by_mesh(tree, device, samples=batch / count, accumulates=count > 1)
    weights = {mesh: _members(mesh, ranks) for mesh in of_mesh}
    total = sum(weights.values()) or 1
    matrix_s = sum(weights[mesh] * each.matrix for mesh, each in of_mesh.items()) * count / total
    other_s = sum(
        weights[mesh] * (each.other * count + device.update_seconds(each.update_bytes))
        for mesh, each in of_mesh.items()
    )
    return OperatorTimes(matrix_seconds=matrix_s, other_seconds=other_s / total, ranks=tuple(ranks))


def _members(mesh: Mesh, ranks: Sequence[int]) -> int:
    return int(np.isin(ranks, mesh.ranks()).sum()) if len(ranks) else len(mesh)


def _by_mesh(tree: StrategyTree, device: Device, *, samples: float, accumulates: bool) -> dict[Mesh, _Seconds]:
    """Return what a rank of each mesh computes, in the order of the data."""
    found: dict[Mesh, _Seconds] = {}
    arriving = PlacedTensor(total_bytes=0.0, placement={})
    kept: dict[object, tuple[_Seconds, PlacedTensor]] = {}
    first = before = None
    for block in tree.root.children.values():
        mesh = block.mesh or tree.root.mesh
        assert mesh is not None  # a forecast has been made of this tree
        if before is not None and mesh != before:
            home = {axis: at for axis, at in arriving.placement.items() if at != PARTIAL}
            arriving = PlacedTensor(total_bytes=arriving.total_bytes, placement=home)
        first, before = first or mesh, mesh
        alone = mesh != first  # tied weights have a copy where their owner is not
        placement = tuple(arriving.placement.items())
        key = (id(block.module), mesh.axes, alone, block.stated(), arriving.total_bytes, placement)
        if key not in kept:
            place = _Place(mesh, device, samples, tree.model.precision, alone, accumulates)
            kept[key] = _of_block(block, arriving, place)
        own, arriving = kept[key]
        sofar = found.get(mesh, _Seconds(0.0, 0.0, 0.0))
        found[mesh] = _Seconds(
            sofar.matrix + own.matrix, sofar.other + own.other, sofar.update_bytes + own.update_bytes
        )
    return found


def _of_block(block: Node, arriving: PlacedTensor, place: _Place) -> tuple[_Seconds, PlacedTensor]:
    mesh, device, samples, precision, alone, accumulates = place
    update_bytes = host_forward_s = host_backward_s = 0.0
    forward_s, backward_s = [0.0, 0.0], [0.0, 0.0]  # of products, and of others
    for leaf in _leaves(block):
        op = leaf.module
        assert isinstance(op, Operator)
        stated = resolve(leaf)
        placed = place_operator(op, stated, arriving, mesh, device, samples=samples, precision=precision)
        kind = 0 if _is_matrix(op, device, samples, precision) else 1
        forward_s[kind] += placed.forward_s
        backward_s[kind] += placed.forward_s * placed.recomputed + placed.backward_s + placed.again_s
        host_forward_s += placed.host_forward_s
        host_backward_s += placed.host_forward_s * placed.recomputed + placed.host_backward_s
        if alone or not op.shared_weights:
            parts = prod(mesh.degree(axis) for axis in placed.memory.get(OPTIMIZER, frozenset()) & placed.sums)
            moved_bytes = 2 * precision.optimizer + precision.gradient + precision.weight
            update_bytes += placed.weights / parts * moved_bytes
            backward_s[1] += added_seconds(placed.weights, precision, device) if accumulates else 0.0
        arriving = placed.output
    forward = pace_ratio(sum(forward_s), host_forward_s, blocking=device.launch_blocking)
    backward = pace_ratio(sum(backward_s), host_backward_s, blocking=device.launch_blocking)
    matrix_s, other_s = (own * forward + later * backward for own, later in zip(forward_s, backward_s, strict=True))
    return _Seconds(matrix_s, other_s, update_bytes), arriving


def _is_matrix(op: Operator, device: Device, samples: float, precision: Precision) -> bool:
    """Whether arithmetic, not memory, bounds the operator on a device that reaches its peaks."""
    moved_bytes = op.moved_elements * samples * precision.activation + op.weights * precision.weight
    arithmetic_s = op.flops * samples / device.flops_per_second
    return 0 < arithmetic_s >= moved_bytes / device.memory_bytes_per_second


def _leaves(node: Node) -> Iterator[Node]:
    if isinstance(node.module, Operator):
        yield node
    for child in node.children.values():
        yield from _leaves(child)
