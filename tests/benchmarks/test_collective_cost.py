"""How much Python runs for a collective, and what the benchmark makes of its figures."""

import pytest

from benchmarks import collective_cost
from benchmarks.collective_cost import WITHOUT_EXTENSION, Added, Figure, Interpreted
from benchmarks.collective_variants import BARE, FLOORS, KERNELS, NO_EXTENSION, OPERATIONS, agents
from benchmarks.cost_table import Cost
from tests.agent.hooks import native_builds

pytestmark = pytest.mark.torch


def test_a_collective_behind_the_kernels_that_torch_calls_as_python():
    """The kernel, the reading of its arguments and the wait are C."""
    with agents({"Python": KERNELS["Python"]}) as variants:
        runs = collective_cost.count(variants)
    for found in runs.values():
        assert found == {BARE: Interpreted(0, 0), "Python": Interpreted(0, 0)}


def test_a_collective_without_the_extension():
    """Frames and bytecodes are few, and there are some."""
    with agents({NO_EXTENSION: KERNELS[NO_EXTENSION]}) as variants:
        runs = collective_cost.count(variants)
    for operation, found in runs.items():
        most = WITHOUT_EXTENSION[operation]
        assert 0 < found[NO_EXTENSION].frames <= most.frames
        assert 0 < found[NO_EXTENSION].bytecodes <= most.bytecodes


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
        assert all(figure.raw.cold_ns is not None for figure in costs.values())
        floor, most = costs[FLOORS[operation][0]].scaled, collective_cost.FLOOR[operation]
        assert floor.hot_ns <= most.hot_ns * (1 + 1e-9)
        assert floor.cold_ns <= most.cold_ns * (1 + 1e-9)
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
    python = [collective_cost.less(own, bare) for own, bare in zip(costs["Python"], costs[BARE], strict=True)]
    assert slowness.figure(python) == Figure(raw=Cost(33_000, 190_000), scaled=Cost(11_000, 70_000))
    assert slowness.figure(costs[BARE]) == Figure(raw=Cost(10_000, 18_000), scaled=Cost(5_000, 9_000))


def test_where_the_floor_is_faster_a_cost_is_what_was_measured():
    """A budget is of time: a machine on which an empty kernel is cheap does not make the others cheap as well."""
    slowness = collective_cost.Slowness(hot=[0.5, 0.5, 0.5], cold=[0.4, 2.0, 2.0])
    found = slowness.figure([Cost(1_000, 6_000), Cost(1_200, 16_000), Cost(1_400, 18_000)])
    assert found == Figure(raw=Cost(1_200, 16_000), scaled=Cost(1_200, 8_000))


def figure(hot_ns, cold_ns=None):
    """Return one whose raw cost is beyond every budget: scaled ones are compared with it."""
    return Figure(raw=Cost(9_000_000, 9_000_000), scaled=Cost(hot_ns, cold_ns))


def missed(*, hot=0, cold=0, without_extension=(0, 0)):
    one = {"C++": figure(hot, 9_000), "Python": figure(1_000, cold), "floor": figure(1_000_000, 1_000_000)}
    one[NO_EXTENSION] = figure(*without_extension)
    two = {"synchronous": {"Python": figure(1_000_000)}}
    slowness = {"synchronous": collective_cost.Slowness([1.0], [1.0])}
    added = Added({"synchronous": figure(1_000, 9_000)}, {"synchronous": one}, two, slowness)
    return [row.what for row in collective_cost.rows(added) if row.is_met is False]


def test_a_missed_budget_is_named():
    """Hot and cold on one processor; nothing else."""
    assert missed() == []
    assert missed(hot=2_001) == ["synchronous, C++"]
    assert missed(cold=100_001) == ["synchronous, Python"]
    assert missed(without_extension=(15_000, 100_000)) == []
    for beyond in ((15_001, 0), (0, 100_001)):
        assert missed(without_extension=beyond) == [f"synchronous, {NO_EXTENSION}"]


def test_too_much_python_is_named():
    """Frames and bytecodes are compared with their bounds, of hooks only."""
    most = WITHOUT_EXTENSION["synchronous"]
    runs = {
        "synchronous": {
            BARE: Interpreted(9, 999),
            "C++": Interpreted(0, 0),
            "Python": Interpreted(1, 20),
            NO_EXTENSION: most,
        },
        "asynchronous": {NO_EXTENSION: Interpreted(2, 999)},
    }
    checks = collective_cost.check_interpreted(runs)
    assert [check.is_met for check in checks] == [None, True, False, True, None, False]
    assert [check.value for check in checks if check.what.startswith("former")] == [
        "27 frames, 532 bytecodes",
        "32 frames, 961 bytecodes",
    ]
