"""Which rank is slow, on recorded and generated jobs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.settings.policy import ExcessPolicy
from tests.coordinator.scenarios import SHARED_CORES, Scenario, generate

DATA = Path(__file__).parents[2] / "data"
"""Four processes on two shared cores: own work and step, recorded, in microseconds.

With a barrier, or (`gloo`) training the demonstration's model, once next to a stranger that takes a core for seconds.
"""
POLICY = ExcessPolicy()


def recorded(path):
    """Return (own work, step) of a recording, seconds, of shapes (steps, 4) and (steps,)."""
    table = np.loadtxt(path, delimiter=",", skiprows=1) / 1e6
    return table[:, 1:], table[:, 0]


def first_alarms(own, stages=None, replicas=None):
    """Return {rank: first step in alarm}."""
    ranks = own.shape[1]
    test = SlowRankTest(stages or [0] * ranks, replicas or list(range(ranks)), POLICY)
    first = {}
    for step, row in enumerate(own):
        test.step(row, step)
        for rank in np.flatnonzero(test.slow_R):
            first.setdefault(int(rank), step)
    return first


@pytest.mark.parametrize("path", sorted(DATA.glob("healthy-*.csv")), ids=lambda path: path.stem)
def test_recorded_healthy_jobs_are_silent(path):
    """A job of 4 processes on 2 busy cores accuses no one, though ranks are descheduled for steps on end."""
    assert first_alarms(recorded(path)[0]) == {}


@pytest.mark.parametrize("path", sorted(DATA.glob("healthy-*-gloo*.csv")), ids=lambda path: path.stem)
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("begin", [80, 300])
def test_twice_a_step_more_work_is_found_by_its_fourth_step(path, rank, begin):
    """In a recorded DistributedDataParallel job, stranger on a core or not, a rank that turns slow is named by then."""
    own, step_s = recorded(path)
    own = own[: begin + 40].copy()
    own[begin:, rank] += 2 * np.median(step_s)
    found = first_alarms(own)
    assert found.keys() == {rank}
    assert found[rank] <= begin + 3


@pytest.mark.parametrize("factor", [0.1, 0.5])
@pytest.mark.parametrize("pairs", [4, 16])
def test_a_slow_rank_does_not_lay_its_peers_static_difference_to_their_replica(pairs, factor):
    """Of two ranks the faster stands for both; once it is slow the other does, with what it always was slower by."""
    ranks, found = 2 * pairs, []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        static = 0.014 * rng.standard_normal(ranks)
        static[:2] = 0.028, 0.0
        own = 0.4 * (1 + static + 0.004 * rng.standard_normal((160, ranks)))
        own[90:, 1] *= 1 + factor
        found.append(first_alarms(own, replicas=[rank // 2 for rank in range(ranks)]))
    assert [sorted(each) for each in found] == [[1]] * 6
    assert all(each[1] == 92 for each in found)


def test_a_replica_that_turns_slow_as_a_whole_is_named_next_to_its_slower_rank():
    """Both ranks of a replica, one of them by more: what they share is no static difference."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        own = 0.4 * (1 + 0.005 * rng.standard_normal(8) + 0.004 * rng.standard_normal((140, 8)))
        own[90:, :2] *= np.array([1.06, 1.2])
        assert sorted(first_alarms(own, replicas=[rank // 2 for rank in range(8)])) == [0, 1], seed


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("factor", [0.5, 3.0])
@pytest.mark.parametrize("noise", [0.004, 0.01, 0.03])
def test_a_suspect_in_a_domain_of_two_does_not_delay_its_own_alarm(noise, factor, seed):
    """In two stages of two replicas, a rank slow beyond doubt is named within five steps, with the step it began at."""
    rng = np.random.default_rng(seed)
    own = 0.4 * (1 + noise * rng.standard_normal((56, 4)))
    own[40:, 3] *= 1 + factor
    test = SlowRankTest([0, 0, 1, 1], [0, 1, 0, 1], POLICY)
    for step in range(45):
        test.step(own[step], step)
    assert test.slow_columns.tolist() == [3]
    level, onset = test.ranks.level_and_onset(3)
    assert onset == pytest.approx(40, abs=2)
    assert level == pytest.approx(factor, rel=0.25)


def test_a_recorded_fault_is_found_on_its_third_step():
    """A rank that sleeps three steps' length from step 120 on is named alone, on its third slow step."""
    assert first_alarms(recorded(DATA / "sleep-3x-rank2-from-120.csv")[0]) == {2: 122}


@pytest.mark.parametrize("path", sorted(DATA.glob("*-rank2-from-100*.csv")), ids=lambda path: path.stem)
def test_recorded_faults_of_one_step_length_accuse_nobody_else(path):
    """On shared cores one step's length is what a stranger on a core costs: named late or not in 30 steps, never wrong."""
    found = first_alarms(recorded(path)[0])
    assert found.keys() <= {2}
    assert all(step >= 102 for step in found.values())


def test_step_time_names_nobody():
    """The same fault is invisible in step time: it is the quantity that finds it, not the test."""
    recording = generate(Scenario(degrees="dp=8").with_fault("compute", 3, seconds=0.2, begin=60))
    assert first_alarms(recording.duration) == {}
    assert first_alarms(recording.self_seconds) == {3: 62}


def test_waiting_in_one_domain_points_at_a_whole_replica():
    """Ranks of the culprit's tensor group wait as little as it does in data parallelism; own work distinguishes them."""
    recording = generate(Scenario(degrees="tp=4,dp=4").with_fault("compute", 5, seconds=0.04, begin=60))
    least = recording.waits["dp"][70:].mean(axis=0)
    assert set(np.argsort(least)[:4].tolist()) == {4, 5, 6, 7}
    assert first_alarms(recording.self_seconds).keys() == {5}


def test_a_slow_replica_is_named_as_a_whole():
    """A node that is a replica slows all its ranks: what the replica shares is tested too."""
    recording = generate(Scenario(degrees="tp=4,dp=4").with_fault("compute", 4, 5, 6, 7, seconds=0.04, begin=60))
    replicas = [rank // 4 for rank in range(16)]
    assert first_alarms(recording.self_seconds, replicas=replicas) == dict.fromkeys((4, 5, 6, 7), 62)


@pytest.mark.parametrize("ratio", [0.03, 0.05, 0.2])
@pytest.mark.parametrize(("healthy", "slow"), [(25, (8, 9, 24)), (21, (4, 5, 20)), (8, (9, 24, 25)), (0, (1, 16, 17))])
def test_the_healthy_rank_of_a_replica_of_four_is_not_named_with_the_three_others(healthy, slow, ratio):
    """A low quantile of four is that of the three, so the replica is slow as a whole: but not this rank of it."""
    assert healthy not in slow
    recording = generate(Scenario(degrees="tp=2,pp=2,dp=8", steps=160, seed=healthy))
    own = recording.self_seconds.copy()
    own[60:, slow] += ratio * 0.4
    stages, replicas = [rank // 16 for rank in range(32)], [rank % 16 // 2 for rank in range(32)]
    assert first_alarms(own, stages, replicas).keys() == set(slow)


def test_the_healthy_quarter_of_a_slow_stage_is_not_named():
    """Twelve of sixteen ranks are slow, more than a low quantile bears: the stage is named, less those who are not."""
    recording = generate(Scenario(degrees="dp=16,pp=2", steps=160, seed=3))
    own = recording.self_seconds.copy()
    slow = [rank for rank in range(16) if rank % 4]
    own[60:, slow] += 0.05 * 0.4
    found = first_alarms(own, [rank // 16 for rank in range(32)])
    assert found.keys() == set(slow)


def test_sequence_imbalance_is_no_fault_and_hides_none():
    """Uneven batches of 12 % accuse no one; +10 % under them is found, because replicas move together in seconds."""
    scenario = Scenario(degrees="tp=4,dp=8", sequence_sigma=0.12, steps=200)
    replicas = [rank // 4 for rank in range(32)]
    assert first_alarms(generate(scenario).self_seconds, replicas=replicas) == {}
    slow = generate(scenario.with_fault("compute", 9, seconds=0.043, begin=60))
    found = first_alarms(slow.self_seconds, replicas=replicas)
    assert found.keys() == {9}
    assert found[9] <= 64
    assert first_alarms(slow.self_seconds) == {}


def test_a_rank_without_peers_is_evaluated_by_its_past():
    """In a pure pipeline no one does the same work: a stage that turns slow is found, the others are not."""
    recording = generate(
        Scenario(degrees="pp=4", last_stage_factor=1.3).with_fault("compute", 1, seconds=0.03, begin=60)
    )
    found = first_alarms(recording.self_seconds, stages=[0, 1, 2, 3])
    assert found.keys() == {1}
    assert found[1] <= 63


def test_blind_ranks_are_not_evaluated():
    """A rank without measured waits has no own work to compare; the others are evaluated without it."""
    own = generate(Scenario(degrees="dp=8").with_fault("compute", 3, seconds=0.03, begin=60)).self_seconds.copy()
    own[:, 0] = np.nan
    assert first_alarms(own) == {3: 62}
    assert first_alarms(np.full((60, 4), np.nan)) == {}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3), order=st.permutations(range(8)))
def test_verdicts_do_not_depend_on_rank_order_or_time_scale(seed, scale, order):
    """Renumbering ranks renumbers the verdict, and a job a thousand times slower gives the same one."""
    scenario = Scenario(degrees="dp=8", steps=80, seed=seed).with_fault("compute", 2, seconds=0.02, begin=50)
    own = generate(scenario).self_seconds
    expected = {order.index(rank): step for rank, step in first_alarms(own).items()}
    assert first_alarms(own[:, order] * scale) == expected


@pytest.mark.parametrize("seed", range(8))
def test_generated_noise_of_shared_cores(seed):
    """300 healthy steps of the noisy profile are silent; work three times as long is found in three to six steps."""
    noisy = Scenario(
        degrees="dp=4", steps=300, seed=seed, noise=SHARED_CORES, compute=0.04, data=0.002, host=0.003, gc=0.001
    )
    assert first_alarms(generate(noisy).self_seconds) == {}
    found = first_alarms(generate(noisy.with_fault("compute", 1, seconds=0.12, begin=100)).self_seconds)
    assert found.keys() == {1}
    assert found[1] <= 105


@pytest.mark.parametrize(("degrees", "ranks"), [("dp=8", 8), ("tp=8,dp=16", 128), ("tp=8,pp=4,dp=32", 1024)])
def test_five_percent_is_found_in_six_steps_at_any_size(degrees, ranks):
    """On a quiet job of 8 to 1,024 ranks, +5 % is found on the right rank in 3 to 6 steps, and nothing else is."""
    scenario = Scenario(degrees=degrees, steps=90, missing=0.001).with_fault("compute", 5, seconds=0.022, begin=60)
    recording = generate(scenario)
    own = np.where(recording.present, recording.self_seconds, np.nan)
    replicas = [(rank // 8) % (ranks // 8) for rank in range(ranks)] if ranks > 8 else None
    found = first_alarms(own, stages=list(recording.topology.stages), replicas=replicas)
    assert found.keys() == {5}
    assert 62 <= found[5] <= 65


@pytest.mark.parametrize("tokens_known", [False, True])
def test_hot_experts_are_no_fault_with_tokens_or_without(tokens_known):
    """Ranks of one place share their expert's load: it accuses no one, and a slow rank among them is still found."""
    rng = np.random.default_rng(3)
    ranks, experts, steps = 32, 4, 160
    place = [rank // 2 % experts for rank in range(ranks)]  # tensor groups of two, then experts, then replicas
    load = np.exp(np.cumsum(rng.normal(0, 0.02, (steps, experts)), axis=0))[:, place]
    compute = 0.4 * (1 + 0.5 * (load - 1)) * rng.normal(1, 0.004, (steps, ranks))
    replicas = [rank // 2 for rank in range(ranks)]

    def alarms(compute):
        test = SlowRankTest([0] * ranks, replicas, POLICY, place_R=place)
        first = {}
        for step, row in enumerate(compute):
            work = 8192 * load[step] if tokens_known else np.full(ranks, np.nan)
            test.step(row + 0.03, step, compute_R=row, work_R=work)
            for rank in np.flatnonzero(test.slow_R):
                first.setdefault(int(rank), step)
        return first

    assert alarms(compute) == {}
    compute[90:, 5] += 0.03
    found = alarms(compute)
    assert found.keys() == {5}
    assert found[5] <= 94


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_rank_under_uneven_batches_accuses_no_replica(seed):
    """Of two stages of four ranks in two replicas: the reference is no single rank of the shorter batch."""
    scenario = Scenario(degrees="tp=2,pp=2,dp=2", sequence_sigma=0.12, steps=160, seed=seed)
    slow = generate(scenario.with_fault("compute", 3, seconds=0.043, begin=80))
    found = first_alarms(slow.self_seconds, stages=[0] * 4 + [1] * 4, replicas=[0, 0, 1, 1] * 2)
    assert found.keys() == {3}
    assert found[3] < 90


def test_a_whole_stage_that_turns_slow_is_found_by_its_past():
    """A node that is a pipeline stage has no peers: its work among the stages' was shorter before."""
    recording = generate(Scenario(degrees="tp=4,pp=2").with_fault("compute", 4, 5, 6, 7, seconds=0.04, begin=60))
    found = first_alarms(recording.self_seconds, stages=[0] * 4 + [1] * 4, replicas=[0] * 8)
    assert found.keys() == {4, 5, 6, 7}
    assert max(found.values()) <= 65


def test_a_slow_rank_of_a_small_stage_does_not_accuse_its_stage():
    """Of four ranks with uneven batches one that is slow moves the stage's reference: its peers are not slow for that."""
    accused = set()
    for seed in (4, 6, 7, 9):  # those in which the stage itself came into alarm
        rng = np.random.default_rng(seed)
        batch = np.clip(1 + 0.12 * rng.standard_normal((200, 4)), 0.6, 1.5)
        own = np.tile(0.05 * batch, 4) * (1 + 0.004 * rng.standard_normal((200, 16)))
        own[110:, 9] += 0.015
        accused |= set(
            first_alarms(own, stages=[rank // 4 for rank in range(16)], replicas=[rank % 4 for rank in range(16)])
        )
    assert accused == {9}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("width", [4, 8])
def test_ranks_that_are_held_up_by_turns_do_not_accuse_their_stage(width, seed):
    """Ranks that wait for one of their stage look longer by 30 % of that, whichever it is, and the stage with them."""
    rng = np.random.default_rng(seed)
    own = 0.4 * (1 + 0.01 * rng.standard_normal((72, 2 * width)))
    for step in range(50, 50 + width):
        waiting = np.delete(np.arange(width), step - 50)
        own[step, step - 50] += 0.4 * 0.15
        own[step, waiting] += 0.4 * 0.15 * 0.3
    stages, replicas = [0] * width + [1] * width, [rank % width // 2 for rank in range(2 * width)]
    assert first_alarms(own, stages=stages, replicas=replicas) == {}


@pytest.mark.parametrize("seed", range(4))
def test_two_long_steps_are_no_change_of_a_device_that_always_was_slow(seed):
    """In a fleet that differs by 3 % its sum is high all the time: what it always was is no evidence of a change."""
    rng = np.random.default_rng(seed)
    level = 1 + 0.03 * rng.standard_normal(64)
    own = 0.4 * level * (1 + 0.004 * rng.standard_normal((48, 64)))
    own[[40, 42], np.argsort(level)[-8]] *= 1.04
    stages, replicas = np.repeat(range(4), 16).tolist(), [rank // 4 % 4 for rank in range(64)]
    assert first_alarms(own, stages=stages, replicas=replicas) == {}


def wide_fleet(seed, *, ranks, steps=120, spread=0.03):
    """Return own work of devices that differ, seconds, of shape (steps, ranks)."""
    rng = np.random.default_rng(seed)
    return 0.4 * (1 + spread * rng.standard_normal(ranks) + 0.004 * rng.standard_normal((steps, ranks)))


@pytest.mark.parametrize(("ratio", "fade_steps"), [(1.0, 3.0), (2.0, 3.0), (1.0, 8.0)])
def test_a_warm_up_that_ends_changes_no_static_difference(ratio, fade_steps):
    """The same seconds are a larger share of shorter steps, so what always was grows while all become faster."""
    for seed in range(8):
        own = wide_fleet(seed, ranks=128) + ratio * 0.4 * np.exp(-np.arange(120) / fade_steps)[:, None]
        assert first_alarms(own, stages=np.repeat(range(4), 32).tolist()) == {}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_static_difference_is_known_where_a_run_becomes_faster(share):
    """Where all work becomes shorter by the same seconds, or by the same share of it, no device has changed."""
    for seed in range(4):
        own = wide_fleet(seed, ranks=64)
        own[70:] -= 0.12 * (own[70:] / 0.4) ** share
        assert first_alarms(own) == {}


def test_what_turns_slow_after_a_warm_up_is_found_in_a_wide_fleet():
    for seed in range(4):
        own = wide_fleet(seed, ranks=128) + 0.4 * np.exp(-np.arange(120) / 3)[:, None]
        slow = int(np.argsort(own[-1])[64])
        own[60:, slow] *= 1.06
        found = first_alarms(own)
        assert found.keys() == {slow}
        assert found[slow] <= 64


@pytest.mark.parametrize("width", [2, 4])
def test_devices_that_differ_do_not_make_batches_uneven(width):
    """Of two ranks that differ the same one always is the reference: only the other one shows how they scatter."""
    for seed in range(12):
        test = SlowRankTest([0] * 8, [rank // width for rank in range(8)], POLICY)
        for step, row in enumerate(wide_fleet(seed, ranks=8, steps=64)):
            test.step(row, step)
        assert not test._is_uneven


def test_a_step_without_one_rank_changes_no_device_in_a_wide_fleet_of_pairs():
    for seed in range(12):
        own = wide_fleet(seed, ranks=8)
        own[np.random.default_rng(seed).random(own.shape) < 0.02] = np.nan
        own += 0.4 * np.exp(-np.arange(120) / 3)[:, None]
        found = first_alarms(own, replicas=[rank // 2 for rank in range(8)])
        assert found == {}, seed


def test_a_missing_member_says_nothing_of_its_replica():
    """Of two ranks that share a batch one is silent now and then: the other is not taken for what both share."""
    scenario = Scenario(degrees="tp=2,dp=8", sequence_sigma=0.12, steps=200, missing=0.02)
    recording = generate(scenario)
    own = np.where(recording.present, recording.self_seconds, np.nan)
    assert first_alarms(own, replicas=[rank // 2 for rank in range(16)]) == {}


def test_who_is_left_alone_is_evaluated_and_names_no_other():
    """A slow rank's partner falls silent for good: the slow one is named, and the silent one is not named with it."""
    recording = generate(Scenario(degrees="tp=2,dp=4", steps=140).with_fault("compute", 2, seconds=0.04, begin=70))
    own = recording.self_seconds.copy()
    own[60:, 3] = np.nan
    found = first_alarms(own, replicas=[rank // 2 for rank in range(8)])
    assert found.keys() == {2}
    assert found[2] <= 73
    own[90:100, 3] = recording.self_seconds[90:100, 3]
    assert first_alarms(own, replicas=[rank // 2 for rank in range(8)]).keys() == {2}


@pytest.mark.parametrize("longer", [1.3, 1.6])
@pytest.mark.parametrize("fade_steps", [8, 20])
def test_a_long_last_stage_is_not_slow_as_warm_up_fades(longer, fade_steps):
    """The first steps take all stages the same time longer, so the last stage's share of the work grows as that fades."""
    rng = np.random.default_rng(1)
    stages = np.repeat(range(4), 32)
    own = np.where(stages == 3, longer, 1.0) * 0.4 * (1 + 0.004 * rng.standard_normal((200, len(stages))))
    own += 8 * 0.4 * np.exp(-np.arange(200) / fade_steps)[:, None]
    replicas = [rank % 32 // 4 for rank in range(len(stages))]
    assert first_alarms(own, stages.tolist(), replicas) == {}


def test_one_long_step_of_a_stage_does_not_become_its_past():
    """A replica that writes alone stalls its stage for seconds: the other stage is not slow among the stages then."""
    own = generate(Scenario(degrees="tp=2,pp=2,dp=2", steps=160)).self_seconds.copy()
    own[90, :4] += 3.0
    assert first_alarms(own, stages=[0] * 4 + [1] * 4, replicas=[0, 0, 1, 1] * 2) == {}


@pytest.mark.parametrize("lie", ["nothing", "hours"])
def test_a_rank_that_lies_about_its_work_hides_nobody(lie):
    """Of two ranks that share a batch one reports nonsense from the first step on: a slow rank elsewhere is still found."""
    recording = generate(Scenario(degrees="tp=2,dp=4", steps=140).with_fault("compute", 5, seconds=0.03, begin=80))
    own = recording.self_seconds.copy()
    own[:, 2] = 1e-9 if lie == "nothing" else 1e4
    found = first_alarms(own, replicas=[rank // 2 for rank in range(8)])
    assert found.keys() - {2} == {5}
    assert found[5] <= 86


@pytest.mark.parametrize(
    ("seed", "first", "second", "steps"), [(0, 1.0, 0.3, 3), (2, 1.0, 0.3, 3), (1, 0.5, 0.2, 4), (3, 0.6, 0.2, 6)]
)
def test_warm_up_is_no_past_of_stages(seed, first, second, steps):
    """Stages that warm up differently and then go on alike: none of them was ever faster than it is."""
    rng = np.random.default_rng(seed)
    own = rng.normal(0.4, 0.0016, (120, 8)) * (1 + rng.normal(0, 0.05, (120, 1)))
    own += np.exp(-np.arange(120) / steps)[:, None] * np.repeat([first, second], 4) * 0.4
    assert first_alarms(own, stages=[0] * 4 + [1] * 4, replicas=[0, 1, 2, 3] * 2) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_ramp_leaves_no_stage_behind(seed):
    """The batch doubles over a hundred steps, of which a longer stage feels a little more: its past follows as theirs do."""
    rng = np.random.default_rng(seed)
    ramp = 1 + np.clip((np.arange(220) - 40) / 100, 0, 1)
    compute = np.repeat([0.9, 1.0, 1.1, 1.45], 8) * ramp[:, None] * rng.normal(1, 0.004, (220, 32))
    own = 0.4 * (0.074 + compute)
    assert first_alarms(own, stages=np.repeat(range(4), 8).tolist(), replicas=list(range(8)) * 4) == {}


def staged(seed, factors):
    """Return own work of 4 stages of 8 ranks, their stages and replicas; `factors` scale the compute of each step."""
    rng = np.random.default_rng(seed)
    stages = np.repeat(np.arange(4), 8)
    costs = 1 + rng.uniform(0, 0.15, 4) + [0, 0, 0, rng.uniform(0.1, 0.6)]  # the last stage has the head
    noise = (1 + 0.01 * rng.standard_normal((len(factors), 32))) * (1 + 0.02 * rng.standard_normal((len(factors), 1)))
    compute = 0.2 * costs[stages] * noise * np.asarray(factors)[:, None]
    return compute + rng.uniform(0.005, 0.03, 4)[stages], stages.tolist(), [rank % 8 for rank in range(32)]


def evaluating(*, every=60, length=10, steps=200):
    """Return factors of compute of a job that computes a forward pass alone from time to time."""
    return [1 / 3 if step >= every and step % every < length else 1 for step in range(steps)]


@pytest.mark.parametrize("length", [4, 10, 16, 30])
def test_evaluations_step_by_step_name_no_stage(length):
    """A stage with more work loses and gains more by them; before and after, it is what it was."""
    for seed in range(4):
        assert first_alarms(*staged(seed, evaluating(length=length))) == {}, seed


PACES = {
    "blocks of five": lambda step: step % 10 >= 5,
    "long phases": lambda step: step % 70 < 20,
    "other from step 120 on": lambda step: step >= 120,
    "every other step": lambda step: step % 2,
}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_steps_of_another_pace_name_no_stage(pace, factor):
    """A job with two kinds of steps, or of which all steps become longer, is compared within each kind."""
    factors = [factor if step >= 60 and PACES[pace](step) else 1 for step in range(200)]
    for seed in range(8):
        assert first_alarms(*staged(seed, factors)) == {}, seed


def test_a_stage_that_turns_slow_in_an_evaluation_is_found_after_it():
    """What was before the evaluation is the past of what comes after it."""
    for seed in range(4):
        own, *groups = staged(seed, evaluating(every=80, length=20, steps=130))
        own[90:, 16:24] *= 1.08
        found = first_alarms(own, *groups)
        assert found.keys() == set(range(16, 24)), seed
        assert 90 < max(found.values()) <= 112, seed


def test_a_stage_is_found_in_the_middle_of_a_batch_ramp():
    """What all have in common is followed, what one stage has beyond it is not."""
    rng = np.random.default_rng(4)
    ramp = 1 + np.clip((np.arange(160) - 40) / 100, 0, 1)
    own = 0.4 * np.repeat([0.9, 1.0, 1.1, 1.45], 8) * ramp[:, None] * rng.normal(1, 0.004, (160, 32))
    own[90:, 8:16] *= 1.1
    found = first_alarms(own, stages=np.repeat(range(4), 8).tolist(), replicas=list(range(8)) * 4)
    assert found.keys() == set(range(8, 16))
    assert max(found.values()) <= 100
