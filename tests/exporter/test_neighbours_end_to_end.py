"""A running exporter keeps a neighbour's page for a coordinator, and counts what an Inspector writes."""

import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.evidence.machines import Machine
from coordinator.evidence.node_samples import NodeSamplesClient
from coordinator.evidence.prometheus import Access
from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts.paths import inspector_directory
from tests.exporter.conftest import running, until
from tests.exporter.inspector.inspected import line


@pytest.fixture
def clock_ns() -> Callable[[], int]:
    """Return the machine's clock: the exporter of this file reads it, too."""
    return time.monotonic_ns


async def neighbour(_):
    return web.Response(text="node_vmstat_oom_kill 3\nnode_load1 1\n")


async def test_a_neighbours_page_reaches_the_coordinator(config: ExporterConfig):
    """From the page over the exporter's own HTTP server to the answer of a query."""
    app = web.Application()
    app.router.add_get("/metrics", neighbour)
    async with TestServer(app) as server:
        exporter = Exporter(replace(config, neighbour_addresses=str(server.make_url("/metrics"))))
        async with running(exporter):
            await until(lambda: exporter.snapshot.neighbours.series_count)
            url = f"http://127.0.0.1:{exporter.http_port}"
            client = NodeSamplesClient(Access(url=""), {"node-1": url}.get)
            hosts = (Machine(ranks=(0,), is_suspect=True, hosts=frozenset({"node-1"})),)
            now_s = time.time()
            async with client.session(hosts, now_s - 600, now_s + 60) as session:
                [found] = await session.query("node_vmstat_oom_kill", now_s, 60.0)
            async with aiohttp.ClientSession() as asking, asking.get(f"{url}/api/v1/neighbours") as reply:
                refused = reply.status
    assert (dict(found.labels), found.value, dict(session.failures)) == (
        {"__name__": "node_vmstat_oom_kill", "instance": "node-1"},
        3.0,
        {},
    )
    assert refused == 400


async def test_lines_of_an_inspector_become_series(config: ExporterConfig, root, make_ring):
    """The exporter makes the directory that lockstep run looks for, and reads what a rank's plugin writes there."""
    make_ring(rank=3, pid=100)
    exporter = Exporter(config)
    async with running(exporter):
        await until(lambda: exporter.snapshot.runs)
        path = inspector_directory(root) / "worker-0-pid100.log"
        path.write_bytes(b"".join(line(sequence=number) + b"\n" for number in range(5)) + b"hostile\n")
        await until(lambda: exporter.snapshot.inspector.lines.get("malformed"))
        url = f"http://127.0.0.1:{exporter.http_port}/metrics"
        async with aiohttp.ClientSession() as asking, asking.get(url) as reply:
            text = await reply.text()
    labels = 'communicator="dp",operation="AllReduce",rank="3",run="run-a"'
    assert f"lockstep_nccl_operations_total{{{labels}}} 5.0" in text
    assert 'lockstep_exporter_inspector_lines_total{outcome="malformed"} 1.0' in text
