"""One regression in a pair of runs is found in its part, on its ranks; in equal pairs nothing is."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.job import LINK, NOISY, Fault, Imbalance, Interruptions, Scenario
from benchmarks.scenarios.model import generate
from coordinator.record.run_comparison import BLOCKS, STEPS_MIN, _deviate_of, _welch_deviates, compare_runs
from coordinator.record.run_summary import summarise_run
from coordinator.record.steplog import StepLog, columns_of
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.records import MISSING, Flag
from tests.coordinator import scenarios

JOB = Scenario(name="job", degrees="tp=2,dp=2,pp=2", seed=1, steps=300)
STEP_S = 0.55  # of JOB, near enough for sizes
OWN, PHASES, TRANSFERS = ("data", "compute", "host", "gc"), ("forward", "backward", "optimizer"), ("tp", "dp", "pp")
SIZES = (0.025, 0.06, 0.2)  # of a step
DEVICES_S = 0.0012  # by which the means of runs on other devices differ


def log_of(job, run):
    return generate(job).log(run=run)


def with_phases(job, run):
    """Return a log whose agents measured the phases of compute, too."""
    batch = scenarios.generate(job).batch(0, job.steps, run=run)
    return StepLog(run, columns_of([batch], [int(batch.sent_unix_ns)]))


def pair(part, size):
    """Return a log, and one of the same job in which rank 3 (or the groups of its kind) takes so much longer."""
    if part in PHASES:
        job = scenarios.Scenario(degrees="dp=4", steps=300)
        slow = replace(job, seed=2).with_fault(part, 3, seconds=size * STEP_S)
        return with_phases(job, "before"), with_phases(slow, "after"), (3,)
    if part in TRANSFERS:
        ratio = size * STEP_S / JOB.transfers[part]
        fault = Fault(cause=LINK, ranks=(3,), ratio=ratio, kinds=(part,), begin=0)
        group = {"tp": (2, 3), "dp": (1, 3), "pp": (3, 7)}[part]
        return log_of(JOB, "before"), log_of(replace(JOB, seed=2, faults=(fault,)), "after"), group
    fault = Fault(cause=part, ranks=(3,), ratio=size * STEP_S / JOB.own_seconds, begin=0)
    return log_of(JOB, "before"), log_of(replace(JOB, seed=2, faults=(fault,)), "after"), (3,)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [*OWN, *PHASES, *TRANSFERS])
def test_a_regression_is_found_in_its_part_on_its_ranks(part, size):
    """Ten parts, three sizes; the step of all ranks is longer with it, and nothing else is."""
    before, after, ranks = pair(part, size)
    found = compare_runs(before, after)
    name = f"{part} transfer" if part in TRANSFERS else part
    changes = {change.part: change for change in found.slower}
    assert changes[name].ranks == ranks
    more_s = changes[name].after_seconds - changes[name].before_seconds
    planted_s = size * STEP_S * (changes[name].before_seconds / JOB.transfers[part] if part in TRANSFERS else 1.0)
    assert more_s == pytest.approx(planted_s, rel=0.2)
    assert changes[name].step_ratio == pytest.approx(more_s / found.step_seconds[0])
    assert changes.keys() <= {name, "step"}
    assert found.faster == ()
    back = compare_runs(after, before)
    assert {change.part: change.ranks for change in back.faster}[name] == ranks
    assert back.slower == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [*OWN, *PHASES, *TRANSFERS])
def test_the_report_of_each_run_shows_the_regression_in_its_part(part, size):
    """Mean over all ranks: of own work that part alone is longer; of a link, the waits of its kind."""
    before, after, ranks = pair(part, size)
    reports = [{each.name: each.seconds for each in summarise_run(log, []).parts} for log in (before, after)]
    more_s = {name: reports[1][name] - reports[0][name] for name in reports[1]}
    planted_s = size * STEP_S * len(ranks) / len(np.unique(after.columns["rank"]))
    own = {name for name in more_s if not name.endswith(" wait")}
    if part in TRANSFERS:
        assert more_s[f"{part} wait"] > 0.8 * planted_s
    else:
        assert more_s[part] == pytest.approx(planted_s, abs=DEVICES_S)
        own.remove(part)
    assert all(abs(more_s[name]) < DEVICES_S for name in own)


EQUAL = {
    "plain": JOB,
    "data parallel": replace(JOB, degrees="dp=8"),
    "noisy": replace(JOB, noise=NOISY),
    "uneven": replace(JOB, imbalance=Imbalance(last_stage=0.25, sequence_sigma=0.05)),
    "restarted": replace(JOB, steps=400, interruptions=Interruptions(restart_at=120, flagged=True)),
}


@pytest.mark.parametrize("number", range(50))
def test_equal_runs_have_no_regression(number):
    """The same job on other devices, with other noise: fifty pairs."""
    job = list(EQUAL.values())[number % len(EQUAL)]
    found = compare_runs(log_of(replace(job, seed=2 * number), "a"), log_of(replace(job, seed=2 * number + 1), "b"))
    assert (found.slower, found.faster, found.missing_parts) == ((), (), ())


def test_all_ranks_are_named_as_all():
    """A library that every rank uses became slower."""
    fault = Fault(cause="compute", ranks=tuple(range(8)), ratio=0.1, begin=0)
    found = compare_runs(log_of(JOB, "a"), log_of(replace(JOB, seed=2, faults=(fault,)), "b"))
    changes = {change.part: change for change in found.slower}
    assert changes["compute"].is_all
    assert changes["step"].is_all
    assert found.step_seconds[1] > 1.05 * found.step_seconds[0]


def test_flagged_steps_do_not_count():
    """Checkpoints twice as long, marked as such."""
    log, other = log_of(JOB, "a"), log_of(replace(JOB, seed=2), "b")
    columns = {name: values.copy() for name, values in other.columns.items()}
    at = columns["step"] % 10 == 0
    for name in ("duration_ns", "host_ns"):
        columns[name][at] += 400_000_000
    columns["flags"][at] |= int(Flag.CHECKPOINT)
    assert compare_runs(log, StepLog("b", columns)).slower == ()
    columns["flags"][at] = 0
    assert {change.part for change in compare_runs(log, StepLog("b", columns)).slower} == {"host", "step"}


def test_a_part_that_one_run_did_not_measure_is_listed():
    """It cannot be compared, and is not left out in silence."""
    log = log_of(JOB, "a")
    columns = {**log.columns, "gc_ns": np.full(log.count, MISSING)}
    assert compare_runs(log, StepLog("b", columns)).missing_parts == ("gc",)


def test_other_ranks_and_short_runs_are_refused():
    """By name and number."""
    log = log_of(JOB, "a")
    with pytest.raises(ConfigError, match="run b: got 4 ranks, expected the 8 of run a"):
        compare_runs(log, log_of(replace(JOB, degrees="dp=4"), "b"))
    with pytest.raises(ConfigError, match=f"expected at least {STEPS_MIN}"):
        compare_runs(log, log_of(replace(JOB, steps=60), "b"))


def test_the_deviates_are_those_of_welch_s_test():
    """Against 1,000 draws of equal means: as many lie beyond 1 and 2 deviates as of a normal variable."""
    rng = np.random.default_rng(1)
    deviates = _welch_deviates(rng.normal(0, 1, (4000, BLOCKS)), rng.normal(0, 3, (4000, BLOCKS)))
    assert np.mean(np.abs(deviates) > 1.0) == pytest.approx(0.317, abs=0.03)
    assert np.mean(np.abs(deviates) > 2.0) == pytest.approx(0.0455, abs=0.012)
    assert _welch_deviates(np.full((1, BLOCKS), np.nan), np.ones((1, BLOCKS))).tolist() == [0.0]
    assert _deviate_of(0.05) == pytest.approx(1.95996, abs=1e-4)
