"""Whatever becomes of its files, a training goes on: a real one, with its files attacked by its own user and by root."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.contracts.capture import result_from_json
from lockstep.contracts.marks import MARK_STRUCT, MarkKind
from lockstep.contracts.paths import control_path
from lockstep.contracts.ring import STATE_FINISHED, STATE_RUNNING
from tests.agent.orders import ControlBlock
from tests.agent.rings import read_ring
from tests.agent.safety.processes import environment

pytestmark = pytest.mark.torch

STEPS = 20


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """Return the process that starts trainings; torch is imported once."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.agent.safety.attacked_job"],
        env=environment(tmp_path_factory.mktemp("trainer")),
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


class Job:
    """A training process; `steps` returns when it has taken them."""

    def __init__(self, trainer, directory):
        self.run = directory / "root" / "job"
        self.path = self.run / "0.ring"
        self.trainer = trainer
        self.taken = 0
        for name in ("in", "out", "err"):
            os.mkfifo(directory / name)
        trainer.stdin.write(f"{directory}\n")
        trainer.stdin.flush()
        self.input, self.output, self.errors = (
            (directory / name).open(mode) for name, mode in (("in", "w"), ("out", "r"), ("err", "r"))
        )
        self.pid = int(self.output.readline().removeprefix("ready "))

    def steps(self, count=STEPS):
        self.input.write(f"{count}\n")
        self.input.flush()
        assert self.output.readline() == f"trained {count}\n", self.end()
        self.taken += count

    @property
    def answer(self):
        return result_from_json(read_ring(self.path).answer, where="ring")

    def end(self):
        """Let it end; return its status and the lines of its stderr."""
        self.input.close()
        lines = self.errors.read().splitlines()
        self.output.close()
        self.errors.close()
        return int(self.trainer.stdout.readline()), lines


@pytest.fixture
def job(trainer, tmp_path):
    job = Job(trainer, tmp_path)
    job.steps()
    yield job
    if not job.input.closed:
        os.kill(job.pid, signal.SIGKILL)
        job.end()


def truncate(path):
    os.truncate(path, 0)


def truncate_in_the_middle(path):
    os.truncate(path, path.stat().st_size // 2)


def grow(path):
    os.truncate(path, path.stat().st_size * 2)


def overwrite(path):
    path.write_bytes(b"x" * path.stat().st_size)


def remove(path):
    path.unlink()


def remove_run(path):
    shutil.rmtree(path.parent)


def close_run(path):
    path.chmod(0)
    path.parent.chmod(0)


def optimizer_ends(ring):
    """Return how many steps of optimizers had ended when the last mark was written: blocks count them."""
    last = ring.blocks[-1]
    kinds = [kind for _, kind, *_ in MARK_STRUCT.iter_unpack(last.marks)]
    return last.optimizer_ends + kinds.count(MarkKind.OPTIMIZER_END)


HARMLESS = (truncate, truncate_in_the_middle, grow, overwrite, remove, remove_run, close_run)


@pytest.mark.parametrize("attempt", range(3))
def test_ring_that_is_damaged_costs_a_file(job, attempt):
    """Cut, overwritten, removed, one after the other: each time training goes on, and so do the marks, in their order."""
    rewritten = 0
    for attack in HARMLESS:
        attack(job.path)
        job.steps()
        found = read_ring(job.path)
        rewritten += attack is not close_run
        assert (optimizer_ends(found), found.state, found.failures) == (job.taken, STATE_RUNNING, rewritten), attack
    assert job.end() == (0, [f"lockstep: {job.path} was cut or removed: written again"])
    assert read_ring(job.path).state == STATE_FINISHED


def link(path):
    path.symlink_to("/dev/null")


def pipe(path):
    os.mkfifo(path)


def directory(path):
    path.mkdir()


def file(path):
    path.write_text("mine")


@pytest.mark.parametrize("place", [link, pipe, directory, file])
def test_ring_that_is_replaced_costs_the_agent(job, place):
    """What stands in its place is left alone; one line gives the reason why recording stopped."""
    job.path.unlink()
    place(job.path)
    before = job.path.lstat()
    job.steps()
    job.steps()
    status, (line,) = job.end()
    assert status == 0
    assert line.startswith("lockstep: agent stopped after a failure in ")
    assert "got a file of somebody else, expected the ring of this process; training goes on without it" in line
    after = job.path.lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("place", [link, pipe, file])
def test_run_that_is_replaced_costs_the_agent(job, place):
    """The same where the run's directory gives way to something else."""
    shutil.rmtree(job.run)
    place(job.run)
    job.steps()
    status, (line,) = job.end()
    assert status == 0
    assert "training goes on without it" in line


def test_store_that_fails_costs_the_agent(job):
    """A process that may write no more: its ring is cut and cannot be written again."""
    os.truncate(job.path, 0)
    resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (1024, 1024))
    job.steps()
    status, (line,) = job.end()
    assert status == 0
    assert "File too large; training goes on without it" in line


def empty_pipe(path):
    path.unlink()
    os.mkfifo(path)


def empty_directory(path):
    path.unlink()
    path.mkdir()


def link_to_itself(path):
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("attempt", range(3))
def test_control_block_that_is_attacked_costs_orders(job, attempt):
    """Cut, replaced by what blocks a reader, removed, one after the other: training goes on, and the next order counts."""
    for request, attack in enumerate(
        (truncate, truncate_in_the_middle, overwrite, grow, empty_pipe, empty_directory, link_to_itself, remove), 1
    ):
        block = ControlBlock(job.run)
        block.order(request, steps=1, stacks=False, shapes=False)
        job.steps(4)
        assert (job.answer.request_id, job.answer.state) == (request, "done"), attack
        attack(block.path)
        job.steps(4)
        if block.path.is_dir():
            block.path.rmdir()
        block.path.unlink(missing_ok=True)
        job.steps(4)
    shutil.rmtree(control_path(job.run).parent.parent)
    job.steps(4)
    found = read_ring(job.path)
    assert (found.step_count, found.state, found.failures) == (job.taken, STATE_RUNNING, 0)
    assert job.end() == (0, [])
