"""The bound of the most powerful test: what it must be by theory, and where there is none."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from benchmarks.scenarios.bound import hang_recall, job_shift, least_delays, shift_sigmas
from benchmarks.scenarios.catalogue import FAULTS, HEALTHY
from benchmarks.scenarios.model import generate
from coordinator.detect.error_budget import average_run_length, cusum_limit

BUDGET = 500_000.0
NAME = "backward +13%, shared hosts 8%"


@pytest.mark.parametrize("ranks", [8, 128])
def test_the_mean_delay_is_what_siegmund_gives(ranks):
    """The simulated test takes as long as the formula of its expected run length under the fault has it."""
    scenario = FAULTS[NAME](ranks, 1)
    slack = shift_sigmas(scenario, scenario.faults[0]) / 2
    expected = average_run_length(-slack, cusum_limit(slack, ranks * 6 * BUDGET))
    assert np.mean(least_delays(scenario, BUDGET)) == pytest.approx(expected, rel=0.06)


def test_a_smaller_fault_and_a_smaller_budget_take_longer():
    """As does more noise."""
    scenario = FAULTS[NAME](8, 1)
    mean = np.mean(least_delays(scenario, BUDGET))
    half = replace(scenario, faults=(replace(scenario.faults[0], ratio=0.065),))
    assert np.mean(least_delays(half, BUDGET)) > 2 * mean
    assert np.mean(least_delays(scenario, 100 * BUDGET)) > mean
    assert np.mean(least_delays(FAULTS["backward +40%, shared hosts 15%"](8, 1), BUDGET)) < mean


def test_its_noise_is_that_of_the_generated_records():
    """The part's excess over its peers' mean scatters by what a fault is measured in."""
    scenario = replace(FAULTS[NAME](8, 1), steps=2000, interruptions=replace(FAULTS[NAME](8, 1).interruptions))
    fault = replace(scenario.faults[0], begin=1000)
    backward = generate(replace(scenario, faults=(fault,))).phases["backward"][30:]
    (rank,) = fault.ranks
    excess = backward[:, rank] - np.delete(backward, rank, axis=1).mean(axis=1)
    middle = np.median(excess[970:]) - np.median(excess[:970])
    sigma = 1.4826 * np.median(np.abs(excess[:970] - np.median(excess[:970])))
    assert middle / sigma == pytest.approx(shift_sigmas(scenario, fault), rel=0.1)


def test_four_slow_steps_of_two_hundred_are_no_chance():
    """Three are, of eight ranks that have one in 2,000: a fault of 1 in 20 is found as often as it has four of them."""
    found = np.mean(least_delays(FAULTS["50 % in 1 of 20"](8, 1), BUDGET) <= 200)
    assert found == pytest.approx(1 - sum(comb(200, k) * 0.05**k * 0.95 ** (200 - k) for k in range(4)), abs=0.005)
    assert np.mean(least_delays(FAULTS["20 % in 1 of 5"](8, 1), BUDGET)) < 20


def test_a_slower_job_hides_in_noise_that_is_large_or_remembers():
    """Of +20 % in 7 % noise each of these takes longer to find; the mean delay in white noise is what Siegmund gives."""

    def mean(ratio=0.2, common=0.07, memory=0.5):
        scenario = FAULTS["job 20 %, noise 7 %"](8, 1)
        noise = replace(scenario.noise, common=common, common_memory=memory)
        return np.mean(
            least_delays(replace(scenario, noise=noise, faults=(replace(scenario.faults[0], ratio=ratio),)), BUDGET)
        )

    assert mean() < min(mean(ratio=0.15), mean(common=0.1), mean(memory=0.8))
    white = FAULTS["job 20 %, noise 7 %"](8, 1)
    white = replace(white, noise=replace(white.noise, common_memory=0.0, common=0.12))
    slack = job_shift(white)[0] / 2
    expected = average_run_length(-slack, cusum_limit(slack, BUDGET))
    assert np.mean(least_delays(white, BUDGET)) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("name", "ranks", "share"),
    [
        ("hang", 8, 0.054),
        ("hang, two records", 128, 1.0),
        ("hang, two records", 1024, 4e-4 / (1024 * 1e-6)),
        ("hang, three records", 10_240, 1.0),
    ],
)
def test_a_hang_is_found_as_often_as_its_lacking_records_may_be_chance(name, ranks, share):
    """One restart in 200 steps, one false page in 500,000: what fewer than 4 in 10,000 healthy logs show is evidence."""
    assert hang_recall(FAULTS[name](ranks, 1), BUDGET) == pytest.approx(share, rel=0.01)


def test_where_ranks_lose_their_last_record_in_every_restart_a_hang_is_one_more():
    """Of 10,240 ranks ten do: a test pages where so many do that chance brings it in 4 of 10,000 logs."""
    recall = hang_recall(FAULTS["hang"](10_240, 1), BUDGET)
    lost = np.random.default_rng(1).poisson(10.24, 1_000_000)
    limit = np.quantile(lost, 1 - 4e-4)
    assert np.mean(lost + 1 > limit) < recall < np.mean(lost + 1 >= limit)


def test_other_scenarios_have_none():
    """Healthy ones, faults of the sum, and a step that is held once."""
    assert hang_recall(FAULTS["slow 5 %"](8, 1), BUDGET) is None
    held = FAULTS["step held for 3 min, shared hosts 8%"]
    assert all(least_delays(make(8, 1), BUDGET) is None for make in (HEALTHY["quiet"], FAULTS["slow 5 %"], held))
