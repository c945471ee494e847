"""Costs as on the machine that budgets are for."""

import pytest

from benchmarks import thread_time
from benchmarks.thread_time import REFERENCE_NS, ReferenceMachine


def machine(*slowness):
    """Return one whose reference work takes so many times as long, one measurement after another."""
    taken = iter(slowness)
    return ReferenceMachine(lambda _work: next(taken) * REFERENCE_NS)


def test_a_slow_machine_does_not_decide():
    """A cost is scaled by the work that took as much longer right before and after it."""
    assert machine(1, 1).scaled(lambda: 90.0) == 90.0
    assert machine(3, 3).scaled(lambda: 270.0) == 90.0
    assert machine(2, 4).scaled(lambda: 270.0) == 90.0


def test_on_a_faster_machine_a_cost_is_what_was_measured():
    """A budget is of time: what computes faster does not reach memory or the system as much faster."""
    assert machine(0.5, 0.5).scaled(lambda: 90.0) == 90.0
    assert machine(0.5, 2.5).scaled(lambda: 90.0) == 60.0


def test_one_slow_round_does_not_decide():
    """The median of the rounds, each scaled by its own."""
    costs = iter([80.0, 300.0, 110.0])
    assert machine(1, 1, 2, 2, 1, 1).median(lambda: next(costs), rounds=3) == 110.0


def test_the_spread_of_the_machine_is_shown():
    """Median, least and most of all that was measured."""
    found = machine(1, 1, 2, 4, 2, 2)
    for _ in range(3):
        found.scaled(lambda: 1.0)
    assert found.check().value == "2.00 (1.00 to 3.00)"


@pytest.mark.parametrize("slowness", [1, 3])
def test_each_cold_call_is_scaled(monkeypatch, slowness):
    """The lower quartile of scaled calls, with caches emptied before each."""
    taken = iter([slowness * cost for cost in (10, 20, 30, 40, 50, 60, 70)])
    monkeypatch.setattr(thread_time, "thread_ns", lambda _call: next(taken))
    assert machine(*[slowness] * 14).cold_ns(thread_time.empty, 7, bytearray(64)) == 20.0


def test_a_disturbance_of_some_calls_does_not_decide_what_cold_caches_cost(monkeypatch):
    """Calls and empty ones take turns: two disturbed rounds of seven, and a call that takes 30 more, show 30."""

    def work():
        raise AssertionError("only its time is asked for")

    calls = 0

    def time_of(call):
        nonlocal calls
        calls += 1
        disturbed = 500 if 8 < calls <= 20 else 0
        return 100 + disturbed * calls + (30 if call is work else 0)

    monkeypatch.setattr(thread_time, "thread_ns", time_of)
    assert machine(*[1] * 7 * 2 * 4 * 2).cold_beyond_empty_ns(work, 28, bytearray(64)) == 30.0
