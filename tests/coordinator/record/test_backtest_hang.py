"""Step logs of runs that stand still: reported by the live state machine, through the ticks of the log's own time."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.job import Interruptions
from benchmarks.scenarios.job import Scenario as Job
from benchmarks.scenarios.model import generate
from coordinator.record.backtest import backtest, to_line, topology_of
from coordinator.record.steplog import StepLog
from coordinator.settings.policy import BudgetPolicy, Policy

CALM = Interruptions(checkpoint_every=0, evaluation_every=0, missing=0.0, late=0.0)
S = 10**9
TRUSTING = Policy(budget=BudgetPolicy(false_page_steps=10_000.0))
"""Believes a lacking record after 50 steps without a lost one; by default thousands are asked for."""


def log_of(*, steps=80, degrees="dp=8", **more):
    return generate(Job(name="job", degrees=degrees, seed=4, steps=steps, interruptions=replace(CALM, **more))).log()


def rows(log, kept):
    return StepLog(log.run, {name: values[kept] for name, values in log.columns.items()})


def silent(log, *, after, seconds, lacking=()):
    """Return the log with a silence behind a step, whose records the ranks in `lacking` never wrote."""
    step, rank = log.columns["step"], log.columns["rank"]
    for name in ("start_ns", "received_ns"):
        log.columns[name][step > after] += seconds * S
    return rows(log, ~((step == after) & np.isin(rank, lacking)))


def replay_lines(log, policy=TRUSTING, *, degrees="dp=8", **more):
    lines = [
        to_line(incident) for incident in backtest(log, topology_of(8, degrees), policy, **more).incidents.values()
    ]
    return [line for line in lines if line["kind"] == "hang"]


def test_the_rank_that_lacks_the_last_step_before_a_restart_has_not_arrived():
    """Minutes without records, behind a step that one rank did not end: one incident, closed when steps come again."""
    (line,) = replay_lines(hung(ranks=[5], records=1))
    assert {name: line[name] for name in ("cause", "scope", "ranks", "domain", "onset_step")} == {
        "cause": "unknown",
        "scope": "rank",
        "ranks": [5],
        "domain": {"kind": "dp", "id": "dp0"},
        "onset_step": 70,
    }
    assert 8 * 100 < line["lost_device_seconds"] < 8 * 200
    assert any("the last step of rank 5 is 69" in each for each in line["evidence"])


def test_a_rank_with_a_later_record_has_made_the_step():
    """A minute without records, behind a step whose record one rank lacks: it was lost, as the rank's next step shows."""
    assert replay_lines(silent(log_of(), after=50, seconds=60, lacking=(5,))) == []


@pytest.mark.parametrize("index", ["stands still", "begins again"])
def test_a_rank_that_writes_records_under_another_index_has_not_stopped(index):
    """Its own counter is wrong, and the run makes a pause before the others are far ahead of its last valid index."""
    log = silent(log_of(), after=68, seconds=60)
    step = log.columns["step"]
    wrong = {"stands still": np.minimum(step, 64), "begins again": np.where(step > 64, step - 65, step)}[index]
    log.columns["step"] = np.where(log.columns["rank"] == 1, wrong, step)
    assert replay_lines(log) == []


@pytest.mark.parametrize("lacking", [(), (5,)])
def test_a_log_that_ends_is_no_hang(lacking):
    """Whether all ranks ended the last step or not."""
    log = log_of(steps=60)
    assert replay_lines(rows(log, ~((log.columns["step"] == 59) & np.isin(log.columns["rank"], lacking)))) == []


def test_a_silence_that_explains_nothing_is_no_incident():
    """All ranks ended the same step, as when a job is killed and started again minutes later."""
    assert replay_lines(silent(log_of(), after=50, seconds=200)) == []
    assert replay_lines(log_of(steps=160, restart_at=80)) == []


