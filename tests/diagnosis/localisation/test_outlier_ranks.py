"""Inside a flagged group, who makes the others wait."""

import numpy as np
import pytest

from lockstep.diagnosis.localisation import NO_GROUP, OutlierBy
from lockstep.diagnosis.localisation.outlier_ranks import outlier_ranks

WORKERS = 64
GROUPS = {"tp": np.arange(WORKERS) // 8, "dp": np.arange(WORKERS) % 8}


def job(slow_group: int, *, measured=True) -> tuple[np.ndarray, np.ndarray]:
    """Return patterns of 8 data-parallel groups of 8, one of them slow, and who is flagged."""
    random = np.random.default_rng(2)
    values = np.array([[0.1], [0.5], [0.1]]) * (1 + 0.02 * random.standard_normal((3, WORKERS)))
    flagged = GROUPS["dp"] == slow_group
    values[0, flagged] *= 3
    if not measured:
        values[1:] = np.nan
    return values.astype(np.float32), flagged


@pytest.mark.parametrize("usage", [0.9, 0.2])
def test_the_outlier_is_found_by_its_usage_in_either_direction(usage):
    """More on the bus that replaces a link, or less on the slow link itself."""
    values, flagged = job(3)
    values[1, 19] = usage
    found = outlier_ranks(values, flagged, GROUPS)
    assert (found.worker.tolist(), found.by, found.group_kind) == ([19], OutlierBy.USAGE, "dp")


def test_the_steady_one_among_those_that_fluctuate():
    """PerfTracker, section 3: the slow link does not wait, so its deviation is small."""
    values, flagged = job(3)
    values[1, flagged], values[2, flagged] = 0.3, 0.25
    values[2, 27] = 0.02
    assert outlier_ranks(values, flagged, GROUPS).worker.tolist() == [27]


def test_without_samples_the_one_that_waits_least_came_last():
    """Even though it is not flagged itself."""
    values, flagged = job(3, measured=False)
    values[0, 11], flagged[11] = 0.02, False
    found = outlier_ranks(values, flagged, GROUPS)
    assert (found.worker.tolist(), found.by) == ([11], OutlierBy.SHORTEST)


def test_a_group_without_an_outlier_has_none():
    """A slow switch is no one's."""
    for measured in (True, False):
        values, flagged = job(3, measured=measured)
        assert len(outlier_ranks(values, flagged, GROUPS).worker) == 0


def test_half_of_a_group_is_no_outlier():
    """Two camps: nothing shows which is right."""
    values, flagged = job(3)
    values[1, np.flatnonzero(flagged)[::2]] = 0.9
    assert len(outlier_ranks(values, flagged, GROUPS).worker) == 0


def test_scattered_workers_are_no_group():
    """Most of the groups that they are in is healthy."""
    values, _ = job(3)
    flagged = np.zeros(WORKERS, np.bool_)
    flagged[[0, 9, 18, 27]] = True
    assert outlier_ranks(values, flagged, GROUPS).group_kind == ""


def test_pairs_and_workers_without_group_are_passed_over():
    """Of two none is the outlier; pipeline ends may be in no group."""
    values, flagged = job(3)
    values[1, 19] = 0.9
    pairs = {"pp": np.arange(WORKERS) // 2, "none": np.full(WORKERS, NO_GROUP)}
    assert len(outlier_ranks(values, flagged, pairs).worker) == 0
    assert len(outlier_ranks(values, flagged, {}).worker) == 0
