"""Whatever goes wrong in the agent, and wherever: training does not notice, and what is the training's reaches it."""

import json

import pytest

from lockstep.contracts.ring import STATE_FAILED, STATE_FINISHED
from tests.agent.safety.processes import environment, run

pytestmark = pytest.mark.torch


def trials(tmp_path, mode):
    """Run the job and return (result without trouble, function -> result with trouble in it)."""
    done = run(["-W", "ignore", "-m", "tests.agent.safety.failure_job", mode], environment(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    clean = found["clean"]
    assert (clean["digest"], clean["failures"], clean["said"]) == (found["bare"], 0, [])
    assert (clean["state"], clean["exact"], clean["alive"]) == (STATE_FINISHED, True, True)
    for part in ("agent.py", "settling.py", "ring.py", "profiler.py", "hooks/data.py", "garbage.py"):
        assert any(part in name for name in found["trials"]), part
    return clean, found["trials"]


def test_failure_in_any_function_leaves_training_as_it_was(tmp_path):
    """Each function that a hook ends at fails in turn: same losses and parameters, one line, and the ring says failed."""
    clean, found = trials(tmp_path, "fail")
    wrong = {}
    for name, trial in found.items():
        whole = (trial["digest"], trial["hits"], trial["failures"]) == (clean["digest"], 1, 1)
        told = len(trial["said"]) == 1 and trial["said"][0].endswith(
            f"InjectedError: {name}; training goes on without it"
        )
        marked = (trial["state"], trial["ring_failures"]) in ((STATE_FAILED, 1), (None, None))
        if not (whole and told and marked) or trial["alive"] or trial["profiling"] or not trial["exact"]:
            wrong[name] = trial
    assert wrong == {}


def test_exception_of_a_signal_handler_reaches_training_from_any_function(tmp_path):
    """A signal meets each function in turn: what its handler raises arrives once, and the agent goes on, exact as ever."""
    _, found = trials(tmp_path, "signal")
    wrong = {}
    for name, trial in found.items():
        arrived = (trial["hits"], trial["interruptions"]) == (1, 1)
        on = (trial["failures"], trial["said"], trial["state"]) == (0, [], STATE_FINISHED)
        if not (arrived and on and trial["alive"] and trial["exact"]) or trial["profiling"]:
            wrong[name] = trial
    assert wrong == {}
