"""Starts the jobs of this folder as separate processes in a clean environment."""

import os
import subprocess
import sys

from lockstep.agent.bootstrap import loader_environment

TIMEOUT_S = 1200
"""Longer than the limit of any test, which is what ends a job that hangs."""


def environment(root, **variables):
    """Return the environment of rank 0 of a job of one whose files are under `root`; the agent is not loaded in it."""
    return {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCKSTEP_DIR": str(root),
        "LOCKSTEP_RUN": "job",
        **variables,
    }


def watched_environment(root, **variables):
    """Return the same with the agent loaded as `lockstep run` does it."""
    return loader_environment(environment(root, **variables))


def run(arguments, environ, *, prefix=(), cwd=None):
    """Run Python with `arguments`, behind the command `prefix`."""
    return subprocess.run(
        [*prefix, sys.executable, *map(str, arguments)],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
