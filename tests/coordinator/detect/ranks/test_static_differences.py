"""Which static differences stand out of a fleet's own."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.detect.ranks.groups import Groups
from coordinator.detect.ranks.static_differences import outlier_limit, student_quantile, views_of_ranks

RATE = 4e-5


def limit(fleet, references=1, rate=RATE):
    return outlier_limit(np.asarray(fleet, dtype=np.float32), references, prior_sigma=0.003, false_rate=rate)


def outliers(fleet, references=1, rate=RATE):
    """Return the places of a fleet's outliers."""
    return np.flatnonzero(np.asarray(fleet) > limit(fleet, references, rate)).tolist()


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"), [(0.05, 3, 2.353), (0.001, 5, 5.893), (1e-4, 10, 5.694), (1e-5, 30, 5.054)]
)
def test_students_quantile_is_that_of_the_tables(tail, freedom, expected):
    assert student_quantile(tail, np.array([float(freedom)]))[0] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("spread", [0.0025, 0.014, 0.05])
@pytest.mark.parametrize("series", [8, 128])
def test_a_fleet_has_no_outlier_however_wide_it_is(series, spread):
    rng = np.random.default_rng(0)
    assert sum(outliers(rng.normal(0.0, spread, series)) != [] for _ in range(100)) <= 1


@pytest.mark.parametrize("slow", [1, 4])
def test_several_outliers_do_not_hide_each_other(slow):
    fleet = np.random.default_rng(1).normal(0.0, 0.0025, 8)
    fleet[:slow] += 0.08
    assert outliers(fleet) == list(range(slow))


def test_what_is_far_below_the_reference_is_no_measure_of_the_others():
    """One device that is far faster does not hide one that is slow."""
    fleet = np.random.default_rng(2).normal(0.0, 0.0025, 16)
    fleet[3], fleet[7] = -0.2, 0.05
    assert outliers(fleet) == [7]


def test_values_that_are_their_own_reference_show_no_spread():
    """Of two ranks of a replica one is at 0 by construction: with it, the others' spread is not half of what it is."""
    fleet = np.zeros(16)
    fleet[::2] = np.abs(np.random.default_rng(3).normal(0.0, 0.02, 8))
    fleet[0] = 0.15
    assert 0 in outliers(fleet, references=1)
    assert outliers(fleet, references=8) == []


@pytest.mark.parametrize("replicas", [None, [rank // 2 for rank in range(16)]])
@pytest.mark.parametrize("seed", range(3))
def test_members_that_expert_places_are_measured_by_show_no_spread(replicas, seed):
    """Of the members of an expert place the lower one is at 0 by construction, ranks or replicas."""
    groups = None if replicas is None else Groups(replicas)
    level = np.abs(np.random.default_rng(seed).normal(0.0, 0.05, 16 + (0 if groups is None else groups.count)))
    units = level[:16] if groups is None else level[16:]
    units[: len(units) // 2] = 0.0
    if groups is not None:
        level[:16:2] = 0.0
        level[:8] = 0.0
    spans = SimpleNamespace(span=slice(0, 16)), SimpleNamespace(span=slice(16, len(level)))
    views = views_of_ranks(
        level, *spans, Groups([0] * 16), groups, are_batches_even=True, expert_places=len(units) // 2
    )
    assert [outliers(view.fleet_N, view.references) for view in views] == [[]] * len(views)


@pytest.mark.parametrize("fleet", [[], [0.5]])
def test_what_has_no_peers_is_no_outlier(fleet):
    assert limit(fleet) == math.inf


def test_of_two_series_the_prior_is_the_spread():
    assert outliers([0.0, 0.1]) == []
    assert outliers([0.0, 0.5]) == [1]


def test_of_many_series_some_show_the_spread():
    fleet = np.random.default_rng(4).normal(0.0, 0.0025, 10_240)
    fleet[5 :: 10_240 // 200] = 0.03
    assert outliers(fleet) == list(range(5, 10_240, 10_240 // 200))


@pytest.mark.parametrize("spread", [0.0025, 0.014])
@pytest.mark.parametrize("place", [0, 1, 7, 10_239])
def test_one_of_many_series_is_an_outlier_wherever_it_is(spread, place):
    """A sample shows the spread; who is not in it may be an outlier as well."""
    fleet = np.random.default_rng(5).normal(0.0, spread, 10_240)
    assert outliers(fleet) == []
    fleet[place] = 12 * spread
    assert outliers(fleet) == [place]
