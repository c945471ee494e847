# ruff: noqa: N803  (names of arrays end in their shape: D dimensions, W workers, N peers)
"""The count of far peers is the plain loop's, bit for bit."""

import numpy as np
import pytest

from lockstep.contracts.errors import LocalError
from lockstep.diagnosis.localisation import far_peers
from lockstep.diagnosis.localisation.far_peers import count_far
from lockstep.diagnosis.localisation.paper_rule import normalised, sample_peers

LIMIT = np.float32(0.4)


def plain_loop(points_DW, peer_N, workers) -> list[int]:
    """Equations 9 and 10 in scalars of float32, beta before mu before sigma."""
    counts = []
    for worker in workers:
        far = 0
        for peer in peer_N:
            distance = np.float32(0)
            for values in points_DW:
                apart = abs(values[peer] - values[worker])
                distance = np.float32(distance + (np.float32(0) if np.isnan(apart) else apart))
            far += not distance < LIMIT
        counts.append(far)
    return counts


def points(kind: str, workers: int, random) -> np.ndarray:
    if kind == "uniform":
        return random.random((3, workers), dtype=np.float32)
    if kind == "lattice":  # distances exactly at the limit, and on the grid's own lines
        return (random.integers(0, 11, (3, workers)) / np.float32(10)).astype(np.float32)
    if kind == "grid":
        return (random.integers(0, 33, (3, workers)) / np.float32(32)).astype(np.float32)
    if kind == "equal":
        return np.full((3, workers), 0.7, np.float32)
    if kind == "line":
        return np.stack(
            (random.random(workers, dtype=np.float32), np.zeros(workers, np.float32), np.ones(workers, np.float32))
        )
    values = np.array([0.2, 0.9, 0.05])[:, None] * (1 + float(kind) * random.standard_normal((3, workers)))
    values[0, random.random(workers) < 0.2] *= 1.5
    return normalised(np.maximum(values, 0).astype(np.float32))


@pytest.mark.parametrize("kind", ["0.02", "0.1", "0.3", "uniform", "lattice", "grid", "equal", "line"])
@pytest.mark.parametrize("workers", [1, 2, 99, 1300])
def test_counts_are_those_of_the_plain_loop(kind, workers):
    """All workers at small sizes, whether cells, boxes or pairs decide."""
    values = points(kind, workers, np.random.default_rng(workers))
    peers = sample_peers(workers)[:40]
    checked = np.random.default_rng(1).choice(workers, min(workers, 150), replace=False)
    assert count_far(values, peers, LIMIT)[checked].tolist() == plain_loop(values, peers, checked)


@pytest.mark.parametrize("kind", ["0.1", "uniform", "lattice"])
def test_counts_of_many_workers_are_those_of_the_plain_loop_on_random_ones(kind):
    """Large enough for many boxes, several portions of them and all ways to a decision."""
    values = points(kind, 200_000, np.random.default_rng(5))
    peers = sample_peers(200_000)
    checked = np.random.default_rng(6).choice(200_000, 60, replace=False)
    assert count_far(values, peers, LIMIT)[checked].tolist() == plain_loop(values, peers, checked)


@pytest.mark.parametrize("limit", [0, 1 << 15])
def test_counts_do_not_depend_on_where_they_are_decided(monkeypatch, limit):
    """By cells first, or by boxes alone."""
    values = points("0.1", 5000, np.random.default_rng(7))
    peers = sample_peers(5000)
    wanted = count_far(values, peers, LIMIT)
    monkeypatch.setattr(far_peers, "_CELLS_MAX", limit)
    assert np.array_equal(count_far(values, peers, LIMIT), wanted)


@pytest.mark.parametrize("absent", [(1, 2), (2,), (1,)])
def test_dimensions_that_either_lacks_count_nothing(absent):
    """A third of the workers, peers among them, has no samples."""
    random = np.random.default_rng(8)
    values = points("0.3", 400, random)
    for dimension in absent:
        values[dimension, random.random(400) < 0.3] = np.nan
    peers = sample_peers(400)[:30]
    assert count_far(values, peers, LIMIT).tolist() == plain_loop(values, peers, range(400))


def test_nothing_was_measured():
    """Only beta is left."""
    values = points("uniform", 300, np.random.default_rng(9))
    values[1:] = np.nan
    peers = sample_peers(300)[:30]
    assert count_far(values, peers, LIMIT).tolist() == plain_loop(values, peers, range(300))


def test_more_peers_than_a_byte_counts_are_refused():
    """The counts would wrap."""
    with pytest.raises(LocalError, match="peers: got 256"):
        count_far(np.zeros((3, 300), np.float32), np.arange(256), LIMIT)
