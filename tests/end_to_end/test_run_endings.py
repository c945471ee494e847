"""How real trainings end, and what becomes of their runs: real torchrun, exporter, broker and coordinator.

`python -m benchmarks.run_endings` prints the table of docs/endings.md.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.decide.transitions import OVER, State
from exporter.runtime import Exporter
from lockstep.agent.bootstrap import loader_environment
from tests.agent.launchers.slurm import slurm_cluster
from tests.coordinator.conftest import running as coordinator_running
from tests.coordinator.conftest import until
from tests.end_to_end import ending_job
from tests.exporter.conftest import make_config
from tests.exporter.conftest import running as exporter_running
from tests.support.cgroups import UNAVAILABLE, memory_cgroup
from tests.support.servers import LIVE_LIMIT_S, PATIENCE_S, mosquitto

pytestmark = [pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]

RANKS = 2
STEPS_BEFORE = 30
LIVE_S = 15
"""A run whose processes live must not end: looked at for as long as an end takes to be concluded."""
AT_ONCE = 3  # jobs
MEMORY_BYTES = 400 << 20
"""Of the control group of a rank that the kernel is to kill; torch alone takes half of it."""


@dataclass
class Job:
    """A training of two ranks under torchrun, and what the coordinator knows of it."""

    name: str
    how: str
    directory: Path
    root: Path
    environment: dict = field(default_factory=dict)
    prefix: tuple = ()
    launcher: asyncio.subprocess.Process = None

    async def start(self):
        directory = self.directory / self.name
        directory.mkdir()
        self.directory = directory
        environment = loader_environment(
            {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONWARNINGS": "ignore",
                "LOCKSTEP_DIR": str(self.root),
                "LOCKSTEP_RUN": self.name,
                **self.environment,
            }
        )
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command = [*self.prefix, sys.executable, *torchrun, ending_job.__file__, self.how, str(directory)]
        self.launcher = await asyncio.create_subprocess_exec(
            *command, env=environment, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
        )

    def ranks(self):
        """Return the pid and the steps of each rank that trains."""
        lines = [path.read_text().split() for path in sorted(self.directory.glob("*.pid"))]
        return [(int(line[0]), int(line[1])) for line in lines if len(line) == RANKS]

    async def trains(self):
        await until(
            lambda: len(self.ranks()) == RANKS and all(steps >= STEPS_BEFORE for _, steps in self.ranks()),
            seconds=PATIENCE_S,
        )

    def kill(self, number, *ranks):
        for rank in ranks:
            os.kill(self.ranks()[rank][0], number)

    def kill_together(self):
        """Kill all ranks at once: stopped first, none fails because of another while the next one's turn is to come.

        On a machine without processor time to spare, seconds may lie between two signals that a process sends.
        """
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid, _ in self.ranks():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def end(self):
        self.kill_together()
        with contextlib.suppress(ProcessLookupError):
            self.launcher.kill()
        await self.launcher.wait()
        shutil.rmtree(self.root / self.name)  # a node has room for four runs, those that have just ended included


def interrupt(job):
    os.killpg(job.launcher.pid, signal.SIGINT)


def terminate(job):
    job.launcher.terminate()


def kill_all(job):
    job.launcher.kill()
    job.kill_together()


def nothing(_job):
    pass


@dataclass(frozen=True)
class Row:
    """A way to end: what the job does itself, what is done to it, and what its run becomes."""

    way: str
    how: str
    act: object
    state: str
    culprit: str = ""


ROWS = [
    Row("an end of its own", "finish", nothing, "finished"),
    Row("SIGINT to the group (Ctrl-C)", "train", interrupt, "cancelled"),
    Row("SIGTERM to torchrun", "train", terminate, "cancelled"),
    Row("SIGTERM, and a checkpoint in the grace period", "grace", terminate, "finished"),
    Row("kill -9 of all processes", "train", kill_all, "cancelled"),
    Row("an exception in one rank", "exception", nothing, "crashed", "ValueError"),
    Row("os._exit in one rank", "os._exit", nothing, "crashed", f"exit {ending_job.EXIT_CODE}"),
    Row("sys.exit in all ranks", "sys.exit", nothing, "crashed", f"exit {ending_job.EXIT_CODE}"),
    Row("kill -9 of one rank", "train", lambda job: job.kill(signal.SIGKILL, 1), "crashed", "SIGKILL"),
    Row("a segmentation fault in one rank", "train", lambda job: job.kill(signal.SIGSEGV, 1), "crashed", "SIGSEGV"),
    Row("kill -9 of torchrun alone", "train", lambda job: job.launcher.kill(), "healthy"),
]
OUT_OF_MEMORY = Row("an OOM kill in a cgroup", "memory", nothing, "crashed", "out of memory")


@dataclass
class Outcome:
    """What was found: state, incidents as (kind, ranks, root cause, function), and seconds from the end to the state."""

    state: str
    incidents: list
    seconds: float


async def outcome(row, job, coordinator):
    """Return what becomes of one job."""
    runs = coordinator._runs.by_name
    await job.start()
    try:
        await job.trains()
        await until(lambda: job.name in runs, seconds=PATIENCE_S)
        machine = runs[job.name].machine
        row.act(job)
        if row.state == "healthy":
            await asyncio.sleep(LIVE_S)
            await until(lambda: machine.state not in (State.HUNG, State.LOST), seconds=PATIENCE_S)
            assert machine.state not in OVER
            return Outcome("healthy", _incidents(machine), 0.0)
        await until(lambda: _over(job), seconds=PATIENCE_S)
        began_s = time.monotonic()
        with contextlib.suppress(AssertionError):
            await until(lambda: str(machine.state) in ("finished", "cancelled", "crashed"), seconds=PATIENCE_S)
        return Outcome(str(machine.state), _incidents(machine), time.monotonic() - began_s)
    finally:
        await job.end()


def _over(job):
    """Whether every rank's process has ended, a zombie included."""
    return all(_state_of(pid) in ("", "Z") for pid, _ in job.ranks())


