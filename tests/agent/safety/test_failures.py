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
    for part in ("agent.py", "attempt_facts.py", "ring.py", "profiler.py", "hooks/data.py", "garbage.py"):
        assert any(part in name for name in found["trials"]), part
    return clean, found["trials"]


CONTAINED = ("throughput/batch.py:", "throughput/parameters.py:", "throughput/precision.py:")
"""What reads objects of the training's own: a failure there costs its figure alone."""


def test_failure_in_any_function_leaves_training_as_it_was(tmp_path):
    """Each function that a hook ends at fails in turn: same losses and parameters, one line, and the ring's state is failed.

    Where it read an object of the training's, the agent goes on without that figure.
    """
    clean, found = trials(tmp_path, "fail")
    wrong, contained = {}, []
    for name, trial in found.items():
        (line,) = trial["said"] or [""]
        if trial["alive"] and name.startswith(CONTAINED):
            contained.append(name)
            noted = line.endswith(f"not known, reading failed: InjectedError: {name}; everything else is watched")
            marked = (trial["failures"], trial["state"], trial["ring_failures"]) == (0, STATE_FINISHED, 0)
        else:
            noted = line.endswith(f"InjectedError: {name}; training goes on without it") and not trial["alive"]
            states = ((STATE_FAILED, 1), (None, None))
            marked = trial["failures"] == 1 and (trial["state"], trial["ring_failures"]) in states
        whole = (trial["digest"], trial["hits"]) == (clean["digest"], 1)
        if not (whole and noted and marked) or trial["profiling"] or not trial["exact"]:
            wrong[name] = trial
    assert wrong == {}
    assert contained


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
