"""Time of matrix products on a device by their shape: output tiles, waves of tiles, and start-up costs.

A product of m x k by k x n is computed in tiles of its output, one on each multiprocessor at a time, so that its time
is that of whole waves of tiles (NVIDIA, "Matrix multiplication background user's guide", tile and wave quantization).
A library takes the best of a few kernels: a wide tile in two orientations, a narrow one at `narrow_share` of the wide
one's efficiency, and any of them with the inner dimension cut in parts where the output alone fills no wave.
"""

from dataclasses import dataclass, replace
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
GROUPED_FILL = 850.0
"""Elements of the inner dimension that beginning and ending a tile costs in a kernel of grouped products. On H100,
PyTorch's takes 1.31 ms for 16 groups with 8,192 rows in all by 5,120 x 8,192, and 1.26 ms by 8,192 x 5,120
(pytorch/ao, pull request 2490). The groups' sizes are printed; their tiles of 128 x 256 alone would take 1.15 and
1.13 ms, which gives 707 and 979. Assumed equal on other devices. Transformer Engine's products on several streams reach
509 and 399 TFLOP/s with 8 groups of 4,096 and 16 of 2,048 rows by 2,048 x 768 in version 2.2, which gives 650 and
1,400, and 628 and 554 in version 2.7, which gives 140 and 430 (NVIDIA/TransformerEngine, pull request 2045)."""
_LAST_TILE = 0.5
"""Tiles that a group has beyond its whole ones: the last is empty in half on average where tokens choose their experts
independently. The 16 groups of that pull request have 4 tiles of 128 rows on average, and 72 and 71 in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a device computes products: its multiprocessors, and two numbers that measured products give.

    `narrow_share` is the efficiency of a narrow tile over that of a wide one; `fill` counts the elements of the inner
    dimension that a tile's beginning and end cost, `grouped_fill` those in grouped products.
    `unaligned_flops_per_second` is what interleaved products reach whose operands begin at addresses that the matrix
    units cannot load from, None where that is not known.
    """

    multiprocessors: int
    narrow_share: float
    fill: float = 0.0
    unaligned_flops_per_second: float | None = None
    grouped_fill: float = GROUPED_FILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`count` equal products of `rows` x `inner` by `inner` x `columns` elements.

    Operands of `interleaved` ones lie next to each other in the rows of one tensor, as attention's heads do. The rows
    of one tensor are divided among `grouped` ones at run time, as tokens are among experts, so that `rows` are a mean.
    With `equal_rows` all groups have that many, as the gradients of their weights do.
    """

    rows: float
    columns: float
    inner: float
    count: float = 1.0
    interleaved: bool = False
    grouped: bool = False
    equal_rows: bool = False

    def backward(self) -> tuple["Shape", "Shape"]:
        """Return the products of the backward pass: the gradients of both factors."""
        return (
            replace(self, columns=self.inner, inner=self.columns),
            replace(self, rows=self.inner, inner=self.rows, equal_rows=True),
        )


@lru_cache(maxsize=4096)
def product_seconds(shape: Shape, tiling: Tiling, flops_per_second: float) -> float:
    """Return the time of the arithmetic of `shape` where wide tiles in full waves reach `flops_per_second`."""
    aligned = shape.columns % _ALIGNED == 0 and shape.inner % _ALIGNED == 0
    unaligned = tiling.unaligned_flops_per_second
    if unaligned is not None and shape.interleaved and not (aligned and shape.rows % _ALIGNED == 0):
        return 2 * shape.rows * shape.columns * shape.inner * shape.count / unaligned
    tile_flops_per_second = flops_per_second / tiling.multiprocessors * (1.0 if aligned else _UNALIGNED_SHARE)
    fill = max(tiling.fill, tiling.grouped_fill) if shape.grouped and shape.count > 1 else tiling.fill
    best_s = float("inf")
    for rows, columns in (*_WIDE, _NARROW):
        share = tiling.narrow_share if (rows, columns) == _NARROW else 1.0
        tiles = shape.count * tile_rows(shape, rows) * ceil(shape.columns / columns)
        for parts in _PARTS:
            if parts > 1 and shape.inner < parts * _LEAST_INNER:
                break
            waves = ceil(tiles * parts / tiling.multiprocessors)
            wave_flops = 2 * rows * columns * (shape.inner / parts + fill)
            best_s = min(best_s, waves * wave_flops / (tile_flops_per_second * share))
    return best_s


def tile_rows(shape: Shape, rows: int) -> float:
    """Return how many tiles of so many `rows` cover those of a product, on average over groups of random sizes."""
    if shape.grouped and not shape.equal_rows:
        return shape.rows / rows + _LAST_TILE
    return ceil(shape.rows / rows)
