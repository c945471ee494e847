"""What of the agent Python runs in a step, on every machine the same; and that each budget is checked."""

import os
import sys

import pytest
import torch.distributed as dist
from torch import multiprocessing

from benchmarks import agent_cost, agent_steps, cost_table, mark_cost
from benchmarks.agent_job import JobPlan, run_job
from benchmarks.collective_cost import Figure
from benchmarks.cost_table import Cost, Row
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
    with agent_steps.watched() as agent:
        agent.marks.poll_interval_ns = 1 << 62  # looks for requests come ten times a second, not with each step
        step = mark_cost.settled(agent_steps.Steps(agent).step)
        return mark_cost.count_bytecodes(step), agent.mark_writer


@pytest.mark.parametrize("is_built", [True, False])
def test_bytecodes_of_a_step_without_collectives(recording, monkeypatch, is_built):
    """Eight of the benchmark's own calls, and nothing of the agent's with the C extension."""
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", extension() if is_built else None)
    count, writer = bytecodes_of_a_step()
    assert writer == (mark_writer.C_EXTENSION if is_built else mark_writer.PURE_PYTHON)
    own = mark_cost.count_bytecodes(lambda: None)
    assert own <= count <= (60 if is_built else 900)


def test_each_budget_is_checked():
    """Every figure beyond its budget is named, and none within."""
    within, beyond = Cost(2_000, 15_000), Cost(2_001, 15_000)
    slow = Cost(9_000, 90_000)
    figures = {agent_cost.STEP: Figure(raw=slow, scaled=within), "hook": Figure(raw=slow, scaled=beyond)}
    assert [row.is_met for row in agent_cost.step_rows(figures)] == [True, None]
    figures = {agent_cost.STEP: Figure(raw=within, scaled=beyond)}
    assert [row.is_met for row in agent_cost.step_rows(figures)] == [False]
    assert [check.is_met for check in agent_cost.check_share(within, Cost(9_000, 17_500))] == [None, True, True]
    assert [check.is_met for check in agent_cost.check_share(within, Cost(9_001, 17_501))] == [None, False, False]


def test_a_step_and_its_floor_are_measured_in_the_same_rounds(recording):
    """With figures as measured and scaled by what the empty kernel added; hooks next to them."""
    memory = bytearray(1 << 20)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        figures, slowness = agent_cost.measure_steps(memory, rounds=3, calls=5, cold_calls=4)
    finally:
        dist.destroy_process_group()
    assert set(figures) == {agent_cost.STEP, *agent_steps.hooked_calls()}
    assert len(slowness.hot) == len(slowness.cold) == 3
    raw = figures[agent_cost.STEP].raw
    assert raw.hot_ns > 0
    assert raw.cold_ns is not None
    assert raw.cold_ns > 0


def test_the_table_names_what_was_missed():
    """Hot or cold, next to the former agent's figures and those as measured, which are not compared with budgets."""
    rows = [
        Row("a step", Cost(1_000, 16_000), Cost(2_000, 15_000), ("9", "137"), Cost(1_500, 14_000)),
        Row("a mark", Cost(2_100), Cost(2_000)),
        Row("a hook", Cost(500, 600)),
    ]
    headings, step, mark, hook = cost_table.table(rows).splitlines()
    assert headings.split()[-4:] == ["budget", "hot", "budget", "cold"]
    assert step.split()[-9:] == ["137", "1.5", "14.0", "1.0", "16.0", "2.0", "15.0", "MISSED", "cold"]
    assert mark.split() == ["a", "mark", "2.1", "2.0", "MISSED", "hot"]
    assert hook.split() == ["a", "hook", "0.5", "0.6"]


def test_a_job_whose_rank_fails_ends(tmp_path):
    """The benchmark ends with the error instead of waiting for an answer for ever."""
    nothing_to_compare = JobPlan("fails", str(tmp_path), pairs=0, agent=False, limit_s=60)
    with pytest.raises(multiprocessing.ProcessRaisedException, match="StatisticsError"):
        run_job(nothing_to_compare)
