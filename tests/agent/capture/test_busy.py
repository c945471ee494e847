"""Captures of a job whose collectives keep torch's own threads busy, one after the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.agent.bootstrap import loader_environment
from tests.agent.capture.test_pair import PATIENCE_S, answered, until
from tests.agent.orders import ControlBlock
from tests.agent.rings import read_ring

pytestmark = pytest.mark.torch

CAPTURES = 4


def test_captures_with_stacks_do_not_crash_a_job_with_collectives_in_flight(tmp_path):
    """Each is whole, and the job ends well."""
    over, directory = tmp_path / "over", tmp_path / "shm" / "busy"
    directory.parent.mkdir()
    environ = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environ |= {"LOCKSTEP_DIR": str(directory.parent), "LOCKSTEP_RUN": "busy"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(Path(__file__).with_name("busy_job.py")), str(over)]
    with subprocess.Popen(command, env=loader_environment(environ), stderr=subprocess.PIPE, text=True) as job:
        try:
            until((directory / "1.ring").exists, job)
            block = ControlBlock(directory)
            states = []
            for request_id in range(1, CAPTURES + 1):
                block.order(request_id, ranks=[1], steps=3, stacks=True, shapes=False)
                states.append(until(lambda number=request_id: answered(directory, number), job).state)
            over.touch()
            _, errors = job.communicate(timeout=PATIENCE_S)
        finally:
            job.kill()
    assert (job.returncode, states) == (0, ["done"] * CAPTURES), errors
    assert "lockstep:" not in errors
    assert all(read_ring(directory / f"{rank}.ring").failures == 0 for rank in (0, 1))
