# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The number of sampled peers far from each worker: the sum of equation 9, exactly, without computing most pairs.

A peer that is certainly near to, or far from, every point of a box is counted once for all workers in the box. The
first boxes are the cells of a grid, which decide most workers of a healthy function. Workers in undecided cells are
sorted so that neighbours are adjacent, and grouped into tight boxes; pairs still undecided are computed. The result is
the same sum, bit for bit: in float32, beta before mu before sigma, far unless the sum is below the limit; a dimension
that either worker of a pair lacks counts 0 (tests compare with a plain loop).

Shape suffixes: D dimensions (those present), W workers, N peers, C cells, B boxes, K workers of a box.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import LocalError
from lockstep.diagnosis.localisation.matrix import Flags, Single

PEERS_MAX = 255  # counts are bytes: a million of them stay in cache while they are put back in order
_BOX = 512  # workers; smaller boxes leave fewer pairs undecided but cost more: the minimum is flat
_BOXES_AT_ONCE = 64  # two buffers of 128 KB
_CELL_BITS = 15  # of all dimensions together; sorting uint16 is by radix
_CELLS_MAX = 4096  # more cells cost more than they save
_MARGIN = np.float32(1e-5)  # a sum of three float32 below 6 is wrong by less than 1e-6
Counts = NDArray[np.uint8]


def count_far(points_DW: Single, peer_N: NDArray[np.int64], limit: np.float32) -> Counts:
    """Return how many of the workers `peer_N` are at a Manhattan distance of at least `limit` from each worker.

    `points_DW` are normalised patterns, 0 to 1, NaN where a dimension is absent; the counts are uint8 of shape
    (n_workers,). Source: PerfTracker, equations 9 and 10.

    Raises
    ------
    LocalError
        There are more than PEERS_MAX peers.
    """
    if len(peer_N) > PEERS_MAX:
        raise LocalError(f"peers: got {len(peer_N)}, expected at most {PEERS_MAX}")
    lacks_W = _absences(points_DW)
    kinds = np.flatnonzero(np.bincount(lacks_W)).tolist()
    if kinds == [0]:
        return _count(points_DW, points_DW[:, peer_N], limit)
    counts_W = np.zeros(points_DW.shape[1], np.uint8)
    for kind in kinds:
        workers = np.flatnonzero(lacks_W == kind)
        for other in np.flatnonzero(np.bincount(lacks_W[peer_N])).tolist():
            peers = peer_N[lacks_W[peer_N] == other]
            present = np.flatnonzero(~(kind | other) >> np.arange(len(points_DW)) & 1)
            counts_W[workers] += _count(points_DW[np.ix_(present, workers)], points_DW[np.ix_(present, peers)], limit)
    return counts_W


def _absences(points_DW: Single) -> NDArray[np.uint8]:
    """Return, per worker, a bit for each dimension that it lacks."""
    lacks_W = np.zeros(points_DW.shape[1], np.uint8)
    for dimension, values_W in enumerate(points_DW):
        if np.isnan(np.add.reduce(values_W)):
            lacks_W |= np.isnan(values_W).astype(np.uint8) << np.uint8(dimension)
    return lacks_W


def _count(points_DW: Single, peers_DN: Single, limit: np.float32) -> Counts:
    cell_W = _cells(points_DW)
    found = _by_cell(cell_W, peers_DN, limit)
    if found is None:
        counts_W, rows = np.empty(len(cell_W), np.uint8), np.arange(len(cell_W))
    else:
        counts_of_cell, is_open = found
        counts_W, rows = counts_of_cell.take(cell_W), np.flatnonzero(is_open.take(cell_W))
    if len(rows):
        order = rows[np.argsort(cell_W[rows], kind="stable")]
        counts_W[order] = _by_box(points_DW, order, peers_DN, limit)
    return counts_W


def _cells(points_DW: Single) -> NDArray[np.uint16]:
    """Return each worker's cell in a grid, numbered so that neighbours are close (Morton order)."""
    bits = _CELL_BITS // len(points_DW)
    cells = np.minimum(np.arange((1 << bits) + 1), (1 << bits) - 1)  # 1.0 belongs to the last cell
    spread = np.zeros(len(cells), np.uint16)  # the bits of a cell with room between them for the other dimensions'
    for bit in range(bits):
        spread |= ((cells >> bit & 1) << bit * len(points_DW)).astype(np.uint16)
    cell_W = np.zeros(points_DW.shape[1], np.uint16)
    for dimension, values_W in enumerate(points_DW):
        at_W = (values_W * np.float32(1 << bits)).astype(np.uint16)
        cell_W |= (spread << np.uint16(dimension)).take(at_W)
    return cell_W


