"""However a training ends, it ends as it would without the agent: a status of its own, nothing more on stderr."""

import json

import pytest

from lockstep.contracts.ring import STATE_FAILED, STATE_FINISHED, STATE_RAISED, STATE_RUNNING
from tests.agent.hooks.native_builds import KERNELS, kernels_environment
from tests.agent.rings import read_ring
from tests.agent.safety.processes import environment, run

pytestmark = pytest.mark.torch

STATUS = {
    "exit_on_signal": (4, STATE_FINISHED),
    "exit_on_signal_in_capture": (4, STATE_FINISHED),
    "raise_in_capture": (1, STATE_RAISED),
    "exit_in_capture": (3, STATE_FINISHED),
    "end_in_capture": (0, STATE_FINISHED),
    "vanish_in_capture": (5, STATE_RUNNING),
    "terminated_in_capture": (-15, STATE_RUNNING),
    "interrupted_in_capture": (-2, STATE_RAISED),
    "fork_in_capture": (6, STATE_FINISHED),
    "train_in_daemon": (0, STATE_FINISHED),
    "train_in_thread": (0, STATE_FINISHED),
    "train_at_exit": (0, STATE_FINISHED),
    "train_in_finalizer": (0, STATE_FINISHED),
    "close_stderr": (2, STATE_FINISHED),
    "raising_stderr": (2, STATE_FAILED),
    "in_flight_at_end": (0, STATE_FINISHED),
    "in_flight_at_exit": (3, STATE_FINISHED),
    "in_flight_at_raise": (1, STATE_RAISED),
    "in_flight_at_destroy": (0, STATE_FINISHED),
}

REPORTS = {"fork_in_capture": "lockstep: this process trains and is not monitored: a rank started it, process "}
"""The agent's own line on stderr, by ending: a forked child of a rank that trains reports that it is not monitored."""


@pytest.fixture(scope="module", params=KERNELS)
def endings(tmp_path_factory, request):
    root = tmp_path_factory.mktemp("endings")
    job = ["-W", "ignore", "-m", "tests.agent.safety.endings_job"]
    done = run(job, environment(root, **kernels_environment(request.param)))
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout.splitlines()[-1])


def test_every_ending_is_reported(endings):
    """The job met each of them."""
    assert endings[1].keys() == STATUS.keys()


@pytest.mark.parametrize("ending", STATUS)
def test_ending_is_the_trainings_own(endings, ending):
    """Status and last line on stderr are those without the agent; the ring's state is finished only where all went well."""
    root, found = endings
    bare, (watched_status, lines) = found[ending]
    status, state = STATUS[ending]
    reports = [line for line in lines if ending in REPORTS and line.startswith(REPORTS[ending])]
    assert len(reports) == (ending in REPORTS)
    assert bare[0] == status
    assert [watched_status, [line for line in lines if line not in reports]] == bare
    assert read_ring(root / ending / "0.ring").state == state
