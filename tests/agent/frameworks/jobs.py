"""Runs the training scripts as users would, and pairs the agent's records with the scripts' own ledgers."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lockstep.accounting.iteration import REPEATS
from lockstep.agent.bootstrap import loader_environment
from tests.agent.frameworks.matrix import Framework
from tests.agent.rings import RingFile, read_ring

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 380  # the limit of a test is 400
RUN = "matrix"


@dataclass(frozen=True)
class Rank:
    """One rank of a job that ended: what the script wrote down, and what the agent did."""

    ledger: dict
    ring: RingFile

    @property
    def offset(self) -> int:
        """Index of the record of iteration 0, were there one record per iteration from there on."""
        return len(self.ring.records) - self.ledger["steps"]

    @property
    def steady(self) -> list[tuple[dict[str, int], int]]:
        """Each record with the iteration it is of, from the second iteration on or where the iteration is learnt.

        What came before the first backward is in no one's record.
        """
        first = REPEATS if self.offset else 1
        return [(self.ring.records[self.offset + index], index) for index in range(first, self.ledger["steps"])]


@dataclass(frozen=True)
class Job:
    """All ranks of a job, and the ledgers of the same job without the agent if it was asked for."""

    ranks: list[Rank]
    unwatched: list[dict]


def run_job(framework: Framework, directory: Path) -> Job:
    """Run a framework's script under the agent, and before that without it if the framework compares."""
    unwatched = _run(framework, directory, directory / "unwatched", {}) if framework.compares else []
    environ = loader_environment({"LOCKSTEP_DIR": str(directory), "LOCKSTEP_RUN": RUN})
    ledgers = _run(framework, directory, directory / "watched", environ)
    rings = [read_ring(directory / RUN / f"{rank}.ring") for rank in range(framework.ranks)]
    return Job([Rank(ledger, ring) for ledger, ring in zip(ledgers, rings, strict=True)], unwatched)


def _run(framework: Framework, shared: Path, directory: Path, environ: dict[str, str]) -> list[dict]:
    """Run all ranks of a script to their end and return their ledgers."""
    directory.mkdir()
    ledgers = [directory / f"{rank}.json" for rank in range(framework.ranks)]
    arguments = framework.arguments or (str(directory / "store"),)
    common = {
        "PATH": os.environ["PATH"],
        "HOME": str(shared),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(shared / "inductor"),  # a job's second run need not compile again
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # each probe for vector instructions compiles a program
        "WORLD_SIZE": str(framework.ranks),
        **environ,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPTS / framework.script), str(ledger), *arguments],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, ledger in enumerate(ledgers)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, output
            assert "lockstep:" not in output, output
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(ledger.read_text()) for ledger in ledgers]
