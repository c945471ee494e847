"""What of the agent Python runs in a step, on every machine the same; and that each budget is judged."""

import os
import sys

import pytest

from benchmarks import agent_cost, mark_cost
from lockstep.agent import mark_writer
from tests.agent.mark_buffers import extension

pytestmark = pytest.mark.torch


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """Set the environment of a rank whose files lie in a temporary directory."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCKSTEP_DIR", "LOCKSTEP_RUN", "LOCKSTEP_AGENT_PID"):
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("LOCKSTEP_AGENT_PID")
    os.environ |= {"WORLD_SIZE": "1", "LOCKSTEP_DIR": str(tmp_path), "LOCKSTEP_RUN": "cost"}


def bytecodes_of_a_step():
    with agent_cost.watched() as agent:
        agent.marks.poll_interval_ns = 1 << 62  # looks for requests come ten times a second, not with each step
        step = mark_cost.settled(agent_cost.Steps(agent).step)
        return mark_cost.count_bytecodes(step), agent.mark_writer


@pytest.mark.parametrize("is_built", [True, False])
def test_bytecodes_of_a_step_without_collectives(recording, monkeypatch, is_built):
    """Eight of the benchmark's own calls, and nothing of the agent's with the C extension."""
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", extension() if is_built else None)
    count, writer = bytecodes_of_a_step()
    assert writer == (mark_writer.C_EXTENSION if is_built else mark_writer.PURE_PYTHON)
    own = mark_cost.count_bytecodes(lambda: None)
    assert own <= count <= (60 if is_built else 900)


def missed(step=(2_000, 15_000), python=(12_000, 100_000), cpp=(2_000, 15_000)):
    kernels = {"Python": python, "C++": cpp}
    collectives = {"synchronous": kernels, "asynchronous": kernels}
    return [line.what for line in agent_cost.check_costs(step, {}, collectives) if line.is_met is False]


def test_each_budget_is_judged():
    """Every figure beyond its budget is named, and none within."""
    assert missed() == []
    assert missed(step=(2_001, 15_001)) == [
        "a step without collectives, hot",
        "a step without collectives, cold",
    ]
    assert missed(python=(12_001, 1)) == ["synchronous, Python, hot", "asynchronous, Python, hot"]
    assert missed(cpp=(1, 17_501)) == [
        "synchronous, C++, cold",
        "asynchronous, C++, cold",
        "two collectives, share of a 100 ms step, cold",
    ]
