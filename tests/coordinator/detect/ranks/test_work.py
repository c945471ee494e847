"""What more work explains of a rank's compute."""

import numpy as np
import pytest

from coordinator.detect.ranks.groups import Groups
from coordinator.detect.ranks.work import WorkCorrection
from coordinator.settings.policy import WorkPolicy


def nobody():
    return np.zeros(0, dtype=np.intp)


def correction(stages=(0,) * 8):
    return WorkCorrection(Groups(stages), WorkPolicy())


def loads(steps, seed=0, sigma=0.1):
    """Tokens of each rank, array of shape (steps, 8): a drift per rank."""
    walk = np.random.default_rng(seed).normal(0, sigma / 5, (steps, 8)).cumsum(axis=0)
    return 8192 * np.exp(walk)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_compute_that_follows_the_work_is_evened_out(share):
    """Whatever share of compute follows the tokens: what is left after a few steps is noise."""
    work = correction()
    rng = np.random.default_rng(1)
    for tokens in loads(30):
        compute = 0.4 * (1 + share * (tokens / 8192 - 1)) * rng.normal(1, 0.002, 8)
        shift = work.seconds(compute, tokens, nobody)
    assert np.ptp(compute) > 0.04
    assert np.ptp(compute - shift) < 0.01


def test_equal_or_unknown_work_explains_nothing():
    """Without a spread there is no slope, and without figures no correction."""
    compute = np.full(8, 0.4)
    assert correction().seconds(compute, np.full(8, 8192.0), nobody) is None
    assert correction().seconds(compute, np.full(8, np.nan), nobody) is None
    assert correction().seconds(compute, 8192 + np.arange(8.0), nobody) is None  # 0.1 %: cannot matter


def test_a_slow_rank_is_not_explained_away():
    """A rank in suspicion teaches nothing: its deviation stays although it has more tokens than most."""
    work = correction()
    for tokens in loads(30, seed=3):
        compute = 0.4 * (1 + 0.5 * (tokens / 8192 - 1))
        compute[0] *= 1.1
        shift = work.seconds(compute, tokens, lambda: np.array([0]))
    rest = compute - shift
    assert rest[0] - np.median(rest[1:]) == pytest.approx(0.04, rel=0.2)


def test_the_slope_survives_warm_up_and_a_batch_ramp():
    """Seconds per token are remembered: neither a slow first step nor a larger batch bends them."""
    work = correction()
    base = loads(40, seed=5)
    for step, tokens in enumerate(base * np.where(np.arange(40) < 20, 1.0, 1.5)[:, None]):
        compute = 0.4 * tokens / 8192 + 0.4 * np.exp(-step / 3)
        shift = work.seconds(compute, tokens, nobody)
        assert np.ptp(compute - shift) < 0.002


def test_stages_have_slopes_of_their_own_length():
    """The last stage, which does a quarter more with each token, is evened out just as the first."""
    work = correction((0,) * 4 + (1,) * 4)
    length = np.repeat([0.4, 0.5], 4)
    for tokens in loads(30, seed=7):
        compute = length * tokens / 8192
        shift = work.seconds(compute, tokens, nobody)
    for stage in (slice(0, 4), slice(4, 8)):
        assert np.ptp((compute - shift)[stage]) < 0.01 * compute[0]


def test_a_rank_that_lies_about_its_tokens_moves_nobody():
    """A figure beyond all measure neither teaches nor shifts the others."""
    work = correction()
    for tokens in loads(30, seed=9):
        compute = 0.4 * tokens / 8192
        told = tokens.copy()
        told[6] = 1e17
        shift = work.seconds(compute, told, nobody)
    others = np.arange(8) != 6
    assert np.ptp((compute - shift)[others]) < 0.002


def test_memory_is_kept():
    """A slope taken back corrects from the first step on."""
    before, after = correction(), correction()
    for tokens in loads(30):
        compute = 0.4 * tokens / 8192
        expected = before.seconds(compute, tokens, nobody)
    after.load_state_dict({name: value.copy() for name, value in before.state_dict().items()})
    assert after.seconds(compute, tokens, nobody) == pytest.approx(expected, rel=1e-3)


def test_routed_tokens_cost_the_same_seconds_in_unequal_stages():
    """Experts of a long and of a short stage alike take 0.1 s for 8,192 tokens: neither slope is the other's scaled."""
    work = correction((0,) * 4 + (1,) * 4)
    length = np.repeat([0.3, 0.6], 4)
    for tokens in loads(30, seed=11):
        compute = length + 0.1 * (tokens / 8192 - 1)
        shift = work.seconds(compute, tokens, nobody)
    for stage in (slice(0, 4), slice(4, 8)):
        assert np.ptp((compute - shift)[stage]) < 0.002


@pytest.mark.parametrize("longer", [1.0, 3.0])
def test_a_warm_up_that_scales_all_work_is_not_remembered(longer):
    """Seconds per token are more in each step of it: as soon as it is over they are those of the job."""
    work = correction((0,) * 32)
    rng = np.random.default_rng(2)
    tokens = 8192 * np.exp(rng.normal(0, 0.3, 32))
    for step in range(30):
        compute = 0.4 * (0.5 + 0.5 * tokens / 8192) * rng.normal(1, 0.004, 32) * (1 + longer * np.exp(-step / 3))
        shift = work.seconds(compute, tokens, nobody)
    assert np.ptp(compute) > 0.1
    assert np.ptp(compute - shift) < 0.4 * 0.03


def test_one_slow_rank_is_no_other_slope():
    """Far out in its work and three times as slow as noise allows, it does not make the others' slope forgotten."""
    work = correction((0,) * 32)
    rng = np.random.default_rng(3)
    tokens = 8192 * np.exp(rng.normal(0, 0.1, 32))
    slowest = int(tokens.argmax())
    for step in range(60):
        compute = 0.4 * (0.5 + 0.5 * tokens / 8192) * rng.normal(1, 0.004, 32)
        compute[slowest] *= 1.05 if step >= 50 else 1.0
        shift = work.seconds(compute, tokens, nobody)
    rest = compute - shift
    assert rest[slowest] - np.median(rest) == pytest.approx(0.02, rel=0.35)
