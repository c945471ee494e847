"""Ranks that a script starts itself: those that train before they have a group, and those that end badly."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.contracts.ring import STATE_FINISHED, STATE_RAISED
from tests.agent.rings import read_ring
from tests.agent.safety.processes import watched_environment

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
GROUP_STEPS = 5  # of late_group_job.py
TIMEOUT_S = 500  # on an idle machine 3 to 8


def run(root, *arguments):
    environ = watched_environment(root, PYTHONWARNINGS="ignore")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del environ[name]
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "lockstep:" not in done.stderr


def test_a_late_group_begins_a_new_attempt(tmp_path):
    """Steps made alone belong to runs of one rank, which end with the group; the group's ranks begin at step 0."""
    run(tmp_path, HERE / "late_group_job.py", tmp_path / "store")
    (directory,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert sorted(path.name for path in directory.iterdir()) == ["0.ring", "1.ring"]
    for rank in (0, 1):
        ring = read_ring(directory / f"{rank}.ring")
        assert (ring.header.rank, ring.header.world_size) == (rank, 2)
        assert [record["step"] for record in ring.records] == list(range(GROUP_STEPS))
        assert (ring.failures, ring.state) == (0, STATE_FINISHED)
        assert [group["ranks"] for group in ring.groups] == [[[0, 2, 1]]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(("how", "state"), [("raise", STATE_RAISED), ("1", STATE_RAISED), ("0", STATE_FINISHED)])
def test_a_process_that_ends_badly_is_not_finished(tmp_path, method, how, state):
    """Children of multiprocessing, whose exceptions never reach the interpreter's end, and forked ones, which have none."""
    run(tmp_path, HERE / "failing_spawn_job.py", method, how)
    assert read_ring(tmp_path / "job" / "0.ring").state == state
