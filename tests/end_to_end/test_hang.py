"""From a rank that does not arrive to the incident that names it: real ranks, exporter, broker and coordinator."""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from exporter.runtime import Exporter
from tests.coordinator.conftest import running as coordinator_running
from tests.coordinator.conftest import until
from tests.end_to_end import hang_job
from tests.exporter.conftest import make_config
from tests.exporter.conftest import running as exporter_running
from tests.support.servers import LIVE_LIMIT_S, PATIENCE_S, mosquitto

pytestmark = [pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]


async def start_job(root, tmp_path):
    command = [sys.executable, hang_job.__file__, str(tmp_path / "store"), str(root), str(tmp_path / "arrived")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return await asyncio.create_subprocess_exec(*command, env=environment)


async def test_the_rank_that_does_not_arrive_is_named_and_the_incident_ends_with_the_hang(tmp_path):
    """Rank 1 is stuck before a tensor-parallel collective. Its data-parallel peer and rank 0's wait too, and are not blamed."""
    root = tmp_path / "shared"
    root.mkdir()
    with mosquitto(tmp_path) as broker:
        exporter = Exporter(make_config(root, tmp_path, broker_port=broker.port))
        async with contextlib.AsyncExitStack() as stack:
            coordinator = await stack.enter_async_context(coordinator_running(broker_port=broker.port))
            await stack.enter_async_context(exporter_running(exporter))
            job = await start_job(root, tmp_path)
            runs = coordinator._runs.by_name
            await until(lambda: "job" in runs and runs["job"].machine.stall.incident, seconds=PATIENCE_S)
            machine = runs["job"].machine
            found = machine.stall.incident
            assert str(machine.state) == "hung"
            assert (found.kind, found.cause, found.scope) == ("hang", "unknown", "rank")
            assert found.ranks == (hang_job.LATE_RANK,)
            assert found.domain[0] == "tp"
            assert runs["job"].topology.domains[0].ranks == (0, 1)
            assert found.onset_step == hang_job.LATE_STEP
            assert "3 ranks wait for rank 1" in found.evidence[0]
            assert (
                f"rank 1 has issued {hang_job.LATE_STEP} operations in tp domain {found.domain[1]}" in found.evidence[1]
            )
            await until(lambda: machine.stall.incident.function, seconds=PATIENCE_S)
            found = machine.stall.incident
            assert found.cause == "data"
            assert found.function.startswith("hang_job.py(")
            assert found.function.endswith("): stuck_in_download")
            assert found.profile_evidence == (f"rank 1 stands in {found.function}, the 3 others wait in all_reduce",)
            assert min(each.unix_ns for each in machine.stacks.taken) >= found.opened_unix_ns
            assert [line for line in found.stacks if "rank 1:" in line and "stuck_in_download" in line]
            assert [line for line in found.stacks if "ranks 2-3:" in line and "all_reduce" in line]
            assert not any("lockstep" in line for line in found.stacks)
            stall_s = time.time() - found.numbers["last_step_unix_seconds"]
            (tmp_path / "arrived").touch()
            await until(lambda: machine.stall.incident is None, seconds=PATIENCE_S)
            await until(lambda: str(machine.state) == "finished", seconds=PATIENCE_S)
            assert await job.wait() == 0
            assert machine.step_result.step == hang_job.STEPS - 1
            page = coordinator._snapshot()
            assert [run.incidents for run in page.runs] == [()]
            assert machine.tracker.lost_device_seconds > hang_job.RANKS * (stall_s - 2)
