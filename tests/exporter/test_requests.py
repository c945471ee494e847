"""Requests to a whole exporter: whose are taken, what becomes of a capture, and what is refused by name."""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts import ring as layout
from lockstep.contracts import topics
from lockstep.contracts.blob import read_blob
from lockstep.contracts.capture import STEP, CaptureResult, StepBoundary, request_from_json, result_to_json
from lockstep.contracts.codec import encode
from lockstep.contracts.control_block import ORDER_BYTES, ORDER_OFFSET
from lockstep.contracts.messages import (
    CaptureRequest,
    NodeAlive,
    NodeAnnouncement,
    TraceSummary,
)
from lockstep.contracts.paths import control_path, incoming_directory, trace_name
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.mqtt import MqttBroker
from tests.exporter.conftest import (
    make_config,
    record,
    running,
    until,
)
from tests.exporter.test_runtime import get, until_page
from tests.support.model_coordinator import coordinating
from tests.support.servers import WAIT_S, Mosquitto

REQUEST = CaptureRequest(run="run-a", node="node-1", request_id=5, ranks=[0, 1], first_step=-1, steps=3)


@pytest.fixture
def clock_ns() -> Callable[[], int]:
    """Return the machine's clock: the exporters of this file read it, too."""
    return time.monotonic_ns


async def ask(port: int, request: CaptureRequest) -> None:
    await send_request(port, request.run, encode(request))


async def send_request(port: int, run: str, payload: bytes) -> None:
    broker = MqttBroker(BrokerConfig(broker_host="127.0.0.1", broker_port=port))
    async with broker.connect(client_id="peer", on_message=lambda *_: None, packet_max_bytes=1 << 20) as session:
        await session.publish(topics.run_topic(run, topics.REQUEST, "node-1"), payload)
        await session.close()


