"""A short run of benchmarks/agent_soak.py, and the same numbers with and without the agent."""

import json

import pytest

from tests.agent.safety.processes import environment, run

pytestmark = pytest.mark.torch

COLLECTIVES = 1500


def soak(tmp_path, *flags):
    arguments = [
        "-W",
        "ignore",
        "-m",
        "benchmarks.agent_soak",
        "--collectives",
        COLLECTIVES,
        "--timeout-s",
        140,
        *flags,
    ]
    done = run(arguments, environment(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lockstep" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_soak_ends_and_changes_no_number(tmp_path):
    """Mixed collectives in several groups and DDP steps: no hang, no failure, no wrong result, the same parameters."""
    watched = soak(tmp_path)
    bare = soak(tmp_path, "--without-agent")
    for rank in watched:
        assert sum(rank["operators"].values()) == COLLECTIVES
        assert len(rank["operators"]) == 8
        assert (rank["agent_failures"], rank["in_flight"], rank["watched"]) == (0, 0, True)
    assert not any(rank["watched"] for rank in bare)
    assert {rank["parameters"] for rank in watched} == {rank["parameters"] for rank in bare}
    assert len({rank["parameters"] for rank in watched}) == 1
