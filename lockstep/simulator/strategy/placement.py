"""Placements of tensors on a mesh, and the collectives that change one placement into another.

A placement maps a mesh axis to the dimension of the tensor that is split along it, or to PARTIAL if each rank holds a
term of a sum; along all other axes the tensor is replicated. `transfers` is Proteus's strategy transformation: if
producer and consumer differ, the difference determines the collective.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.simulator.hardware.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from lockstep.simulator.strategy.mesh import Mesh

PARTIAL = -1
_REPLICATED = None

Placement = Mapping[str, int]
"""Mesh axis to dimension of the tensor, by position, or PARTIAL; replicated along other axes."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of `volume_bytes` (see `collectives`) in every group along the axes."""

    kind: str
    axes: frozenset[str]
    volume_bytes: float


def shards(placement: Placement, mesh: Mesh) -> int:
    """Return the number of parts into which `placement` splits a tensor."""
    parts = 1
    for axis, position in placement.items():
        if position != PARTIAL:
            parts *= mesh.degree(axis)
    return parts


def transfers(total_bytes: float, have: Placement, want: Placement, mesh: Mesh) -> tuple[Transfer, ...]:
    """Return the collectives that change a tensor of `total_bytes` from `have` to `want`, none if they are equal.

    Sums come first, so that nothing is gathered that a reduce-scatter would drop; splitting a replicated tensor is
    free. Axes with the same change form one group.
    """
    changes: dict[str, set[str]] = {}
    for axis in {**have, **want}:
        kind = _kind(have.get(axis), want.get(axis))
        if kind is not None and mesh.degree(axis) > 1:
            changes.setdefault(kind, set()).add(axis)
    local_bytes = total_bytes / shards(have, mesh)
    found = []
    for kind in (REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, ALL_GATHER):
        axes = frozenset(changes.get(kind, ()))
        if not axes or local_bytes == 0:
            continue
        size = 1
        for axis in axes:
            size *= mesh.degree(axis)
        local_bytes *= size if kind == ALL_GATHER else 1
        found.append(Transfer(kind, axes, local_bytes))
        local_bytes /= size if kind == REDUCE_SCATTER else 1
    return tuple(found)


def _kind(have: int | None, want: int | None) -> str | None:
    """Return the collective for one axis, None if nothing moves."""
    if have == want or have is _REPLICATED:
        return None
    if have == PARTIAL:
        return ALL_REDUCE if want is _REPLICATED else REDUCE_SCATTER
    return ALL_GATHER if want is _REPLICATED else ALL_TO_ALL
