"""A site's prolog, task prolog and epilog in a real Slurm, as an ordinary user: jobs need no word of Lockstep.

The interpreter is Debian's, which an ordinary user can always run, and the agent a copy as `pip install --target` leaves
it; training is a loop of steps, for the launchers' tests have torch.
"""

import contextlib
import grp
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.launchers.slurm import as_account, own_account, slurm_cluster
from tests.agent.rings import read_ring
from tests.support.servers import program, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "slurm"
PYTHON = "/usr/bin/python3"
ORDINARY = own_account() if os.getuid() else "nobody"
WAIT_S = 120
STEPS = 5
TRAINING = """
import sys, time
import lockstep
steps = int(sys.argv[1])
for _ in range(steps or 1 << 40):
    with lockstep.step():
        time.sleep(0 if steps else 0.05)
"""
FINISHING = f"srun --ntasks 2 {PYTHON} train.py {STEPS}"
ENDLESS = f"srun --ntasks 2 {PYTHON} train.py 0"


@dataclass
class Site:
    """A cluster whose nodes have the three scripts; `rings` is the directory that the prolog makes."""

    directory: Path
    environment: dict[str, str]

    @property
    def rings(self) -> Path:
        return self.directory / "rings"

    def run(self, *words: str) -> str:
        """Run one of Slurm's commands as the ordinary user and return its output."""
        command = [*as_account(ORDINARY), program(words[0]), *words[1:]]
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, (words, done.stdout + done.stderr, self.logs())
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script and return the job's number."""
        (self.directory / "job.sh").write_text(f"#!/bin/sh\n{script}\n")
        output = f"--output={self.directory}/%j.out"
        return self.run("sbatch", "--parsable", "--ntasks=2", output, *options, str(self.directory / "job.sh"))

    def wait(self, condition, what: str) -> None:
        """Wait for something of a job, with Slurm's logs where it does not come."""
        try:
            wait_until(condition, WAIT_S, what)
        except TimeoutError:
            pytest.fail(f"{what}: not within {WAIT_S} s\n{self.logs()}")

    def has_steps(self, job: str) -> bool:
        """Whether both ranks of a job have written a step."""
        paths = [self.rings / f"job-{job}" / f"{rank}.ring" for rank in range(2)]
        return all(path.exists() and read_ring(path).records for path in paths)

    def keeping(self, name: str) -> str:
        """Return the command of a job that copies its rings before the epilog removes them."""
        return f"cp -r {self.rings}/job-$SLURM_JOB_ID {self.directory}/part && mv {self.directory}/part {self.directory}/{name}"

    def kept(self, name: str):
        """Wait for such a copy and return its two rings."""
        self.wait((self.directory / name).exists, "the job has trained")
        return [read_ring(self.directory / name / f"{rank}.ring") for rank in range(2)]

    def is_queued(self, job: str) -> bool:
        """Whether the job waits, runs or ends."""
        return job in self.run("squeue", "--noheader", "--format=%i").split()

    def logs(self) -> str:
        paths = [*self.directory.glob("*.log"), *self.directory.glob("*.out")]
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in paths)


def install_scripts(directory: Path) -> str:
    """Put the scripts in place as docs/install-slurm.md does, for our account, and return their lines of slurm.conf."""
    entry = pwd.getpwnam(ORDINARY)
    agent = directory / "agent" / "lockstep"
    for package in ("agent", "contracts"):
        shutil.copytree(ROOT / "lockstep" / package, agent / package)
    shutil.copy(ROOT / "lockstep" / "__init__.py", agent)
    own = {
        "LOCKSTEP_ROOT": directory / "rings",
        "LOCKSTEP_USER": ORDINARY,
        "LOCKSTEP_GROUP": grp.getgrgid(entry.pw_gid).gr_name,
        "LOCKSTEP_SITE": agent / "agent" / "site",
    }
    exports = "".join(f"export {name}={value}\n" for name, value in own.items())
    lines = ""
    for name, option in (("prolog", "Prolog"), ("epilog", "Epilog"), ("task_prolog", "TaskProlog")):
        path = directory / f"{name}.sh"
        head, _, script = (DEPLOY / f"{name}.sh").read_text().partition("\n")
        path.write_text(f"{head}\n{exports}{script}")
        path.chmod(0o755)
        lines += f"{option}={path}\n"
    return lines


@pytest.fixture(scope="module")
def site():
    """Return a cluster that belongs to the ordinary user, in a directory that is open to it."""
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="slurm-"))
        stack.callback(shutil.rmtree, directory)
        directory.chmod(0o755)
        (directory / "train.py").write_text(TRAINING)
        lines = install_scripts(directory)
        variables = stack.enter_context(slurm_cluster(directory, ORDINARY, lines))
        path = f"{Path(program('srun')).parent}:/usr/bin:/bin"
        yield Site(directory, {"PATH": path, "HOME": str(directory), **variables})


def test_a_job_is_monitored_from_prolog_to_epilog(site):
    """`srun python` writes a ring a rank in the directory that the prolog made; the epilog removes the job's and no other."""
    job = site.submit(f"{FINISHING} && {site.keeping('first')}")
    for ring in site.kept("first"):
        rank = ring.header.local_rank
        assert (ring.header.rank, ring.header.world_size, ring.state) == (rank, 2, STATE_FINISHED)
        assert [record["step"] for record in ring.records] == list(range(STEPS))
    assert site.rings.stat().st_mode & 0o7777 == 0o3770
    (site.rings / "job-other").mkdir()
    site.wait(lambda: not (site.rings / f"job-{job}").exists(), "the epilog has removed the job's rings")
    assert {path.name for path in site.rings.iterdir()} == {".exporter", "job-other"}


def test_a_cancelled_job_leaves_no_ring(site):
    """After `scancel` the job ends, and the epilog removes what it wrote."""
    job = site.submit(ENDLESS)
    site.wait(lambda: site.has_steps(job), "both ranks train")
    site.run("scancel", job)
    site.wait(lambda: not (site.rings / f"job-{job}").exists(), "the epilog has removed the job's rings")
    site.wait(lambda: not site.is_queued(job), "the job has left the queue")


def test_a_requeued_job_begins_with_new_rings(site):
    """It keeps its number, so its run keeps its name; steps of the first attempt are gone."""
    again = f"{FINISHING} && {site.keeping('second')}"
    job = site.submit(f'if [ -z "$SLURM_RESTART_COUNT" ]; then {ENDLESS}; else {again}; fi', "--requeue")
    site.wait(lambda: site.has_steps(job), "both ranks of the first attempt train")
    site.run("scontrol", "requeue", job)
    site.wait(lambda: not (site.rings / f"job-{job}").exists(), "the epilog has removed the first attempt's rings")
    for ring in site.kept("second"):
        assert [record["step"] for record in ring.records] == list(range(STEPS))
    site.wait(lambda: not site.is_queued(job), "the job has left the queue")
