"""Ours and the user's profilers in one process, for real: torch crashes where they overlap."""

import json
import sys
import threading
from pathlib import Path

import pytest

from lockstep.agent.capture.session import FORKS, THEIRS, ProfilerSession
from tests.agent.test_jobs import start

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return what became of every scene of overlap_job; the process must live through all of them."""
    root = tmp_path_factory.mktemp("overlap")
    job = Path(__file__).with_name("overlap_job.py")
    done = start([sys.executable, str(job), str(root)], PYTHONPATH=str(Path(__file__).parents[3]))
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each.pop("scene"): each for each in results}


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        ("whole_profiler_during_a_capture", ("done", THEIRS, 1, 3)),
        ("profiler_during_the_first_step", ("refused", f"{THEIRS} during the first captured step", 5, 3)),
        ("capture_during_the_warm_up_of_theirs", ("refused", "another profiler is running", 0, 3)),
        ("fork_during_a_capture", ("done", FORKS, 1, 0)),
        ("again", ("done", "", 2, None)),
    ],
)
def test_scene(scenes, scene, expected):
    """The user's profiler is whole, ours keeps its whole steps or states why it has none."""
    result = scenes[scene]
    assert (result["state"], result["reason"], result["steps"], result["theirs"]) == expected


def test_profiler_on_another_thread(scenes):
    """It waits for a boundary, where ours ends with the steps it has; theirs is whole."""
    result = scenes["profiler_on_another_thread"]
    assert (result["state"], result["reason"]) == ("done", "another thread starts a profiler of its own")
    assert result["steps"] >= 1
    assert result["theirs"] == 1


def test_agent_did_not_fail(scenes):
    """Nothing of it went through the failure boundary."""
    assert scenes["end"] == {"failures": 0}


def test_theirs_keeps_ours_out_until_it_ends():
    """From preparation to end, whatever lies between."""
    session = ProfilerSession()
    assert session.admit()
    assert session.admit()
    assert not session.claim(lambda _why: None)
    session.leave()
    assert session.claim(lambda _why: None)
    assert not session.claim(lambda _why: None)


def test_what_ours_calls_is_not_theirs():
    """Our own start and stop pass without a word."""
    session = ProfilerSession()
    assert session.claim(lambda _why: pytest.fail("ended"))
    assert session.call(session.admit)
    session.call(session.leave)
    session.release()
    assert session.claim(lambda _why: None)


def test_ours_that_cannot_end_is_given_up():
    """An end that raises must not keep the user's profiler waiting for ever."""

    def fail(_why):
        raise RuntimeError("no")

    session = ProfilerSession()
    assert session.claim(fail)
    with pytest.raises(RuntimeError):
        session.admit()
    assert session.admit()


def test_patience_has_an_end(monkeypatch):
    """A thread that waits for a training thread that never comes by is asked to stop."""
    monkeypatch.setattr("lockstep.agent.capture.session.PATIENCE_S", 0.01)
    session = ProfilerSession()
    assert session.claim(lambda _why: None)
    admitted = []
    thread = threading.Thread(target=lambda: admitted.append(session.admit()))
    thread.start()
    thread.join(60)
    assert admitted == [False]
    assert session.wanted
