"""What the agent's tests share: an agent in this process with its files in a temporary directory."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.agent import bootstrap
from lockstep.agent.agent import Agent
from lockstep.agent.lineage import OWNER_VARIABLE
from tests.agent.rings import RingFile, read_ring


@dataclass
class Watched:
    """The agent of this process, and the directory of its run."""

    agent: Agent
    directory: Path

    def ring(self) -> RingFile:
        """Return what the ring holds, the marks of this moment included."""
        self.agent.marks.flush()
        return read_ring(self.directory / "0.ring")


def patched_names(torch):
    """Return what the agent's hooks put something of theirs in the place of."""
    return (
        torch.autograd.Variable._execution_engine,
        torch.distributed.Work.wait,
        torch.save,
        torch.serialization.save,
        torch.amp.GradScaler.step,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )


@pytest.fixture
def rank_environment(tmp_path, monkeypatch):
    """Set the environment of rank 0 of a job of one, and nothing of a former test's."""
    for name in ("LOCKSTEP_RUN", "TORCHELASTIC_RUN_ID", OWNER_VARIABLE):
        monkeypatch.setenv(name, "x")  # so that what the test sets is undone as well
        monkeypatch.delenv(name)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delattr(sys, "last_type", raising=False)
    return tmp_path / "default"


@pytest.fixture
def watched(rank_environment):
    """Install the agent into this process; on teardown nothing of it is left and it must not have failed."""
    import torch  # noqa: PLC0415  (most tests here need none of it)

    torch.set_num_threads(1)  # OpenMP's threads do not survive the forks of these tests
    original = patched_names(torch)
    assert bootstrap.install()
    agent = bootstrap._agent
    yield Watched(agent, rank_environment)
    failures = agent.boundary.failures
    bootstrap.uninstall()
    assert patched_names(torch) == original
    assert failures == 0
