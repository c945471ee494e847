"""The attacks of one user of a node on another: each is refused, as the table states."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.security.node_users import ATTEMPTS


def test_no_attempt_succeeds():
    """Against an exporter of root and one in the trainers' group: every row names what refused it."""
    if os.geteuid() != 0:
        pytest.fail("this test acts as several users of a node, which takes root: run it as root, as CI does")
    command = [sys.executable, "-m", "benchmarks.security.node_users"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = [line for line in done.stdout.splitlines() if " | " in line]
    assert len(rows) == 2 * (len(ATTEMPTS) + 1)  # with the heads
