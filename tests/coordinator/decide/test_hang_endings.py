"""How a run ends that hangs: who kills it has been paged for the hang, and its ranks go one after the other."""

import signal
from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.transitions import State
from coordinator.detect.hangs.hang import Hang
from tests.coordinator.decide.test_endings import (
    INTERRUPT,
    KILL,
    NOW,
    TERM,
    Job,
    announced,
    ended,
    killed,
    raised,
    running,
)

LATE = Hang(cause="unknown", scope="rank", ranks=(1,), domain=("dp", "dp0"), evidence=("rank 1 is late",))
HUNG_S = 200
"""After the last step: the run hangs for minutes before it is killed."""
ERROR = raised("RuntimeError", HUNG_S)

STOPPED = {
    "SIGTERM, seen after the error of a peer whose connection it closed": [
        ERROR,
        killed(TERM, HUNG_S + 0.1, alive_s=HUNG_S + 0.05),
        killed(TERM, HUNG_S + 0.1, alive_s=HUNG_S + 0.05),
        raised("DistBackendError", HUNG_S + 0.01),
    ],
    "SIGTERM, seen seconds later on a starved node": [
        ERROR,
        *[killed(TERM, HUNG_S + 9, alive_s=HUNG_S - 1)] * 3,
    ],
    "kill -9 of the rank that is stuck, after which the launcher ends the rest": [
        killed(TERM, HUNG_S + 1),
        killed(KILL, HUNG_S),
        killed(TERM, HUNG_S + 1),
        raised("RuntimeError", HUNG_S + 0.2),
    ],
    "SIGTERM, and SIGKILL after a grace period that differs by node": [
        killed(KILL, HUNG_S + 30),
        killed(TERM, HUNG_S),
        killed(KILL, HUNG_S + 45),
        killed(KILL, HUNG_S + 30),
    ],
    "kill -9 of one after the other by hand": [killed(KILL, HUNG_S + 7 * rank) for rank in range(4)],
    "Ctrl-C that only one rank can take": [ERROR, raised(INTERRUPT, HUNG_S), *[killed(KILL, HUNG_S + 30)] * 2],
    "a container that is removed": [ended("vanished", after_s=HUNG_S + each) for each in (0, 9, 20, 9)],
    "the rank that was stuck ends well when it is asked to": [killed(TERM, HUNG_S), None, *[ERROR] * 2],
}
FAILED = {
    "the rank that was stuck gives up": (
        1,
        "FileNotFoundError",
        [killed(TERM, HUNG_S + 3), raised("FileNotFoundError", HUNG_S), *[killed(TERM, HUNG_S + 3)] * 2],
    ),
    "an OOM kill": (1, "out of memory", [ERROR, killed(KILL, HUNG_S, oom=True), ERROR, ERROR]),
    "NCCL's watchdog aborts, and the launcher ends the rest": (
        0,
        "SIGABRT",
        [
            killed(signal.SIGABRT, HUNG_S),
            killed(TERM, HUNG_S + 1, alive_s=HUNG_S + 0.8),
            *[killed(signal.SIGABRT, HUNG_S + 0.3)] * 2,
        ],
    ),
}


def hung():
    """Return a job that makes no steps any more, with its incident open."""
    job = Job()
    for second in range(1, HUNG_S):
        job.tick(NOW + second)
        if second == 90:
            late = ev.StallEvent(unix_s=NOW + second, cause_id="tick", hang=LATE)
            job.instructions += [each for _, out in job.runs.feed("job", late) for each in out]
    assert [each.kind for each in job.incidents(ev.OpenIncident)] == ["hang"]
    return job


def until_the_end(job, end):
    """Let the announcement of an end come, and the minutes after it."""
    job.take(end, NOW + HUNG_S + 60)
    for second in range(61, 200):
        job.tick(NOW + HUNG_S + second)


@pytest.mark.parametrize("endings", STOPPED.values(), ids=STOPPED)
def test_a_hang_that_is_killed_is_cancelled(endings):
    """Its incident closes, and no crash is one more page for the same fault."""
    job = hung()
    until_the_end(job, announced(endings))
    assert job.machine.state is State.CANCELLED
    assert [each.kind for each in job.incidents(ev.OpenIncident)] == ["hang"]
    assert [each.kind for each in job.incidents(ev.CloseIncident)] == ["hang"]


@pytest.mark.parametrize(("rank", "what", "endings"), FAILED.values(), ids=FAILED)
def test_a_hang_that_ends_by_a_failure_is_a_crash(rank, what, endings):
    """Nothing from outside came before it."""
    job = hung()
    until_the_end(job, announced(endings))
    assert job.machine.state is State.CRASHED
    crash = job.incidents(ev.OpenIncident)[-1]
    assert (crash.kind, crash.ranks, crash.root_cause) == ("crash", (rank,), what)


def test_a_hang_goes_on_while_some_of_its_ranks_live():
    """One is killed, the others still wait: the page that is open is theirs."""
    job = hung()
    end = announced([killed(TERM, HUNG_S + 80), killed(KILL, HUNG_S), killed(TERM, HUNG_S + 80), None])
    job.take(running(end, 0, 2, 3), NOW + HUNG_S + 1)
    for second in range(2, 80):
        job.tick(NOW + HUNG_S + second)
    assert not job.incidents(ev.CloseIncident)
    job.take(end, NOW + HUNG_S + 81)
    assert job.machine.state is State.CANCELLED


def test_the_same_ends_of_a_run_that_made_steps_are_a_crash():
    """Who kills one rank of a training that goes on has crashed it."""
    job = Job()
    endings = [replace(each, unix_ns=each.unix_ns - HUNG_S * 10**9) for each in (
        killed(TERM, HUNG_S + 1), killed(KILL, HUNG_S), killed(TERM, HUNG_S + 1), killed(TERM, HUNG_S + 1)
    )]  # fmt: skip
    job.take(announced(endings), NOW + 2)
    job.tick(NOW + 3)
    assert job.machine.state is State.CRASHED
