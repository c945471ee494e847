"""The second generator keeps the account of real records too, and its score reads incident lines alone."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.holdout import clockwork, recorded, work
from benchmarks.holdout.__main__ import main, make_log, measure
from benchmarks.holdout.cases import CASES, FAULTS, names
from benchmarks.holdout.job import Case, Disorder, Layout, Nature, Truth
from benchmarks.holdout.score import tally
from benchmarks.holdout.step_log import log_of, steps_of
from coordinator.record.steplog import read

CALM = Disorder(checkpoint_every=0, missing=0, late=0, skew_seconds=0)
STILL = Nature(noise=0, spread=0, common=0, stall_rate=0, jitter=0)


def measured(case):
    """Return layout, work and what the ranks of a case measured."""
    layout, rng = Layout.of(case), np.random.default_rng(case.seed)
    drawn = work.draw(case, layout, rng)
    return layout, drawn, clockwork.run(case, layout, drawn, rng)


def line(scope, ranks, step, *, cause="compute", kind="slow_rank"):
    """Return an incident line as far as the score reads it."""
    return {"scope": scope, "ranks": ranks, "detected_step": step, "cause": cause, "kind": kind}


def case(degrees="tp=2,pp=2,dp=4", **changed):
    """Return a short calm case."""
    return Case(**({"name": "test", "degrees": degrees, "seed": 3, "rows": 60, "disorder": CALM} | changed))


@pytest.mark.parametrize("name", list(CASES))
def test_every_case_keeps_the_account(name):
    """Own work and waits sum to the step in every record, and nothing is negative, with 8 ranks or the smallest fit."""
    made = CASES[name](8 if name in names(8) else 128, 1)
    _, log = make_log(made)
    columns = log.columns
    booked = sum(
        v for n, v in columns.items() if n.endswith("_ns") and n.split("_")[0] in ("compute", "host", "data", "gc")
    )
    booked = booked + sum(v for n, v in columns.items() if n.endswith("_wait_ns"))
    assert np.array_equal(booked, columns["duration_ns"])
    assert all((values >= 0).all() for values in columns.values())
    assert bool(made.truths) == (name in FAULTS)


def test_without_a_world_ranks_run_apart():
    """No one waits for everybody: steps end at their own time, and are not equally long."""
    together, apart = measured(case())[2], measured(case(has_world=False))[2]
    assert np.ptp(together.end, axis=1).max() < 1e-9
    assert np.ptp(apart.end, axis=1).min() > 1e-4
    assert "world" in together.waits
    assert "world" not in apart.waits


def test_a_pipeline_takes_its_bubble():
    """Equal stages, M cells forward and backward: S - 1 cells of both pass before the first stage is done."""
    start, busy = np.zeros((1, 4)), np.full((1, 4), 0.6)
    ended = clockwork._pipeline(start, busy, np.zeros(1))
    assert ended[0, 0] == pytest.approx(0.6 * (6 + 3) / 6)
    assert (np.diff(ended[0]) < 0).all()


def test_transfers_grow_with_members_and_slow_links_with_their_fault():
    """A ring of eight takes 7/8 of twice the bytes; half the bandwidth of a group doubles that group's transfer only."""
    slow = Truth(scope="group", ranks=(2, 3), cause="link", ratio=1.0, kinds=("tp",), begin=30)
    transfer = measured(case("tp=2,dp=4", nature=STILL, truths=(slow,)))[2].transfers
    least, most = transfer["tp"][:30].min(), transfer["tp"][:30].max()
    assert most / least < 1.07
    assert (transfer["tp"][30:, 2:4] > 1.8 * most).all()
    assert (transfer["tp"][30:, [0, 1, 4, 5, 6, 7]] <= most).all()
    assert transfer["dp"].mean() == pytest.approx(0.025 * 1.5, rel=0.1)


def test_documents_move_whole_replicas_and_their_work_shows_it():
    """Lengths make replicas differ by about a tenth, the ranks of one by about a hundredth; compute follows `work`."""
    _, drawn, _ = measured(case("tp=4,dp=2", rows=400, nature=replace(STILL, documents=0.45)))
    compute = drawn.parts["compute"]
    assert 0.06 < (compute[:, 0] / compute.mean()).std() < 0.2
    assert 0.005 < ((compute[:, 0] - compute[:, 1]) / compute.mean()).std() < 0.03
    assert np.corrcoef(compute[40:, 0], drawn.work[40:, 0])[0, 1] > 0.99


def test_experts_share_their_tokens():
    """What one place of an expert group gets another one does not, and all groups route alike."""
    _, drawn, _ = measured(case("ep=4,dp=8", nature=replace(STILL, experts=0.5)))
    tokens = drawn.tokens.reshape(60, 2, 4)
    assert tokens.sum(axis=2) == pytest.approx(np.full((60, 2), tokens[0, 0].sum()))
    assert np.array_equal(tokens[:, 0], tokens[:, 1])
    assert tokens.std() > 0.05 * tokens.mean()


