"""Runs a training script under the agent, one process for each rank, and reads what was recorded."""

import os
import subprocess
import sys
from pathlib import Path

from lockstep.agent.bootstrap import loader_environment
from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.rings import RingFile, read_ring, unaccounted_ns

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE_SECONDS = 150


def run_job(script: str, world_size: int, root: Path, **variables: str) -> list[RingFile]:
    """Return the rings of all ranks of a job that ran `script` to its end, the agent silent and unfailing."""
    environ = loader_environment(
        {
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(world_size),
            "LOCKSTEP_DIR": str(root),
            "LOCKSTEP_RUN": "job",
            "STORE": f"file://{root / 'store'}",
            **variables,
        }
    )
    with (root / "stderr").open("a") as errors:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPTS / script)],
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            for rank in range(world_size)
        ]
    try:
        codes = [process.wait(DEADLINE_SECONDS) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    stderr_text = (root / "stderr").read_text()
    assert codes == [0] * world_size, stderr_text
    assert "lockstep: " not in stderr_text, stderr_text
    rings = [read_ring(root / "job" / f"{rank}.ring") for rank in range(world_size)]
    for ring in rings:
        assert (ring.failures, ring.torn, ring.state) == (0, 0, STATE_FINISHED)
        assert [unaccounted_ns(record) for record in ring.records] == [0] * len(ring.records)
    return rings
