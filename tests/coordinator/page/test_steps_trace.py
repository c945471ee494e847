"""The last steps as a trace: exact, nested, and of the ranks that matter."""

import json
from itertools import pairwise

import numpy as np
import pytest

from coordinator.page.steps_trace import RANKS_MAX, ranks_drawn, steps_trace
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.trace.kineto.load import load_trace
from tests.coordinator.test_runs import play, two_nodes
from tests.coordinator.web import FAULTY


@pytest.fixture(scope="module")
def run():
    """Return a run of four ranks, rank 2 of which waits for data since step 40."""
    runs = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0)
    two_nodes(runs)
    play(runs, FAULTY, 0, 60)
    return runs.by_name["job"]


def traced(run):
    (incident,) = run.machine.tracker.incidents.values()
    return steps_trace(run.scene, [incident], ranks_drawn(run.scene, incident), "job")


def slices(events, rank, *, category=None):
    return [e for e in events if e["ph"] == "X" and e["pid"] == rank and category in (None, e["cat"])]


def test_every_step_is_as_long_as_it_was_and_its_parts_fill_it(run):
    """Steps in order and apart; inside each its parts, which sum to it; the slow rank's data is what is longer."""
    events = traced(run)["traceEvents"]
    for rank in range(4):
        steps = slices(events, rank, category="step")
        assert [e["args"]["step"] for e in steps] == [row.step for row in run.scene.rows]
        assert all(b["ts"] >= a["ts"] + a["dur"] - 0.002 for a, b in pairwise(steps))
        parts = [e for e in slices(events, rank) if e["cat"] in ("own work", "wait")]
        for step in steps:
            inside = [e for e in parts if step["ts"] < e["ts"] + e["dur"] / 2 < step["ts"] + step["dur"]]
            assert sum(e["dur"] for e in inside) == pytest.approx(step["dur"], rel=0.02)
            assert all(e["ts"] + e["dur"] <= step["ts"] + step["dur"] + 0.002 for e in inside)
    data_s = {
        r: np.median([e["args"]["seconds"] for e in slices(events, r) if e["name"] == "data"][-5:]) for r in range(4)
    }
    assert data_s[2] > max(data_s[0], data_s[1], data_s[3]) + 0.1


def test_the_phases_of_compute_lie_inside_it(run):
    """Forward, backward and optimizer fill each rank's compute; time off the CPU is an argument of the step."""
    events = traced(run)["traceEvents"]
    phases = slices(events, 2, category="phase of compute")
    compute = [e for e in slices(events, 2) if e["name"] == "compute"]
    assert [e["name"] for e in phases[:3]] == ["forward", "backward", "optimizer"]
    assert len(phases) == 3 * len(compute)
    for whole, first, last in zip(compute, phases[::3], phases[2::3], strict=True):
        assert first["ts"] == whole["ts"]
        assert last["ts"] + last["dur"] == pytest.approx(whole["ts"] + whole["dur"], abs=5)
    assert all(e["args"]["off_cpu_seconds"] >= 0 for e in slices(events, 2, category="step"))


def test_the_incident_stands_where_it_began(run):
    """A mark over all ranks at the begin of its onset's step."""
    events = traced(run)["traceEvents"]
    (mark,) = [e for e in events if e["ph"] == "i"]
    assert (mark["s"], mark["name"], mark["args"]["onset_step"]) == ("g", "slow rank: data", 40)
    first = min(e["ts"] for r in range(4) for e in slices(events, r, category="step") if e["args"]["step"] == 40)
    assert mark["ts"] == pytest.approx(first, abs=1)


def test_it_is_a_trace_that_our_own_loader_reads(run, tmp_path):
    """Valid JSON of the format, every slice read back."""
    trace = traced(run)
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(trace, allow_nan=False))
    assert len(load_trace(path).start_ns) == sum(e["ph"] == "X" for e in trace["traceEvents"])


def test_ranks_are_those_of_the_incident_and_some_peers(run):
    """However many ranks an incident names, peers have a place; without one it is the ranks that work longest."""
    (incident,) = run.machine.tracker.incidents.values()
    assert ranks_drawn(run.scene, incident) == [0, 1, 2, 3]
    assert ranks_drawn(run.scene, None) == [0, 1, 2, 3]
    assert len(ranks_drawn(run.scene, incident)) <= RANKS_MAX
