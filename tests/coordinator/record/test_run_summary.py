"""Every device second of a run is in one category, and the categories are right."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.job import Fault, Interruptions, Scenario
from benchmarks.scenarios.model import generate
from coordinator.page.run_account import render_summary
from coordinator.record.backtest import backtest, topology_of
from coordinator.record.run_summary import (
    CAPTURES,
    CATEGORIES,
    CHECKPOINTS,
    EVALUATIONS,
    PRODUCTIVE,
    RESTARTS,
    STALLS,
    STRAGGLERS,
    WARM_UP,
    summarise_run,
    summary_to_json,
)
from coordinator.record.step_table import table_of
from coordinator.record.steplog import StepLog
from coordinator.settings.policy import Policy
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import MISSING, Flag
from tests.coordinator.test_store import incident

NS = 1_000_000_000
MIDNIGHT_S = 1_790_035_200  # 2026-09-22 00:00 UTC
RANKS = 2


def log_of(durations, *, flags=(), start_s=MIDNIGHT_S - 5, gaps=(), steps=None, **columns):
    """Return the log of two ranks whose steps take so many seconds, one after the other; `gaps` lie before a step."""
    durations_ns = np.array([int(each * NS) for each in durations])
    gap_ns = np.zeros(len(durations), dtype=np.int64)
    flag = np.zeros(len(durations), dtype=np.int64)
    for place, seconds in dict(gaps).items():
        gap_ns[place] = int(seconds * NS)
    for place, value in dict(flags).items():
        flag[place] = int(value)
    ends_ns = start_s * NS + np.cumsum(durations_ns + gap_ns)
    step = np.arange(len(durations)) if steps is None else np.array(steps)
    made = {
        "step": step,
        "start_ns": ends_ns - durations_ns,
        "duration_ns": durations_ns,
        "compute_ns": durations_ns // 2,
        "data_ns": durations_ns // 4,
        "host_ns": durations_ns // 4,
        "gc_ns": np.zeros_like(durations_ns),
        "flags": flag,
        **{name: np.full(len(durations), value) for name, value in columns.items()},
    }
    both = {name: np.concatenate([values] * RANKS) for name, values in made.items()}
    return StepLog("job", {"rank": np.repeat(np.arange(RANKS), len(durations)), **both})


def seconds(summary):
    """Return what is not nothing of the account."""
    return {name: pytest.approx(value) for name, value in summary.device_seconds.items() if value}


def test_every_second_is_in_one_category():
    """A day of everything: what each costs beyond a usual step, on both ranks."""
    durations = [3.0] + [1.0] * 8 + [4.0, 1.0, 6.0, 2.0, 1.0, 61.0, 1.0]
    flags = {0: Flag.WARM_UP, 9: Flag.CHECKPOINT, 11: Flag.EVALUATION | Flag.CHECKPOINT, 12: Flag.PROFILED}
    log = log_of(durations, flags=flags, gaps={8: 40.0}, steps=[*range(8), *range(4, 12)])
    summary = summarise_run(log, [incident(run="job", lost_device_seconds=1.5, opened_unix_ns=(MIDNIGHT_S + 1) * NS)])
    assert (summary.ranks, summary.attempts, summary.steps, summary.step_seconds) == (RANKS, 2, 16, 1.0)
    assert sum(summary.device_seconds.values()) == pytest.approx(RANKS * (sum(durations) + 40.0))
    expected = {
        WARM_UP: 2.0 * RANKS,
        CHECKPOINTS: 8.0 * RANKS,  # a step that is both is a checkpoint's
        CAPTURES: 1.0 * RANKS,
        STALLS: 60.0 * RANKS,
        RESTARTS: 40.0 * RANKS,
        STRAGGLERS: 1.5,
        PRODUCTIVE: 16.0 * RANKS - 1.5,
    }
    assert seconds(summary) == expected
    assert summary.device_seconds[EVALUATIONS] == 0.0
    assert summary.goodput_ratio == pytest.approx(expected[PRODUCTIVE] / sum(expected.values()))


def test_days_sum_to_the_run():
    """Steps belong to the day in UTC on which they end, what an incident cost to the day on which it opened."""
    opened = [(MIDNIGHT_S - 3) * NS, (MIDNIGHT_S + 3) * NS]
    incidents = [
        incident(at, run="job", lost_device_seconds=1.0 + at, opened_unix_ns=ns) for at, ns in enumerate(opened)
    ]
    summary = summarise_run(log_of([1.0] * 12), incidents)
    assert [(day.date, day.steps, day.device_seconds[STRAGGLERS]) for day in summary.days] == [
        ("2026-09-21", 4, 1.0),
        ("2026-09-22", 8, 2.0),
    ]
    for name in CATEGORIES:
        assert sum(day.device_seconds[name] for day in summary.days) == pytest.approx(summary.device_seconds[name])


def test_an_incident_costs_no_more_than_there_was():
    """Its cost is an estimate; a hang's silence is in the stalls already, and another run's is another run's."""
    incidents = [
        incident(1, run="job", lost_device_seconds=1e6, opened_unix_ns=(MIDNIGHT_S - 1) * NS),
        incident(2, run="job", kind="hang", lost_device_seconds=7.0, opened_unix_ns=(MIDNIGHT_S - 1) * NS),
        incident(3, run="other", lost_device_seconds=7.0, opened_unix_ns=(MIDNIGHT_S - 1) * NS),
    ]
    summary = summarise_run(log_of([1.0] * 4), incidents)
    assert (summary.device_seconds[STRAGGLERS], summary.goodput_ratio) == (4.0 * RANKS, 0.0)
    assert [each["id"] for each in summary.incidents] == ["job-1", "job-2"]
    assert summary.incidents[0]["lost_device_hours"] == pytest.approx(1e6 / 3600)


