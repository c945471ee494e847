"""Memory of a process and of its control groups, from a made /proc and /sys."""

from pathlib import Path

import pytest

from exporter.memory.reading import MemoryHeadroom, anonymous_bytes, headroom, workers_bytes
from tests.exporter.host_watch.conftest import FakeNode

PAGE = 4096
MEMINFO = "MemTotal:       16000 kB\nMemFree:         100 kB\nMemAvailable:    9000 kB\n"


def group(node: FakeNode, path: str, files: dict[str, str]) -> None:
    folder = Path(node.cgroups) / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def headroom_of(node: FakeNode) -> MemoryHeadroom | None:
    return headroom(42, str(node.proc), str(node.cgroups))


def test_pages_of_files_and_shared_memory_do_not_count(node: FakeNode):
    """A data set that is mapped fills resident memory, and the kernel can drop it."""
    node.write("42/statm", "9000 500 120 1 0 300 0\n")
    assert anonymous_bytes(42, str(node.proc)) == 380 * PAGE


@pytest.mark.parametrize("text", ["", "9000 500", "a b c", "9000 -5 1", "0 0 0 0 0 0 0x"])
def test_what_cannot_be_read_is_not_known(node: FakeNode, text: str):
    """A process that has ended, or no statm at all; a kernel thread truly has none."""
    node.write("42/statm", text)
    assert anonymous_bytes(42, str(node.proc)) in (None, 0)
    assert anonymous_bytes(43, str(node.proc)) is None


def test_workers_are_the_children_of_the_main_thread(node: FakeNode):
    """One of them has just ended."""
    node.write("42/task/42/children", "43 44 45")
    node.write("43/statm", "900 100 20")
    node.write("44/statm", "900 200 20")
    assert workers_bytes(42, str(node.proc)) == 260 * PAGE
    assert workers_bytes(43, str(node.proc)) is None


def test_the_tightest_limit_counts(node: FakeNode):
    """The pod's, of the container's without one, the pod's and the host's; file pages that no one uses make room."""
    node.write("meminfo", MEMINFO)
    node.write("42/cgroup", "0::/pod/main\n")
    group(node, "pod/main", {"memory.max": "max\n", "memory.current": "7000"})
    stat = "anon 5000\ninactive_file 300\n"
    group(node, "pod", {"memory.max": "8000\n", "memory.current": "7000\n", "memory.stat": stat})
    assert headroom_of(node) == MemoryHeadroom(limit_bytes=8000, available_bytes=1300)


def test_a_host_without_limits(node: FakeNode):
    """What is available of all there is."""
    node.write("meminfo", MEMINFO)
    node.write("42/cgroup", "0::/\n")
    assert headroom_of(node) == MemoryHeadroom(limit_bytes=16000 << 10, available_bytes=9000 << 10)


def test_version_1(node: FakeNode):
    """The memory controller's group; the largest number stands for no limit."""
    node.write("42/cgroup", "4:memory:/docker/abc\n")
    none = str((1 << 63) - PAGE)
    group(node, "memory/docker/abc", {"memory.limit_in_bytes": "500", "memory.usage_in_bytes": "499"})
    group(node, "memory", {"memory.limit_in_bytes": none, "memory.usage_in_bytes": "9"})
    assert headroom_of(node) == MemoryHeadroom(limit_bytes=500, available_bytes=1)


def test_nothing_is_known_where_nothing_can_be_read(node: FakeNode):
    """Another PID namespace."""
    assert headroom_of(node) is None