@pytest.mark.servers
async def test_a_leader_that_was_replaced_is_refused_over_a_restart(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """The highest term is kept on disk; a lower one is answered by name and counted, and orders nothing."""
    ring = make_ring(rank=0)
    ring.write(record(0))
    directory = ring.path.parent
    config = make_config(root, tmp_path, broker_port=mosquitto.port)
    request = replace(REQUEST, ranks=[0])
    async with coordinating(mosquitto.port) as coordinator:
        async with running(Exporter(config)) as exporter:
            await until(lambda: control_path(directory).exists() and exporter._publisher.connected)
            await ask(mosquitto.port, replace(request, term=4))
            assert (await control_order(directory)).request_id == 5
        async with running(Exporter(config)) as exporter:
            await until(lambda: exporter._publisher.connected and exporter._rings.runs)
            await ask(mosquitto.port, replace(request, request_id=6, term=3))
            await coordinator.until(lambda: refusals(coordinator, 6))
            assert refusals(coordinator, 6)[0].reason == "term 3 is over, term 4 is in force"
            assert exporter.counts.rejected["request"] == 1
            await ask(mosquitto.port, replace(request, request_id=7, term=4))
            assert (await control_order(directory, 7)).request_id == 7


@pytest.mark.servers
async def test_a_forged_term_locks_no_leader_out(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Neither an order of a huge term nor one that is on disk already: the leader's order counts, and its term is reported."""
    ring = make_ring(rank=0)
    ring.write(record(0))
    directory = ring.path.parent
    config = make_config(root, tmp_path, broker_port=mosquitto.port)
    request, term = replace(REQUEST, ranks=[0]), int(time.time())
    term_path = Path(config.spool_directory) / "term.json"
    term_path.parent.mkdir(parents=True, exist_ok=True)
    term_path.write_text(str(1 << 62))
    async with coordinating(mosquitto.port) as coordinator, running(Exporter(config)) as exporter:
        await until(lambda: control_path(directory).exists() and exporter._publisher.connected)
        await ask(mosquitto.port, replace(request, request_id=6, term=1 << 62))
        await coordinator.until(lambda: refusals(coordinator, 6))
        assert "is not a leader's" in refusals(coordinator, 6)[0].reason
        await ask(mosquitto.port, replace(request, term=term))
        assert (await control_order(directory)).request_id == 5
        assert term_path.read_text() == str(term)
        exporter._publisher.heartbeat()
        await coordinator.until(lambda: coordinator.of(NodeAlive)[-1].term == term)


@pytest.mark.servers
async def test_a_capture_from_request_to_summary(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """The order reaches the control block, the ranks' answers the bus, and each trace becomes one summary."""
    rings = [make_ring(rank=rank) for rank in range(2)]
    for ring in rings:
        ring.write(record(0))
    directory = rings[0].path.parent
    async with (
        coordinating(mosquitto.port) as coordinator,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        await until(lambda: control_path(directory).exists() and exporter._publisher.connected)
        await ask(mosquitto.port, REQUEST)
        order = await control_order(directory)
        assert (order.request_id, order.ranks, order.steps) == (5, [0, 1], 3)
        assert order.boundaries == [StepBoundary(STEP, 1, 1, 1)] * 2

        await ask(mosquitto.port, replace(REQUEST, request_id=6))
        await coordinator.until(lambda: len(refusals(coordinator, 6)) == 2)
        assert "request 5 is being captured" in refusals(coordinator, 6)[0].reason

        for rank, ring in enumerate(rings):
            (incoming_directory(directory) / trace_name(5, rank)).write_text("no trace")
            for state in ("accepted", "running", "done"):
                ring.answer(result_to_json(CaptureResult(request_id=5, state=state, steps=3, cost_ns=10**9)))
                await coordinator.until(lambda r=rank, s=state: (r, s) in answers(coordinator, 5))
        await coordinator.until(lambda: len(coordinator.of(TraceSummary)) == 2)
        assert [summary.error != "" for summary in coordinator.of(TraceSummary)] == [True, True]
        await until_page(
            exporter,
            'lockstep_exporter_profiles_total{state="accepted"} 2.0',
            'lockstep_exporter_profiles_total{state="done"} 2.0',
            'lockstep_exporter_profiles_total{state="refused"} 2.0',
            "lockstep_exporter_profile_cost_seconds_total 2.0",
            'lockstep_exporter_inputs_rejected_total{input="trace"} 2.0',
        )
        await ask(mosquitto.port, replace(REQUEST, request_id=7))
        assert (await control_order(directory, 7)).request_id == 7


async def control_order(directory: Path, request_id: int = 5):
    found = None
    async with asyncio.timeout(WAIT_S):
        while found is None or found[1]["request_id"] != request_id:
            await asyncio.sleep(0.01)
            data = control_path(directory).read_bytes()
            found = read_blob(memoryview(data), ORDER_OFFSET, ORDER_BYTES)
    return request_from_json(found[1], where="control")


def answers(coordinator, request_id: int) -> list[tuple[int, str]]:
    return [(a.rank, a.state) for a in coordinator.of(CaptureResult) if a.request_id == request_id]


def refusals(coordinator, request_id: int) -> list[CaptureResult]:
    return [a for a in coordinator.of(CaptureResult) if a.request_id == request_id and a.state == "refused"]


@pytest.mark.servers
async def test_requests_for_what_is_not_here_are_refused_by_name(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """An unknown run and an unknown rank each get an answer that names them; hostile bytes get none and are counted."""
    make_ring(rank=0)
    async with (
        coordinating(mosquitto.port) as coordinator,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        await until(lambda: exporter._publisher.connected)
        await ask(mosquitto.port, replace(REQUEST, run="elsewhere", request_id=1))
        await ask(mosquitto.port, replace(REQUEST, ranks=[9], request_id=2))
        await coordinator.until(lambda: len(refusals(coordinator, 1)) == 2 and len(refusals(coordinator, 2)) == 1)
        assert "run 'elsewhere' is unknown on node 'node-1'" in refusals(coordinator, 1)[0].reason
        assert "rank 9 of run 'run-a'" in refusals(coordinator, 2)[0].reason
        assert not (root / "elsewhere").exists()
        before = len(coordinator.of(CaptureResult))
        await send_request(mosquitto.port, "run-a", b"\xde\xad" * 100)
        await until(lambda: exporter.counts.rejected["message"] == 1)
        assert len(coordinator.of(CaptureResult)) == before


async def test_an_order_that_cannot_be_written_is_refused(config: ExporterConfig, make_ring):
    """A run's folder that takes no file is an answer with the reason, and the next request is considered again."""
    ring = make_ring(rank=0)
    ring.write(record(0))
    async with running(Exporter(config)) as exporter:
        directory = ring.path.parent
        await until(control_path(directory).exists)
        control = control_path(directory)
        control.unlink()
        control.mkdir()
        (control / "occupied").write_text("")
        exporter._on_request(replace(REQUEST, ranks=[0]))
        await until(lambda: exporter.counts.profiles["refused"] == 1)
        assert exporter._captures.running_id("run-a") is None


@pytest.mark.servers
async def test_a_run_that_vanishes_is_announced_a_last_time(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """What finished stays announced as finished, what was killed is gone, and so are the series."""
    finished, killed = make_ring(rank=0), make_ring(rank=1)
    async with (
        coordinating(mosquitto.port) as coordinator,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        await coordinator.until(lambda: coordinator.of(NodeAnnouncement))
        finished.state(layout.STATE_FINISHED)
        shutil.rmtree(killed.path.parent)
        await coordinator.until(lambda: len(coordinator.of(NodeAnnouncement)[-1].ranks) == 1)
        assert [(i.rank, i.state) for i in coordinator.of(NodeAnnouncement)[-1].ranks] == [(0, "finished")]
        await until(lambda: exporter.snapshot is not None and not exporter.snapshot.runs)
        assert 'run="run-a"' not in await get(exporter, "/metrics")
