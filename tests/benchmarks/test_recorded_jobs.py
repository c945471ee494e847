"""How recorded jobs are evaluated: what a fault cost by the ranks' counters, and which findings are right."""

import json
from collections import Counter

import numpy as np
import pytest

from benchmarks.language_job import STEPS, Plan
from benchmarks.language_model import HEALTHY
from benchmarks.language_trainers import RANKS
from benchmarks.recorded_jobs import RecordedJob, evaluate
from benchmarks.recorded_truth import cost_ratio, is_last_in_every_step, needed_ns
from lockstep.contracts.finding import CPU, Finding

pytestmark = pytest.mark.torch
MS = 1_000_000


@pytest.mark.parametrize(("own_ms", "expected"), [(100, 40 / 100), (60, 10 / 60), (50, 0)])
def test_a_fault_costs_what_the_slowest_rank_needs_less_without_it(own_ms, expected):
    """40 ms of rank 2, next to a rank that needs 50 ms: none, a part or all of it is hidden."""
    needed = np.array([[20, 50, own_ms, 30]] * STEPS) * MS
    assert cost_ratio(needed, 2, 40 * MS) == pytest.approx(expected)
    assert is_last_in_every_step(needed, 2) is (own_ms > 50)


def test_a_rank_needs_what_it_ran_queued_and_slept(tmp_path):
    """Of cumulative counters, the last STEPS differences count: those before are warm-up."""
    for rank in range(RANKS):
        marks = np.arange(STEPS + 3)
        counters = {"on_cpu_ns": marks * 10 * (rank + 1), "queued_ns": marks * 3, "slept_ns": marks * 7}
        counters["on_cpu_ns"][:2] = 0
        (tmp_path / f"work{rank}.json").write_text(json.dumps({key: each.tolist() for key, each in counters.items()}))
    assert needed_ns(tmp_path).tolist() == [[20, 30, 40, 50]] * STEPS


def found(rank, cause="slow_function", subject="a.py(1): loss"):
    return Finding(bottleneck=CPU, cause=cause, ranks=(rank,), evidence=(), subject=subject)


def job(fault="loss", *, cost=0.1, last=()):
    return RecordedJob(Plan(fault, 2, 0.04, True), cost, frozenset(last))


@pytest.mark.parametrize(
    ("recorded", "findings", "expected"),
    [
        (job(), [found(2)], {"faulty": 1, "right": 1, "explained": 1}),
        (job(), [found(2, subject="other")], {"faulty": 1, "right": 1}),
        (job(), [found(2), found(2, "data_processing")], {"faulty": 1, "right": 1, "explained": 1, "wrong": 1}),
        (job(), [found(1)], {"faulty": 1, "wrong": 1}),
        (job(), [], {"faulty": 1}),
        (job(cost=0.01), [], {"hidden": 1}),
        (job(cost=0.01), [found(2)], {"hidden": 1, "hidden_named": 1}),
        (job(HEALTHY), [found(2)], {"healthy": 1, "healthy_named": 1, "wrong": 1}),
        (job(HEALTHY, last={1}), [found(1, "waiting_for_straggler")], {"healthy": 1, "of_host": 1}),
        (job(HEALTHY, last={1}), [found(1)], {"healthy": 1, "healthy_named": 1, "wrong": 1}),
    ],
)
def test_findings_are_evaluated(recorded, findings, expected):
    """The culprit's first finding is right; others are wrong but for a rank that the host kept from its core."""
    counts = evaluate(recorded, findings)
    assert +counts == Counter(expected)
    assert {type(each) for each in counts.values()} == {int}  # they are printed
