"""How runs end: finished, cancelled without a page, or crashed by the rank that ended first."""

import signal
from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.endings import crash_of, is_request
from coordinator.decide.transitions import State
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.contracts.messages import (
    EXCEPTION,
    EXIT_CODE,
    FAILED,
    FINISHED,
    GONE,
    SIGNAL,
    VANISHED,
    IssueCount,
    RankEnding,
    RankProgress,
)
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate

STEPS = 30
HEALTHY = generate(Scenario(degrees="dp=4", steps=STEPS))
WARM_STEPS = 120
WARM = generate(Scenario(degrees="dp=4", steps=WARM_STEPS))
NOW = START_UNIX_S + STEPS


def ended(kind, code=0, *, after_s=0.0, alive_s=None, exception="", frame="", oom=False, orderly=False):
    alive_ns = 0 if alive_s is None else int((NOW + alive_s) * 1e9)
    known = {
        "alive_unix_ns": alive_ns,
        "exception": exception,
        "frame": frame,
        "is_out_of_memory": oom,
        "is_orderly": orderly,
    }
    return RankEnding(unix_ns=int((NOW + after_s) * 1e9), kind=kind, code=code, **known)


def killed(number, after_s=0.0, *, oom=False, alive_s=None):
    return ended(SIGNAL, int(number), after_s=after_s, oom=oom, alive_s=alive_s)


def raised(exception, after_s=0.0, frame="train.py(88): load"):
    return ended(EXCEPTION, exception=exception, after_s=after_s, frame=frame)


INTERRUPT = "KeyboardInterrupt"
TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT

CANCELLED = {
    "SIGINT to the group": [raised(INTERRUPT, 0.3), raised(INTERRUPT), raised(INTERRUPT, 0.1), raised(INTERRUPT, 1)],
    "SIGTERM to torchrun": [killed(TERM), killed(TERM, 0.01), killed(TERM, 0.02), killed(TERM, 0.3)],
    "an interrupt, of which a peer that waits sees the connection end": [
        raised(INTERRUPT),
        raised("RuntimeError", 0.2),
        raised("DistBackendError", 0.3),
        raised(INTERRUPT, 0.4),
    ],
    "a shell's exit codes": [
        ended(EXIT_CODE, 143),
        ended(EXIT_CODE, 130),
        ended(EXIT_CODE, 143),
        ended(EXIT_CODE, 143),
    ],
    "kill -9 of all": [killed(KILL), killed(KILL, 0.2), killed(KILL, 4), killed(KILL, 1)],
    "scancel of ranks that ignore SIGTERM": [killed(TERM), killed(KILL, 30), killed(KILL, 30.5), killed(KILL, 30)],
    "Ray, which ends its workers after the training": [ended(EXIT_CODE, 1, after_s=each) for each in (0, 0.1, 0.1, 1)],
    "a handler of SIGTERM that exits as a shell would": [
        ended(EXIT_CODE, 143, after_s=each, orderly=True) for each in (0, 0.1, 0.1, 1)
    ],
    "kill -9 of all, seen late on one node": [killed(KILL), *[killed(KILL, 40, alive_s=0.1)] * 3],
    "a container that is removed": [ended(VANISHED, after_s=each) for each in (0, 1, 2, 0.5)],
    "a checkpoint in the grace period": [killed(TERM), None, None, killed(TERM, 20)],
}
CRASHED = {
    "an exception in one rank": (
        2,
        "ValueError",
        [raised("RuntimeError", 1), killed(TERM, 0.5), raised("ValueError"), killed(TERM, 0.6)],
    ),
    "os._exit": (1, "exit 3", [killed(TERM, 0.2), ended(EXIT_CODE, 3), killed(TERM, 0.2), killed(TERM, 0.2)]),
    "os._exit, seen together with what the launcher did then": (
        2,
        "exit 3",
        [killed(TERM), killed(TERM), ended(EXIT_CODE, 3), killed(TERM)],
    ),
    "os._exit, seen long after its peers' errors": (
        1,
        "exit 3",
        [raised("RuntimeError"), ended(EXIT_CODE, 3, after_s=9, alive_s=-0.1), killed(TERM, 9), killed(TERM, 9)],
    ),
    "kill -9 of one": (3, "SIGKILL", [killed(TERM, 0.1), killed(TERM, 0.1), killed(TERM, 0.1), killed(KILL)]),
    "a segmentation fault": (0, "SIGSEGV", [killed(signal.SIGSEGV), *[raised("RuntimeError", 1)] * 3]),
    "an OOM kill": (1, "out of memory", [killed(KILL, 0.5), killed(KILL, oom=True), killed(KILL, 1), killed(KILL, 1)]),
    "one rank killed long before the others": (1, "SIGKILL", [killed(KILL, 9), killed(KILL), *[killed(KILL, 9)] * 2]),
    "an OOM kill that is seen after its peers' errors": (
        1,
        "out of memory",
        [raised("RuntimeError"), killed(KILL, 2, oom=True), raised("RuntimeError", 0.1), killed(KILL, 30)],
    ),
    "a large process whose kill is seen after its peers' errors": (
        2,
        "SIGKILL",
        [raised("RuntimeError"), raised("RuntimeError", 0.2), killed(KILL, 0.8), killed(TERM, 1)],
    ),
    "os._exit that is seen after its peers' errors": (
        3,
        "exit 3",
        [raised("RuntimeError"), killed(TERM, 0.3), killed(TERM, 0.3), ended(EXIT_CODE, 3, after_s=0.2)],
    ),
    "an error of its own, after which a peer gives up": (
        1,
        "KeyError",
        [ended(EXIT_CODE, 1, after_s=0.2), raised("KeyError"), killed(TERM, 1), killed(TERM, 1)],
    ),
    "an exception after which the launcher kills the rest": (
        0,
        "ValueError",
        [raised("ValueError"), *[killed(KILL, 2)] * 3],
    ),
    "an assertion of the device's library, dumped for seconds": (
        3,
        "SIGABRT",
        [raised("DistBackendError"), killed(TERM, 1), killed(TERM, 1), killed(signal.SIGABRT, 4)],
    ),
    "exit codes that differ": (
        1,
        "exit 2",
        [ended(EXIT_CODE, 1, after_s=0.3), ended(EXIT_CODE, 2), *[killed(TERM, 1)] * 2],
    ),
    "one exit code, one after the other": (0, "exit 1", [ended(EXIT_CODE, 1, after_s=each) for each in (0, 2, 4, 8)]),
    "an exception of all ranks, which each catches to call sys.exit(1)": (
        2,
        "exit 1",
        [ended(EXIT_CODE, 1, after_s=each, orderly=True) for each in (0.2, 0.1, 0, 0.3)],
    ),
    "one exception in all ranks at once": (
        1,
        "ValueError",
        [raised("ValueError", each) for each in (0.2, 0, 0.1, 0.1)],
    ),
    "a real-time signal": (0, "signal 40", [killed(40), *[killed(TERM, 1)] * 3]),
    "one that vanishes, others finish": (2, "process gone", [None, None, ended(VANISHED), None]),
}