def _state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except FileNotFoundError:
        return ""


def _incidents(machine):
    found = machine.tracker.incidents.values()
    return [(each.kind, each.ranks, each.root_cause, each.function) for each in found if each.kind in ("crash", "hang")]


@contextlib.asynccontextmanager
async def services(directory):
    root = directory / "shared"
    root.mkdir()
    with mosquitto(directory) as broker:
        exporter = Exporter(make_config(root, directory, broker_port=broker.port))
        async with contextlib.AsyncExitStack() as stack:
            coordinator = await stack.enter_async_context(coordinator_running(broker_port=broker.port))
            await stack.enter_async_context(exporter_running(exporter))
            yield root, coordinator


async def outcomes(directory):
    """Return the outcome of each row, several jobs at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number, row):
        async with turns:
            return await outcome(row, Job(f"job-{number}", row.how, directory, root), coordinator)

    longest_first = sorted(enumerate(ROWS), key=lambda numbered: numbered[1].state != "healthy")
    async with services(directory) as (root, coordinator):
        found = await asyncio.gather(*(one(number, row) for number, row in longest_first))
    by_row = {row: each for (_, row), each in zip(longest_first, found, strict=True)}
    return [by_row[row] for row in ROWS]


def expected(row):
    if row.state != "crashed":
        return row.state, []
    return row.state, [("crash", (ending_job.BAD_RANK,), row.culprit)]


async def test_each_way_to_end_has_its_state_and_at_most_one_incident(tmp_path):
    """No one is paged for an end that a person or a scheduler wanted; a crash names the rank that went first."""
    found = await outcomes(tmp_path)
    ended = {
        row.way: (each.state, [incident[:3] for incident in each.incidents])
        for row, each in zip(ROWS, found, strict=True)
    }
    assert ended == {row.way: expected(row) for row in ROWS}
    functions = {row.how: each.incidents[0][3] for row, each in zip(ROWS, found, strict=True) if each.incidents}
    assert functions["exception"].startswith("ending_job.py(")
    assert functions["exception"].endswith("): load_shard")


async def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_reported_as_such(tmp_path):
    """SIGKILL alone would not show why."""
    row = OUT_OF_MEMORY
    with memory_cgroup(MEMORY_BYTES) as group:
        if group is None:
            pytest.skip(UNAVAILABLE)
        async with services(tmp_path) as (root, coordinator):
            job = Job("memory", row.how, tmp_path, root, {"MEMORY_CGROUP": str(group)})
            found = await outcome(row, job, coordinator)
    assert (found.state, [incident[:3] for incident in found.incidents]) == expected(row)


async def scancel(environment):
    """Cancel every job of the cluster."""
    command = ["scancel", "--user", str(os.getuid())]
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | environment)
    assert await process.wait() == 0


async def test_a_job_that_slurm_cancels_is_cancelled(tmp_path):
    """`scancel` sends SIGTERM to all tasks, and SIGKILL after a while."""
    row = Row("scancel", "train", nothing, "cancelled")
    with tempfile.TemporaryDirectory(prefix="slurm") as cluster, slurm_cluster(Path(cluster)) as environment:
        async with services(tmp_path) as (root, coordinator):
            job = Job("slurm", row.how, tmp_path, root, environment, ("srun", "--ntasks", "1", "--quiet"))

            def act(_job):
                job.cancelling = asyncio.ensure_future(scancel(environment))

            found = await outcome(Row(row.way, row.how, act, row.state), job, coordinator)
            await job.cancelling
    assert (found.state, found.incidents) == expected(row)