def hung(*, ranks, records, at=70, **more):
    """Return a log that is restarted minutes after step `at`, whose last records of that attempt `ranks` never wrote."""
    log = log_of(steps=110, restart_at=at + 1, **more)
    first = log.columns["start_ns"] < log.columns["start_ns"].min() + 60 * S
    late = np.isin(log.columns["rank"], ranks) & (log.columns["step"] > at - records)
    return rows(log, ~(first & late))


def test_lost_records_are_no_late_ranks():
    """Where records get lost now and then, one that lacks before a restart names no one."""
    log = hung(ranks=[5], records=1)
    lost = (log.columns["step"] == 30) & (log.columns["rank"] == 2)
    lost |= (log.columns["step"] == 40) & (log.columns["rank"] == 7)
    assert replay_lines(rows(log, ~lost)) == []
    assert replay_lines(log, Policy()) == []


def test_a_rank_that_lacks_its_last_two_records_before_a_restart_has_not_arrived():
    """In a log of 70 steps that lost none in its midst, two that lack together are no chance: by default thresholds."""
    (line,) = replay_lines(hung(ranks=[5], records=2), Policy())
    assert {name: line[name] for name in ("scope", "ranks", "domain", "onset_step")} == {
        "scope": "rank",
        "ranks": [5],
        "domain": {"kind": "dp", "id": "dp0"},
        "onset_step": 69,
    }
    assert line["detected_step"] in (71, 72)
    assert line["closed_step"] >= line["detected_step"]
    assert line["lost_device_seconds"] > 8 * 100


def test_a_group_that_lacks_the_last_record_is_named_with_its_domain():
    """Ranks on both hosts lack one record each: the domain that they are is the one where they are waited for."""
    log = hung(ranks=[1, 3, 5, 7], records=1, degrees="tp=2,dp=4")
    (line,) = replay_lines(log, Policy(), degrees="tp=2,dp=4", ranks_per_node=4)
    assert (line["ranks"], line["domain"], line["onset_step"]) == ([1, 3, 5, 7], {"kind": "dp", "id": "dp1"}, 70)


@pytest.mark.parametrize(
    ("ranks", "records", "per_node"),
    [([5], 1, 8), ([5], 2, 1), ([3, 4, 5], 2, 3), ([3, 4, 5, 6, 7], 2, 8)],
    ids=["a single record", "the batch of a host", "the batch of another", "most ranks"],
)
def test_what_a_loss_explains_as_well_is_no_hang(ranks, records, per_node):
    """Restarts come without hangs, and one record, or one batch, gets lost."""
    log = hung(ranks=ranks, records=records)
    assert replay_lines(log, Policy(), degrees="dp=8", ranks_per_node=per_node) == []


def test_what_was_lost_at_once_before_may_be_lost_so_again():
    """Two records in a row that a rank lacks in the midst of the log excuse two at its end."""
    log = hung(ranks=[5], records=2)
    burst = (log.columns["rank"] == 2) & np.isin(log.columns["step"], [90, 91])
    assert replay_lines(rows(log, ~burst), Policy()) == []


def delayed(log, *, rank, step, seconds):
    """Return the log with the records of a rank and a step received so much later, rows in order of arrival."""
    late = (log.columns["rank"] == rank) & (log.columns["step"] == step)
    log.columns["received_ns"] = log.columns["received_ns"] + late * seconds * S
    return rows(log, np.argsort(log.columns["received_ns"], kind="stable"))


def test_a_record_that_is_on_its_way_is_no_hang():
    """At the end of an attempt two records lack: both are lost, or one comes 17 s late."""
    log = log_of(steps=110, restart_at=71)
    lost = rows(log, ~_last_of(log, 3) & ~_last_of(log, 5))
    assert replay_lines(lost, Policy())[0]["ranks"] == [3, 5]
    assert replay_lines(delayed(rows(log, ~_last_of(log, 3)), rank=5, step=70, seconds=17), Policy()) == []


