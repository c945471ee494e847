"""Captures of one rank of a real job of two, one after the other."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.agent.bootstrap import loader_environment
from lockstep.contracts.capture import result_from_json
from lockstep.contracts.paths import incoming_directory, trace_name
from lockstep.contracts.records import Flag
from lockstep.contracts.ring import STATE_FINISHED
from lockstep.trace.summarise import summarise_trace
from tests.agent.orders import ControlBlock
from tests.agent.rings import read_ring

pytestmark = pytest.mark.torch

PATIENCE_S = 120
STEPS = 3


def until(found, job):
    """Wait for what a running job does; an end of the job is the end of waiting."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert job.poll() is None or found(), job.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def answered(directory, request_id):
    ring = directory / "1.ring"
    value = read_ring(ring).answer if ring.exists() else None
    if value is None or value["request_id"] != request_id or value["state"] not in ("done", "refused"):
        return None
    return result_from_json(value, where="ring")


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Run the job, ask rank 1 twice, and return both answers, both rings and the directory."""
    root = tmp_path_factory.mktemp("pair")
    directory = root / "pair"
    environ = loader_environment(
        {
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",  # torchrun's own, about itself
            "LOCKSTEP_DIR": str(root),
            "LOCKSTEP_RUN": "pair",
        }
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(Path(__file__).with_name("pair_job.py"))]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            until((directory / "1.ring").exists, job)
            block = ControlBlock(directory)
            answers = []
            for request_id, stacks in ((1, True), (2, False)):
                block.order(request_id, ranks=[1], steps=STEPS, stacks=stacks, shapes=False)
                answers.append(until(lambda number=request_id: answered(directory, number), job))
            _, errors = job.communicate(timeout=PATIENCE_S)
        finally:
            job.kill()
    assert job.returncode == 0, errors
    assert "lockstep:" not in errors
    return answers, [read_ring(directory / f"{rank}.ring") for rank in (0, 1)], directory


def test_both_requests_are_carried_out(captured):
    """The second like the first, each with its cost, and the job ends well."""
    answers, rings, _ = captured
    assert [(each.request_id, each.state, each.reason, each.steps) for each in answers] == [
        (1, "done", "", STEPS),
        (2, "done", "", STEPS),
    ]
    assert all(each.cost_ns > 0 for each in answers)
    assert answers[0].end_ns < answers[1].start_ns
    assert all((ring.state, ring.failures) == (STATE_FINISHED, 0) for ring in rings)


def test_only_the_asked_rank_is_disturbed(captured):
    """Its captured steps and the one after each capture are flagged; the other rank printed and did nothing."""
    answers, rings, directory = captured
    flagged = [record["step"] for record in rings[1].records if record["flags"] & Flag.PROFILED]
    expected = [each.first_step + more for each in answers for more in range(STEPS + 1)]
    assert flagged == [step for step in expected if step < rings[1].step_count]
    assert not any(record["flags"] & Flag.PROFILED for record in rings[0].records)
    assert rings[0].answer is None
    assert sorted(path.name for path in incoming_directory(directory).iterdir()) == ["1-1.json", "2-1.json"]


def test_traces_show_rank_and_waiting(captured):
    """Each trace names its rank and is read to a summary of its steps, the collective among them."""
    _, rings, directory = captured
    for request_id in (1, 2):
        path = incoming_directory(directory) / trace_name(request_id, 1)
        facts = json.loads(path.read_text())["lockstep"]
        assert (facts["run"], facts["rank"]) == ("pair", 1)
        steps = [step for step, _ in facts["boundaries"]]
        ends_ns = {record["step"]: record["end_ns"] for record in rings[1].records}
        assert all(ends_ns[step - 1] <= at_ns for step, at_ns in facts["boundaries"])
        summary = summarise_trace(path, run="pair", node="n", rank=1, request_id=request_id, steps=STEPS)
        assert (summary.error, summary.steps) == ("", STEPS)
        window_ns = facts["boundaries"][-1][1] - facts["boundaries"][0][1]
        assert abs(summary.window_ns - window_ns) < window_ns // 10
        assert len(steps) == STEPS + 1
        assert summary.collectives["gloo:all_reduce"][0] >= STEPS