def announced(endings):
    """Return the announcement of four ranks that ended so; None stands for one that ended well."""
    announcement = announce(0, 1, 2, 3)
    states = {EXCEPTION: FAILED, EXIT_CODE: FAILED}
    infos = [
        replace(info, state=FINISHED if ending is None else states.get(ending.kind, GONE), ending=ending)
        for info, ending in zip(announcement.ranks, endings, strict=True)
    ]
    return replace(announcement, ranks=infos)


def running(announcement, *ranks):
    """Return it with `ranks` still running."""
    infos = [replace(i, state="running", ending=None) if i.rank in ranks else i for i in announcement.ranks]
    return replace(announcement, ranks=infos)


class Job:
    """A run of four ranks that has made its steps."""

    def __init__(self, memories=None, steps=STEPS, log=HEALTHY):
        self.runs = Runs(CoordinatorConfig(), Policy(), memories or {}, lambda: 0.0)
        self.instructions = []
        self.take(announce(0, 1, 2, 3), NOW - steps)
        for step in range(steps):
            self.take(log.batch(step, step + 1), NOW - steps + step)

    def take(self, message, now_s):
        self.instructions += [each for _, more in self.runs.take(message, now_s) for each in more]

    def tick(self, now_s):
        self.instructions += [each for _, more in self.runs.tick(now_s) for each in more]

    @property
    def machine(self):
        return self.runs.by_name["job"].machine

    def incidents(self, form):
        return [each.incident for each in self.instructions if isinstance(each, form)]


@pytest.mark.parametrize("endings", CANCELLED.values(), ids=CANCELLED)
def test_a_run_that_is_stopped_is_cancelled(endings):
    """Nothing is opened, whatever the silence after it."""
    job = Job()
    job.take(announced(endings), NOW + 1)
    for second in range(2, 400, 3):
        job.tick(NOW + second)
    assert job.machine.state is State.CANCELLED
    assert job.incidents(ev.OpenIncident) == []


