import asyncio
import json
import os
import re
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import aiomqtt
import pytest

from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts import ring as layout
from lockstep.contracts import topics
from lockstep.contracts.blob import read_blob
from lockstep.contracts.codec import encode
from lockstep.contracts.control import ORDER_BYTES, ORDER_OFFSET, OrderAnswer, answer_to_json, order_from_json
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import (
    NodeAlive,
    NodeAnnouncement,
    ProfileAnswer,
    ProfileRequest,
    StepBatch,
    TraceSummary,
)
from lockstep.contracts.paths import control_path, incoming_directory, trace_name
from tests.exporter.conftest import (
    MS,
    OFFSET_NS,
    FakeRing,
    listening,
    make_config,
    open_descriptors,
    record,
    running,
    until,
)
from tests.support.batches import columns_of, ranks_of
from tests.support.servers import Mosquitto

REQUEST = ProfileRequest(run="run-a", node="node-1", request_id=5, ranks=[0, 1], first_step=-1, steps=3)


def steps_of(listener, rank: int = 0) -> list[int]:
    """Return the steps of a rank in the order in which they arrived."""
    steps: list[int] = []
    for batch in listener.of(StepBatch):
        steps += columns_of(batch)["step"][ranks_of(batch) == rank].tolist()
    return steps


async def get(exporter: Exporter, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{exporter.http_port}{path}") as reply:
        return await reply.text()


async def until_page(exporter: Exporter, *lines: str) -> None:
    """Wait for a page that holds all lines: what just happened shows with the next tick."""
    async with asyncio.timeout(20):
        page = ""
        while missing := [line for line in lines if line not in page]:
            await asyncio.sleep(0.02)
            page = await get(exporter, "/metrics")
    assert not missing


def files_below(path: Path) -> set[Path]:
    return set(path.rglob("*"))


def spoil(directory: Path) -> None:
    for path in directory.iterdir():
        path.write_bytes(b"\xff" * 300)


async def ask(port: int, request: ProfileRequest) -> None:
    async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5) as coordinator:
        await coordinator.publish(topics.run_topic(request.run, topics.REQUEST, request.node), encode(request), qos=1)


async def test_construction_touches_nothing(root: Path, tmp_path: Path):
    """An exporter that was only constructed has made no file, thread, task or socket."""
    before = files_below(tmp_path)
    Exporter(make_config(root, tmp_path))
    assert files_below(tmp_path) == before
    assert len(asyncio.all_tasks()) == 1


async def test_it_starts_serves_and_ends(config: ExporterConfig, make_ring):
    """`started` means a bound port and a finished round; the end leaves no task, descriptor or lock."""
    make_ring().write(record(0))
    descriptors = open_descriptors()
    for _ in range(2):
        exporter = Exporter(config)
        async with running(exporter):
            assert exporter.http_port != 0
            assert await get(exporter, "/-/ready") == "ready\n"
            assert 'lockstep_step{rank="0",run="run-a"} 0.0' in await get(exporter, "/metrics")
            assert json.loads(await get(exporter, "/api/v1/ranks"))["ranks"][0]["step"] == 0
            assert {t.get_name() for t in asyncio.all_tasks()} >= {"publish", "receive", "summarise"}
    assert open_descriptors() <= descriptors + 1  # asyncio may keep a pipe for child processes
    assert not {t.get_name() for t in asyncio.all_tasks()} & {"publish", "receive", "summarise"}


async def test_its_page_has_what_its_level_says(config: ExporterConfig, make_ring):
    """Details of ranks where it is the default; what rules read, and what its own process takes, at either."""
    make_ring().write(record(0))
    for level, expected in (("default", True), ("minimal", False)):
        async with running(Exporter(replace(config, metrics_level=level))) as exporter:
            await until_page(exporter, 'lockstep_last_step_timestamp_seconds{rank="0",run="run-a"}')
            page = await get(exporter, "/metrics")
        assert ('lockstep_step{rank="0",run="run-a"} 0.0\n' in page) == expected
        assert re.search(r"^process_resident_memory_bytes [0-9.e+]+$", page, re.MULTILINE)


