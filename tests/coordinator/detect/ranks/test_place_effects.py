"""What all ranks at one place of their replicas or nodes do is no fault, and hides none."""

import numpy as np
import pytest

from coordinator.detect.ranks.groups import Groups
from coordinator.detect.ranks.place_effects import PlaceEffects, places_of
from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.settings.policy import ExcessPolicy

STEPS, BEGIN = 200, 100


def own_work(ranks, loads, *, seed=1, load=0.025, warm_up=1.0):
    """Return own work of a job whose ranks `loads` read the batch for others, seconds, shape (steps, ranks)."""
    rng = np.random.default_rng(seed)
    device = 1 + 0.0025 * rng.standard_normal(ranks)
    compute = 0.45 * device * (1 + 0.003 * rng.standard_normal((STEPS, ranks)))
    compute += 0.45 * warm_up * np.exp(-np.arange(STEPS) / 3)[:, None]
    return compute + load * np.asarray(loads) * rng.gamma(30, 1 / 30, (STEPS, ranks))


def first_alarms(own, replicas, *, hosts=(), stages=None):
    """Return {rank: first step in alarm}."""
    test = SlowRankTest(stages or [0] * own.shape[1], replicas, ExcessPolicy(), hosts=hosts)
    first = {}
    for step, row in enumerate(own):
        test.step(row, step)
        for rank in np.flatnonzero(test.slow_R):
            first.setdefault(int(rank), step)
    return first


def tensor_groups(ranks, width):
    """Return the replica of each rank, and which rank of its tensor group loads."""
    return [rank // width for rank in range(ranks)], np.arange(ranks) % width == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "width"), [(8, 2), (8, 4), (64, 8), (128, 2), (128, 8)])
def test_one_loading_rank_of_each_tensor_group_is_no_fault(ranks, width, seed):
    """The first rank of each tensor group reads the batch, 5 % of a step: no one is named, at any size."""
    replicas, loads = tensor_groups(ranks, width)
    assert first_alarms(own_work(ranks, loads, seed=seed), replicas) == {}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "width"), [(8, 2), (8, 4), (32, 8), (64, 4)])
