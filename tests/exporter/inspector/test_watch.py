"""Files of a node: which belong to ranks, and what the exporter shows of them."""

import os
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.inspector.watch import STALE_SECONDS, InspectorStatus, InspectorWatch
from exporter.reading.rings import Rings
from lockstep.contracts.paths import inspector_directory
from tests.exporter.conftest import NOW_NS
from tests.exporter.inspector.inspected import line


class WatchedNode:
    """Rings and Inspector files below one root; `look` scans and reads both."""

    def __init__(self, root: Path) -> None:
        self.counts = ExporterCounters()
        self.rings = Rings(root, self.counts, {})
        self.watch = InspectorWatch(root, self.counts)
        self.directory = inspector_directory(root)
        self.directory.mkdir(parents=True)

    def write(self, pid: int, *lines: bytes, host: str = "worker-0") -> Path:
        path = self.directory / f"{host}-pid{pid}.log"
        with path.open("ab") as file:
            file.write(b"".join(each + b"\n" for each in lines))
        return path

    def look(self, unix_s: float | None = None):
        self.rings.scan(NOW_NS)
        self.watch.scan(self.rings.runs.values(), unix_s)
        self.watch.read()
        return self.watch.status()


@pytest.fixture
def node(root: Path):
    node = WatchedNode(root)
    yield node
    node.rings.close()


def test_lines_are_counted_for_the_rank_whose_process_wrote_them(node: WatchedNode, make_ring):
    """By host name and pid, as the process sees them: the rank in a communicator is another number."""
    make_ring(rank=5, pid=100)
    make_ring(rank=6, pid=101)
    for pid, time_us in ((100, 900), (101, 100)):
        node.write(pid, line(pid - 100, ranks=2, pid=pid, time_us=time_us))
    status = node.look()
    assert status.lines == {"read": 2, "malformed": 0, "foreign": 0}
    assert status.ranks["run-a", 5]["dp", "AllReduce"].time_ns == 900_000
    assert status.ranks["run-a", 6]["dp", "AllReduce"].arrivals == 1


def test_hostile_files_cost_a_counter(node: WatchedNode, make_ring):
    """Lines of another process in a rank's file, of no rank at all, and no lines; the rank's own are counted."""
    make_ring(rank=0, pid=100)
    node.write(100, b"\xff\x00 no line", line(pid=999), line(hostname="other"), line(pid=100))
    node.write(555, line(pid=555))
    (node.directory / "elsewhere-pid7.log").symlink_to("/etc/hosts")
    (node.directory / "noise").write_bytes(b"x")
    status = node.look()
    assert status.lines == {"read": 1, "malformed": 1, "foreign": 3}
    assert node.counts.rejected["inspector"] == 1
    node.look()
    assert node.counts.rejected["inspector"] == 1


def test_files_of_no_rank_are_emptied_and_old_ones_removed(node: WatchedNode):
    """Shared memory is bounded though no agent runs in the process."""
    path = node.write(555, *[line(pid=555)] * 2000)
    for _ in range(8):
        node.look()
    assert path.stat().st_blocks * 512 <= 8192
    node.look(path.stat().st_mtime + STALE_SECONDS + 1)
    assert not path.exists()


def test_a_rank_that_went_has_no_sums(node: WatchedNode, make_ring):
    """Its series end with its run."""
    ring = make_ring(rank=0, pid=100)
    node.write(100, line(pid=100))
    assert node.look().ranks
    ring.path.unlink()
    os.rmdir(ring.path.parent)  # noqa: PTH106
    assert not node.look().ranks


def test_without_a_directory_nothing_is_read(root: Path):
    """An exporter that may make none."""
    watch = InspectorWatch(root, ExporterCounters())
    watch.scan([])
    watch.read()
    assert watch.status() == InspectorStatus()
