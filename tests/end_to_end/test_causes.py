"""Every cause on the host that a CPU can show, one after the other in one real job of four ranks: found, and named right.

The parts are all real: trainers, agent, exporter with its host watch, broker, coordinator. A fault lasts until its
incident says what is behind it; then it goes away, and the next one waits until the job is healthy again. Strangers on
a rank's cores are missing here: beside other load they cannot be told surely yet (tests/diagnosis/test_cpu_share.py).
"""

import contextlib
import json
import os
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.servers import running, wait_until
from tests.support.stack import LOCKSTEP, full_stack

pytestmark = [pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(300)]

JOB = Path(__file__).parent / "causes_job.py"
RUN = "causes"
TOKEN = "causes-token"
RANKS = 4
HEALTHY_STEP = 100
START_SECONDS, DETECT_SECONDS, EXPLAIN_SECONDS, SETTLE_SECONDS = 150, 60, 120, 60
POLICY = {"profile.cooldown_seconds": 0.0, "profile.per_day": 1000, "profile.per_run": 1000}
JOB_WIDE = {"run.fluctuation_steps": 10, "run.fluctuation_seconds": 3.0}
"""Thresholds of slower jobs, for the fault of all ranks only: they are long because shared hosts are busy for seconds."""
SHAPES = {"profile.shapes": True}
"""Sizes of collectives and shapes of operators are recorded only where an operator asks for them."""


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
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 200

    def explained(self, kind: str, ranks: list[int], before: set[str]) -> dict:
        """Return the new incident of a kind and ranks, once it is explained."""

        def found(*, explained: bool):
            return next(
                (
                    each
                    for each in self.incidents()
                    if each["id"] not in before
                    and (each["kind"], each["ranks"]) == (kind, ranks)
                    and (each["diagnosed"] or not explained)
                ),
                None,
            )

        wait_until(lambda: found(explained=False), DETECT_SECONDS, f"incident {kind} of {ranks}")
        return wait_until(lambda: found(explained=True), EXPLAIN_SECONDS, f"what is behind {kind} of {ranks}")

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
            return self.explained("slow_rank", [rank], before)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("causes")
    policy, token = directory / "policy.yaml", directory / "token"
    policy.write_text("".join(f"{name}: {value}\n" for name, value in POLICY.items()))
    token.write_text(TOKEN)
    settings = {"policy_file": str(policy), "api_token_file": str(token)}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(JOB), str(directory)]
    with full_stack(directory, settings) as stack:
        command = [*LOCKSTEP, "run", "--run", RUN, "--root", str(stack.shared), "--", sys.executable, *torchrun]
        with running(command, directory / "job.log", os.environ | {"OMP_NUM_THREADS": "1"}):
            stack.wait_step(RUN, HEALTHY_STEP, START_SECONDS)
            yield Job(stack)


def test_a_healthy_job_has_no_cause(job):
    """In the first steps, with nothing wrong, there is no incident and so no cause."""
    assert job.incidents() == []
    assert job.stack.run(RUN)["state"] == "healthy"


@pytest.mark.parametrize(
    ("fault", "rank", "expected"),
    [
        ("forward", 2, ("compute", "", "score_again")),
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


def test_shapes_that_change_are_named(job):
    """A function that gets another shape in every step is compiled in every step: that, and that the shapes cause it."""
    with job.policy(SHAPES):
        incident = job.cause_of("shapes", 2)
    assert (incident["root_cause"], incident["bottleneck"]) == ("dynamic_shapes", "cpu"), incident["evidence"]


def test_small_messages_are_named(job):
    """A hundred all-reduces of one number in each step slow all ranks alike: the job, and what its collectives are."""
    with job.policy(JOB_WIDE | SHAPES), job.fault("messages", 0) as before:
        incident = job.explained("fluctuation", [], before)
    assert (incident["scope"], incident["cause"]) == ("job", "link")
    assert (incident["root_cause"], incident["bottleneck"]) == ("small_packets", "communication"), incident["evidence"]
