"""A real rank on a real core, alone and next to a process that wants the same core."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.capturing.persistent_worker import PersistentWorker
from exporter.config import ExporterConfig
from exporter.counts import ExporterCounters
from exporter.exposing.collector import NodeCollector
from exporter.host_watch.targets import find_targets
from exporter.host_watch.watch import HostWatch, sample_node
from exporter.reading.rings import Rings
from exporter.runtime import Exporter
from lockstep.contracts.messages import HostSpan, TraceSummary
from lockstep.serving.exposition import render
from tests.exporter.conftest import running, until
from tests.exporter.host_watch.conftest import S
from tests.exporter.host_watch.job import CAPTURE_S
from tests.support.model_coordinator import coordinating
from tests.support.servers import Mosquitto

HOG = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
SPAN_S = 1.0


@pytest.fixture
def core() -> int:
    return max(os.sched_getaffinity(0))


def started(*command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, *command], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def started_by_none_of_us(*command: str) -> int:
    """Start a process that is no child of the test, whose children count as the exporter's own; return its pid."""
    script = '"$@" < /dev/null > /dev/null & echo $!'
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(done.stdout)


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def trainer(root: Path, core: int) -> Iterator[subprocess.Popen[str]]:
    process = started("-m", "tests.exporter.host_watch.job", str(root / "run-a"), str(core))
    yield process
    ended(process)


@pytest.fixture
def rings(root: Path, trainer: subprocess.Popen[str]) -> Iterator[Rings]:
    rings = Rings(root, ExporterCounters(), {})
    rings.scan(time.monotonic_ns())
    yield rings
    rings.close()


def observe(rings: Rings) -> HostSpan:
    """Return what the rank met in SPAN_S of real time: what is measured is what the kernel does in it."""
    watch = HostWatch(lambda: find_targets(rings.runs.values()))
    targets = find_targets(rings.runs.values())
    first = sample_node(targets, None)
    watch.take(first)
    time.sleep(SPAN_S)
    second = sample_node(targets, first.reading)
    watch.take(second)
    span = watch.span("run-a", 0, first.reading.at_ns, second.reading.at_ns)
    assert span is not None
    return span


def test_the_rank_is_known_by_its_lock(rings: Rings, trainer: subprocess.Popen[str]):
    """Not by what its ring has as its number, which is of its own PID namespace; no one is left when it has ended."""
    (found,) = find_targets(rings.runs.values())
    assert (found.key, found.pid, found.claimed_pid) == (("run-a", 0), trainer.pid, None)
    ended(trainer)
    assert find_targets(rings.runs.values()) == []


def test_a_hog_on_its_core_is_measured(rings: Rings, core: int):
    """The trainer waits for its CPU while the hog runs, and whose the core was is reported in cores and by name."""
    hog = started_by_none_of_us("-c", HOG, str(core))
    try:
        span = observe(rings)
    finally:
        os.kill(hog, signal.SIGKILL)
    assert span.run_queue_wait_ns is not None
    assert span.others_cores is not None
    assert span.cores == 1
    # Two that want one core get about a half each, and less where the test's neighbours want it too.
    assert span.run_queue_wait_ns > 0.3 * span.span_ns
    assert span.others_cores > 0.3
    assert span.busiest
    assert 0.9 * SPAN_S * S < span.span_ns < 3 * SPAN_S * S
    waited_cores = span.run_queue_wait_ns / span.span_ns
    assert span.others_cores == pytest.approx(waited_cores, abs=0.15)  # who waits does so for those who run


def test_without_locks_a_ring_is_nobodys(root: Path, make_ring):
    """A ring on a file system without locks names a process, which has to have it open to be believed."""
    make_ring(pid=os.getpid())
    rings = Rings(root, ExporterCounters(), {})
    rings.scan(time.monotonic_ns())
    (found,) = find_targets(rings.runs.values())
    assert (found.pid, found.claimed_pid) == (None, os.getpid())
    process = sample_node([found], None).reading.ranks["run-a", 0].process
    assert process is not None
    assert process.pid == os.getpid()
    make_ring(rank=1, pid=os.getppid())
    rings.scan(time.monotonic_ns())
    other = next(each for each in find_targets(rings.runs.values()) if each.rank == 1)
    assert sample_node([other], None).reading.ranks["run-a", 1].process is None
    rings.close()


@pytest.mark.servers
async def test_a_capture_brings_what_its_rank_met(
    config: ExporterConfig, trainer: subprocess.Popen[str], mosquitto: Mosquitto, core: int
):
    """From the answer of a real process to the summary on the bus: looks before and after it bracket the capture."""
    exporter = Exporter(replace(config, broker_port=mosquitto.port))
    exporter._summariser._worker = PersistentWorker(("/bin/false",), 1)  # the real one would wait for the hog
    hog = started_by_none_of_us("-c", HOG, str(core))
    try:
        async with coordinating(mosquitto.port) as coordinator, running(exporter):
            await until(exporter._host_watch.totals)
            assert trainer.stdin is not None
            trainer.stdin.write("\n")
            trainer.stdin.flush()
            await coordinator.until(lambda: coordinator.of(TraceSummary), 60)
            (summary,) = coordinator.of(TraceSummary)
            page = render(NodeCollector(exporter.snapshot), "text").decode()
    finally:
        os.kill(hog, signal.SIGKILL)
    host = summary.host
    assert summary.error
    assert host.cores == 1
    assert host.span_ns >= CAPTURE_S * S
    assert host.run_queue_wait_ns > 0.2 * host.span_ns
    assert host.busiest
    for name in ("cpu_wait_time", "process_cpu_time", "other_cpu_time"):
        assert f'lockstep_{name}_seconds_total{{rank="0",run="run-a"}}' in page