def test_rates_and_mfu_are_of_what_was_counted():
    """Per second of the whole run; None where nothing was counted, or a rank's peak is not known."""
    log = log_of([1.0] * 10, tokens=50, samples=2, model_flops=10**12)
    peaks = dict.fromkeys(range(RANKS), 4e12)
    summary = summarise_run(log, [], peak_flops_per_second=peaks)
    assert (summary.tokens_per_second, summary.samples_per_second) == (pytest.approx(100.0), pytest.approx(4.0))
    assert summary.mfu_ratio == pytest.approx(0.25)
    assert summarise_run(log, [], peak_flops_per_second={0: 4e12}).mfu_ratio is None
    nothing = summarise_run(log_of([1.0] * 10, tokens=MISSING), [], peak_flops_per_second=peaks)
    assert (nothing.tokens_per_second, nothing.samples_per_second, nothing.mfu_ratio) == (None, None, None)


def test_parts_are_of_usual_steps_and_sum_to_one():
    """A checkpoint's host time is in the account, not in the usual step."""
    summary = summarise_run(log_of([1.0] * 8 + [9.0], flags={8: Flag.CHECKPOINT}), [])
    shares = {part.name: part.share_ratio for part in summary.parts}
    assert shares == {"data": 0.25, "compute": 0.5, "host": 0.25, "gc": 0.0}
    phases = log_of([1.0] * 8, forward_ns=NS // 8, backward_ns=NS // 4, optimizer_ns=NS // 8)
    parts = {part.name: part.share_ratio for part in summarise_run(phases, []).parts}
    assert parts == {"forward": 0.125, "backward": 0.25, "optimizer": 0.125, "data": 0.25, "host": 0.25, "gc": 0.0}


def test_a_log_without_rows_is_refused():
    """There is nothing to summarise."""
    log = log_of([1.0])
    with pytest.raises(MalformedError, match="no rows"):
        table_of(StepLog("job", {name: values[:0] for name, values in log.columns.items()}))


def test_a_generated_run_with_a_slow_rank():
    """What is planted comes back: the slow rank's cost as its incident has it, the restart, the flagged pauses."""
    interruptions = Interruptions(flagged=True, restart_at=150, rollback_steps=10, restart_seconds=180.0)
    slow = Fault(cause="compute", ranks=(3,), ratio=0.3, begin=60, end=120)
    job = Scenario(name="job", degrees="dp=4", seed=3, steps=300, interruptions=interruptions, faults=(slow,))
    log = generate(job).log(run="job")
    replayed = backtest(log, topology_of(4, ""), Policy(), ranks_per_node=2)
    summary = summarise_run(log, replayed.incidents.values())
    assert summary.attempts == 2
    assert summary.device_seconds[RESTARTS] == pytest.approx(4 * 180.0, rel=0.02)
    assert summary.device_seconds[CHECKPOINTS] == pytest.approx(4 * 3.0 * 2, rel=0.6)
    assert summary.device_seconds[STRAGGLERS] == pytest.approx(4 * 60 * 0.3 * job.own_seconds, rel=0.35)
    assert 0.3 < summary.goodput_ratio < 0.6
    page = render_summary(replace(summary, run="<b>"))
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert json.loads(json.dumps(summary_to_json(summary)))["goodput_ratio"] == summary.goodput_ratio