def _by_cell(cell_W: NDArray[np.uint16], peers_DN: Single, limit: np.float32) -> tuple[Counts, Flags] | None:
    """Return, per cell, how many peers are certainly far from all of it, and whether any peer is undecided.

    None if workers are spread over so many cells that boxes around the workers are cheaper.
    """
    dimensions, bits = len(peers_DN), _CELL_BITS // len(peers_DN)
    used = np.flatnonzero(np.bincount(cell_W))
    if len(used) > _CELLS_MAX:
        return None
    at_DC = np.zeros((dimensions, len(used)), np.int64)
    for dimension in range(dimensions):
        for bit in range(bits):
            at_DC[dimension] |= (used >> bit * dimensions + dimension & 1) << bit
    low_DC = (at_DC / (1 << bits)).astype(np.float32)
    near_NC, far_NC = _certain(low_DC, low_DC + np.float32(1 / (1 << bits)), peers_DN, limit)
    counts, is_open = np.zeros(1 << _CELL_BITS, np.uint8), np.zeros(1 << _CELL_BITS, np.bool_)
    counts[used] = far_NC.sum(axis=0, dtype=np.uint8)
    is_open[used] = ~(near_NC | far_NC).all(axis=0)
    return counts, is_open


def _by_box(points_DW: Single, order: NDArray[np.intp], peers_DN: Single, limit: np.float32) -> Counts:
    """Return the counts of the workers `order`, in which neighbours are adjacent."""
    boxes = -(-len(order) // _BOX)
    filled = np.concatenate((order, np.repeat(order[-1:], boxes * _BOX - len(order))))
    boxed_DW = np.stack([values_W.take(filled) for values_W in points_DW])
    starts = np.arange(0, boxes * _BOX, _BOX)
    low_DB, high_DB = (each.reduceat(boxed_DW, starts, axis=1) for each in (np.minimum, np.maximum))
    near_NB, far_NB = _certain(low_DB, high_DB, peers_DN, limit)
    counts_BK = np.repeat(far_NB.sum(axis=0, dtype=np.uint8)[:, None], _BOX, axis=1)
    _add_open(counts_BK, boxed_DW.reshape(-1, boxes, _BOX), peers_DN, ~(near_NB | far_NB), limit)
    return counts_BK.reshape(-1)[: len(order)]


def _add_open(counts_BK: Counts, boxed_DBK: Single, peers_DN: Single, open_NB: Flags, limit: np.float32) -> None:
    """Add the pairs that no box decides, peer by peer, a few boxes at a time in reused buffers."""
    buffers = np.empty((2, _BOXES_AT_ONCE, _BOX), np.float32)
    far_buffer = np.empty((_BOXES_AT_ONCE, _BOX), np.uint8)
    for peer_D, open_B in zip(peers_DN.T, open_NB, strict=True):
        found = np.flatnonzero(open_B)
        for first in range(0, len(found), _BOXES_AT_ONCE):
            boxes = found[first : first + _BOXES_AT_ONCE]
            total, part = buffers[:, : len(boxes)]
            far = far_buffer[: len(boxes)]
            _distance(boxed_DBK[0], peer_D[0], boxes, total)
            for boxed_BK, peer in zip(boxed_DBK[1:], peer_D[1:], strict=True):
                _distance(boxed_BK, peer, boxes, part)
                np.add(total, part, out=total)
            np.greater_equal(total, limit, out=far.view(np.bool_))
            counts_BK[boxes] += far


def _distance(boxed_BK: Single, peer: np.float32, boxes: NDArray[np.intp], out: Single) -> None:
    np.take(boxed_BK, boxes, axis=0, out=out, mode="clip")  # "raise" would go through a buffer
    np.subtract(out, peer, out=out)
    np.abs(out, out=out)


def _certain(low_DB: Single, high_DB: Single, peers_DN: Single, limit: np.float32) -> tuple[Flags, Flags]:
    """Return which peers are near, and which far, from every point of each box; arrays of shape (n_peers, n_boxes).

    Peer by peer: numpy's loops over rows and columns together are not vectorised.
    """
    near_NB, far_NB = np.empty((2, peers_DN.shape[1], low_DB.shape[1]), np.bool_)
    for near_B, far_B, peer_D in zip(near_NB, far_NB, peers_DN.T, strict=True):
        above_low_DB, below_high_DB = peer_D[:, None] - low_DB, high_DB - peer_D[:, None]
        most_B = np.maximum(above_low_DB, below_high_DB).sum(axis=0)
        least_B = -np.minimum(np.minimum(above_low_DB, below_high_DB), np.float32(0)).sum(axis=0)
        np.less(most_B, limit - _MARGIN, out=near_B)
        np.greater_equal(least_B, limit + _MARGIN, out=far_B)
    return near_NB, far_NB
