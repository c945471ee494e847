"""Each check warns where it should and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.doctor.checks import CHECKS, check_all
from lockstep.doctor.verdict import FAIL, OK, ORDER, UNKNOWN, WARN

HEALTHY = {
    "host": "n0",
    "environment": {"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "WARN"},
    "launcher": {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
    "cpu": {"count": 64, "governors": {"performance": 64}, "load_1min": 20.0},
    "affinity": {"42": 64},
    "loader_workers": {"42": [64, 64]},
    "shared_memory": {"total_bytes": 8 << 30, "free_bytes": 7 << 30},
    "memory": {"swap_bytes": 0, "swap_free_bytes": 0},
    "limits": {"open_files": 65536, "locked_bytes": -1},
    "cgroup": {"quota_cpus": 16.0, "nr_periods": 1000, "nr_throttled": 0, "throttled_usec": 0},
    "versions": {"torch": "2.13.0"},
    "mark_extension": True,
    "shared_directory": {"path": "/dev/shm/lockstep", "filesystem": "tmpfs", "unwatched": []},
    "hardware": {"cpu_throttling": {}, "memory_errors": {}, "infiniband": [], "nvidia": [], "nvlink": []},
    "collective_kernels": {
        "builds": [{"directory": "/hooks/a", "torch": "2.13.0", "python": "cpython-311", "source": "ab"}],
        "python": "cpython-311",
        "source": "ab",
    },
}


def verdicts(**changed):
    return {check.name: check for check in check_all({**HEALTHY, **changed})}


def test_a_healthy_node_has_nothing():
    """No check warns, and none is unknown."""
    assert {check.verdict for check in check_all(HEALTHY)} == {OK}


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "words"),
    [
        (
            "shared directory",
            {"shared_directory": {"path": "/scratch/x", "filesystem": "xfs", "unwatched": []}},
            WARN,
            "/scratch/x on xfs",
        ),
        ("shared directory", {"shared_directory": {"path": "/x", "filesystem": ""}}, UNKNOWN, "not known"),
        (
            "shared directory",
            {"shared_directory": {"path": "/x", "filesystem": "tmpfs", "problem": "LOCKSTEP_DIR: got 'x', expected"}},
            WARN,
            "LOCKSTEP_DIR: got 'x', expected: no rank is monitored",
        ),
        (
            "unwatched processes",
            {"shared_directory": {"unwatched": [{"reason": "steps", "text": "call it"}] * 6}},
            WARN,
            "steps: call it; and 2 more",
        ),
        ("unwatched processes", {"shared_directory": {}}, UNKNOWN, "older version"),
        ("collective kernels", {}, OK, "C++, built for torch 2.13.0 in /hooks/a"),
        (
            "collective kernels",
            {"versions": {"torch": "2.12.1"}},
            OK,
            "the builds are for torch 2.13.0 with cpython-311",
        ),
        (
            "collective kernels",
            {"collective_kernels": {**HEALTHY["collective_kernels"], "source": "cd"}},
            OK,
            "another Lockstep",
        ),
        (
            "collective kernels",
            {"collective_kernels": {"builds": []}},
            OK,
            "Python: no build, and torch here is 2.13.0",
        ),
        ("collective kernels", {"versions": {}}, OK, "torch is not installed"),
        ("collective kernels", {"collective_kernels": 1}, UNKNOWN, "older version"),
        ("mark writer", {}, OK, "C extension"),
        ("mark writer", {"mark_extension": False}, OK, "pure Python"),
        ("mark writer", {"mark_extension": "yes"}, UNKNOWN, "older version"),
        ("rank", {}, OK, "3 of 8, local rank 1, by RANK"),
        (
            "rank",
            {"launcher": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}},
            OK,
            "1 of 2, local rank 1, by SLURM_PROCID",
        ),
        ("rank", {"launcher": {}}, OK, "rank 0 of 1, unless training makes a process group"),
        ("rank", {"launcher": {"RANK": "x"}}, WARN, "RANK: got 'x', expected a number"),
        ("rank", {"launcher": {"RANK": 3}}, OK, "rank 0 of 1"),
        ("log level", {"environment": {"NCCL_DEBUG": "TRACE"}}, WARN, "NCCL_DEBUG=TRACE"),
        ("log level", {"environment": {"ASCEND_GLOBAL_LOG_LEVEL": "1"}}, WARN, "ASCEND_GLOBAL_LOG_LEVEL=1"),
        ("log level", {"environment": {"ASCEND_GLOBAL_LOG_LEVEL": "3"}}, OK, "no library"),
        ("log level", {"environment": {"TORCH_LOGS": "+dynamo"}}, WARN, "TORCH_LOGS=+dynamo"),
        ("debugging switches", {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, WARN, "every kernel is waited for"),
        ("debugging switches", {"environment": {"CUDA_LAUNCH_BLOCKING": "0"}}, OK, "none"),
        ("collective library", {"environment": {"NCCL_IB_DISABLE": "1"}}, WARN, "over TCP"),
        ("CPU governor", {"cpu": {"count": 2, "governors": {"powersave": 2}}}, WARN, "2 CPUs powersave"),
        ("CPU governor", {"cpu": {"count": 2, "governors": {}}}, UNKNOWN, "not readable"),
        ("CPU affinity", {"affinity": {"42": 1}, "loader_workers": {"42": [1, 1]}}, WARN, "2 children share 1 CPUs"),
        ("CPU affinity", {"affinity": {"42": 1}, "loader_workers": {"42": [64]}}, OK, "1 of 64 CPUs"),
        ("CPU affinity", {"affinity": {"42": None}}, UNKNOWN, "not readable"),
        ("threads", {"environment": {"OMP_NUM_THREADS": "65"}}, WARN, "65 threads on 64 CPUs"),
        ("threads", {"environment": {}, "affinity": {"1": 64, "2": 64}}, WARN, "2 processes"),
        ("shared memory", {"shared_memory": {"total_bytes": 64 << 20, "free_bytes": 64 << 20}}, WARN, "0.1"),
        ("shared memory", {"shared_memory": {"total_bytes": 8 << 30, "free_bytes": 1 << 20}}, WARN, "0.0 of 8.0"),
        ("shared memory", {"shared_memory": {}}, FAIL, "no /dev/shm"),
        ("CPU quota", {"cgroup": {"quota_cpus": 2.0, "nr_periods": 100, "nr_throttled": 5}}, WARN, "5.0%"),
        ("CPU quota", {"cgroup": {}}, UNKNOWN, "no cgroup"),
        ("swap", {"memory": {"swap_bytes": 4 << 30, "swap_free_bytes": 1 << 30}}, WARN, "3.0 GiB in use"),
        ("open files", {"limits": {"open_files": 1024}}, WARN, "1024"),
        (
            "locked memory",
            {"limits": {"locked_bytes": 65536}, "environment": {"NCCL_IB_HCA": "mlx5"}},
            WARN,
            "0 MiB",
        ),
        ("locked memory", {"limits": {"locked_bytes": 65536}}, OK, "0 MiB"),
        ("load", {"cpu": {"count": 4, "load_1min": 9.0}}, WARN, "9.0 runnable on 4"),
    ],
)
def test_each_check(name, changed, verdict, words):
    """One wrong thing is one warning, which states what was found and what to do."""
    check = verdicts(**changed)[name]
    assert check.verdict == verdict
    assert words in check.found
    assert bool(check.advice) == (verdict in (WARN, FAIL))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(HEALTHY)), JSON | st.dictionaries(st.sampled_from(
    ["count", "governors", "42", "quota_cpus", "open_files", "OMP_NUM_THREADS", "total_bytes"]), JSON)))  # fmt: skip
def test_facts_of_any_form_are_evaluated(facts):
    """A file may hold anything: every check gives a verdict."""
    checks = check_all(facts)
    assert len(checks) == len(CHECKS)
    assert all(check.verdict in ORDER for check in checks)
