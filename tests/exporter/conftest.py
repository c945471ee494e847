"""Rings of marks, and a real mosquitto on a free loopback port."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.config import ExporterConfig
from exporter.reading.attempt_steps import Records
from exporter.runtime import Exporter
from lockstep.contracts import ring as layout
from lockstep.contracts.records import MISSING, RECORD_FIELDS
from tests.support.mark_ring import MarkRing, wanted_step
from tests.support.servers import WAIT_S, Mosquitto, free_port
from tests.support.servers import mosquitto as run_mosquitto

OFFSET_NS = 1_700_000_000_000_000_000
MS = 1_000_000
NOW_NS = 10**15
"""CLOCK_MONOTONIC of the rings, unless a module overrides `clock_ns`: far from 0, whenever this machine booted."""


def record(step: int, *, step_ns: int = 100 * MS, **values: int) -> dict[str, int]:
    """Return a step of a rank that measures its own work and its data-parallel waits, steps back to back."""
    fields = {
        "step": step,
        "start_ns": 1_000 * MS + step * step_ns,
        "end_ns": 1_000 * MS + (step + 1) * step_ns,
        "flags": 0,
        "data_ns": step_ns // 10,
        "compute_ns": step_ns // 2,
        "host_ns": step_ns - step_ns // 10 - step_ns // 2 - step_ns // 100 - step_ns // 4,
        "gc_ns": step_ns // 100,
        "gc_count": 1,
        "cpu_ns": step_ns // 2,
        "samples": 8,
        "agent_ns": 1000,
        "dp_wait_ns": step_ns // 4,
        "dp_bytes": 1 << 20,
        "dp_count": 2,
    }
    return wanted_step(**(fields | values))


def table(*steps: dict[str, int]) -> Records:
    """Return steps as an array of records."""
    return np.array([[step.get(name, MISSING) for name in RECORD_FIELDS] for step in steps], dtype=np.int64)


def make_ring_file(directory: Path, rank: int, *, now_ns: int, **header: Any) -> MarkRing:
    """Return a ring with a first heartbeat at `now_ns`; a step of `record` takes one of its blocks."""
    values = {
        "rank": rank,
        "local_rank": rank,
        "world_size": 64,
        "pid": 1,
        "attempt": 1,
        "clock_offset_ns": OFFSET_NS,
        "hostname": "worker-0",
        "block_count": 16,
    }
    return MarkRing(directory, layout.RingHeader(**(values | header)), now_ns=now_ns)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def clock_ns() -> Callable[[], int]:
    """Return the clock of the rings' heartbeats; a module that runs a whole exporter overrides it with the machine's."""
    return lambda: NOW_NS


@pytest.fixture
def make_ring(root: Path, clock_ns: Callable[[], int]) -> Iterator[Any]:
    rings: list[MarkRing] = []

    def make(rank: int = 0, run: str = "run-a", **header: Any) -> MarkRing:
        rings.append(make_ring_file(root / run, rank, now_ns=clock_ns(), **header))
        return rings[-1]

    yield make
    for ring in rings:
        ring.close()


@pytest.fixture
def config(root: Path, tmp_path: Path) -> ExporterConfig:
    return make_config(root, tmp_path)


def make_config(root: Path, tmp_path: Path, **values: Any) -> ExporterConfig:
    defaults = {
        "root": str(root),
        "node": "node-1",
        "broker_port": free_port(),  # no one listens there
        "http_host": "127.0.0.1",
        "http_port": 0,
        "tick_seconds": 0.02,
        "scan_seconds": 0.02,
        "batch_seconds": 0.05,
        "announce_seconds": 0.2,
        "drain_seconds": 1.0,
        "spool_directory": str(tmp_path / "spool"),
        "summarise_burst_ratio": 1.0,
        "summarise_busy_ratio": 1.0,  # other tests keep all cores busy, and this one waits
    }
    return ExporterConfig(**(defaults | values))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Any, seconds: float = WAIT_S) -> None:
    """Wait for something that another process or task brings about and that signals no one."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (see above: there is no event to wait on)
            await asyncio.sleep(0.01)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with run_mosquitto(tmp_path) as broker:
        yield broker


@contextlib.asynccontextmanager
async def running(exporter: Exporter) -> AsyncIterator[Exporter]:
    """Run an exporter, and shut it down in order."""
    stop = asyncio.Event()
    task = asyncio.create_task(exporter.run(stop))
    started = asyncio.create_task(exporter.started.wait())
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
    started.cancel()
    if task.done():
        await task
    try:
        yield exporter
    finally:
        stop.set()
        await asyncio.wait_for(task, WAIT_S)
