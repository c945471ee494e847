"""Where a tensor lies on a mesh, and which collectives take it from one placement to another.

A placement maps mesh axes to the position at which the tensor is split along them, or to PARTIAL where each rank
holds a term of a sum; along an axis that is not named all ranks hold the same. `transfers` is the whole of what Proteus
calls strategy transformation: whenever producer and consumer disagree, the disagreement names the collective.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.simulator.hardware.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from lockstep.simulator.strategy.mesh import Mesh

PARTIAL = -1
_REPLICATED = None

Placement = Mapping[str, int]
"""Mesh axis to position of the tensor, or PARTIAL; replicated where absent."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of `volume_bytes` (see `collectives`) in every group along the axes."""

    kind: str
    axes: frozenset[str]
    volume_bytes: float


def shards(placement: Placement, mesh: Mesh) -> int:
    """Return into how many parts `placement` splits a tensor."""
    parts = 1
    for axis, position in placement.items():
        if position != PARTIAL:
            parts *= mesh.degree(axis)
    return parts


def transfers(total_bytes: float, have: Placement, want: Placement, mesh: Mesh) -> tuple[Transfer, ...]:
    """Return the collectives that take a tensor of `total_bytes` from `have` to `want`, none where they agree.

    Sums come first, so that nothing is gathered that a reduce-scatter would have thrown away; cutting a replicated
    tensor is free. Axes that change alike are one group.
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
    """Return the collective of one axis, None where nothing moves."""
    if have == want or have is _REPLICATED:
        return None
    if have == PARTIAL:
        return ALL_REDUCE if want is _REPLICATED else REDUCE_SCATTER
    return ALL_GATHER if want is _REPLICATED else ALL_TO_ALL
