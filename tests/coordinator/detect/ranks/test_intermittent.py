"""Ranks that are slow again and again for single steps."""

import numpy as np
import pytest

from coordinator.detect.ranks.intermittent import IntermittentTest
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()


def first_alarms(slow):
    """Return {column: first step in alarm} of an array of truth values, steps x ranks."""
    test, first = IntermittentTest(slow.shape[1], POLICY), {}
    for step, row in enumerate(slow):
        test.step(dict.fromkeys(np.flatnonzero(row).tolist(), 0.5), step)
        for column in test.alarms:
            first.setdefault(column, step)
    return first


def chance(rate, *, steps=600, ranks=8, seed=0):
    return np.random.default_rng(seed).random((steps, ranks)) < rate


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [8, 1024])
def test_one_step_in_twenty_is_named_within_200(ranks, seed):
    """A rank that is slow here and there is named, while all stall as ranks of noisy hosts do; no one else is."""
    slow = chance(1e-4, ranks=ranks, seed=seed)
    slow[100:, 5] |= chance(1 / 15, ranks=1, steps=500, seed=seed)[:, 0]
    first = first_alarms(slow)
    assert first.keys() == {5}
    assert first[5] < 300


def test_four_of_eight_that_are_slow_in_one_step_of_20_are_named_within_200():
    """Nine in ten of them, though four ranks are all that they are compared with, and no one else."""
    found = 0
    for seed in range(10):
        slow = chance(1e-5, seed=seed)
        slow[60:, :4] |= chance(1 / 20, ranks=4, steps=540, seed=seed)
        first = first_alarms(slow[:260])
        assert first.keys() <= {0, 1, 2, 3}
        found += len(first)
    assert found >= 36


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.1])
@pytest.mark.parametrize(("ranks", "most"), [(8, 4), (128, 1)])
def test_what_all_ranks_do_more_often_than_before_is_no_fault(ranks, most, rate):
    """Of a job that begins to stall here and there, each time on another rank, chance hardly ever sets one apart."""
    named = 0
    for seed in range(20):
        slow = chance(1e-4, steps=900, ranks=ranks, seed=seed)
        slow[400:] |= chance(rate, steps=500, ranks=ranks, seed=seed + 100)
        named += len(first_alarms(slow))
    assert named <= most


def test_half_of_the_ranks_do_not_hide_each_other():
    """Four of eight that are slow in one step of ten are compared with the other four."""
    slow = np.zeros((400, 8), dtype=bool)
    slow[:, :4] = chance(1 / 10, steps=400, ranks=4)
    assert first_alarms(slow).keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("rate", [2e-3, 0.02, 0.1])
@pytest.mark.parametrize("ranks", [8, 128])
def test_what_all_ranks_do_is_no_fault(ranks, rate):
    """Where all stall alike, however often, no one is named."""
    assert first_alarms(chance(rate, steps=2000, ranks=ranks)) == {}


@pytest.mark.parametrize("lost", [(), (3, 7)])
def test_a_period_is_no_fault(lost):
    """A rank that writes a checkpoint every 20 steps is not named, though some of them were not seen."""
    slow = np.zeros((600, 8), dtype=bool)
    slow[10::20, 0] = True
    slow[[10 + 20 * each for each in lost], 0] = False
    assert first_alarms(slow) == {}


@pytest.mark.parametrize("seed", range(20))
def test_a_writer_of_which_half_is_not_known_is_not_named(seed):
    """Where records are missing, checkpoints are seen at any steps of the schedule, and a stall is none of them."""
    rng = np.random.default_rng(seed)
    slow = np.zeros((800, 8), dtype=bool)
    slow[14::15, 0] = rng.random(len(slow[14::15])) < 0.5
    slow[381, 0] = True
    assert first_alarms(slow) == {}


@pytest.mark.parametrize("period", [20, 50, 300])
def test_a_rank_that_begins_to_write_checkpoints_is_not_named(period):
    """Nor where the others have not been slow for so long that few steps would do."""
    slow = np.zeros((5000, 8), dtype=bool)
    slow[3000::period, 0] = True
    assert first_alarms(slow) == {}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("period", [15, 20, 34])
def test_a_writer_that_stalls_as_the_others_do_is_not_named(period, seed):
    """Its checkpoints are on a schedule whatever else holds it up, and no evidence."""
    slow = chance(2e-3, steps=2000, seed=seed)
    slow[5::period, 0] = True
    assert first_alarms(slow) == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_that_turns_slow_is_named(seed):
    """One step in 15 that is not on its schedule counts as that of any other rank."""
    slow = chance(1e-4, steps=1000, seed=seed)
    slow[5::25, 0] = True
    slow[400:, 0] |= chance(1 / 15, steps=600, ranks=1, seed=seed)[:, 0]
    alarms = first_alarms(slow)
    assert alarms.keys() == {0}
    assert 400 < alarms[0] < 600


def test_it_is_over_after_a_long_while_without():
    """An alarm ends once the rank has not been slow for 128 steps, and what was counted is gone."""
    test = IntermittentTest(8, POLICY)
    for step in range(200):
        test.step({3: 0.5} if step % 7 in (0, 3) else {}, step)
    assert test.acting or test.alarms.keys() == {3}
    assert test.of(3)[0] == pytest.approx(0.5)
    assert test.of(3)[1] == pytest.approx(2 / 7, rel=0.1)
    assert test.of(3)[2] == 0
    for step in range(200, 340):
        test.step({}, step)
    assert test.alarms == {}


def test_what_was_counted_outlives_a_restart():
    """Another process names the rank at the same step."""
    slow = chance(1 / 15, ranks=1, steps=200)[:, 0]
    whole = first_alarms(np.pad(slow[:, None], ((0, 0), (0, 7))))
    before, after, first = IntermittentTest(8, POLICY), IntermittentTest(8, POLICY), {}
    for step in range(200):
        test = before if step < whole[0] - 1 else after
        if step == whole[0] - 1:
            after.load_state_dict(before.state_dict())
        test.step({0: 0.5} if slow[step] else {}, step)
        first |= {column: step for column in test.alarms if column not in first}
    assert first == whole
