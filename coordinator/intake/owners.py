# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Maps each rank to the node that may report it, as an array, so that all records of a batch are checked at once.

Shapes: W ranks of the world (indexed by rank), N records, B batches.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_UNOWNED = 0
_UNKNOWN = -1  # a node that owns nothing


class Owners:
    """The owner of each rank, as a node number. Uses memory only for the ranks of the world."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._owner_W = np.zeros(0, dtype=np.int32)

    def resize(self, world_size: int, nodes: "Mapping[int, str]") -> None:
        """Start over with another world size; `nodes` maps each announced rank to its owner."""
        self._ids.clear()
        self._owner_W = np.zeros(world_size, dtype=np.int32)
        for rank, node in nodes.items():
            self.assign(rank, node)

    def assign(self, rank: int, node: str) -> None:
        """Make a node the owner of a rank.

        Ignored if the rank is outside of the world (`resize` assigns it when that grows).
        """
        if rank < len(self._owner_W):
            self._owner_W[rank] = self._ids.setdefault(node, len(self._ids) + 1)

    def foreign(
        self, nodes: "Sequence[str]", counts: "Sequence[int]", ranks_N: "NDArray[np.int64]"
    ) -> "NDArray[np.bool_]":
        """Return which records are of a rank that another node owns, array of shape (N,).

        `nodes` are the senders of B batches in order and `counts` their numbers of records, which sum to N. A rank
        without an owner, or outside of the world, is not foreign to any node.
        """
        owner_W = self._owner_W
        if not len(owner_W):
            return np.zeros(len(ranks_N), dtype=bool)
        sender_N = np.repeat(np.array([self._ids.get(node, _UNKNOWN) for node in nodes], dtype=np.int32), counts)
        # One comparison checks both bounds: as unsigned integers, negative ranks are the largest.
        inside_N = ranks_N.view(np.uint64) < len(owner_W)
        owner_N = owner_W[np.where(inside_N, ranks_N, 0)]
        foreign_N: NDArray[np.bool_] = (owner_N != sender_N) & (owner_N != _UNOWNED) & inside_N
        return foreign_N
