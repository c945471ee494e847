"""Every way to start a training of docs/launchers.md, with the real launcher: all of its ranks are watched."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.launchers.slurm import slurm_cluster
from tests.agent.launchers.table import SLURM, STARTS
from tests.agent.rings import read_ring
from tests.support.servers import free_port, program

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 12  # of scripts/training.py
TIMEOUT_S = 500  # on an idle machine 3 to 10
NAMES = [pytest.param(name, marks=[pytest.mark.servers] if start.needs else []) for name, start in STARTS.items()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return the variables of a Slurm cluster that runs as long as this module's tests need it."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def variables(name, request):
    """Return the environment that a job starts in, without any launcher's variables but the cluster's."""
    common = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",  # of torch and Lightning, about themselves
    }
    needs = STARTS[name].needs
    if needs:
        program(needs)
    return {**common, **(request.getfixturevalue("cluster") if needs == SLURM else {})}


def run(command, directory, environ):
    """Run a row's command with its files in `directory` and return its output, which is nothing of ours."""
    lockstep = f"{sys.executable} -m lockstep.cli.main run --root {directory}/shm --"
    places = {
        "python": sys.executable,
        "scripts": SCRIPTS,
        "store": directory / "store",
        "output": directory / "output",
    }
    text = command.format(lockstep=lockstep, port=free_port(), **places)
    done = subprocess.run(
        shlex.split(text), env=environ, cwd=directory, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    batch = places["output"].read_text() if places["output"].exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + batch
    assert "lockstep:" not in done.stdout + done.stderr + batch


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_every_rank_is_in_its_ring(name, variables, tmp_path):
    """One run with its name, a ring for each rank and none besides, all steps in it, and every rank ended well."""
    start = STARTS[name]
    run(start.command, tmp_path, variables)
    (directory,) = (tmp_path / "shm").iterdir()
    assert re.fullmatch(start.run, directory.name)
    assert sorted(path.name for path in directory.iterdir()) == [f"{rank}.ring" for rank in range(start.ranks)]
    for rank in range(start.ranks):
        ring = read_ring(directory / f"{rank}.ring")
        assert (ring.header.rank, ring.header.local_rank, ring.header.world_size) == (rank, rank, start.ranks)
        assert [record["step"] for record in ring.records] == list(range(STEPS))
        assert (ring.torn, ring.failures, ring.state) == (0, 0, STATE_FINISHED)