async def test_a_port_in_use_is_named(config: ExporterConfig):
    """The error says host and port, and the spool is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            await Exporter(replace(config, http_port=port)).run(asyncio.Event())
    async with running(Exporter(config)):
        pass


async def test_a_wrong_configuration_ends_before_anything_starts(config: ExporterConfig):
    """Validation comes first."""
    with pytest.raises(ConfigError, match="tick_seconds"):
        await Exporter(replace(config, tick_seconds=-1.0)).run(asyncio.Event())
    assert not files_below(Path(config.spool_directory))


async def test_the_tick_alone_batches_by_the_injected_time(config: ExporterConfig, make_ring):
    """Records wait for the batch interval of the time that is handed in, and a long interval changes nothing else."""
    exporter = Exporter(replace(config, batch_seconds=10.0, tick_seconds=1.0))
    exporter._spool.open()
    ring = make_ring()
    now = time.monotonic_ns()
    exporter.on_tick(now)
    ring.write(record(0))
    exporter.on_tick(now + 9 * 10**9)
    assert exporter._spool.waiting_bytes == 0
    assert exporter.snapshot is not None
    assert exporter.snapshot.runs[0].ranks[0].steps == 1
    exporter.on_tick(now + 10 * 10**9)
    assert exporter._spool.waiting_bytes > 0
    exporter._rings.close()
    exporter._spool.close()


async def test_a_rank_becomes_stale_by_the_injected_time(config: ExporterConfig, make_ring):
    """A rank without a sign of life is shown up to the limit and not beyond it."""
    exporter = Exporter(replace(config, rank_stale_seconds=100.0))
    exporter._spool.open()
    ring = make_ring()
    now = time.monotonic_ns()
    ring.beat(now)
    for seconds, shown in ((0, 1), (100, 1), (101, 0)):
        exporter.on_tick(now + seconds * 10**9)
        assert exporter.snapshot is not None
        assert len(exporter.snapshot.runs) == shown
    exporter._rings.close()
    exporter._spool.close()


@pytest.mark.servers
async def test_steps_reach_the_broker_in_wall_clock_time(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Every record of every rank arrives once, in order, and the run is announced before its first batch."""
    rings = [make_ring(rank=rank, world_size=2) for rank in range(2)]
    rings[0].groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 2, 1]]}])
    async with listening(mosquitto.port) as listener:
        async with running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter:
            for step in range(30):
                for ring in rings:
                    ring.write(record(step))
                await asyncio.sleep(0.005)
            await listener.until(lambda: len(steps_of(listener, 0)) == 30 and len(steps_of(listener, 1)) == 30)
            await until_page(exporter, "lockstep_exporter_mqtt_connected 1.0")
        assert steps_of(listener, 0) == steps_of(listener, 1) == list(range(30))
        batch = listener.of(StepBatch)[0]
        assert columns_of(batch)["start_ns"][0] == OFFSET_NS + 1_000 * MS
        assert [b.sequence for b in listener.of(StepBatch)] == list(range(len(listener.of(StepBatch))))
        forms = [type(message) for _, message in listener.messages]
        assert forms.index(NodeAnnouncement) < forms.index(StepBatch)
        announced = listener.of(NodeAnnouncement)[-1]
        assert [(info.rank, info.world_size, info.state) for info in announced.ranks] == [
            (0, 2, "running"),
            (1, 2, "running"),
        ]
        assert [group.name for group in announced.groups] == ["dp0"]
        await listener.until(lambda: not listener.of(NodeAlive)[-1].alive)