def test_faults_rise_and_come_and_go():
    """A fault has its whole strength at once, after its rise, or in its own rows only."""
    sudden = Truth(scope="rank", ranks=(1,), cause="compute", ratio=0.1, begin=10)
    assert [sudden.strength(row) for row in (9, 10, 99)] == [0.0, 0.1, 0.1]
    assert replace(sudden, rise_rows=4).strength(11) == pytest.approx(0.05)
    coming = replace(sudden, period=(3, 2))
    assert [coming.strength(row) > 0 for row in range(10, 20)] == [True, True, True, False, False] * 2


def test_records_are_lost_and_come_late_as_planned():
    """A node's delay moves its records behind others', bursts are gone, and the log is in order of arrival."""
    made = case("dp=16", disorder=replace(CALM, late_nodes=2, missing_bursts=1))
    layout, drawn, shown = measured(made)
    del layout
    log = log_of(made, shown, drawn, np.random.default_rng(1)).columns
    assert (np.diff(log["received_ns"]) >= 0).all()
    assert (np.diff(log["step"]) < 0).any()
    assert 3 <= made.rows * 16 - len(log["rank"]) <= 12


def test_a_log_is_written_with_its_truth(tmp_path):
    """`--write` gives what `lockstep replay` reads and the fault that its lines should name."""
    assert main(["--ranks", "8", "--seeds", "1", "--case", "link dp", "--write", str(tmp_path)]) == 0
    (log,) = read(next(tmp_path.glob("*.parquet")))
    truth = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert log.count > 1500
    assert truth["truths"][0]["scope"] == "group"
    assert truth["truths"][0]["kinds"] == ["dp"]


RANKS = Truth(scope="rank", ranks=(1, 6), cause="compute", ratio=0.1, begin=30)


def scored(*lines, truths=(RANKS,), **changed):
    """Return the score of incident lines."""
    made = case(truths=truths, **changed)
    return tally(made, Layout.of(made), steps_of(made), lines)


def test_lines_are_finds_or_wrong():
    """One line may name several ranks: each right one is a find with the line's step, each innocent is wrong."""
    result = scored(line("rank", [1, 6, 3], 32, cause="host"))
    assert (result.wanted, result.found, result.wrong_ranks, result.causes_right) == (2, 2, 1, 0)
    assert result.latency_steps == [3, 3]
    assert sum("WRONG" in note for note in result.notes) == 1


def test_lines_before_the_fault_are_false_alarms():
    """The right rank named too early is a false alarm, and so is anything in a healthy run."""
    early = scored(line("rank", [1], 12))
    assert (early.found, early.wrong_ranks, early.false_in_health, early.healthy_steps) == (0, 1, 1, 30)
    assert scored(line("job", [], 12), truths=()).false_in_health == 1
    assert scored(line("job", [], 12, cause="imbalance"), truths=()).false_in_health == 0


def test_the_job_is_a_symptom_of_anything_and_groups_of_a_node():
    """What only feels the fault is not held against the detector; a group next to a slow rank is."""
    assert scored(line("job", [], 40)).wrong_others == 0
    assert scored(line("group", [1, 3], 40, kind="slow_link")).wrong_others == 1
    nic = Truth(scope="node", ranks=tuple(range(8)), cause="link", ratio=1.0, kinds=("dp",), begin=30)
    shown = [
        line("group", [0, 2, 4, 6], 40, kind="slow_link"),
        line("node", list(range(8)), 41, kind="slow_link", cause="link"),
    ]
    result = scored(*shown, truths=(nic,))
    assert (result.wanted, result.found, result.wrong_others, result.causes_right) == (1, 1, 0, 1)


def test_steps_are_those_of_the_attempt():
    """After a restart indices fall, and a latency is counted in them."""
    late = replace(RANKS, ranks=(1,), begin=50)
    result = scored(line("rank", [1], 45), truths=(late,), disorder=replace(CALM, restarts=(40,)))
    assert result.latency_steps == [3]


@pytest.mark.parametrize("name", ["slow 15 %, host", "slow from the start 20 %", "link tp", "slow beside a mad clock"])
def test_the_detector_holds_on_another_authors_runs(name):
    """Found by its cause on a seed of its own, no one else named."""
    result = measure(name, 8, 913)
    assert (result.found, result.causes_right, result.wrong_ranks, result.wrong_others) == (1, 1, 0, 0), result.notes


def test_slowness_is_put_into_recordings_without_breaking_their_account():
    """The slowed rank works longer, others wait for it, and a rank that was never last may stay so."""
    name, values = next(iter(recorded.recordings()))
    assert name.startswith("healthy")
    before, after = (recorded.slowed(values, 1, ratio, 100).columns for ratio in (0.0, 1.0))
    own = {key: log["compute_ns"].reshape(-1, 4) for key, log in (("before", before), ("after", after))}
    added = own["after"] - own["before"]
    assert (added[100:, 1] > 0).all()
    assert not added[:100].any()
    assert not added[:, [0, 2, 3]].any()
    assert np.array_equal(after["compute_ns"] + after["dp_wait_ns"], after["duration_ns"])
    assert (after["duration_ns"] >= before["duration_ns"]).all()


def test_a_recorded_job_names_a_rank_that_takes_three_times_as_long():
    """On processes that share two cores, the noisiest healthy job known."""
    values = dict(recorded.recordings())["healthy-105ms"]
    shown = recorded.inject(values[:260], 2, 2.0)
    assert shown.found_at is not None
    assert shown.found_at - shown.begin < 20
    assert shown.wrong == 0
