"""How much Python runs for a mark: the same on every machine, however busy."""

import pytest

from benchmarks import mark_cost
from lockstep.agent.mark_buffer import MarkBuffer
from tests.agent.mark_buffers import extension


def bytecodes(kind, method):
    with mark_cost.buffer_of(kind) as buffer:
        return mark_cost.count_bytecodes(mark_cost.settled(getattr(mark_cost.MarkedSteps(buffer), method)))


@pytest.mark.parametrize("method", mark_cost.OPERATIONS.values())
def test_the_extension_runs_no_bytecode(method):
    """Marks in C leave the interpreter alone, stores included."""
    assert bytecodes(extension().MarkBuffer, method) == 0


@pytest.mark.parametrize(("method", "most"), [("mark", 51), ("step", 600), ("collective", 300)])
def test_bytecodes_of_the_python_writer(method, most):
    """About 50 a mark and 170 a store (Python 3.11); another version of Python may need a few more."""
    assert 0 < bytecodes(MarkBuffer, method) <= most


def test_bytecodes_are_counted():
    """A function of known length."""

    def add():
        return 1 + len("")

    assert 4 <= mark_cost.count_bytecodes(add) <= 12


def found(**changed):
    parts = {
        "C": mark_cost.Part(60 + mark_cost.MARK_BUDGET_NS, 9_000, 0),
        "Python": mark_cost.Part(1_000, 9_000, 100),
    }
    costs = {name: dict.fromkeys(mark_cost.OPERATIONS, part) for name, part in (parts | changed).items()}
    del costs["C"]["a step of six marks"]
    return costs


def missed(costs):
    return [check.what for check in mark_cost.check(costs, 60) if check.is_met is False]


def test_each_budget_is_checked():
    """Every figure beyond its budget is named, and none within."""
    assert missed(found()) == []
    assert missed(found(C=mark_cost.Part(2_001, 15_001, 0))) == ["C, a mark beyond an empty call, hot"]
    assert missed(found(Python=mark_cost.Part(6_000, 1, 300))) == ["Python, a step, hot"]


def test_a_step_in_c_is_measured_in_one_place():
    """By agent_cost, with everything that a rank has there: two measures of one cost differ."""
    operations = [check.what for check in mark_cost.check(found(), 60)]
    assert "a step of six marks, Python" in operations
    assert "a step of six marks, C" not in operations
