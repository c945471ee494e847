"""The agent changes no number: losses, parameters and random states are the same, bit for bit."""

import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.agent.hooks.native_builds import kernels_environment
from tests.agent.rings import read_ring
from tests.agent.safety.processes import TIMEOUT_S, environment, watched_environment

pytestmark = pytest.mark.torch

JOB = Path(__file__).parent / "numbers_job.py"
STEPS = 15


def hashes(name, world_size, root, make_environment):
    """Run all ranks and return what each printed.

    How they end is no matter here (test_endings.py): now and then torch 2.13 aborts a rank of gloo at its very end,
    without the agent too.
    """
    root.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", JOB, name, str(rank), str(world_size), root / "store"],
            env=make_environment(root, RANK=str(rank), WORLD_SIZE=str(world_size)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    found = []
    for rank in ranks:
        out, err = rank.communicate(timeout=TIMEOUT_S)
        assert out.endswith("\n"), err
        assert "lockstep: " not in err
        found.append(out)
    return found


@cache
def unwatched_hashes(name, world_size):
    """Return what the ranks print without the agent, which leaves no directory of the run."""
    with TemporaryDirectory() as directory:
        root = Path(directory) / "unwatched"
        found = hashes(name, world_size, root, environment)
        assert not (root / "job").exists()
    return found


@pytest.mark.parametrize(
    ("name", "world_size", "kernels"),
    [("plain", 1, "Python"), ("compiled", 1, "Python"), ("ddp", 2, "Python"), ("ddp", 2, "C++")],
)
def test_numbers_are_the_same(tmp_path, name, world_size, kernels):
    """Dropout, noise, shuffling, clipping; eager, compiled, over two ranks: one hash with and without the agent."""
    variables = kernels_environment(kernels)
    watched = hashes(name, world_size, tmp_path / "watched", partial(watched_environment, **variables))
    assert watched == unwatched_hashes(name, world_size)
    assert [read_ring(tmp_path / "watched" / "job" / f"{rank}.ring").step_count for rank in range(world_size)] == [
        STEPS
    ] * world_size
