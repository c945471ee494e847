"""Announcements, evaluated steps, a coordinator on free ports, and a real mosquitto on loopback."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.detect.anomalies import SLOW_RANK, Anomaly, StepResult
from coordinator.runtime import Coordinator
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.messages import GroupInfo, NodeAnnouncement, RankInfo
from tests.coordinator.scenarios import START_UNIX_S
from tests.support.servers import WAIT_S, free_port
from tests.support.servers import mosquitto as run_mosquitto


def announce(
    *ranks,
    world=4,
    run="job",
    node="n0",
    attempt=1,
    state="running",
    groups=None,
    heartbeat_s=START_UNIX_S,
    revision=0,
    facts=None,
):
    """Return what a node announces of `ranks` of a data-parallel job."""
    infos = [
        RankInfo(
            rank=rank,
            local_rank=rank,
            world_size=world,
            hostname=f"host-{node}",
            attempt=attempt,
            state=state,
            heartbeat_unix_ns=int(heartbeat_s * 1e9),
            facts=facts,
        )
        for rank in ranks
    ]
    groups = [GroupInfo(kind="dp", name="dp0", ranks=[[0, world, 1]])] if groups is None else groups
    return NodeAnnouncement(run=run, node=node, ranks=infos, groups=groups, revision=revision)


def anomaly(rank=2, *, kind=SLOW_RANK, cause="compute", onset=60, ratio=0.5, seconds=0.05, ranks=None, **more):
    """Return an anomaly of a slow rank, changed by `more`."""
    values = {
        "scope": "rank",
        "domain": ("dp", "dp0"),
        "evidence": (f"rank {rank} is slow",),
        "numbers": {"excess_ratio": ratio},
    }
    return Anomaly(
        kind=kind,
        cause=cause,
        ranks=(rank,) if ranks is None else ranks,
        onset_step=onset,
        excess_ratio=ratio,
        excess_seconds=seconds,
        **(values | more),
    )


def evaluated(step, *anomalies, warm=True, disturbed=False, reporting=4, step_seconds=1.0, **more):
    """Return the step_result of one step."""
    return StepResult(
        step=step,
        unix_s=START_UNIX_S + step,
        step_seconds=step_seconds,
        is_disturbed=disturbed,
        is_warm=warm,
        anomalies=anomalies,
        fluctuating=False,
        recent_step_seconds=step_seconds,
        baseline_step_seconds=step_seconds,
        mean_over_best_ratio=None,
        ranks_reporting=reporting,
        ranks_blind=0,
        **more,
    )


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    """Return the name of a file that holds the API's token."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    return str(file)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[int]:
    """Start a real broker on a free loopback port; hand out the port."""
    with run_mosquitto(tmp_path) as broker:
        yield broker.port


@contextlib.asynccontextmanager
async def running(*, reread=None, broker=None, **settings):
    """Run a coordinator on free ports until the block ends; fail if it ends before."""
    config = CoordinatorConfig(**({"http_host": "127.0.0.1", "http_port": 0, "broker_port": free_port()} | settings))
    config.validate()
    coordinator, stop = Coordinator(config, reread, broker), asyncio.Event()
    task = asyncio.create_task(coordinator.run(stop))
    started = asyncio.create_task(coordinator.started.wait())
    await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            started.cancel()
            task.result()
        yield coordinator
    finally:
        stop.set()
        if not task.done():
            await asyncio.wait_for(task, WAIT_S)


async def until(condition, *, seconds=WAIT_S):
    """Wait until `condition()` is true; a deadline, not a pause, decides failure."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.01)
