"""Every cause on the host that a CPU can show, one after the other in one real job of four ranks: found, and named right.

The parts are all real: trainers, agent, exporter with its host watch, broker, coordinator. A fault lasts until its
incident states what is behind it; then it goes away, and the next one waits until the job is healthy again.
"""

import contextlib
import json
import os
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.servers import WAIT_S, running, wait_until
from tests.support.stack import LOCKSTEP, full_stack

pytestmark = [pytest.mark.alone, pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(900)]

JOB = Path(__file__).parent / "causes_job.py"
RUN = "causes"
TOKEN = "causes-token"
RANKS = 4
HEALTHY_STEP = 60
START_SECONDS, DETECT_SECONDS, EXPLAIN_SECONDS, SETTLE_SECONDS = 150, 180, 180, 240
POLICY = {
    "profile.cooldown_seconds": 0.0,
    "profile.per_day": 1000,
    "profile.per_run": 1000,
    "profile.expire_seconds": float(EXPLAIN_SECONDS),
}
SHAPES = {"profile.shapes": True}
"""Sizes of collectives and shapes of operators are recorded only where an operator asks for them."""

STRANGERS, STRANGERS_MAX = 8, 30
"""On one core, and one more for two tasks that run already: the rank must be worse off than its peers next to those."""
STRANGER = """
import os
os.setsid()
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
while True:
    pass
"""
"""Never rests, on the core that the job keeps the rank to; in a session of its own, as Linux shares a core between
sessions first."""


