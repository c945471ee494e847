"""How much Python runs for a collective, and what the benchmark makes of its figures."""

import pytest

from benchmarks import collective_cost
from benchmarks.collective_cost import FRAMES_MAX, Added, Interpreted
from benchmarks.collective_variants import BARE, FLOORS, KERNELS, OPERATIONS, agents
from benchmarks.cost_table import Cost
from lockstep.agent import agent
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.agent.mark_writer import PURE_PYTHON
from tests.agent.hooks import native_builds

pytestmark = pytest.mark.torch


FALLBACK = {"synchronous": Interpreted(22, 600), "asynchronous": Interpreted(24, 630)}
"""Most that runs on the training thread without the C extension (Python 3.11). The end of an asynchronous collective takes
3 frames of them where it has ended before its callback is added: the callback runs on that thread then."""


def test_a_collective_behind_the_kernels_that_torch_calls_as_python():
    """The kernel, the reading of its arguments and the wait are C."""
    with agents({"Python": KERNELS["Python"]}) as variants:
        runs = collective_cost.count(variants)
    for found in runs.values():
        assert found == {BARE: Interpreted(0, 0), "Python": Interpreted(0, 0)}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_collective_without_the_extension(operation, monkeypatch):
    """Frames and bytecodes are few, and there are some."""
    monkeypatch.setattr(agent, "mark_buffer_type", lambda: (MarkBuffer, PURE_PYTHON))
    with agents({"Python": KERNELS["Python"]}) as variants:
        found = collective_cost.count(variants)[operation]["Python"]
    assert 0 < found.frames <= FALLBACK[operation].frames
    assert 0 < found.bytecodes <= FALLBACK[operation].bytecodes


def test_a_collective_behind_the_kernels_in_cpp(monkeypatch):
    """Nothing of it is Python: the kernels are C++, and the wait is C."""
    for name, value in native_builds.kernels_environment("C++").items():
        monkeypatch.setenv(name, value)
    with agents({"C++": KERNELS["C++"]}) as variants:
        runs = collective_cost.count(variants)
    for found in runs.values():
        assert found["C++"] == Interpreted(0, 0)


def test_the_floor_is_measured_with_the_kernels():
    """Every variant and the floor have a cost, and the agents did not fail."""
    with agents({"Python": KERNELS["Python"]}) as variants:
        added = collective_cost.measure_added(variants, rounds=2, calls=3, cold_calls=2)
    for operation, costs in added.one_processor.items():
        assert set(costs) == {"Python", FLOORS[operation][0]}
        assert all(cost.cold_ns is not None for cost in costs.values())
        floor, expected = costs[FLOORS[operation][0]], collective_cost.FLOOR[operation]
        assert (floor.hot_ns, floor.cold_ns) == pytest.approx((expected.hot_ns, expected.cold_ns))
    assert set(added.bare) == set(added.slowness) == set(OPERATIONS)


def test_disturbed_rounds_do_not_decide():
    """Each round is scaled by its own floor: one in which the machine was three times as slow counts as any other."""
    expected = Cost(10_000, 60_000)
    costs = {name: [] for name in (BARE, "Python", "floor")}
    for slow, extra in [(1, 0), (3, 0), (3, 0), (1, 0), (2, 50_000)]:
        costs[BARE].append(Cost(slow * 5_000, slow * 9_000))
        costs["floor"].append(Cost(slow * 15_000, slow * 69_000))
        costs["Python"].append(Cost(slow * 16_000 + extra, slow * 79_000 + extra))
    slowness = collective_cost.floor_slowness(costs, "floor", expected)
    assert slowness.typical() == (2.0, 2.0)
    python = [collective_cost._less(own, bare) for own, bare in zip(costs["Python"], costs[BARE], strict=True)]
    assert slowness.scaled(python) == Cost(11_000, 70_000)
    assert slowness.scaled(costs[BARE]) == Cost(5_000, 9_000)


def missed(*, hot=0, cold=0):
    one = {"synchronous": {"C++": Cost(hot, 9_000), "Python": Cost(1_000, cold), "floor": Cost(1_000_000, 1_000_000)}}
    two = {"synchronous": {"Python": Cost(1_000_000)}}
    added = Added({"synchronous": Cost(1_000, 9_000)}, one, two, {"synchronous": (1.0, 1.0)})
    return [row.what for row in collective_cost.rows(added) if row.is_met is False]


def test_a_missed_budget_is_named():
    """Hot and cold on one processor; nothing else."""
    assert missed() == []
    assert missed(hot=2_001) == ["synchronous, C++"]
    assert missed(cold=100_001) == ["synchronous, Python"]


def test_too_much_python_is_named():
    """Frames and bytecodes are judged, of hooks only."""
    runs = {
        "synchronous": {
            BARE: Interpreted(9, 999),
            "C++": Interpreted(0, 0),
            "Python": Interpreted(FRAMES_MAX + 1, 20),
        }
    }
    checks = collective_cost.check_interpreted(runs)
    assert [check.is_met for check in checks] == [True, False]
