"""A small ring writer on the contracts' layout, and a real mosquitto on a free loopback port."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import write_blob
from lockstep.contracts.paths import ring_path
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_STRUCT
from tests.support.servers import Mosquitto, free_port
from tests.support.servers import mosquitto as run_mosquitto

OFFSET_NS = 1_700_000_000_000_000_000
MS = 1_000_000
NOW_NS = 10**15
"""CLOCK_MONOTONIC of the rings, unless a module overrides `clock_ns`: far from 0, whenever this machine booted."""


def record(step: int, *, step_ns: int = 100 * MS, **values: int) -> list[int]:
    """Return a record of a rank that measures its own work and its data-parallel waits, steps back to back."""
    fields = dict.fromkeys(RECORD_FIELDS, MISSING)
    fields |= {
        "step": step,
        "start_ns": 1_000 * MS + step * step_ns,
        "end_ns": 1_000 * MS + (step + 1) * step_ns,
        "flags": 0,
        "data_ns": step_ns // 10,
        "compute_ns": step_ns // 2,
        "host_ns": 0,
        "gc_ns": step_ns // 100,
        "gc_count": 1,
        "cpu_ns": step_ns // 2,
        "samples": 8,
        "agent_ns": 1000,
        "dp_wait_ns": step_ns // 4,
        "dp_bytes": 1 << 20,
        "dp_count": 2,
    }
    fields |= values
    return [fields[name] for name in RECORD_FIELDS]


class FakeRing:
    """Writes a ring file as the layout says, by pwrite, so that a test can cut the file under it.

    `now_ns` is its first heartbeat.
    """

    def __init__(self, directory: Path, rank: int, *, now_ns: int, **header: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        values = {
            "rank": rank,
            "local_rank": rank,
            "world_size": 64,
            "pid": 1,
            "attempt": 1,
            "clock_offset_ns": OFFSET_NS,
            "hostname": "worker-0",
            "slot_count": 16,
        }
        self.header = layout.RingHeader(**(values | header))
        self.path = ring_path(directory, rank)
        self.head = 0
        temporary = directory / f".{rank}.tmp"
        self.file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o660)
        os.posix_fallocate(self.file, 0, self.header.file_bytes)
        os.pwrite(self.file, layout.pack_header(self.header), 0)
        self.word(layout.WORD_HEARTBEAT, now_ns)
        self.word(layout.WORD_STATE, layout.STATE_RUNNING)
        temporary.rename(self.path)
        self._generations: dict[int, int] = {}

    def word(self, word: int, value: int) -> None:
        os.pwrite(self.file, value.to_bytes(8, "little"), word * 8)

    def write(self, values: list[int]) -> None:
        self.slot(self.head, values)
        self.head += 1
        self.word(layout.WORD_HEAD, self.head)

    def slot(self, index: int, values: list[int], *, torn: bool = False) -> None:
        scratch = bytearray(layout.SLOT_BYTES)
        layout.pack_slot(memoryview(scratch), 0, index, RECORD_STRUCT.pack(*values))
        if torn:
            scratch[40] ^= 0xFF
        os.pwrite(self.file, scratch, layout.SLOTS_OFFSET + index % self.header.slot_count * layout.SLOT_BYTES)

    def beat(self, now_ns: int) -> None:
        self.word(layout.WORD_HEARTBEAT, now_ns)

    def state(self, state: int) -> None:
        self.word(layout.WORD_STATE, state)

    def answer(self, value: Any) -> None:
        self.blob(layout.ANSWER_OFFSET, layout.ANSWER_BYTES, value)

    def groups(self, value: Any) -> None:
        self.blob(layout.GROUPS_OFFSET, layout.GROUPS_BYTES, value)

    def facts(self, value: Any) -> None:
        self.blob(layout.FACTS_OFFSET, layout.FACTS_BYTES, value)

    def blob(self, offset: int, capacity: int, value: Any) -> None:
        self._generations[offset] = self._generations.get(offset, 0) + 1
        region = bytearray(capacity)
        write_blob(memoryview(region), 0, capacity, self._generations[offset], value)
        os.pwrite(self.file, region, offset)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


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
    rings: list[FakeRing] = []

    def make(rank: int = 0, run: str = "run-a", **header: Any) -> FakeRing:
        rings.append(FakeRing(root / run, rank, now_ns=clock_ns(), **header))
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
        "broker_port": free_port(),  # nobody listens there
        "http_host": "127.0.0.1",
        "http_port": 0,
        "tick_seconds": 0.02,
        "scan_seconds": 0.02,
        "batch_seconds": 0.05,
        "announce_seconds": 0.2,
        "drain_seconds": 1.0,
        "spool_directory": str(tmp_path / "spool"),
        "summarise_busy_ratio": 1.0,  # other tests keep all cores busy, and this one waits
    }
    return ExporterConfig(**(defaults | values))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for something that another process or task brings about and that tells nobody."""
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
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    started.cancel()
    if task.done():
        await task
    try:
        yield exporter
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)