def _last_of(log, rank):
    first = log.columns["start_ns"] < log.columns["start_ns"].min() + 60 * S
    return first & (log.columns["rank"] == rank) & (log.columns["step"] == 70)


def test_records_that_all_come_late_at_the_end_of_a_log_are_no_hang():
    """The step ends with a pause, so that several records are on their way for seconds, and no other row follows them."""
    log = log_of(steps=80, checkpoint_every=80, checkpoint_seconds=8.0, flagged=True)
    for rank in (2, 3, 5):
        log = delayed(log, rank=rank, step=79, seconds=17)
    assert replay_lines(log, Policy()) == []


def test_bursts_that_meet_at_a_restart_are_no_hang():
    """Ranks lose records of several steps together, and at the end of an attempt more of them than ever before."""
    log = hung(ranks=[2, 5, 6], records=4)
    burst = np.isin(log.columns["rank"], [1, 4]) & np.isin(log.columns["step"], [30, 31, 32, 33])
    assert replay_lines(log, Policy())[0]["ranks"] == [2, 5, 6]
    assert replay_lines(rows(log, ~burst), Policy()) == []


@pytest.mark.parametrize("unsent", [(4, 4), (4, 2), (1, 4)])
def test_nodes_that_lose_their_last_records_hang_nowhere(unsent):
    """Each exporter's buffer ends at another step, and one rank lacks one record more, as some do anywhere."""
    log = log_of(steps=110, restart_at=71, degrees="dp=12")
    step, rank = log.columns["step"], log.columns["rank"]
    first = log.columns["start_ns"] < log.columns["start_ns"].min() + 60 * S
    lost = np.zeros(log.count, dtype=bool)
    for node, count in enumerate(unsent):
        lost |= first & (rank // 3 == node) & (step > 70 - count)
    lost |= first & (rank == 1) & (step == 70 - unsent[0])
    log = rows(log, ~lost)
    found = backtest(log, topology_of(12, "dp=12"), Policy(), ranks_per_node=3).incidents.values()
    assert [incident for incident in found if incident.kind == "hang"] == []


@pytest.mark.parametrize(("records", "ranks"), [(1, []), (2, [5])])
def test_a_log_of_every_third_step_counts_its_own_steps(records, ranks):
    """One record that lacks there is three steps, and still one record."""
    log = log_of(steps=350, restart_at=301)
    log = rows(log, log.columns["step"] % 3 == 0)
    first = log.columns["start_ns"] < log.columns["start_ns"].min() + 200 * S
    late = first & (log.columns["rank"] == 5) & (log.columns["step"] > 300 - 3 * records)
    assert [line["ranks"] for line in replay_lines(rows(log, ~late), Policy())] == [ranks] * bool(ranks)


def test_a_record_that_arrives_a_step_later_is_none_that_lacks():
    """A hang is looked for after seconds of silence: what comes before is there."""
    log = hung(ranks=[5], records=2)
    for step in (20, 21, 22):
        log = delayed(log, rank=2, step=step, seconds=1)
    assert replay_lines(log, Policy())[0]["ranks"] == [5]


def test_single_losses_excuse_no_two_records_in_a_row():
    """One record in a thousand gets lost, each by itself, as in most logs."""
    (line,) = replay_lines(hung(ranks=[5], records=2, missing=0.001), Policy())
    assert line["ranks"] == [5]


@pytest.mark.parametrize(("order", "share"), [("step", 0.645), ("step", 0.7), ("rank", 0.95), ("rank", 0.45)])
def test_a_log_that_was_cut_is_no_hang(order, share):
    """Wherever the rows end, in whatever order they were: what is not there any more has not stopped."""
    log = log_of(steps=110, restart_at=71)
    kept = np.argsort(log.columns["rank"], kind="stable") if order == "rank" else np.arange(log.count)
    kept = np.sort(kept[: round(share * log.count)])
    assert replay_lines(rows(log, kept), Policy(), lenient=True) == []
