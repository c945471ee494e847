from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.fusion import Gradient, Task, exact, fixed_buckets, forward_search, one_bucket, unfused

gradients = st.lists(st.builds(Gradient, st.floats(0.0, 10.0), st.floats(0.0, 10.0)), min_size=1, max_size=9)
costs = st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 3.0))


def task_of(found, latency_s, seconds_per_byte):
    return Task(found, lambda volume: latency_s + seconds_per_byte * volume)


@given(gradients, costs)
def test_exact_is_the_best_of_all_segmentations(found, cost):
    """Dynamic programming finds the end that trying every segmentation finds."""
    task = task_of(found, *cost)
    cuts = range(1, len(found))
    every = (
        tuple(b - a for a, b in pairwise((0, *chosen, len(found))))
        for count in range(len(found))
        for chosen in combinations(cuts, count)
    )
    assert exact(task).end_s == pytest.approx(min(task.end_of(segments) for segments in every))


@given(gradients, costs, st.floats(0.1, 30.0))
def test_no_way_beats_exact_and_greedy_is_no_worse_than_unfused(found, cost, bucket):
    """Every way sends every gradient; exact ends first; forward search never ends after sending each by itself."""
    task = task_of(found, *cost)
    ways = [unfused(task), one_bucket(task), fixed_buckets(task, bucket), forward_search(task)]
    best = exact(task)
    assert all(sum(way.segments) == len(found) for way in (*ways, best))
    assert all(best.end_s <= way.end_s + 1e-9 for way in ways)
    assert ways[3].end_s <= ways[0].end_s + 1e-9


def test_greedy_fuses_what_delays_nothing():
    """Of four gradients the first two are through before the third is ready, the last two are not fused: figure 10."""
    found = [Gradient(1, 1), Gradient(1, 1), Gradient(1, 4), Gradient(4, 1)]
    way = forward_search(task_of(found, 0.5, 1.0))
    assert way.segments == (2, 1, 1)
    assert way.end_s == pytest.approx(6 + 1.5 + 4.5)


def test_greedy_fuses_what_waits_for_the_link():
    """Four gradients that are ready while a large one is sent: one after the other they would begin later still."""
    found = [Gradient(10, 1), Gradient(1, 1), Gradient(1, 1), Gradient(1, 1), Gradient(1, 1)]
    way = forward_search(task_of(found, 0.5, 1.0))
    assert way.segments == (1, 4)
    assert way.end_s == pytest.approx(1 + 10.5 + 4.5)


def test_what_fusing_is_for():
    """Many small gradients with a latency each: unfused pays them all, one bucket waits for backward, exact does neither."""
    task = task_of([Gradient(1e6, 1e-3)] * 50, 2e-3, 1e-9)
    assert unfused(task).end_s > 0.15
    assert one_bucket(task).end_s == pytest.approx(0.05 + 2e-3 + 0.05)
    assert exact(task).end_s < 0.07
    assert fixed_buckets(task, 25e6).segments == (25, 25)


def test_nothing_to_fuse_and_lost_gradients_are_reported():
    """No gradients, and segments that do not hold them all, are errors."""
    with pytest.raises(ConfigError, match="expected at least one"):
        Task([], lambda volume: volume)
    with pytest.raises(ConfigError, match=r"got 1 gradients in \(1,\), expected 2"):
        task_of([Gradient(1, 1)] * 2, 0, 1).end_of((1,))
