"""The memory of ranks over their steps, from a made /proc: what is reported, shown, and when at once."""

import struct
from pathlib import Path

import pytest

from exporter.host_watch.host_reading import Target
from exporter.memory.memory_watch import REPORT_NS, TARGETS_NS, MemoryWatch
from exporter.reading.attempt_steps import AttemptSteps
from exporter.reading.heartbeats import run_heartbeat
from exporter.reading.ring_file import RingFile
from exporter.reading.run_state import RankState, RunState
from lockstep.contracts import ring as layout
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.limits import RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX
from lockstep.contracts.memory_report import DEVICE, HOST, MEMORY_PARTS, WORKERS, MemorySlope, RankMemory
from lockstep.contracts.messages import NodeAlive, RunHeartbeat
from lockstep.contracts.topics import ALIVE, node_topic
from tests.exporter.conftest import NOW_NS, make_ring_file
from tests.exporter.host_watch.conftest import FakeNode

PAGE = 4096
MIB = 1 << 20
TICK_NS = 200_000_000


class Watched:
    """Two ranks of a run; `play` goes on by one step a tick."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.now_ns = NOW_NS
        self.run = RunState(name="job", directory=folder)
        self.targets: list[Target] = []
        for rank in (0, 1):
            ring = make_ring_file(folder, rank, now_ns=NOW_NS)
            file = RingFile(ring.path, rank)
            self.run.ranks[rank] = RankState(
                header=file.header, ring=file, steps=AttemptSteps(file.header.block_count), heartbeat_ns=NOW_NS
            )
            self.targets.append(Target(run="job", rank=rank, ring=str(ring.path), pid=100 + rank))
        self.rings = [rank_state.ring for rank_state in self.run.ranks.values()]
        self.watch = MemoryWatch(
            lambda: self.targets, proc=str(node.proc), cgroups=str(node.cgroups), clock_ns=lambda: self.now_ns
        )
        self.step = -1
        node.write("meminfo", "MemTotal: 16000 kB\nMemAvailable: 9000 kB\n")
        for rank in (0, 1):
            self.resident(rank, 500 * MIB)

    def resident(self, rank: int, size_bytes: int) -> None:
        self.node.write(f"{100 + rank}/statm", f"999999 {size_bytes // PAGE + 7} 7 1 0 1 0")

    def tick(self) -> bool:
        self.step += 1
        self.now_ns += TICK_NS
        for rank_state in self.run.ranks.values():
            rank_state.totals.last_step = self.step
        return self.watch.tick([self.run])

    def leak(self, steps: int, rank: int = 1) -> int:
        """Let a rank leak 5 MiB a step; return how often a heartbeat was due at once."""
        asked = 0
        for _ in range(steps):
            self.resident(rank, 500 * MIB + 5 * MIB * max(self.step - 50, 0))
            asked += self.tick()
        return asked


@pytest.fixture
def watched(node: FakeNode, tmp_path: Path) -> Watched:
    folder = tmp_path / "run"
    folder.mkdir()
    return Watched(node, folder)


def test_a_leak_is_reported_with_the_next_heartbeat_and_causes_one(watched: Watched):
    """Once: what goes on growing is no news."""
    assert watched.leak(200) == 1
    heartbeat = run_heartbeat(watched.run, watched.now_ns, watched.watch.report(watched.run))
    quiet, leaking = heartbeat.memory
    assert (quiet.rank, leaking.rank) == (0, 1)
    assert not any(MemorySlope(*row).is_steady for row in quiet.trends)
    steady = next(trend for trend in map(MemorySlope._make, leaking.trends) if trend.is_steady)
    assert (steady.part, steady.level) == (HOST, 0)
    assert steady.bytes_per_step == pytest.approx(5 * MIB)
    assert (leaking.available_bytes, leaking.limit_bytes) == (9000 << 10, 16000 << 10)
    assert watched.watch.views()["job", 1].growth == {HOST: pytest.approx(5 * MIB)}
    assert watched.watch.views()["job", 0].growth == {}


@pytest.mark.parametrize("steps_per_read", [1, 5, 7])
def test_a_leak_is_found_though_steps_are_known_at_every_fifth_tick_only(watched: Watched, steps_per_read: int):
    """Its slope is that of the steps, and not one per read; samples between two reads do not count as one."""
    step = -1
    for tick in range(200):
        watched.resident(1, 500 * MIB + 5 * MIB * max(tick - 50, 0))
        watched.now_ns += TICK_NS
        if tick % 5 == 4:
            step += 5 * steps_per_read
            for rank_state in watched.run.ranks.values():
                rank_state.totals.last_step = step
        watched.watch.tick([watched.run])
    quiet, leaking = watched.watch.report(watched.run)
    steady = [trend for trend in map(MemorySlope._make, leaking.trends) if trend is not None and trend.is_steady]
    assert steady[0].level == 0
    assert steady[0].bytes_per_step == pytest.approx(5 * MIB / steps_per_read, rel=0.1)
    assert not any(MemorySlope(*row).is_steady for row in quiet.trends)


def test_the_largest_heartbeat_fits(watched: Watched):
    """All ranks of all runs of a node, with every part in every window."""
    slopes = [
        MemorySlope(part, level, 1 << 40, 1 << 41, 1234.5678, True) for part in MEMORY_PARTS for level in range(4)
    ]
    most = 1 << 50
    memory = [
        RankMemory(
            rank=(1 << 20) - 1 - rank,
            step=1 << 41,
            host_bytes=most,
            workers_bytes=most,
            available_bytes=most,
            limit_bytes=most,
            device_bytes=most,
            device_limit_bytes=most,
            trends=list(slopes),
        )
        for rank in range(RANKS_PER_NODE_MAX)
    ]
    beat = RunHeartbeat(run="r" * 128, revision=1, alive_unix_ns=[1 << 61] * RANKS_PER_NODE_MAX, memory=memory)
    alive = NodeAlive(node="n", alive=True, unix_ns=1, stream_id=1, runs=[beat] * RUNS_PER_NODE_MAX)
    assert decode(node_topic("n", ALIVE), encode(alive)) == alive


def test_heartbeats_for_growth_keep_their_distance(watched: Watched):
    """Two ranks that begin to grow within two seconds are one piece of news, then another."""
    due = []
    for _ in range(200):
        for rank in (0, 1):
            watched.resident(rank, 500 * MIB + 5 * MIB * max(watched.step - 50 - 8 * rank, 0))
        if watched.tick():
            due.append(watched.now_ns)
    assert len(due) == 2
    assert due[1] - due[0] >= REPORT_NS


def test_another_process_begins_again(watched: Watched):
    """A restarted rank has another pid, or another attempt; its memory starts small."""
    watched.leak(200)
    watched.targets[1] = Target(run="job", rank=1, ring=watched.targets[1].ring, pid=300)
    watched.node.write("300/statm", "9 9 0 1 0 1 0")
    watched.now_ns += TARGETS_NS
    watched.tick()
    view = watched.watch.views()["job", 1]
    assert view.sizes == {HOST: 9 * PAGE}
    assert view.growth == {}


def test_a_process_that_is_not_known_has_no_figures(watched: Watched):
    """Another PID namespace: no series, and no report."""
    watched.targets = []
    watched.leak(100)
    assert watched.watch.report(watched.run) == []
    assert watched.watch.views() == {}


def test_a_rank_without_steps_is_shown_and_not_reported(watched: Watched):
    """It sets up."""
    for rank_state in watched.run.ranks.values():
        rank_state.totals.last_step = None
    watched.watch.tick([watched.run])
    assert watched.watch.report(watched.run) == []
    assert watched.watch.views()["job", 0].sizes == {HOST: 500 * MIB}


def test_workers_count_by_themselves(watched: Watched):
    """Their memory goes with them."""
    watched.node.write("100/task/100/children", "900")
    watched.node.write("900/statm", "900 100 20")
    watched.tick()
    assert watched.watch.views()["job", 0].sizes[WORKERS] == 80 * PAGE
    watched.node.write("100/task/100/children", "")
    for _ in range(6):
        watched.tick()
    assert WORKERS not in watched.watch.views()["job", 0].sizes


def test_the_devices_memory_comes_from_the_ring(watched: Watched):
    """What the agent writes of the framework's counters; four zeros are not known."""
    watched.tick()
    assert watched.watch.report(watched.run)[0].device_bytes is None
    path = watched.rings[0].path
    with path.open("r+b") as file:
        file.seek(layout.DEVICE_MEMORY_OFFSET)
        file.write(struct.pack("<4Q", 700, 600, 650, 1000))
    for _ in range(6):
        watched.tick()
    report = watched.watch.report(watched.run)[0]
    assert (report.device_bytes, report.device_limit_bytes) == (700, 1000)
    sizes = watched.watch.views()["job", 0].sizes
    assert (sizes[DEVICE], sizes["device_allocated"], sizes["device_peak"]) == (700, 600, 650)


def test_a_device_word_that_no_agent_writes_is_left_alone(watched: Watched):
    """The other figures stand."""
    with watched.rings[0].path.open("r+b") as file:
        file.seek(layout.DEVICE_MEMORY_OFFSET)
        file.write(b"\xff" * layout.DEVICE_MEMORY_BYTES)
    watched.tick()
    assert watched.watch.views()["job", 0].sizes == {HOST: 500 * MIB}