def test_a_long_load_is_no_fault_whatever_the_batches(ranks, width, seed):
    """A load of 30 % of a step that scatters, while batches are uneven and warm-up fades: no one is named."""
    replicas, loads = tensor_groups(ranks, width)
    own = own_work(ranks, loads, seed=seed, load=0.135)
    own += np.random.default_rng(seed).normal(0, 0.05, (STEPS, ranks // width))[:, replicas]
    assert first_alarms(own, replicas) == {}


@pytest.mark.parametrize(("ranks", "width"), [(8, 4), (32, 8)])
def test_a_rank_slow_from_the_start_is_found_among_long_loads(ranks, width):
    """+20 % on a rank that does not load is named in the first steps, though a load of 30 % stands out more."""
    replicas, loads = tensor_groups(ranks, width)
    own = own_work(ranks, loads, load=0.135)
    own[:, width + 1] += 0.1
    found = first_alarms(own, replicas)
    assert found.keys() == {width + 1}
    assert found[width + 1] < 40


@pytest.mark.parametrize("slow", [2, 3], ids=["loading", "waiting"])
@pytest.mark.parametrize(("ranks", "width"), [(8, 2), (64, 2), (128, 2)])
def test_a_slow_rank_among_loading_ranks_is_found(ranks, width, slow):
    """+5 % on a rank that loads, or on one that does not, is named within ten steps, and no one else."""
    replicas, loads = tensor_groups(ranks, width)
    own = own_work(ranks, loads)
    own[BEGIN:, slow] *= 1.05
    found = first_alarms(own, replicas)
    assert found.keys() == {slow}
    assert found[slow] <= BEGIN + 9


@pytest.mark.parametrize("ratio", [0.08, 0.5, 3.0])
@pytest.mark.parametrize("hosts", [(), [f"node{rank // 4}" for rank in range(8)]], ids=["one node", "two nodes"])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_makes_no_layout_of_its_pair(seed, hosts, ratio):
    """The rank that loads for a slow one is what their pair is compared by: no loading rank is named, however long."""
    replicas, loads = tensor_groups(8, 2)
    own = own_work(8, loads, seed=seed)
    own[BEGIN:, 7] *= 1 + ratio
    assert first_alarms(own, replicas, hosts=hosts).keys() == {7}


def test_one_rank_of_each_node_that_writes_is_no_fault():
    """Without replicas the first rank of each of eight nodes has more to do; a slow one among them is still found."""
    own = own_work(64, np.arange(64) % 8 == 0)
    hosts = [f"node{rank // 8}" for rank in range(64)]
    assert first_alarms(own, list(range(64)), hosts=hosts) == {}
    own[BEGIN:, 8] *= 1.05
    assert first_alarms(own, list(range(64)), hosts=hosts).keys() == {8}


def test_what_three_of_four_share_is_no_layout():
    """Three of four ranks at one place that are slow from the start are named: a layout holds in all replicas."""
    replicas, _ = tensor_groups(8, 2)
    own = own_work(8, np.zeros(8), warm_up=0.0)
    own[:, [0, 2, 4]] *= 1.05
    assert first_alarms(own, replicas).keys() == {0, 2, 4}


def test_a_rank_in_alarm_is_no_layout():
    """Both ranks of a place that turn slow at once stay named: what is in alarm does not become the place's."""
    replicas = [0, 0, 0, 0, 1, 1, 1, 1]
    own = own_work(8, np.zeros(8))
    own[BEGIN:, [1, 5]] *= 1.08
    test = SlowRankTest([0] * 8, replicas, ExcessPolicy())
    for step, row in enumerate(own):
        test.step(row, step)
    assert set(np.flatnonzero(test.slow_R)) == {1, 5}


@pytest.mark.parametrize("replicas", [2, 4])
def test_equal_places_have_no_effect_however_long_they_train(replicas):
    """What all places have in common is none of them: it must not grow from step to step."""
    effects = PlaceEffects(Groups([0, 1] * replicas), Groups([0] * 2 * replicas))
    rng = np.random.default_rng(1)
    for _ in range(3000):
        own = 1 + 0.004 * rng.standard_normal(2 * replicas).astype(np.float32)
        effects.learn(own, np.ones(1), None)
    assert effects.effect_R is None or effects.effect_R.max() < 0.002


def test_a_fast_rank_does_not_make_its_place_slow():
    """Of two ranks at a place one is 2 % faster than all others: the other place has no effect for that."""
    effects = PlaceEffects(Groups([0, 1] * 2), Groups([0] * 4))
    for _ in range(50):
        effects.learn(np.array([0.98, 1, 1, 1.001], dtype=np.float32), np.ones(1), None)
    assert effects.effect_R is None or effects.effect_R.max() < 0.001


def test_places_are_those_in_replica_and_node():
    """The finest places with two ranks each: in both, else in the replica, else on the node."""
    pairs = Groups([0, 0, 1, 1, 2, 2, 3, 3])
    nodes = ["a"] * 4 + ["b"] * 4
    assert places_of(pairs, nodes).count == 4
    assert places_of(pairs, ["a"] * 8).count == 2
    assert places_of(None, nodes).count == 4
    assert places_of(None, ["a"] * 8) is None
    assert places_of(None, ()) is None


def test_state_outlives_a_restart():
    """What was learnt of places is restored; that of another layout is left alone."""
    effects, restored = (PlaceEffects(Groups([0, 1] * 4), Groups([0] * 8)) for _ in range(2))
    own = np.array([1.05, 1, 1.06, 1, 1.05, 1, 1.07, 1], dtype=np.float32)
    effects.learn(own, np.ones(1), None)
    restored.load_state_dict(effects.state_dict())
    np.testing.assert_array_equal(restored.effect_R, effects.effect_R)
    other = PlaceEffects(Groups([0, 1, 2, 3] * 2), Groups([0] * 8))
    other.load_state_dict(effects.state_dict())
    assert other.effect_R is None
