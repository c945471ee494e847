"""What memory is left, from trees of files as kernels show them."""

import pytest

from lockstep.agent.capture.memory import available_bytes

MEMINFO = "MemTotal:       24683520 kB\nMemFree:         1000 kB\nMemAvailable:    2000 kB\n"
NO_LIMIT_V1 = "9223372036854771712"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_bytes(root / "proc", root / "cgroup")


def test_host_without_groups(tmp_path):
    """The host's own figure, in bytes."""
    assert tree(tmp_path, {"proc/meminfo": MEMINFO}) == 2000 * 1024


def test_nothing_known(tmp_path):
    """Where nothing shows, nothing is reported."""
    assert available_bytes(tmp_path, tmp_path) is None


@pytest.mark.parametrize("at", ["cgroup/pod/job", "cgroup/pod"])
def test_tightest_group_decides(tmp_path, at):
    """A limit holds for everything below it, and unused file pages count as room."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/pod/job\n",
        "cgroup/pod/memory.max": "max\n",
        "cgroup/pod/job/memory.max": "max\n",
        "cgroup/pod/job/memory.current": "400000\n",
    }
    limit = {
        f"{at}/memory.max": "1000000\n",
        f"{at}/memory.current": "600000\n",
        f"{at}/memory.stat": "anon 1\ninactive_file 50000\n",
    }
    assert tree(tmp_path, files | limit) == 450_000


def test_container_sees_its_group_as_the_root(tmp_path):
    """Without a namespace the path is the host's and not there; the limit stands at the root."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/kubepods/pod1/c1\n",
        "cgroup/memory.max": "1000000",
        "cgroup/memory.current": "900000",
    }
    assert tree(tmp_path, files) == 100_000


def test_first_version(tmp_path):
    """Version 1 has other names, and a number near 2^63 for no limit."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/job\n0::/\n",
        "cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "cgroup/memory/memory.usage_in_bytes": "5",
        "cgroup/memory/job/memory.limit_in_bytes": "70000",
        "cgroup/memory/job/memory.usage_in_bytes": "80000",
    }
    assert tree(tmp_path, files) == 0


def test_this_machine_has_memory_left():
    """The real files of this machine hold something plausible."""
    assert 1 << 20 < available_bytes() < 1 << 50