@pytest.mark.parametrize(("rank", "what", "endings"), CRASHED.values(), ids=CRASHED)
def test_a_run_in_which_one_rank_goes_first_has_crashed(rank, what, endings):
    """One incident names rank, host and how; the others' ends and the silence after them are no second one."""
    job = Job()
    job.take(announced(endings), NOW + 1)
    for second in range(2, 400, 3):
        job.tick(NOW + second)
    (incident,) = job.incidents(ev.OpenIncident)
    assert job.machine.state is State.CRASHED
    assert (incident.kind, incident.cause, incident.ranks, incident.root_cause) == ("crash", "process", (rank,), what)
    assert f"rank {rank} on host host-n0 ended first" in incident.evidence[0]
    assert incident.function == endings[rank].frame
    assert not job.incidents(ev.CloseIncident)
    assert job.runs.by_name["job"].snapshot().hostnames == {rank: "host-n0"}


def test_peers_that_wait_in_vain_are_no_hang():
    """Where no launcher ends them, the rank that has gone is named, long before a hang would be."""
    job = Job()
    job.take(running(announced([None, killed(KILL), None, None]), 0, 2, 3), NOW + 1)
    for second in range(2, 11):
        job.tick(NOW + second)
    assert job.incidents(ev.OpenIncident) == []
    for second in range(11, 300):
        job.tick(NOW + second)
    (incident,) = job.incidents(ev.OpenIncident)
    assert (incident.kind, incident.ranks) == ("crash", (1,))


def waiting_for(rank, announcement, at_s):
    """Return it with the collectives that the ranks have issued: all but `rank` have one more."""
    last_ns = int(at_s * 1e9)

    def progress(issued):
        counts = [IssueCount(group=0, operation="collective", peer=-1, issued=issued, last_unix_ns=last_ns)]
        return RankProgress(last_step=WARM_STEPS - 1, flags=0, issues=counts, is_alive=True)

    infos = [replace(i, progress=progress(10 if i.rank == rank else 11)) for i in announcement.ranks]
    return replace(announcement, ranks=infos)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (killed(KILL), "crash"),
        (raised("ValueError"), "crash"),
        (killed(TERM), "crash"),
        (killed(KILL, oom=True), "crash"),
        (ended(EXIT_CODE, 3, orderly=True), "crash"),
        (ended(VANISHED), "crash"),
        (None, "hang"),
    ],
    ids=["kill", "exception", "request", "out of memory", "sys.exit", "vanished", "hang"],
)
def test_peers_that_wait_for_a_rank_that_has_ended_are_no_hang(first, kind):
    """Of a run that is warm and whose ranks report what they wait for, a hang is found after seconds."""
    job = Job(steps=WARM_STEPS, log=WARM)
    left = [0, 2, 3] if first else [0, 1, 2, 3]
    announcement = running(announced([None, first, None, None]), *left)
    for second in range(1, 100):
        job.take(waiting_for(1, announcement, NOW + 0.5), NOW + second)
        job.tick(NOW + second + 0.5)
    assert [(each.kind, each.ranks) for each in job.incidents(ev.OpenIncident)] == [(kind, (1,))]


def test_a_rank_that_finished_hides_no_hang_of_the_others():
    """It ended well, so what the others wait for is not its end."""
    job = Job(steps=WARM_STEPS, log=WARM)
    announcement = running(announced([None] * 4), 0, 1, 2)
    for second in range(1, 100):
        job.take(waiting_for(1, announcement, NOW + 0.5), NOW + second)
        job.tick(NOW + second + 0.5)
    assert [(each.kind, each.ranks) for each in job.incidents(ev.OpenIncident)] == [("hang", (1,))]


def test_one_rank_that_was_asked_to_end_alone_has_crashed_the_run():
    """Others have the grace period; after it they wait in vain."""
    job = Job()
    job.take(running(announced([killed(TERM), None, None, None]), 1, 2, 3), NOW + 1)
    for second in range(2, 60):
        job.tick(NOW + second)
    assert job.machine.state not in (State.CRASHED, State.CANCELLED)
    for second in range(60, 70):
        job.tick(NOW + second)
    assert job.machine.state is State.CRASHED


