"""Each file of /proc, as kernels write it, and as they do not."""

import os
from pathlib import Path

import pytest

from exporter.host_watch import proc
from exporter.host_watch.proc import Process, parse_cores
from tests.exporter.host_watch.conftest import TICK_NS, FakeNode


@pytest.mark.parametrize("command", ["python", "a b", "((x)) y)", "", "pt_data_worker"])
def test_a_process_is_read_whatever_its_command(node: FakeNode, command: str):
    """Blanks and parentheses in a command move nothing."""
    node.process(42, command, parent=7, start=99, user=3, system=2, user_reaped=10, system_reaped=1)
    expected = Process(42, 7, command, 99, 5 * TICK_NS, 11 * TICK_NS)
    assert proc.read_processes(str(node.proc)) == {42: expected}


def test_only_whole_processes_are_read(node: FakeNode):
    """What is no process, ended meanwhile or is cut off is left out; the others stay."""
    node.process(2)
    node.write("4/stat", "4 (x) S 1 2")
    node.write("5/stat", "5 (x S")
    node.write("6/stat", "6 (x) S " + " ".join(["y"] * 40))
    node.write("self/stat", (node.proc / "2/stat").read_text())
    (node.proc / "3").mkdir()
    assert set(proc.read_processes(str(node.proc))) == {2}
    assert proc.read_processes(str(node.proc / "nowhere")) == {}


def test_a_round_is_bounded(node: FakeNode, monkeypatch: pytest.MonkeyPatch):
    """More processes than the limit cost no more; the lowest numbers are looked at."""
    monkeypatch.setattr(proc, "PROCESSES_MAX", 3)
    for pid in (10, 9, 100, 2):
        node.process(pid)
    assert set(proc.read_processes(str(node.proc))) == {2, 9, 10}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 17 3\n", (5, 17)),
        ("5 0 3\n", (5, 0)),
        ("0 0 0\n", (None, None)),
        ("", (None, None)),
        ("5 17\n", (None, None)),
        ("5 x 3\n", (5, None)),
    ],
)
def test_a_thread_is_on_a_cpu_and_waits_for_one(node: FakeNode, text: str, expected: tuple[int | None, int | None]):
    """The first two figures; a measured zero stays 0, and a kernel that does not count, and writes zeros, shows nothing."""
    node.write("42/task/43/schedstat", text)
    assert proc.thread_times_ns(42, 43, str(node.proc)) == expected
    assert proc.thread_times_ns(42, 44, str(node.proc)) == (None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("7", {7}),
        ("", None),
        ("3-1", None),
        ("0-99999999999", None),
        ("a-b", None),
        ("1,", None),
    ],
)
def test_lists_of_cores(text: str, expected: set[int] | None):
    """Ranges and single cores; what is none, or is more than a node can have, is refused before it is expanded."""
    assert parse_cores(text) == expected


def test_cores_of_a_process(node: FakeNode):
    """Those of its main thread, None where its status is not shown."""
    node.cores(42, "0-1,4")
    assert proc.allowed_cores(42, str(node.proc)) == {0, 1, 4}
    assert proc.allowed_cores(43, str(node.proc)) is None


def test_work_of_cores(node: FakeNode):
    """User, nice, system and both kinds of interrupts; not idle, iowait and what other machines took."""
    assert proc.busy_ns(str(node.proc)) == {}
    node.busy(100, 50)
    assert proc.busy_ns(str(node.proc)) == {0: 100 * TICK_NS, 1: 50 * TICK_NS}


def test_pressure_and_load(node: FakeNode):
    """Absent on kernels without them."""
    root = str(node.proc)
    assert (proc.pressure_ns(root), proc.load(root)) == (None, None)
    node.write("pressure/cpu", "some avg10=1.00 avg60=2.00 avg300=3.00 total=1234\nfull avg10=0.00 total=7\n")
    node.write("loadavg", "3.50 2.00 1.00 4/100 99\n")
    assert (proc.pressure_ns(root), proc.load(root)) == (1_234_000, 3.5)


def test_an_open_file_is_known_by_itself_not_by_its_name(node: FakeNode, tmp_path: Path):
    """A link to the same file counts, one to a file of the same name elsewhere or that is gone does not."""
    ring, other = tmp_path / "0.ring", tmp_path / "other" / "0.ring"
    other.parent.mkdir()
    for path in (ring, other):
        path.write_text("")
    descriptors = node.proc / "42" / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "3").symlink_to(other)
    (descriptors / "4").symlink_to(tmp_path / "gone")
    assert not proc.has_open(42, str(ring), str(node.proc))
    (descriptors / "5").symlink_to(ring)
    assert proc.has_open(42, str(ring), str(node.proc))
    assert not proc.has_open(43, str(ring), str(node.proc))
    assert not proc.has_open(42, str(tmp_path / "gone"), str(node.proc))


def test_this_kernel_is_read():
    """The same functions on the real files: this process, with what it may use and has used."""
    me = proc.read_process(os.getpid())
    assert me is not None
    assert me.parent == os.getppid()
    assert me.own_ns > 0
    assert proc.allowed_cores(os.getpid()) == os.sched_getaffinity(0)
    assert proc.busy_ns().keys() >= os.sched_getaffinity(0)
    assert os.getpid() in proc.read_processes()
