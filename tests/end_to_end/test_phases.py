"""A real job of two ranks over gloo, one of them slow in each phase, asleep and at work: the cause shows which.

From the training process to the cause: agent, ring, the exporter's message, timeline, explanation. That such a rank is
found is `test_causes.py`'s: how many steps that takes is up to the noise of the machine.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coordinator.detect.ranks.components import Explainer, medians
from coordinator.detect.ranks.groups import Groups
from coordinator.intake.timeline import StepTimeline
from coordinator.settings.policy import Policy
from exporter.sending.batches import Batcher
from lockstep.agent.bootstrap import loader_environment
from lockstep.contracts.records import RECORD_FIELDS
from tests.agent.rings import read_ring
from tests.end_to_end import phases_job
from tests.end_to_end.phases_job import BLOCK_STEPS, BLOCKS, HEALTHY_STEPS, MORE_SECONDS, SLEEP_SECONDS, SLOW_RANK

pytestmark = [pytest.mark.alone, pytest.mark.torch]

POLICY = Policy()
STEPS = HEALTHY_STEPS + BLOCK_STEPS * len(BLOCKS)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Run the job; return its steps as the coordinator lays them out."""
    root = tmp_path_factory.mktemp("shm")
    environ = loader_environment({"LOCKSTEP_DIR": str(root), "LOCKSTEP_RUN": "phases"})
    environ |= {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(Path(phases_job.__file__))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    batcher, timeline = Batcher("node-a"), StepTimeline(POLICY.timeline)
    for rank in (0, 1):
        ring = read_ring(root / "phases" / f"{rank}.ring")
        assert (len(ring.records), ring.failures) == (STEPS, 0)
        batcher.add("phases", rank, np.array([[each[name] for name in RECORD_FIELDS] for each in ring.records]))
    timeline.know([0, 1])
    for batch in batcher.take(0):
        timeline.ingest(batch, 0.0)
    found = timeline.ready(0.0)
    assert [row.step for row in found] == list(range(STEPS))
    return found


def test_every_step_has_all_views(rows):
    """Forward, backward and optimizer sum to compute; time off the CPU is no longer than own work.

    It is known in most steps: one whose waits took more CPU time than a tenth of them has none.
    """
    for row in rows[1:]:
        assert sum(row.views[phase] for phase in ("forward", "backward", "optimizer")) == pytest.approx(
            row.components["compute"], rel=1e-3, abs=2e-6
        )
        assert not (row.views["off_cpu"] > row.self_seconds + 1e-6).any()
    off_cpu = np.concatenate([row.views["off_cpu"] for row in rows])
    assert np.isnan(off_cpu).mean() < 0.5


@pytest.mark.parametrize("block", range(len(BLOCKS)), ids=[f"{p}-{'asleep' if a else 'busy'}" for p, a in BLOCKS])
def test_phase_and_cause_of_each_fault(rows, block):
    """A rank that sleeps and one that computes more have different causes in every phase."""
    phase, asleep = BLOCKS[block]
    first = HEALTHY_STEPS + block * BLOCK_STEPS + 1
    slow_r = np.arange(2) == SLOW_RANK
    explainer = Explainer(Groups([0, 0]), None)
    own = medians(rows[first : first + BLOCK_STEPS - 2])
    explained = explainer.explain(own, slow_r, slow_r, {}, POLICY.cause, slow_parts=lambda _: ())[SLOW_RANK]
    assert (explained.cause, explained.phase) == ("off_cpu" if asleep else "compute", phase), explained
    assert explained.own[phase] - explained.peers[phase] > 0.6 * (SLEEP_SECONDS if asleep else MORE_SECONDS)
