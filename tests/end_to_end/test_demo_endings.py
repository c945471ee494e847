"""`lockstep demo` with faults that stop a job: a real hang, crash and interrupt of four ranks under torchrun."""

import json
import subprocess
import sys

import pytest

LIMIT_S = 600
pytestmark = [pytest.mark.torch, pytest.mark.timeout(LIMIT_S + 30)]

RANK = 1


def demonstrate(fault, picture):
    """Return the verdict and all that was printed."""
    command = [sys.executable, "-m", "lockstep.cli.main", "demo", "--fault", fault, "--rank", str(RANK), "--json"]
    command += ["--picture", str(picture)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.stdout


def test_a_rank_that_is_stuck_is_named_with_its_function(tmp_path):
    """The run hangs, one rank reads from a connection that never answers; the picture has the tree of stacks."""
    verdict, printed = demonstrate("hang", tmp_path / "hang.svg")
    assert verdict["correct"] is True
    assert (verdict["state"], verdict["kind"], verdict["rank"], verdict["cause"]) == ("hung", "hang", RANK, "data")
    assert verdict["function"].startswith("training.py(")
    assert verdict["function"].endswith("): stuck_in_download")
    assert any(line.strip().startswith(f"rank {RANK}: ") for line in verdict["stacks"])
    assert f"fault: hang on rank {RANK} begins at step 60" in printed
    assert "stuck_in_download" in (tmp_path / "hang.svg").read_text()


def test_a_rank_that_raises_is_named_with_its_exception(tmp_path):
    """Its peers fail too, a moment later, and are not blamed; the exception's message is nowhere in the verdict."""
    verdict, _ = demonstrate("crash", tmp_path / "crash.svg")
    assert verdict["correct"] is True
    found = (verdict["state"], verdict["kind"], verdict["rank"], verdict["root_cause"])
    assert found == ("crashed", "crash", RANK, "ValueError")
    assert verdict["function"].endswith("): reject_document")
    assert "checksum" not in json.dumps(verdict)
    assert "ValueError" in (tmp_path / "crash.svg").read_text()


def test_an_interrupted_run_is_cancelled_without_an_incident(tmp_path):
    """SIGINT goes to the process group of the job, as Ctrl-C sends it."""
    verdict, printed = demonstrate("cancel", tmp_path / "cancel.svg")
    assert verdict["correct"] is True
    assert (verdict["state"], verdict["incidents"], verdict["rank"]) == ("cancelled", 0, None)
    assert verdict["steps"] >= verdict["fault_step"]
    assert "fault: SIGINT to the process group of the job" in printed
    assert "cancelled" in (tmp_path / "cancel.svg").read_text()
