"""What is read of a node, from a made /proc and /sys and from this machine."""

import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from lockstep.contracts.paths import unwatched_directory
from lockstep.contracts.unwatched import pack_mark
from lockstep.doctor.facts import read_facts

HOLDER = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); input()"


@pytest.fixture
def root(tmp_path):
    """Return a node with 4 CPUs on two governors, a bound trainer with two workers, a quota, and the NVIDIA driver."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    for cpu in range(4):
        write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "powersave\n" if cpu else "performance\n")
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n")
    write("proc/self/cgroup", "0::/job\n")
    write("sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    write("sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_periods 200\nnr_throttled 30\nthrottled_usec 1500000\n")
    write("proc/meminfo", "MemTotal: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n")
    write("proc/loadavg", "3.5 2 1 1/100 77\n")
    write("proc/42/status", "Cpus_allowed_list:\t2\n")
    write("proc/42/environ", "NCCL_DEBUG=INFO\0HOME=/root\0NCCL_AUTH_TOKEN=hidden\0")
    write("proc/42/task/42/children", "43 44")
    write("proc/43/status", "Cpus_allowed_list:\t2\n")
    write("proc/44/status", "Cpus_allowed_list:\t0-1,3\n")
    write(
        "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release\n"
    )
    return tmp_path


OLDER_BUILD = ModuleType("_marks")
OLDER_BUILD.__spec__ = ModuleSpec("lockstep.agent._marks", None)


@pytest.mark.parametrize("build", [OLDER_BUILD, None], ids=["an older build", "none"])
def test_an_extension_that_the_agent_leaves_aside_is_none(root, monkeypatch, build):
    """The agent writes its marks in Python then, and so the facts state."""
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", build)
    assert read_facts(root=root, environment={})["mark_extension"] is False


def test_a_node_is_read(root):
    """Every fact comes from its file, those of the trainer from the trainer's, and nothing that looks like a secret."""
    facts = read_facts(root=root, environment={"OMP_NUM_THREADS": "8"}, pids=[42, 999])
    assert facts["cpu"] == {
        "count": 4,
        "governors": {"performance": 1, "powersave": 3},
        "allowed": 4,
        "load_1min": 3.5,
        "transparent_huge_pages": "madvise",
        "numa_balancing": "",
    }
    assert facts["environment"] == {"NCCL_DEBUG": "INFO"}
    assert facts["affinity"] == {"42": 1}
    assert facts["loader_workers"] == {"42": [1, 3]}
    assert facts["cgroup"] == {"quota_cpus": 1.5, "nr_periods": 200, "nr_throttled": 30, "throttled_usec": 1500000}
    assert facts["memory"] == {"total_bytes": 1_024_000, "swap_bytes": 102_400, "swap_free_bytes": 40_960}
    assert facts["versions"]["nvidia driver"] == "570.124.06"


def test_a_node_that_reports_nothing_is_no_error(tmp_path):
    """Containers hide much of it: what cannot be read is left out."""
    facts = read_facts(root=tmp_path, environment={})
    assert facts["cpu"]["governors"] == {}
    assert facts["cgroup"] == {}
    assert facts["shared_memory"] == {}
    assert facts["affinity"] == {str(os.getpid()): None}


def test_this_machine_can_be_read():
    """Facts are JSON, and know the CPUs that this process may use."""
    facts = json.loads(json.dumps(read_facts(environment={})))
    assert facts["affinity"][str(os.getpid())] == len(os.sched_getaffinity(0))
    assert facts["versions"]["python"]
    assert facts["limits"]["open_files"] != 0


@pytest.mark.parametrize("text", ["", "a-b", "1-", "-", "1,,2"])
def test_lists_of_cpus_that_are_none(root, text):
    """Text that is no list is not known rather than zero."""
    (root / "proc/42/status").write_text(f"Cpus_allowed_list:\t{text}\n")
    assert read_facts(root=root, environment={}, pids=[42])["affinity"] == {"42": None}


def test_the_shared_directory_is_read(root, tmp_path):
    """Its file system, and only those marks that a living process holds."""
    (root / "proc/self/mountinfo").write_text("21 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    directory = unwatched_directory(tmp_path / "shm")
    directory.mkdir(parents=True)
    (directory / "dead").write_bytes(pack_mark("ring", "no space"))
    held = directory / "held"
    held.write_bytes(pack_mark("steps", "no step"))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    facts = read_facts(root=root, environment={"LOCKSTEP_DIR": str(tmp_path / "shm")})["shared_directory"]
    holder.communicate("\n")
    assert facts == {
        "path": str(tmp_path / "shm"),
        "problem": "",
        "filesystem": "ext4",
        "unwatched": [{"reason": "steps", "text": "no step"}],
    }


def test_a_shared_directory_that_no_rank_would_use_is_named(root):
    """A relative path would be another one for each process: what is wrong with it, and what is so of the default."""
    found = read_facts(root=root, environment={"LOCKSTEP_DIR": "shm"})["shared_directory"]
    assert found["problem"] == "LOCKSTEP_DIR: got 'shm', expected an absolute path"
    assert found["path"] == "/dev/shm/lockstep"
