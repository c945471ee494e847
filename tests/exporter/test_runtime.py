"""The whole exporter: it starts, serves, sends what it reads, and ends."""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import (
    CaptureRequest,
    NodeAlive,
    NodeAnnouncement,
    StepBatch,
)
from tests.exporter.conftest import (
    MS,
    OFFSET_NS,
    make_config,
    open_descriptors,
    record,
    running,
    until,
)
from tests.support.batches import columns_of, ranks_of
from tests.support.model_coordinator import coordinating
from tests.support.servers import WAIT_S, Mosquitto


@pytest.fixture
def clock_ns() -> Callable[[], int]:
    """Return the machine's clock: the exporters of this file read it, too."""
    return time.monotonic_ns


def steps_of(coordinator, rank: int = 0) -> list[int]:
    """Return the steps of a rank in the order in which they arrived."""
    steps: list[int] = []
    for batch in coordinator.of(StepBatch):
        steps += columns_of(batch)["step"][ranks_of(batch) == rank].tolist()
    return steps


async def get(exporter: Exporter, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{exporter.http_port}{path}") as reply:
        return await reply.text()


async def until_page(exporter: Exporter, *lines: str) -> None:
    """Wait for a page that holds all lines: what just happened shows with the next tick."""
    async with asyncio.timeout(WAIT_S):
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
            assert 'lockstep_steps_total{rank="0",run="run-a"} ' in await get(exporter, "/metrics")
            assert json.loads(await get(exporter, "/api/v1/ranks"))["ranks"][0]["step"] == 0
            assert {t.get_name() for t in asyncio.all_tasks()} >= {"publish", "summarise"}
    # asyncio may keep a pipe for child processes, and closes a socket in the turn after the one that ended it.
    await until(lambda: open_descriptors() <= descriptors + 1)
    assert not {t.get_name() for t in asyncio.all_tasks()} & {"publish", "summarise"}


async def test_its_page_has_its_level(config: ExporterConfig, make_ring):
    """Details of ranks where it is full; what rules read, and what its own process takes, at the others as well."""
    make_ring().write(record(0))
    for level, expected in (("full", True), ("default", False)):
        async with running(Exporter(replace(config, metrics_level=level))) as exporter:
            await until_page(exporter, 'lockstep_last_step_timestamp_seconds{rank="0",run="run-a"}')
            page = await get(exporter, "/metrics")
        assert ('lockstep_step{rank="0",run="run-a"} 0.0\n' in page) == expected
        assert re.search(r"^process_resident_memory_bytes [0-9.e+]+$", page, re.MULTILINE)


async def test_a_port_in_use_is_named(config: ExporterConfig):
    """The error names host and port, and the spool is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"http_port: got {port}, expected a free port on 127.0.0.1"):
            await Exporter(replace(config, http_port=port)).run(asyncio.Event())
    async with running(Exporter(config)):
        pass


async def test_a_wrong_configuration_ends_before_anything_starts(config: ExporterConfig):
    """Validation comes first."""
    with pytest.raises(ConfigError, match="tick_seconds"):
        await Exporter(replace(config, tick_seconds=-1.0)).run(asyncio.Event())
    assert not files_below(Path(config.spool_directory))


async def test_rings_are_read_and_their_records_published_once_per_batch(config: ExporterConfig, make_ring):
    """By the time that is handed in; whatever the ticks in between do, a ring waits for its batch."""
    exporter = Exporter(replace(config, batch_seconds=10.0, tick_seconds=1.0))
    exporter._publisher.open()
    ring = make_ring()
    now = time.monotonic_ns()
    exporter.on_tick(now)
    ring.write(record(0))
    exporter.on_tick(now + 9 * 10**9)
    assert exporter._publisher.spool.waiting_bytes == 0
    exporter.on_tick(now + 10 * 10**9)
    assert exporter._publisher.spool.waiting_bytes > 0
    assert exporter.snapshot is not None
    assert exporter.snapshot.runs[0].ranks[0].steps == 1
    exporter._rings.close()
    exporter._publisher.close()


async def test_a_capture_request_is_decided_by_what_the_rings_hold_now(config: ExporterConfig, make_ring):
    """Not by the last batch: the step that it begins with would be over. A flood of requests reads no more often."""
    exporter = Exporter(replace(config, batch_seconds=10.0))
    exporter._publisher.open()
    exporter._loop = asyncio.get_running_loop()
    ring = make_ring()
    exporter.on_tick(time.monotonic_ns() - 10**9)
    rank_state = exporter._rings.runs["run-a"].ranks[0]
    for step, known in ((0, 0), (1, 0)):
        ring.write(record(step))
        exporter._on_request(
            CaptureRequest(run="run-a", node="node-1", request_id=step, ranks=[0], first_step=9, steps=1)
        )
        assert rank_state.totals.last_step == known
    exporter._rings.close()
    exporter._publisher.close()


@pytest.mark.parametrize(
    ("blocks", "seconds"),
    [(0, 1.0), (1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25), (15, 0.2)],
    ids=["idle", "slow", "an eighth", "a quarter", "half", "nearly all"],
)
async def test_a_ring_that_fills_fast_is_read_sooner(config: ExporterConfig, make_ring, blocks: int, seconds: float):
    """So that an eighth of its 16 blocks is new at the next read, or as much as there is in 0.2 s."""
    exporter = Exporter(replace(config, batch_seconds=1.0))
    exporter._publisher.open()
    ring = make_ring()
    begin_ns = time.monotonic_ns()
    exporter.on_tick(begin_ns)
    for step in range(blocks):
        ring.write(record(step))
    exporter.on_tick(begin_ns + 10**9)
    assert exporter._rings.fill_ratio == blocks / 16
    assert (exporter._due_ns["read"] - begin_ns) / 10**9 == pytest.approx(1 + seconds)
    exporter._rings.close()
    exporter._publisher.close()


async def test_a_ring_that_was_not_read_to_its_end_is_read_soon(
    config: ExporterConfig, make_ring, monkeypatch: pytest.MonkeyPatch
):
    """The work of a read is bounded; the rest must not wait for a batch."""
    monkeypatch.setattr("exporter.reading.rings.RECORDS_PER_READ", 2)
    exporter = Exporter(replace(config, batch_seconds=1.0))
    exporter._publisher.open()
    ring = make_ring(block_count=2048)
    begin_ns = time.monotonic_ns()
    exporter.on_tick(begin_ns)
    for step in range(9):
        ring.write(record(step))
    exporter.on_tick(begin_ns + 10**9)
    assert exporter._due_ns["read"] - begin_ns == 1.2 * 10**9
    exporter._rings.close()
    exporter._publisher.close()


async def test_a_rank_becomes_stale_by_the_injected_time(config: ExporterConfig, make_ring):
    """A rank without a sign of life is shown up to the limit and not beyond it."""
    exporter = Exporter(replace(config, rank_stale_seconds=100.0))
    exporter._publisher.open()
    ring = make_ring()
    now = time.monotonic_ns()
    ring.beat(now)
    for seconds, shown in ((0, 1), (100, 1), (101, 0)):
        exporter.on_tick(now + seconds * 10**9)
        assert exporter.snapshot is not None
        assert len(exporter.snapshot.runs) == shown
    exporter._rings.close()
    exporter._publisher.close()


@pytest.mark.smoke
@pytest.mark.servers
async def test_steps_reach_the_broker_in_wall_clock_time(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Every record of every rank arrives once, in order, and the run is announced before its first batch."""
    rings = [make_ring(rank=rank, world_size=2) for rank in range(2)]
    rings[0].groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 2, 1]]}])
    async with coordinating(mosquitto.port) as coordinator:
        async with running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter:
            for step in range(30):
                for ring in rings:
                    ring.write(record(step))
                await asyncio.sleep(0.005)
            await coordinator.until(lambda: len(steps_of(coordinator, 0)) == 30 and len(steps_of(coordinator, 1)) == 30)
            await until_page(exporter, "lockstep_exporter_mqtt_connected 1.0")
        assert steps_of(coordinator, 0) == steps_of(coordinator, 1) == list(range(30))
        batch = coordinator.of(StepBatch)[0]
        assert columns_of(batch)["start_ns"][0] == OFFSET_NS + 1_000 * MS
        forms = [type(message) for _, message in coordinator.messages]
        assert forms.index(NodeAnnouncement) < forms.index(StepBatch)
        announced = coordinator.of(NodeAnnouncement)[-1]
        assert [(info.rank, info.world_size, info.state) for info in announced.ranks] == [
            (0, 2, "running"),
            (1, 2, "running"),
        ]
        assert [group.name for group in announced.groups] == ["dp0"]
        await coordinator.until(lambda: not coordinator.of(NodeAlive)[-1].alive)