class Job:
    """The training, under `lockstep run`, and the faults that are put into it."""

    def __init__(self, stack) -> None:
        self.stack = stack
        self.folder = stack.directory

    def want(self, fault: str, rank: int) -> None:
        """Put a fault into a rank from the next steps on; `none` takes it away."""
        new = self.folder / "wanted.new"
        new.write_text(f"{fault} {rank}")
        new.replace(self.folder / "wanted")

    def incidents(self) -> list[dict]:
        return self.stack.incidents(RUN)

    def is_settled(self) -> bool:
        """Whether the run is healthy, and no incident is open."""
        run = self.stack.run(RUN) or {}
        return run.get("state") == "healthy" and all(each["state"] == "closed" for each in self.incidents())

    @contextlib.contextmanager
    def policy(self, values: dict):
        """Have thresholds set for a while."""
        self._set_policy(values)
        try:
            yield
        finally:
            self._set_policy(dict.fromkeys(values))

    def _set_policy(self, values: dict) -> None:
        """Set thresholds by name; None takes a change back."""
        request = urllib.request.Request(
            f"{self.stack.coordinator}/api/v1/policy",
            json.dumps(values).encode(),
            {"Authorization": f"Bearer {TOKEN}"},
            method="PATCH",
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
            assert reply.status == 200

    def explained(self, kind: str, ranks: list[int], before: set[str], but: tuple[str, ...] = ()) -> dict:
        """Return the new incident of a kind that began with these ranks, once it is explained; others may have joined.

        `but` are causes to wait for the end of: on a busy host no part may hold most of the excess when the incident
        opens, and then the steps after the capture show it.
        """

        def found(*, explained: bool):
            return next(
                (
                    each
                    for each in self.incidents()
                    if each["id"] not in before
                    and (each["kind"], each["ranks"][: len(ranks)]) == (kind, ranks)
                    and (not explained or (each["diagnosed"] and each["cause"] not in but))
                ),
                None,
            )

        try:
            wait_until(lambda: found(explained=False), DETECT_SECONDS, f"incident {kind} of {ranks}")
            return wait_until(lambda: found(explained=True), EXPLAIN_SECONDS, f"what is behind {kind} of {ranks}")
        except TimeoutError as error:
            new = [each for each in self.incidents() if each["id"] not in before]
            error.add_note(f"run: {self.stack.run(RUN)}\nnew incidents: {new}")
            raise

    @contextlib.contextmanager
    def fault(self, kind: str, rank: int):
        """Have a fault for a while; afterwards the job is healthy again."""
        wait_until(self.is_settled, SETTLE_SECONDS, "a healthy job")
        before = {each["id"] for each in self.incidents()}
        self.want(kind, rank)
        try:
            yield before
        finally:
            self.want("none", 0)

    def cause_of(self, kind: str, rank: int) -> dict:
        """Return the incident of a fault of one rank."""
        with self.fault(kind, rank) as before:
            incident = self.explained("slow_rank", [rank], before, but=("unknown",))
        assert incident["ranks"] == [rank]
        return incident


@contextlib.contextmanager
def services(directory: Path, settings: dict[str, str]):
    """Have the stack on all cores but the last, and its services in sessions of their own, as an init system has them.

    Else summaries, at a low priority, hardly end next to other processes or while the rest of the session is busy.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores - {max(cores)} or cores)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.support.stack.LOCKSTEP", ["setsid", *LOCKSTEP])
            with full_stack(directory, settings) as stack:
                os.sched_setaffinity(0, cores)
                yield stack
    finally:
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("causes")
    policy, token = directory / "policy.yaml", directory / "token"
    policy.write_text("".join(f"{name}: {value}\n" for name, value in POLICY.items()))
    token.write_text(TOKEN)
    settings = {"policy_file": str(policy), "api_token_file": str(token)}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(JOB), str(directory)]
    with services(directory, settings) as stack:
        command = [*LOCKSTEP, "run", "--run", RUN, "--root", str(stack.shared), "--", sys.executable, *torchrun]
        with running(command, directory / "job.log", os.environ | {"OMP_NUM_THREADS": "1"}):
            stack.wait_step(RUN, HEALTHY_STEP, START_SECONDS)
            yield Job(stack)


def test_a_healthy_job_has_no_cause(job):
    """Nothing is wrong with the training, so nothing in it is blamed.

    Other processes may have a rank's core for steps on end: such a rank is slow, and they are the cause.
    """
    wait_until(job.is_settled, SETTLE_SECONDS, "a healthy job")
    assert {each["root_cause"] for each in job.incidents()} <= {"", "cpu_contention"}, job.incidents()


@pytest.mark.parametrize(
    ("fault", "rank", "expected"),
    [
        ("forward", 2, ("compute", "slow_function", "score_again")),
        ("sleeping", 1, ("off_cpu", "slow_function", "ask_later")),
        ("reading", 1, ("data", "data_reading", "read_document")),
        ("processing", 3, ("data", "data_processing", "augment")),
        ("sweeping", 0, ("gc", "gc", "sweep_cache")),
        ("hoarding", 3, ("gc", "gc", "")),
        ("reading_back", 1, ("host", "synchronisation", "log_gradients")),
    ],
)
def test_a_fault_of_one_rank_is_named(job, fault, rank, expected):
    """Rank, component, reason and function are those of the fault; a slow function is its own reason."""
    incident = job.cause_of(fault, rank)
    cause, root_cause, function = expected
    assert (incident["cause"], incident["root_cause"]) == (cause, root_cause), incident["evidence"]
    assert function in incident["function"]
    assert incident["evidence"]
    assert incident["advice"]


def test_strangers_on_the_core_of_a_rank_are_named(job):
    """A rank waits for its core while strangers have it: that and not its loader, which waits with it, and for whom.

    Its peers may share their cores as well, so one may join the incident.
    """
    count = min(STRANGERS + round(os.getloadavg()[0] / 2), STRANGERS_MAX)
    with contextlib.ExitStack() as stack, job.fault("crowded_core", 2) as before:
        command, logs = [sys.executable, "-I", "-S", "-c", STRANGER], (f"stranger-{each}.log" for each in range(count))
        strangers = [stack.enter_context(running(command, job.folder / log)) for log in logs]
        incident = job.explained("slow_rank", [2], before)
        for stranger in strangers:  # all before the first is waited for: each has to get its core once more
            stranger.terminate()
    assert (incident["root_cause"], incident["bottleneck"]) == ("cpu_contention", "cpu"), incident["evidence"]
    assert any("python uses" in sentence for sentence in incident["evidence"])


def test_shapes_that_change_are_named(job):
    """A function that gets another shape in every step is compiled in every step: that, and that the shapes cause it."""
    with job.policy(SHAPES):
        incident = job.cause_of("shapes", 2)
    assert (incident["root_cause"], incident["bottleneck"]) == ("dynamic_shapes", "cpu"), incident["evidence"]


def test_small_messages_are_named(job):
    """Hundreds of all-reduces of one number in each step slow all ranks alike: the job, and what its collectives are.

    A shared host may make all ranks slower for seconds as well, so the coordinator waits half a minute.
    """
    with job.policy(SHAPES), job.fault("messages", 0) as before:
        incident = job.explained("fluctuation", [], before)
    assert (incident["scope"], incident["cause"]) == ("job", "link")
    assert (incident["root_cause"], incident["bottleneck"]) == ("small_packets", "communication"), incident["evidence"]
