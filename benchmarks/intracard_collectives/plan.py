# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which bytes and elements go in which piece: all that `csc` and `ring` share but the mesh.

Array names end in U where they are bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np

from benchmarks.intracard_collectives.shared import Bytes
from lockstep.contracts.errors import ConfigError, MalformedError

GATHERED_MAX_BYTES = 1 << 38
"""Sizes come from peers: a damaged one must not become an allocation. No node gathers 256 GiB in one call."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Where an all-gather writes: the parts of all ranks, each cut into pieces of at most a slot."""

    parts: list[Bytes]
    slot_bytes: int

    @classmethod
    def of(cls, sizes: Sequence[int], slot_bytes: int, out_U: Bytes | None) -> Self:
        """Return the plan for parts of `sizes` bytes, in `out_U` if given.

        Raises
        ------
        MalformedError
            The sizes are no sizes.
        ConfigError
            `out_U` has another length.
        """
        total = sum(sizes)
        if total > GATHERED_MAX_BYTES:
            raise MalformedError("bytes to gather", where="all-gather", got=total, expected=GATHERED_MAX_BYTES)
        if out_U is None:
            out_U = np.empty(total, np.uint8)
        elif len(out_U) != total:
            raise ConfigError(f"out: got {len(out_U)} bytes, expected {total}, the sum of all parts")
        ends = list(accumulate(sizes))
        return cls([out_U[end - size : end] for end, size in zip(ends, sizes, strict=True)], slot_bytes)

    @property
    def pieces(self) -> int:
        """How many pieces the longest part has; shorter ones have empty pieces at their end."""
        return max(1, *(-(-len(part_U) // self.slot_bytes) for part_U in self.parts))

    def piece(self, rank: int, piece: int) -> Bytes:
        """Return where a piece of the part of `rank` lies."""
        return self.parts[rank][piece * self.slot_bytes : (piece + 1) * self.slot_bytes]


@dataclass(frozen=True, slots=True)
class Scattering:
    """How `elements` are split: as `numpy.array_split` does, each part cut into pieces of `piece_elements`."""

    elements: int
    ranks: int
    piece_elements: int

    @property
    def pieces(self) -> int:
        """How many pieces the longest part has, at least one: ranks meet also over nothing."""
        return max(1, -(-self.size(0) // self.piece_elements))

    def size(self, rank: int) -> int:
        """Return how many elements the part of `rank` has: the first ranks have the odd ones."""
        return self.elements // self.ranks + (rank < self.elements % self.ranks)

    def span(self, rank: int, piece: int) -> slice:
        """Return where a piece of the part of `rank` lies in the values."""
        begin = rank * (self.elements // self.ranks) + min(rank, self.elements % self.ranks)
        end = begin + self.size(rank)
        return slice(min(begin + piece * self.piece_elements, end), min(begin + (piece + 1) * self.piece_elements, end))
