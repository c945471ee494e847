"""How much Python runs for a collective, and what the benchmark makes of its figures."""

import pytest

from benchmarks import collective_cost
from benchmarks.collective_cost import BYTECODES_MAX, FRAMES_MAX, KERNELS, Interpreted
from tests.agent.hooks import native_builds

pytestmark = pytest.mark.torch


def test_a_collective_behind_the_kernels_in_python():
    """Three frames and 150 bytecodes at most (Python 3.11): the kernel, its payload, and the patch of the wait."""
    with collective_cost.agents({"Python": KERNELS["Python"]}) as variants:
        found = collective_cost.count(variants)
    assert found["bare"] == Interpreted(0, 0)
    assert 0 < found["Python"].frames <= FRAMES_MAX
    assert 0 < found["Python"].bytecodes <= BYTECODES_MAX


def test_a_collective_behind_the_kernels_in_cpp(monkeypatch):
    """The patch of the wait alone is Python."""
    for name, value in native_builds.kernels_environment("C++").items():
        monkeypatch.setenv(name, value)
    with collective_cost.agents({"C++": KERNELS["C++"]}) as variants:
        found = collective_cost.count(variants)["C++"]
    assert found.frames == 1
    assert found.bytecodes <= 30


def missed(*, hot=0, cold=0, frames=1):
    costs = {"synchronous": {"bare": (1_000, 9_000), "C++": (1_000 + hot, 9_000), "Python": (1_000, 9_000 + cold)}}
    runs = {"C++": Interpreted(1, 20), "Python": Interpreted(frames, 100)}
    return [check.what for check in collective_cost.check(costs, runs) if check.is_met is False]


def test_a_missed_budget_is_named():
    """Hot, cold, and what Python runs; nothing else."""
    assert missed() == []
    assert missed(hot=2_001) == ["synchronous, C++, adds hot"]
    assert missed(cold=100_001) == ["synchronous, Python, adds cold"]
    assert missed(frames=6) == ["synchronous, Python, Python inside"]
