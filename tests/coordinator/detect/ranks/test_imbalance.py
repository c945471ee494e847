"""What legitimate differences cost: information, and no fault."""

import numpy as np
import pytest

from coordinator.detect.ranks.imbalance import Imbalance
from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.settings.policy import ExcessPolicy

STEP_S = 0.6


def measured(own, *, stages, replicas, work=None, compute=None, steps=80):
    """Return the ratios after `steps` steps of the same own work, array of shape (ranks,), with a little noise."""
    rng = np.random.default_rng(0)
    test = SlowRankTest(stages, replicas, ExcessPolicy())
    imbalance = Imbalance()
    for step in range(steps):
        row = own * rng.normal(1, 0.002, len(own))
        test.step(row, step, compute_R=row if compute is None else compute * row / own, work_R=work)
        imbalance.step(test, STEP_S)
    return imbalance


def test_a_long_last_stage_is_told_as_its_share_of_the_step():
    """The last of four stages works 0.1 s longer, a sixth of a step of 0.6 s."""
    own = np.repeat([0.4, 0.4, 0.4, 0.5], 4)
    ratios = measured(own, stages=np.repeat(range(4), 4), replicas=[0, 1, 2, 3] * 4).ratios
    assert ratios["stage"] == pytest.approx(0.1 / STEP_S, rel=0.05)
    assert ratios["replica"] < 0.01


def test_a_long_batch_is_told():
    """One replica of four has 0.06 s more to do in every step."""
    own = np.full(16, 0.4)
    own[4:8] += 0.06
    test = SlowRankTest([0] * 16, np.repeat(range(4), 4), ExcessPolicy(floor_ratio=1.0))
    imbalance = Imbalance()
    for step in range(40):
        test.step(own, step)
        imbalance.step(test, STEP_S)
    assert imbalance.ratios["replica"] == pytest.approx(0.1, rel=0.05)


def test_hot_experts_are_told_where_tokens_are_known():
    """The rank with a quarter more tokens computes 0.1 s longer than the others, seven eighths of it beyond the mean."""
    work = np.array([8192.0] * 7 + [10240.0])
    own = 0.4 * work / 8192
    ratios = measured(own, stages=[0] * 8, replicas=range(8), work=work).ratios
    assert ratios == {"work": pytest.approx(0.1 * 7 / 8 / STEP_S, rel=0.1)}


def test_a_fault_is_no_imbalance():
    """While a rank is named slow, nothing is learnt of what differences cost."""
    own = np.full(16, 0.4)
    imbalance = measured(own, stages=[0] * 16, replicas=np.repeat(range(4), 4))
    before = dict(imbalance.ratios)
    test = SlowRankTest([0] * 16, np.repeat(range(4), 4), ExcessPolicy())
    own[4:8] += 0.1
    for step in range(12):
        test.step(own, step)
    assert test.is_alarmed
    test.imbalance_seconds = 0.3
    imbalance.step(test, STEP_S)
    assert imbalance.ratios == before


def test_memory_is_kept():
    """What is taken back goes on slowly, as after all the steps it was learnt in."""
    own = np.repeat([0.4, 0.5], 4)
    before = measured(own, stages=np.repeat(range(2), 4), replicas=[0, 1, 2, 3] * 2)
    after = Imbalance()
    after.load_state_dict(before.state_dict())
    assert after.ratios == before.ratios
    assert after.state_dict()["steps"] == before.state_dict()["steps"]
