"""Real ranks: what they exchange, and what becomes of them when one of them dies."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import wait_until

ROOT = Path(__file__).resolve().parents[2]
KILLED = -signal.SIGKILL


@pytest.fixture
def start(tmp_path):
    """Start the ranks of a job; what still runs at the end is killed, and no name may be left."""
    running = []

    def start_job(role, job, ranks, only=None):
        command = [sys.executable, "-m", "tests.intracard.ranks", role, str(tmp_path), job]
        started = [
            subprocess.Popen([*command, str(rank), str(ranks)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for rank in (range(ranks) if only is None else only)
        ]
        running.extend(started)
        return started

    yield start_job
    for process in running:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def answers(processes):
    """Return what each rank printed; all must have ended well."""
    outputs = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(output) for output in outputs]


def test_jobs_at_once_get_every_sum_and_byte(start):
    """Three jobs in one directory agree with numpy bit for bit on every kind and size; equal values give equal bits."""
    first, four, second = (
        start("properties", "pair-1", 2),
        start("properties", "four", 4),
        start("properties", "pair-2", 2),
    )
    answers(four)
    assert answers(first) == answers(second)


def test_a_thousand_calls_and_a_killed_rank(start):
    """No rank ever reads bytes of another call; who is killed then is named by every survivor, in the next call."""
    processes = start("killed", "killed", 4)
    outputs = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, KILLED, 0]
    for seen in [json.loads(output) for output in outputs if output]:
        assert seen["lost"] == [2]
        assert "rank 2" in seen["text"]
        assert seen["calls"] == 50


def test_leftovers_of_a_crashed_job_are_replaced(start, tmp_path):
    """A rank killed while it waits leaves a name; the next job of that name takes it over and removes it."""
    (waiting,) = start("reuse", "crashed", 2, only=[0])
    name = tmp_path / "crashed.0.meet"
    wait_until(name.exists, 100, "a rank that waits")
    waiting.kill()
    waiting.wait()
    assert name.exists()
    assert answers(start("reuse", "crashed", 2)) == [{"calls": 1000}] * 2
