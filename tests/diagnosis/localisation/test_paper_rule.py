"""Equations 6 to 11 against plain arithmetic, and what the equations leave open."""

from statistics import median

import numpy as np
import pytest

from lockstep.diagnosis.localisation.expected import EXPECTED, ExpectedRange
from lockstep.diagnosis.localisation.paper_rule import (
    above_spread,
    distance_from_expected,
    evaluate_by_paper,
    normalised,
    sample_peers,
)
from lockstep.trace.patterns import FunctionClass

HOST = EXPECTED[FunctionClass.HOST]


def test_distance_from_expected_is_the_overshoot_in_every_dimension():
    """Manhattan distance to the box; inside it is 0, a dimension without a value adds nothing."""
    box = ExpectedRange(beta=(0.1, 0.2), mu=(0.5, 1.0), sigma=(0.0, 0.25), source="test")
    values = np.array([[0.15, 0.3, 0.05, 0.3], [0.7, 0.25, 1.0, np.nan], [0.1, 0.5, 0.25, np.nan]], np.float32)
    assert distance_from_expected(values, box) == pytest.approx([0, 0.1 + 0.25 + 0.25, 0.05, 0.1], abs=1e-6)


def test_only_python_and_collectives_can_be_unexpected():
    """The paper's ranges: 1 %, 30 %, everything."""
    values = np.array([[0.5], [0.5], [0.5]], np.float32)
    found = {kind: float(distance_from_expected(values, expected)[0]) for kind, expected in EXPECTED.items()}
    assert found == pytest.approx({"compute": 0, "memory": 0, "collective": 0.2, "host": 0.49})


def test_dimensions_are_divided_by_their_maximum_and_nothing_by_nothing_is_nothing():
    """Sigma is 0 for everybody where counters stand still."""
    values = np.array([[0.1, 0.2], [np.nan, 0.5], [0.0, 0.0]], np.float32)
    got = normalised(values)
    assert got[0].tolist() == [0.5, 1.0]
    assert np.isnan(got[1, 0])
    assert got[1, 1] == 1.0
    assert got[2].tolist() == [0.0, 0.0]


def test_a_count_is_high_above_median_and_five_deviations():
    """Against the statistics module, in exact numbers; at the limit it is not above."""
    random = np.random.default_rng(4)
    for workers in (1, 2, 7, 100, 1001):
        for spread in (1, 5, 100):
            counts = random.integers(0, spread + 1, workers).astype(np.uint8)
            middle = median(counts.tolist())
            deviation = median(abs(each - middle) for each in counts.tolist())
            assert above_spread(counts).tolist() == [each > middle + 5 * deviation for each in counts.tolist()]


def test_peers_are_a_hundred_different_workers_always_the_same():
    """N = min(100, |W|)."""
    assert sample_peers(3).tolist() == [0, 1, 2]
    peers = sample_peers(100_000)
    assert len(set(peers.tolist())) == 100
    assert np.array_equal(peers, sample_peers(100_000))


def test_equation_11():
    """A lone slow worker is unlike; below 1 % of the window no one is anything."""
    values = np.tile(np.array([[0.005], [0.8], [0.1]], np.float32), (1, 200))
    values[:, 7] = 0.02, 0.8, 0.1
    values[:, 8] = 0.009, 0.1, 0.9
    found = evaluate_by_paper(values, HOST, sample_peers(200))
    assert np.flatnonzero(found.unexpected).tolist() == [7]
    assert np.flatnonzero(found.unlike).tolist() == [7]
