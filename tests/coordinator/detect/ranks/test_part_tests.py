"""Parts of own work as series of their own, where the sum is too noisy to show a fault in them."""

from pathlib import Path

import numpy as np
import pytest

from coordinator.detect.error_budget import SHARES
from coordinator.detect.ranks.groups import Groups
from coordinator.detect.ranks.part_tests import PartTests, as_policy
from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.settings.policy import ExcessPolicy

POLICY = ExcessPolicy()
SECONDS = {"data": 0.02, "forward": 0.12, "backward": 0.22, "optimizer": 0.04}
NOISE = {"data": 0.0004, "forward": 0.018, "backward": 0.025, "optimizer": 0.01}
"""Standard deviations in seconds: 8 % of own work together."""
OWN = sum(SECONDS.values())
RECORDED = Path(__file__).parents[2] / "data" / "healthy-parts-8-ranks-2-cores.csv"
"""Forward, and the rest of own work, of eight processes on two cores that strangers share, recorded, in microseconds."""


def job(seed=0, *, steps=120, ranks=8, shared=0.0):
    """Return the seconds of each part, arrays of shape (steps, ranks); pairs share noise of `shared` seconds."""
    rng = np.random.default_rng(seed)
    parts = {name: mean + NOISE[name] * rng.standard_normal((steps, ranks)) for name, mean in SECONDS.items()}
    parts["backward"] += shared * np.repeat(rng.standard_normal((steps, ranks // 2)), 2, axis=1)
    return parts


def alarms(parts, replicas=None, scale=None):
    """Return {(column, part): first step in alarm}; `scale` is the stage's own work in each step, seconds."""
    steps, ranks = next(iter(parts.values())).shape
    scale = np.full(steps, OWN) if scale is None else scale
    test = PartTests(tuple(parts), Groups([0] * ranks), replicas, POLICY)
    found = {}
    for step in range(steps):
        test.step({name: values[step] for name, values in parts.items()}, scale[step : step + 1], step)
        for column in test.columns.tolist():
            for name in test.of(column):
                found.setdefault((column, name), step)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ratio", "steps"), [(0.13, 12), (0.40, 5)])
@pytest.mark.parametrize("part", ["data", "forward", "optimizer"])
def test_a_part_is_named_by_its_own_noise(part, ratio, steps, seed):
    """On hosts where own work scatters by 8 %, +13 % of a step in one part is found, and in no other part or rank."""
    parts = job(seed)
    parts[part][80:, 5] += ratio * OWN
    found = alarms(parts)
    assert found.keys() == {(5, part)}
    assert 80 <= found[5, part] < 80 + steps


@pytest.mark.parametrize(("part", "ratio", "steps"), [("backward", 0.2, 6), ("forward", 0.1, 10)])
def test_a_noisy_part_is_found_once_its_sum_is_beyond_chance(part, ratio, steps):
    """Shifts of 3 and 2 sigma: the sum's limit covers chance, and a second limit for their mean would only delay them."""
    delays = []
    for seed in range(24):
        parts = job(seed)
        parts[part][80:, 5] += ratio * OWN
        delays.append(alarms(parts).get((5, part), 120) - 79)
    assert np.median(delays) <= steps


@pytest.mark.parametrize("seed", range(3))
def test_healthy_parts_are_silent(seed):
    """Nothing is named in 400 healthy steps, nor where a part stalls for two steps in a row."""
    parts = job(seed, steps=400)
    parts["data"][200:202, 3] += 2 * OWN
    assert alarms(parts) == {}


def test_threads_descheduled_in_the_same_part_for_steps_on_end_are_no_fault():
    """In a recorded job one rank's forward lost its core in seven steps of nine, and its own work was as its peers'."""
    table = np.loadtxt(RECORDED, delimiter=",", skiprows=1) / 1e6
    forward, rest = table[:, :8], table[:, 8:]
    assert alarms({"forward": forward, "rest": rest}, scale=np.quantile(forward + rest, 0.3, axis=1)) == {}


@pytest.mark.parametrize("rank", [0, 3, 6])
def test_a_slow_part_is_found_among_threads_that_share_cores(rank):
    """In the same job, a forward that takes twice the job's own work longer is found within 16 steps, and alone."""
    table = np.loadtxt(RECORDED, delimiter=",", skiprows=1) / 1e6
    forward, rest = table[:, :8].copy(), table[:, 8:]
    scale = np.quantile(forward + rest, 0.3, axis=1)
    forward[120:, rank] += 2 * np.median(scale)
    found = alarms({"forward": forward, "rest": rest}, scale=scale)
    assert found.keys() == {(rank, "forward")}
    assert 120 <= found[rank, "forward"] < 136


def test_what_a_replica_shares_is_taken_off_where_it_is_most_of_the_noise():
    """Batches of uneven length hide +13 % of one rank, until what both ranks of a replica have is taken off."""
    parts = job(shared=0.15)
    parts["backward"][80:, 5] += 0.25 * OWN
    assert (5, "backward") in alarms(parts, Groups(np.repeat(range(4), 2)))
    assert not alarms(parts)


def test_the_limit_follows_from_the_steps_between_false_pages():
    """It rises with the number of series and of steps by as much as Siegmund's formula asks."""
    few, many = (as_policy(POLICY, series).alarm_sigmas for series in (56, 5600))
    assert few == pytest.approx(np.log(2 * 56 * 500_000 / SHARES["parts"]) / 2 - 1.166)
    assert many == pytest.approx(few + np.log(100) / 2)


def slow_rank_test(parts, steps):
    test = SlowRankTest([0] * 8, list(range(8)), POLICY)
    own = sum(parts.values())
    for step in range(steps):
        row = {name: values[step] for name, values in parts.items()}
        test.step(own[step], step, parts=lambda _, row=row: row)
    return test


def test_a_quiet_job_has_no_parts():
    """Where the sum shows every effect that is reported, parts cost neither time nor memory."""
    parts = {name: np.random.default_rng(1).normal(mean, 1e-4, (60, 8)) for name, mean in SECONDS.items()}
    assert slow_rank_test(parts, 60).parts is None


def test_what_was_learnt_of_parts_outlives_a_restart():
    """Another process goes on with the alarm, and with the noise of each part."""
    parts = job()
    parts["data"][80:, 5] += 0.13 * OWN
    before, after = slow_rank_test(parts, 90), SlowRankTest([0] * 8, list(range(8)), POLICY)
    after.load_state_dict(before.state_dict())
    assert after.slow_columns.tolist() == before.slow_columns.tolist() == [5]
    assert list(after.slow_parts(5)) == ["data"]
    assert after.verdict_of(5)[0].level_and_onset(5) == before.verdict_of(5)[0].level_and_onset(5)
    assert after.parts.test.noise.sigma_P.tolist() == before.parts.test.noise.sigma_P.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seconds_in_other_parts_name_no_rank(seed):
    """Ranks that load data for others sleep in another part than those: own work is alike, and a fault is found."""
    parts = {"host": np.random.default_rng(seed + 100).normal(0.001, 0.0004, (120, 8))} | job(seed)
    parts["host"][:, ::2] += 0.2
    parts["forward"][:, 1::2] += 0.2
    parts["forward"][80:, 5] += 0.4 * OWN
    found = alarms(parts)
    assert found.keys() == {(5, "forward")}
    assert 80 <= found[5, "forward"] < 92


@pytest.mark.parametrize("part", ["data", "optimizer"])
@pytest.mark.parametrize("pause", [81, 82, 83])
def test_a_pause_of_the_whole_job_delays_no_part(part, pause):
    """A checkpoint that no one flags lengthens own work of all by seconds: it is no step by which a part is measured."""
    parts = job(1) | {"host": np.random.default_rng(9).normal(0.01, 0.0004, (120, 8))}
    parts[part][80:, 5] += 0.4 * OWN
    parts["host"][pause] += 3.0 * np.random.default_rng(8).normal(1.0, 0.05, 8)
    test = SlowRankTest([0] * 8, list(range(8)), POLICY)
    own = np.sum(list(parts.values()), axis=0)
    named = None
    for step in range(100):
        row = {name: values[step] for name, values in parts.items()}
        test.step(own[step], step, parts=lambda _, row=row: row)
        named = step if named is None and test.slow_columns.tolist() == [5] else named
    assert named is not None
    assert named <= 80 + 4


def test_a_part_in_alarm_reports_the_limit_of_its_own_test():
    parts = job(seed=1)
    parts["data"][60:, 5] += 0.05
    test = slow_rank_test(parts, 70)
    series_group, column, part = test.verdict_of(5)
    assert part == "data"
    rule = series_group.rule_of(column)
    assert series_group is test.parts.of(5)["data"]
    assert rule["slack_sigmas"] == as_policy(ExcessPolicy(), 1).slack_sigmas
    assert rule["alarm_sigmas"] == test.parts.test.limits.alarm_sigmas_P[0]
    assert test.ranks.rule_of(5)["alarm_sigmas"] == ExcessPolicy().alarm_sigmas