@pytest.mark.servers
async def test_a_broker_that_is_down_for_a_while_loses_nothing(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Steps of the time without a broker, and of a restart of the exporter in it, arrive in order and once."""
    ring = make_ring(slot_count=64)
    mosquitto.stop()
    config = make_config(root, tmp_path, broker_port=mosquitto.port)
    step = 0
    for _ in range(3):  # three lives of the exporter without a broker
        async with running(Exporter(config)) as exporter:
            for _ in range(10):
                ring.write(record(step))
                step += 1
                await asyncio.sleep(0.01)
            await until(lambda: exporter._spool.waiting_bytes > 0)
            await until_page(exporter, "lockstep_exporter_mqtt_connected 0.0")
    ring.write(record(step))  # while no exporter runs
    mosquitto.start()
    async with listening(mosquitto.port) as listener, running(Exporter(config)) as exporter:
        await listener.until(lambda: len(steps_of(listener)) >= step + 1)
        await until(lambda: exporter._spool.waiting_bytes == 0)
        assert steps_of(listener) == list(range(step + 1))
        assert listener.of(StepBatch)[-1].lost_records == 0


@pytest.mark.servers
async def test_what_does_not_fit_the_spool_is_counted_and_told(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Beyond the spool's limit the oldest steps go; metrics and the next batch say how many."""
    ring = make_ring(slot_count=1024)
    mosquitto.stop()
    config = make_config(root, tmp_path, broker_port=mosquitto.port, spool_max_bytes=64 << 10)
    async with running(Exporter(config)) as exporter:
        for step in range(600):
            ring.write(record(step))
            if step % 20 == 0:
                await asyncio.sleep(0.06)
        await until(lambda: exporter.counts.lost["spool"] > 0)
        await asyncio.sleep(0.1)
        lost = exporter.counts.lost["spool"]
        assert f'lockstep_exporter_records_lost_total{{reason="spool"}} {float(lost)}' in await get(
            exporter, "/metrics"
        )
        mosquitto.start()
        async with listening(mosquitto.port) as listener:
            await until(lambda: exporter._spool.waiting_bytes == 0, 60)
            ring.write(record(600))
            await listener.until(lambda: 600 in steps_of(listener))
            assert listener.of(StepBatch)[-1].lost_records == lost


@pytest.mark.servers
async def test_a_capture_from_request_to_summary(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """The order reaches the control block, the ranks' answers the bus, and each trace becomes one summary."""
    rings = [make_ring(rank=rank) for rank in range(2)]
    directory = rings[0].path.parent
    async with (
        listening(mosquitto.port) as listener,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        await until(lambda: control_path(directory).exists() and exporter._publisher.connected)
        await ask(mosquitto.port, REQUEST)
        order = await control_order(directory)
        assert (order.request_id, order.ranks, order.steps) == (5, [0, 1], 3)

        await ask(mosquitto.port, replace(REQUEST, request_id=6))
        await listener.until(lambda: len(refusals(listener, 6)) == 2)
        assert "request 5 is being captured" in refusals(listener, 6)[0].reason

        for rank, ring in enumerate(rings):
            (incoming_directory(directory) / trace_name(5, rank)).write_text("no trace")
            for state in ("accepted", "running", "done"):
                ring.answer(answer_to_json(OrderAnswer(request_id=5, state=state, steps=3, cost_ns=10**9)))
                await listener.until(lambda r=rank, s=state: (r, s) in answers(listener, 5))
        await listener.until(lambda: len(listener.of(TraceSummary)) == 2)
        assert [summary.error != "" for summary in listener.of(TraceSummary)] == [True, True]
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
    async with asyncio.timeout(20):
        while found is None or found[1]["request_id"] != request_id:
            await asyncio.sleep(0.01)
            data = control_path(directory).read_bytes()
            found = read_blob(memoryview(data), ORDER_OFFSET, ORDER_BYTES)
    return order_from_json(found[1], where="control")


def answers(listener, request_id: int) -> list[tuple[int, str]]:
    return [(a.rank, a.state) for a in listener.of(ProfileAnswer) if a.request_id == request_id]


def refusals(listener, request_id: int) -> list[ProfileAnswer]:
    return [a for a in listener.of(ProfileAnswer) if a.request_id == request_id and a.state == "refused"]


@pytest.mark.servers
async def test_requests_for_what_is_not_here_are_refused_by_name(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """An unknown run and an unknown rank each get an answer that names them; hostile bytes get none and are counted."""
    make_ring(rank=0)
    async with (
        listening(mosquitto.port) as listener,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        await until(lambda: exporter._publisher.connected)
        await ask(mosquitto.port, replace(REQUEST, run="elsewhere", request_id=1))
        await ask(mosquitto.port, replace(REQUEST, ranks=[9], request_id=2))
        await listener.until(lambda: len(refusals(listener, 1)) == 2 and len(refusals(listener, 2)) == 1)
        assert "run 'elsewhere' is unknown on node 'node-1'" in refusals(listener, 1)[0].reason
        assert "rank 9 of run 'run-a'" in refusals(listener, 2)[0].reason
        assert not (root / "elsewhere").exists()
        before = len(listener.of(ProfileAnswer))
        async with aiomqtt.Client("127.0.0.1", mosquitto.port, protocol=aiomqtt.ProtocolVersion.V5) as hostile:
            await hostile.publish(topics.run_topic("run-a", topics.REQUEST, "node-1"), b"\xde\xad" * 100, qos=1)
        await until(lambda: exporter.counts.rejected["message"] == 1)
        assert len(listener.of(ProfileAnswer)) == before


async def test_an_order_that_cannot_be_written_is_refused(config: ExporterConfig, make_ring):
    """A run's folder that takes no file is an answer with the reason, and the next request is judged anew."""
    ring = make_ring(rank=0)
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
        listening(mosquitto.port) as listener,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        await listener.until(lambda: listener.of(NodeAnnouncement))
        finished.state(layout.STATE_FINISHED)
        shutil.rmtree(killed.path.parent)
        await listener.until(lambda: len(listener.of(NodeAnnouncement)[-1].ranks) == 1)
        assert [(i.rank, i.state) for i in listener.of(NodeAnnouncement)[-1].ranks] == [(0, "finished")]
        await until(lambda: exporter.snapshot is not None and not exporter.snapshot.runs)
        assert 'run="run-a"' not in await get(exporter, "/metrics")


async def test_foreign_files_in_the_root_do_not_disturb_it(config: ExporterConfig, root: Path, make_ring):
    """A node full of rubbish still has its good rank on the page, and counts what it refused."""
    good = make_ring(rank=0)
    good.write(record(0))
    directory = good.path.parent
    (directory / "1.ring").write_bytes(os.urandom(100_000))
    (directory / "2.ring").symlink_to("/etc/passwd")
    os.mkfifo(directory / "3.ring")
    (directory / "control").write_bytes(b"rubbish")
    (root / "not a run!").mkdir()
    async with running(Exporter(config)) as exporter:
        await until(lambda: exporter.counts.rejected["ring"] == 3)
        await until_page(
            exporter,
            'lockstep_steps_total{rank="0",run="run-a"} 1.0',
            'lockstep_exporter_inputs_rejected_total{input="ring"} 3.0',
        )


async def test_a_damaged_spool_is_no_reason_not_to_start(config: ExporterConfig, make_ring):
    """Rubbish in every file of the spool costs what it held and nothing else."""
    make_ring().write(record(0))
    async with running(Exporter(config)):
        pass
    spoil(Path(config.spool_directory))
    exporter = Exporter(config)
    async with running(exporter):
        await until(lambda: exporter._spool.waiting_bytes > 300)


async def test_a_ring_that_is_written_fast_is_read_completely(config: ExporterConfig, make_ring):
    """A toy job of thousands of steps a second is followed without a gap."""
    ring: FakeRing = make_ring(slot_count=1024)
    exporter = Exporter(config)
    exporter._spool.open()
    now = time.monotonic_ns()
    for tick in range(20):
        for step in range(tick * 400, (tick + 1) * 400):
            ring.write(record(step, step_ns=MS))
        exporter.on_tick(now + tick * 10**8)
    for extra in range(3):
        exporter.on_tick(now + (20 + extra) * 10**8)
    assert exporter.snapshot is not None
    assert exporter.snapshot.runs[0].ranks[0].steps == 8000
    assert sum(exporter.counts.lost.values()) == 0
    exporter._rings.close()
    exporter._spool.close()
