"""A device mesh: ranks in a box with named axes, and the groups along some of these axes.

A mesh lists its ranks only on request, so that ten thousand ranks are four numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError


class MeshAxis(NamedTuple):
    """One direction of a mesh: `size` positions, `stride` ranks apart."""

    name: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks `first + sum(position * stride)`; the first axis varies fastest."""

    axes: tuple[MeshAxis, ...]
    first: int = 0

    @classmethod
    def grid(cls, sizes: Mapping[str, int], *, first: int = 0) -> "Mesh":
        """Return the mesh of consecutive ranks; the first of `sizes` varies fastest."""
        axes, stride = [], 1
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"mesh axis {name}: got {size}, expected at least 1")
            axes.append(MeshAxis(name, size, stride))
            stride *= size
        return cls(tuple(axes), first)

    def axis(self, name: str) -> MeshAxis:
        """Return the axis `name`.

        Raises
        ------
        ConfigError
            The mesh has no such axis.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise ConfigError(f"mesh axis: got {name!r}, expected one of {[axis.name for axis in self.axes]}")

    def degree(self, name: str) -> int:
        """Return the size of axis `name`, 1 if the mesh has none."""
        return next((axis.size for axis in self.axes if axis.name == name), 1)

    def at(self, name: str, position: int) -> "Mesh":
        """Return the mesh without axis `name`, at `position` along it."""
        axis = self.axis(name)
        rest = tuple(other for other in self.axes if other.name != name)
        return Mesh(rest, self.first + position * axis.stride)

    def __len__(self) -> int:
        size = 1
        for axis in self.axes:
            size *= axis.size
        return size

    def ranks(self) -> NDArray[np.int64]:
        """Return all ranks, an array of shape (len(self),); the first axis varies fastest."""
        return _grid(self.first, self.axes)

    def groups(self, names: frozenset[str]) -> NDArray[np.int64]:
        """Return the groups along the axes `names`, an array of shape (groups, ranks of a group), ascending in each."""
        inside = tuple(axis for axis in self.axes if axis.name in names)
        outside = tuple(axis for axis in self.axes if axis.name not in names)
        members = np.sort(_grid(0, inside))
        return _grid(self.first, outside)[:, None] + members[None, :]


@lru_cache(maxsize=1024)
def _grid(first: int, axes: tuple[MeshAxis, ...]) -> NDArray[np.int64]:
    ranks = np.array([first], dtype=np.int64)
    for axis in axes:
        ranks = (np.arange(axis.size, dtype=np.int64)[:, None] * axis.stride + ranks[None, :]).ravel()
    ranks.setflags(write=False)
    return ranks
