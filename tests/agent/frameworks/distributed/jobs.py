"""Starts the jobs of the matrix as users would, and pairs the agent's records with the scripts' own ledgers."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.agent.bootstrap import loader_environment
from tests.agent.frameworks.distributed.matrix import DELAY_S, ONSET_STEP, STEPS, WORK_S, Framework
from tests.agent.frameworks.jobs import Rank
from tests.agent.rings import read_ring
from tests.support.servers import free_port

SCRIPTS = Path(__file__).parent / "scripts"
RUN = "distributed"
TIMEOUT_S = 400

_PYTHON = (sys.executable, "-W", "ignore")


@dataclass(frozen=True)
class Job:
    """A job that ran twice: `unwatched` are the ledgers without the agent, `root` has the rings of the other run."""

    ranks: list[Rank]
    unwatched: list[dict]
    root: Path


def run_job(framework: Framework, directory: Path) -> Job:
    """Run a job without the agent, then with it and with a slow rank."""
    unwatched = _run(framework, directory / "unwatched", {"WORK_S": "0", "DELAY_S": "0"})
    root = directory / "shared"
    root.mkdir()
    durations = {"WORK_S": str(WORK_S), "DELAY_S": str(DELAY_S)}
    environ = loader_environment({"LOCKSTEP_DIR": str(root), "LOCKSTEP_RUN": RUN, **durations})
    ledgers = _run(framework, directory / "watched", environ)
    rings = [read_ring(root / RUN / f"{rank}.ring") for rank in range(framework.ranks)]
    return Job([Rank(ledger, ring) for ledger, ring in zip(ledgers, rings, strict=True)], unwatched, root)


def command(framework: Framework, port: int) -> list[str]:
    """Return what starts a job whose ranks meet at a loopback port."""
    count = str(framework.ranks)
    launchers = {
        "python": (),
        "torchrun": (
            *("-m", "torch.distributed.run", "--nproc-per-node", count),
            *("--master-addr", "127.0.0.1", "--master-port", str(port)),
        ),
        "deepspeed": (
            *("-m", "deepspeed.launcher.runner", "--num_gpus", count, "--no_local_rank"),
            *("--master_addr", "127.0.0.1", "--master_port", str(port)),
        ),
    }
    return [*_PYTHON, *launchers[framework.launcher], str(SCRIPTS / framework.script), *framework.arguments]


def _run(framework: Framework, directory: Path, environ: dict[str, str]) -> list[dict]:
    """Run a job to its end and return the ledgers of its ranks."""
    ledgers = directory / "ledgers"
    ledgers.mkdir(parents=True)
    port = free_port()
    common = {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(directory),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "RAY_USAGE_STATS_ENABLED": "0",
        "LEDGERS": str(ledgers),
        "STEPS": str(STEPS),
        "ONSET_STEP": str(ONSET_STEP),
        "SLOW_RANK": str(framework.slow_rank),
    }
    output = _output(command(framework, port), common | environ, directory)
    assert "lockstep:" not in output, output
    return [json.loads((ledgers / f"{rank}.json").read_text()) for rank in range(framework.ranks)]


def _output(arguments: list[str], environ: dict[str, str], directory: Path) -> str:
    """Run a launcher in a session of its own and return what it printed; nothing of the session outlives it."""
    log = directory / "output"
    with log.open("w") as output:
        launcher = subprocess.Popen(
            arguments,
            env=environ,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = launcher.wait(TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
    text = log.read_text(errors="replace")
    assert status == 0, text
    return text
