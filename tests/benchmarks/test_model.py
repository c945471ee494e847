"""The generated jobs keep the account of real records and show what the detector's reasoning rests on."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.catalogue import SCENARIOS, names
from benchmarks.scenarios.job import Fault, Imbalance, Interruptions, Noise, Scenario, Stall
from benchmarks.scenarios.model import generate, world_size
from benchmarks.scenarios.recipes import SHAPES, SIZES
from coordinator.record.backtest import backtest
from coordinator.settings.policy import Policy

STILL = Noise(step=0, spread=0, common=0, jitter=0, stall_rate=0, hiccup_rate=0)
UNDISTURBED = Interruptions(checkpoint_every=0, evaluation_every=0, warm_up_ratio=0, missing=0, late=0, skew_seconds=0)


def scenario(degrees="tp=2,cp=2,ep=2,pp=2,dp=4", **changed):
    """Return a short job without interruptions."""
    return Scenario(
        **({"name": "test", "degrees": degrees, "seed": 1, "steps": 20, "interruptions": UNDISTURBED} | changed)
    )


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_scenario_keeps_the_account(name):
    """In each record own work and waits sum to the step, nothing is negative, and everybody ends a step together."""
    made = SCENARIOS[name](128, 1)
    recording = generate(made)
    booked = recording.own + sum(recording.waits.values())
    assert np.abs(booked - recording.duration_W[:, None]).max() <= 1e-4
    assert all((values >= 0).all() for values in (*recording.parts.values(), *recording.waits.values()))
    log = recording.log()
    assert all((values >= 0).all() for values in log.columns.values())
    assert log.columns["rank"].max() == 127


def test_a_log_of_every_kind_of_domain_is_accepted_whole():
    """The live timeline refuses none of a generated job's records, with all five kinds of domain in it."""
    recording = generate(scenario())
    assert set(recording.waits) == {"tp", "cp", "ep", "pp", "dp", "world"}
    shown = backtest(recording.log(), recording.topology, Policy())
    assert (shown.evaluated_steps, sum(shown.rejected.values())) == (20, 0)