@pytest.mark.servers
async def test_a_broker_that_is_down_for_a_while_loses_nothing(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Steps of the time without a broker, and of a restart of the exporter in it, arrive in order and once."""
    ring = make_ring(block_count=64)
    mosquitto.stop()
    config = make_config(root, tmp_path, broker_port=mosquitto.port)
    step = 0
    for _ in range(3):  # three lives of the exporter without a broker
        async with running(Exporter(config)) as exporter:
            for _ in range(10):
                ring.write(record(step))
                step += 1
                await asyncio.sleep(0.01)
            await until(lambda: exporter._publisher.spool.waiting_bytes > 0)
            await until_page(exporter, "lockstep_exporter_mqtt_connected 0.0")
    ring.write(record(step))  # while no exporter runs
    mosquitto.start()
    async with coordinating(mosquitto.port) as coordinator, running(Exporter(config)) as exporter:
        await coordinator.until(lambda: len(steps_of(coordinator)) >= step + 1)
        await until(lambda: exporter._publisher.spool.waiting_bytes == 0)
        assert steps_of(coordinator) == list(range(step + 1))
        assert coordinator.lost_frames == []


@pytest.mark.servers
async def test_what_does_not_fit_the_spool_is_counted_on_both_sides(root, tmp_path, make_ring, mosquitto: Mosquitto):
    """Beyond the spool's limit the oldest steps go; metrics and a lost frame state how many, and the rest arrives."""
    ring = make_ring(block_count=1024)
    mosquitto.stop()
    config = make_config(root, tmp_path, broker_port=mosquitto.port, spool_max_bytes=64 << 10)
    async with running(Exporter(config)) as exporter:
        for step in range(600):
            ring.write(record(step))
            if step % 20 == 0:
                await asyncio.sleep(0.06)
        await until(lambda: exporter.snapshot.runs[0].ranks[0].steps == 600)
        lost = exporter.counts.lost["spool"]
        assert lost > 0
        await until_page(exporter, f'lockstep_exporter_records_lost_total{{reason="spool"}} {float(lost)}')
        mosquitto.start()
        async with coordinating(mosquitto.port) as coordinator:
            ring.write(record(600))
            await coordinator.until(lambda: 600 in steps_of(coordinator))
            assert sum(frame.records for frame in coordinator.lost_frames) == exporter.counts.lost["spool"]
            assert steps_of(coordinator) == list(range(exporter.counts.lost["spool"], 601))


@pytest.mark.servers
async def test_records_that_were_overwritten_are_reported_with_their_run(
    root, tmp_path, make_ring, mosquitto: Mosquitto
):
    """What the ring lost is counted here and in the next batch of the run, once."""
    ring = make_ring(block_count=16)
    async with (
        coordinating(mosquitto.port) as coordinator,
        running(Exporter(make_config(root, tmp_path, broker_port=mosquitto.port))) as exporter,
    ):
        ring.write(record(0))
        await coordinator.until(lambda: steps_of(coordinator) == [0])
        for step in range(1, 80):
            ring.lose(record(step))
        for step in range(80, 100):
            ring.write(record(step))
        await coordinator.until(lambda: 99 in steps_of(coordinator))
        lost = [batch.lost for batch in coordinator.of(StepBatch) if batch.lost]
        assert lost == [{"lapped": exporter.counts.lost["lapped"]}]
        assert exporter.counts.lost["lapped"] == 100 - len(steps_of(coordinator)) > 0


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
        await until(lambda: exporter._publisher.spool.waiting_bytes > 300)


async def test_a_ring_that_is_written_fast_is_read_completely(config: ExporterConfig, make_ring):
    """A toy job of thousands of steps a second is followed without a gap."""
    ring = make_ring(block_count=1024)
    exporter = Exporter(config)
    exporter._publisher.open()
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
    exporter._publisher.close()
