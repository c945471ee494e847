# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Where records stand among the ranks: each in a column, and the eight of a node side by side wherever they come so.

Pure. What lies together is moved together: values of whole nodes are read and written as one item (measured: in a
third to two thirds of the time).

Shapes: R ranks (columns), N records, G nodes of `NODE` ranks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Places = NDArray[np.intp]

NODE = 8
_NODE_TYPES = {size: np.dtype(f"V{NODE * size}") for size in (1, 2, 4, 8)}  # by the bytes of a value
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Seats:
    """The column of each record; `node_G` is None unless all come as whole nodes, of columns 8 n to 8 n + 7."""

    column: "Places"
    node_G: "Places | None" = None

    def of(self, values_R: "NDArray[T]") -> "NDArray[T]":
        """Return the value of each record's rank, array of shape (N,)."""
        if self.node_G is None:
            return values_R[self.column]
        return values_R.reshape(-1, NODE).take(self.node_G, axis=0, mode="clip").reshape(-1)

    def put(self, values_R: "NDArray[T]", values_N: "NDArray[T] | float") -> None:
        """Set the value of each record's rank: its own (of the same type), or one for all."""
        if self.node_G is None:
            values_R[self.column] = values_N
            return
        own = values_N if isinstance(values_N, np.ndarray) else np.full(NODE, values_N, dtype=values_R.dtype)
        as_nodes(values_R)[self.node_G] = as_nodes(own)

    def are_unique(self, rank_count: int) -> bool:
        """Whether no rank has more than one of these records."""
        taken = np.zeros(rank_count, dtype=bool)
        if self.node_G is not None:
            taken = taken[: rank_count // NODE]
        places = self.column if self.node_G is None else self.node_G
        taken[places] = True
        return bool(np.count_nonzero(taken) == len(places))


def seats_of(column: "Places", rank_count: int) -> Seats:
    """Return the seats of records of these columns."""
    if not len(column) or len(column) % NODE or rank_count % NODE:
        return Seats(column)
    first_G = column[::NODE]
    next_by = np.subtract(column[1:], column[:-1])
    next_by[NODE - 1 :: NODE] = 1
    is_whole = np.minimum.reduce(next_by) == 1 == np.maximum.reduce(next_by)
    is_whole = is_whole and np.bitwise_or.reduce(first_G) % NODE == 0
    return Seats(column, first_G // NODE if is_whole else None)


def joined(seats: "Sequence[Seats]") -> Seats:
    """Return seats one after the other."""
    return Seats(np.concatenate([own.column for own in seats]), nodes_of(seats))


def nodes_of(seats: "Sequence[Seats]") -> "Places | None":
    """Return the nodes of seats one after the other, None unless all come as whole nodes."""
    nodes = [own.node_G for own in seats]
    known = [node_G for node_G in nodes if node_G is not None]
    return np.concatenate(known) if len(known) == len(nodes) else None


def as_nodes(values: "NDArray[np.generic]") -> "NDArray[np.void]":
    """Return values of whole nodes, one item a node; they share their memory."""
    nodes: NDArray[np.void] = values.view(_NODE_TYPES[values.itemsize])
    return nodes