def test_seeds_repeat_and_differ():
    """The same seed gives the same figures, another one others."""
    first, again, other = (generate(scenario(seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.duration_W, again.duration_W)
    assert not np.array_equal(first.duration_W, other.duration_W)


def test_the_last_to_arrive_waits_only_for_the_transfer():
    """The least wait of a group is its transfer, which is what the link test takes it for."""
    recording = generate(scenario("tp=2,dp=4"))
    for domain in recording.topology.domains:
        members = list(domain.ranks)
        least = recording.waits[domain.kind][:, members].min(axis=1)
        assert least == pytest.approx(recording.transfers[domain.kind][:, members[0]], abs=1e-5)


def test_a_slow_rank_hides_in_the_step_and_shows_in_its_own_work():
    """All steps are as long as the slow rank's; it waits least in all kinds together, and works longest in its stage."""
    slow = Fault(cause="host", ranks=(5,), ratio=0.2, begin=0)
    recording = generate(scenario("tp=2,pp=2,dp=4", faults=(slow,)))
    waited = sum(recording.waits.values())
    assert (waited[:, :8].argmin(axis=1) == 5).all()
    assert (recording.own[:, :8].argmax(axis=1) == 5).all()


def test_a_pipeline_without_imbalance_takes_its_bubble():
    """1F1B with equal stages: (M + S - 1) / M times a stage's work, M = 16, and stages leave one drain apart."""
    recording = generate(scenario("pp=4,dp=1", noise=STILL, data=0.0, host=0.0, gc=0.0))
    work, transfers = recording.own[0, 0], recording.transfers["pp"][0, 0]
    assert recording.waits["pp"][0, 0] == pytest.approx(work * 3 / 16 + transfers, rel=1e-4)
    assert np.diff(recording.waits["pp"][0]) == pytest.approx(np.full(3, -work / 16 * 2 / 3), rel=1e-3)


def test_sequences_slow_whole_replicas_in_seconds():
    """What a replica's batch adds is the same on all its ranks, and nothing of it is a rank's own."""
    recording = generate(
        scenario("tp=2,pp=2,dp=4", noise=STILL, imbalance=Imbalance(sequence_sigma=0.12, sequence_rest=0.0))
    )
    compute = recording.parts["compute"]
    assert compute[:, 0] == pytest.approx(compute[:, 1], rel=1e-5)
    assert compute[:, 0] == pytest.approx(compute[:, 8], rel=1e-5)
    assert compute.std() == pytest.approx(0.12 * 0.4, rel=0.2)


def test_experts_share_a_fixed_number_of_tokens():
    """A token that one expert gets another one does not, and half of the work follows the tokens."""
    recording = generate(scenario("ep=4,dp=8", noise=STILL, imbalance=Imbalance(expert_sigma=0.1)))
    tokens, compute = recording.tokens.reshape(20, 2, 4), recording.parts["compute"].reshape(20, 2, 4)
    assert tokens.sum(axis=2) == pytest.approx(np.full((20, 2), 4 * 8192.0), rel=1e-5)
    assert tokens.std() > 0.05 * 8192
    assert compute / 0.4 - 1 == pytest.approx((tokens / 8192 - 1) / 2, abs=1e-4)


def test_a_slow_link_slows_its_own_groups_only():
    """Half the bandwidth of one group doubles its transfer and no other's."""
    slow = Fault(cause="link", ranks=(2,), ratio=1.0, wanted="group", kinds=("tp",), begin=10)
    transfer = generate(scenario("tp=2,dp=4", noise=STILL, faults=(slow,))).transfers["tp"]
    assert (transfer[10:, 2:4] / transfer[:10, 2:4]) == pytest.approx(np.full((10, 2), 2.0), rel=1e-4)
    assert transfer[10:, [0, 1, 4, 5, 6, 7]] == pytest.approx(transfer[:10, [0, 1, 4, 5, 6, 7]], rel=1e-4)


def test_a_restart_rolls_back_and_takes_its_time():
    """Step indices fall by the rollback while time goes on by the gap."""
    plan = replace(UNDISTURBED, restart_at=10, rollback_steps=4, restart_seconds=100.0)
    log = generate(scenario("dp=2", interruptions=plan)).log()
    of_rank = log.columns["rank"] == 0
    step, start = log.columns["step"][of_rank], log.columns["start_ns"][of_rank]
    assert step.tolist() == [*range(10), *range(6, 16)]
    assert start[10] - (start[9] + log.columns["duration_ns"][of_rank][9]) == 100 * 10**9


def test_a_gradual_ramp_doubles_tokens_and_work():
    """Bit by bit, on all ranks alike."""
    recording = generate(scenario("dp=4", steps=200, noise=STILL, imbalance=Imbalance(ramp_rows=100)))
    assert recording.tokens[[0, 90, 199], 0].tolist() == [8192, 1.5 * 8192, 2 * 8192]
    assert recording.parts["compute"][[0, 90, 199], 3] == pytest.approx([0.4, 0.6, 0.8], rel=1e-5)


def test_hidden_tokens_leave_no_column():
    """A log without tokens is one whose agent does not know them."""
    assert "tokens" in generate(scenario("dp=4")).log().columns
    hidden = Imbalance(tokens_known=False)
    assert "tokens" not in generate(scenario("dp=4", imbalance=hidden)).log().columns


def test_collections_of_all_at_once_come_in_the_same_step():
    """Every rank collects in the same steps, so no one waits for it."""
    gc = generate(scenario("dp=4", interruptions=replace(UNDISTURBED, collection_every=5))).parts["gc"]
    assert (np.flatnonzero((gc > 0.1).all(axis=1)) == [4, 9, 14, 19]).all()
    assert (gc[0] < 0.01).all()


@pytest.mark.parametrize(("name", "records"), [("hang", 1), ("hang, two records", 2)])
def test_a_hang_ends_the_records_until_the_restart(name, records):
    """The culprit lacks the steps that the others have just left; the next record comes minutes later, steps back."""
    made = replace(SCENARIOS[name](8, 1), noise=STILL)
    log, begin, (culprit,) = generate(made).log().columns, made.faults[0].begin, made.faults[0].ranks
    before = log["start_ns"] < log["start_ns"].min() + 170 * 10**9
    for step in range(begin, begin + records):
        assert culprit not in log["rank"][before & (log["step"] == step)]
        assert len(set(log["rank"][before & (log["step"] == step)])) >= 6
    assert log["step"][before].max() == begin + records - 1


def test_ranks_lie_as_configured():
    """A frozen counter reports one index for ever, a mad clock is years ahead; everybody else goes on as before."""
    plan = replace(UNDISTURBED, frozen_rank=1, mad_clock_rank=2)
    log = generate(scenario("dp=4", steps=60, interruptions=plan)).log().columns
    step, start = ({rank: log[name][log["rank"] == rank] for rank in range(4)} for name in ("step", "start_ns"))
    assert step[1].tolist() == [*range(50), *[50] * 10]
    assert step[3].tolist() == list(range(60))
    assert (start[2][50:] - start[3][50:] > 10**16).all()
    assert (start[2][:50] == start[3][:50]).all()


def test_ranks_leave_join_and_lose_their_records():
    """Leaving ranks are gone from the restart on, joining ones come with it, bursts lose rows of the same ranks."""
    plan = replace(UNDISTURBED, restart_at=10, rollback_steps=2)
    leaving = generate(scenario("dp=4", interruptions=replace(plan, leaving_ranks=2))).present
    joining = generate(scenario("dp=4", interruptions=replace(plan, joining_ranks=1))).present
    assert leaving[:10].all()
    assert leaving[10:].all(axis=0).tolist() == [True, True, False, False]
    assert not leaving[10:, 2:].any()
    assert not joining[:10, 3].any()
    assert joining[10:].all()
    lost = ~generate(scenario("dp=32", steps=60, interruptions=replace(UNDISTURBED, missing_bursts=1))).present
    assert lost.sum() == 2 * 8
    assert (lost.sum(axis=0) == 8).sum() == 2
    unsent = ~generate(scenario("dp=32", interruptions=replace(plan, restart_at=18, unsent_steps=4))).present
    assert not unsent[18:].any()
    by_node = unsent[:18].reshape(18, 4, 8)
    assert (by_node == by_node[:, :, :1]).all()
    assert (np.diff(unsent[:18].astype(int), axis=0) >= 0).all()
    assert 1 < len(set(unsent.sum(axis=0).tolist())) <= 5


def test_a_second_restart_rolls_back_again():
    """Indices fall twice, and the row of an index is known in each attempt."""
    made = scenario("dp=2", interruptions=replace(UNDISTURBED, restart_at=8, second_restart_at=14, rollback_steps=3))
    assert generate(made).step_W.tolist() == [*range(8), *range(5, 11), *range(8, 14)]
    assert [made.rolled_back(row) for row in (0, 7, 8, 13, 14)] == [0, 0, 3, 3, 6]


@pytest.mark.parametrize("ranks", SIZES)
def test_shapes_have_the_ranks_they_promise(ranks):
    """Every scenario of a size is a job of that many ranks; one of a single node has no slow node."""
    assert {world_size(SCENARIOS[name](ranks, 3)) for name in names(ranks)} == {ranks}
    assert ("slow node" in names(ranks)) == (ranks > 8)
    assert ranks in SHAPES


def test_a_stalled_rank_loses_the_record_after_its_stall():
    """The stalled step is recorded, the next one is lost or held back, the one after is a little long."""
    for late_seconds in (0.0, 20.0):
        stall = Stall(count=2, late_seconds=late_seconds)
        calm = scenario(steps=80, noise=STILL)
        recording = generate(replace(calm, interruptions=replace(UNDISTURBED, stall=stall)))
        longer = recording.parts["host"] - generate(calm).parts["host"]
        rows, ranks = np.nonzero(longer > 0.5 * calm.own_seconds)
        assert len(rows) == 2
        assert longer[rows + 2, ranks] == pytest.approx(np.full(2, 0.013 * calm.own_seconds), abs=1e-6)
        lost = (
            recording.held_seconds[rows + 1, ranks] == late_seconds
            if late_seconds
            else ~recording.present[rows + 1, ranks]
        )
        assert lost.all()


def test_noise_may_grow_in_the_middle_of_a_run():
    """From `later_row` on each rank's compute scatters more, before it as ever."""
    recording = generate(scenario("dp=64", noise=replace(STILL, step=0.004, later_step=0.03, later_row=10)))
    sigmas = (recording.parts["compute"] / 0.4).std(axis=1)
    assert sigmas[:10] == pytest.approx(np.full(10, 0.004), rel=0.4)
    assert sigmas[10:] == pytest.approx(np.full(10, 0.03), rel=0.4)
