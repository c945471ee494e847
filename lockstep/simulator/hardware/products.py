"""What matrix products get of a device by their shape: tiles of the output, waves of tiles, and the cost of a start.

A product of m x k by k x n is computed in tiles of its output, one on each multiprocessor at a time, so that its time
is that of whole waves of tiles (NVIDIA, "Matrix multiplication background user's guide", tile and wave quantization).
A library takes the best of a few kernels: a wide tile in two orientations, a narrow one at `narrow_share` of the wide
one's efficiency, and any of them with the inner dimension cut in parts where the output alone fills no wave.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

_WIDE = ((256, 128), (128, 256))
_NARROW = (128, 128)
_PARTS = (1, 2, 3, 4, 6, 8)
_ALIGNED = 8
_UNALIGNED_SHARE = 0.7
"""Of the efficiency is left where the contiguous dimensions are no multiples of 8 elements, 16 bytes at half precision:
what measured batched products with 140 columns get on A100 (pytorch/pytorch, issue 83272, CUDA 11.7)."""
_LEAST_INNER = 1024
"""No part of the inner dimension is shorter; below, libraries do not cut it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a device computes products: its multiprocessors, and two numbers that measured products give.

    `narrow_share` is the efficiency of a narrow tile over that of a wide one; `fill` counts the elements of the inner
    dimension that a tile's beginning and end cost.
    """

    multiprocessors: int
    narrow_share: float
    fill: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`count` equal products of `rows` x `inner` by `inner` x `columns` elements."""

    rows: float
    columns: float
    inner: float
    count: float = 1.0

    def backward(self) -> tuple["Shape", "Shape"]:
        """Return the products of the backward pass: the gradients of both factors."""
        return (
            Shape(rows=self.rows, columns=self.inner, inner=self.columns, count=self.count),
            Shape(rows=self.inner, columns=self.columns, inner=self.rows, count=self.count),
        )


@lru_cache(maxsize=4096)
def product_seconds(shape: Shape, tiling: Tiling, flops_per_second: float) -> float:
    """Return the time of the arithmetic of `shape` where wide tiles in full waves reach `flops_per_second`."""
    aligned = shape.columns % _ALIGNED == 0 and shape.inner % _ALIGNED == 0
    tile_flops_per_second = flops_per_second / tiling.multiprocessors * (1.0 if aligned else _UNALIGNED_SHARE)
    best_s = float("inf")
    for rows, columns in (*_WIDE, _NARROW):
        share = tiling.narrow_share if (rows, columns) == _NARROW else 1.0
        tiles = shape.count * ceil(shape.rows / rows) * ceil(shape.columns / columns)
        for parts in _PARTS:
            if parts > 1 and shape.inner < parts * _LEAST_INNER:
                break
            waves = ceil(tiles * parts / tiling.multiprocessors)
            wave_flops = 2 * rows * columns * (shape.inner / parts + tiling.fill)
            best_s = min(best_s, waves * wave_flops / (tile_flops_per_second * share))
    return best_s