def test_a_restart_closes_the_incident():
    """A launcher that starts the job again resolves what it opened, and the run warms again."""
    job = Job()
    job.take(announced([killed(KILL)] + [killed(TERM, 0.1)] * 3), NOW + 1)
    job.take(announce(0, 1, 2, 3, attempt=2, heartbeat_s=NOW + 5), NOW + 5)
    for step in range(3):
        batch = HEALTHY.batch(step, step + 1, start_s=NOW + 6)
        job.take(batch, NOW + 6 + step)
    job.tick(NOW + 20)
    (closed,) = job.incidents(ev.CloseIncident)
    assert (closed.kind, closed.state) == ("crash", "closed")
    assert job.machine.state not in (State.CRASHED, State.CANCELLED)


def test_a_coordinator_that_starts_later_tells_the_same_end_once():
    """Announcements are retained: what it remembers is no second incident, and nothing of it is warming."""
    job = Job()
    end = announced([killed(KILL)] + [killed(TERM, 0.1)] * 3)
    job.take(end, NOW + 1)
    later = Runs(CoordinatorConfig(), Policy(), {"job": job.runs.by_name["job"].memory(with_learnt=False)}, lambda: 0.0)
    orders = [each for _, out in later.take(end, NOW + 60) + later.tick(NOW + 61) for each in out]
    assert later.by_name["job"].machine.state is State.CRASHED
    assert not [each for each in orders if isinstance(each, ev.OpenIncident | ev.CloseIncident)]


def test_an_open_incident_ends_with_the_run():
    """A hang whose processes are ended by hand is over, and the run is cancelled."""
    job = Job()
    for second in range(1, 200):
        job.tick(NOW + second)
    job.take(announced([raised(INTERRUPT, 201)] * 4), NOW + 202)
    assert job.machine.state is State.CANCELLED
    assert not job.machine.tracker.incidents


def test_a_crashed_run_is_history_after_an_hour():
    """Its incident closes then."""
    job = Job()
    job.take(announced([killed(KILL)] + [killed(TERM, 0.1)] * 3), NOW + 1)
    for second in range(0, 3700, 60):
        job.tick(NOW + second + 2)
    assert [each.kind for each in job.incidents(ev.CloseIncident)] == ["crash"]
    assert any(isinstance(each, ev.ForgetRun) for each in job.instructions)


def test_ranks_that_end_in_any_order_name_the_first():
    """By their times, not by their numbers or the order of the messages."""
    endings = {5: killed(KILL, 4), 1: raised("RuntimeError", 1.5), 3: raised("KeyError", 1.0)}
    crash = crash_of(endings, are_all_over=True)
    assert (crash.rank, crash.what) == (3, "KeyError")


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (killed(TERM), True),
        (killed(signal.SIGUSR1), True),
        (killed(KILL), False),
        (ended(EXIT_CODE, 130), True),
        (ended(EXIT_CODE, 1), False),
        (raised(INTERRUPT), True),
        (raised("SystemError"), False),
        (ended(VANISHED), False),
    ],
)
def test_requests_are_distinguished_from_faults(ending, expected):
    """A signal that asks, a shell's code for one, and the exception that one becomes."""
    assert is_request(ending) is expected


@pytest.mark.parametrize(("last_step", "onset_step"), [(41, 42), (0, 1), (None, None)])
def test_a_crash_begins_in_the_step_that_its_rank_was_in(last_step, onset_step):
    """By what its ring held at the end: its last records may still be on their way; without any no step is known."""
    job = Job()
    endings = [replace(killed(KILL), last_step=last_step), *[killed(TERM, 0.1)] * 3]
    job.take(announced(endings), NOW + 1)
    (incident,) = job.incidents(ev.OpenIncident)
    assert (incident.onset_step, incident.detected_step) == (onset_step, onset_step)


def test_a_run_that_crashes_before_its_noise_is_known_has_a_step_too():
    """It has made steps, and none was compared."""
    job = Job(steps=3)
    assert not job.machine.step_result.is_warm
    job.take(announced([replace(killed(KILL), last_step=2), *[killed(TERM, 0.1)] * 3]), NOW + 1)
    (incident,) = job.incidents(ev.OpenIncident)
    assert incident.onset_step == 3


def test_a_pair_of_coordinators_gives_a_crash_one_id():
    """However far each has evaluated the run."""
    ids = set()
    for steps in (3, 20):
        job = Job(steps=steps)
        job.take(announced([replace(killed(KILL), last_step=20), *[killed(TERM, 0.1)] * 3]), NOW + 1)
        ids |= {each.id for each in job.incidents(ev.OpenIncident)}
    assert len(ids) == 1
