"""Throttling, in both forms of control groups."""

import pytest

from exporter.host_watch.cgroups import throttled_ns
from tests.exporter.host_watch.conftest import FakeNode

V2 = "usage_usec 9\nuser_usec 8\nnr_periods 5\nnr_throttled 2\nthrottled_usec {}\n"
V1 = "nr_periods 5\nnr_throttled 2\nthrottled_time {}\n"


def found(node: FakeNode) -> dict[str, int]:
    throttled = throttled_ns(42, str(node.proc), str(node.cgroups))
    return {folder.removeprefix(str(node.cgroups)): value for folder, value in throttled.items()}


def test_every_group_that_contains_the_process_counts(node: FakeNode):
    """Version 2, in microseconds: the process's own group and those around it, not its neighbours."""
    node.write("42/cgroup", "0::/kubepods/pod1/main\n")
    node.group("kubepods/pod1/main", V2.format(3))
    node.group("kubepods/pod1", V2.format(5))
    node.group("kubepods", "usage_usec 9\n")  # without a limit there is no such figure
    node.group("kubepods/pod2", V2.format(99))
    assert found(node) == {"/kubepods/pod1/main": 3_000, "/kubepods/pod1": 5_000}


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(node: FakeNode, mount: str):
    """The cpu controller's group, in nanoseconds; other controllers have other paths."""
    node.write("42/cgroup", "9:memory:/elsewhere\n4:cpu,cpuacct:/docker/abc\n0::/\n")
    node.group(f"{mount}/docker/abc", V1.format(7))
    node.group(f"{mount}/elsewhere", V1.format(99))
    node.group(mount, V1.format(0))
    assert found(node) == {f"/{mount}/docker/abc": 7, f"/{mount}": 0}


def test_a_container_sees_its_own_group_as_the_root(node: FakeNode):
    """Its limit stands there."""
    node.write("42/cgroup", "0::/\n")
    node.group("", V2.format(3))
    assert found(node) == {"": 3_000}


@pytest.mark.parametrize("line", ["0::/../other", "0::/not/there", "0::relative", "nonsense", ""])
def test_a_process_of_another_namespace_has_nothing_of_ours(node: FakeNode, line: str):
    """Our own root is not its group."""
    node.write("42/cgroup", line + "\n")
    node.group("", V2.format(99))
    node.group("relative", V2.format(99))
    assert found(node) == {}
    assert throttled_ns(43, str(node.proc), str(node.cgroups)) == {}
