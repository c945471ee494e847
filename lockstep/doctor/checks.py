"""Evaluates the facts of one node. Each check is small and pure: facts in, one `Check` out.

Facts may come from another person's file: a value of the wrong type counts as unknown.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.launchers import SINGLE_PROCESS, read_place
from lockstep.doctor.hardware_checks import HARDWARE_CHECKS
from lockstep.doctor.shared_directory import check_shared_directory, check_unwatched
from lockstep.doctor.verdict import FAIL, OK, UNKNOWN, WARN, Check

SHM_MIN_BYTES = 1 << 30
"""Containers get 64 MiB by default; one batch of a vision job per loader worker exceeds that."""
SHARED_MEMORY = "shared memory"
OPEN_FILES_MIN = 4096
"""A rank holds a socket per peer and channel, and descriptors for its workers' batches."""
_HERMES_ENVIRONMENT = "Hermes, Table 4: environment configuration"
_HERMES_BINDING = "Hermes, Table 4: I/O, slow data processing (process binding)"
_HERMES_NETWORK = "Hermes, Table 4: network configuration"
_NCCL = "NCCL documentation, environment variables"
_TRUE = ("1", "ON", "on", "true", "True", "TRUE")

_VERBOSE: dict[str, tuple[str, ...]] = {
    "NCCL_DEBUG": ("INFO", "TRACE"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "INFO"),
    "TORCH_CPP_LOG_LEVEL": ("INFO",),
    "ASCEND_GLOBAL_LOG_LEVEL": ("0", "1"),
    "ASCEND_SLOG_PRINT_TO_STDOUT": ("1",),
    "GLOG_v": ("0", "1"),
    "TORCH_LOGS": (),
}
"""Values that write a line for every operation; an empty tuple means any."""

_SERIAL = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "ASCEND_LAUNCH_BLOCKING": "every kernel is waited for",
    "TORCH_USE_CUDA_DSA": "assertions on the device are compiled in",
    "TORCH_SHOW_CPP_STACKTRACES": "every exception unwinds native stacks",
}
_SLOW_NETWORK = {
    "NCCL_P2P_DISABLE": "ranks of a node talk through host memory",
    "NCCL_SHM_DISABLE": "ranks of a node talk through the network",
    "NCCL_IB_DISABLE": "nodes talk over TCP",
    "NCCL_NET_GDR_DISABLE": "the network copies through host memory",
}

Facts = Mapping[str, Any]


def check_all(facts: Facts) -> list[Check]:
    """Return the results of all checks, in a fixed order."""
    return [check(facts) for check in CHECKS]


def _part(facts: Facts, name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_set(variables: Mapping[str, Any], name: str) -> bool:
    return variables.get(name) in _TRUE


def check_log_level(facts: Facts) -> Check:
    """Whether a library logs every operation."""
    variables = _part(facts, "environment")
    loud = [
        f"{name}={variables[name]}"
        for name, levels in _VERBOSE.items()
        if name in variables and (not levels or variables[name] in levels)
    ]
    return Check(
        name="log level",
        verdict=WARN if loud else OK,
        found=", ".join(loud) or "no library is set to log every operation",
        advice="unset them, or log warnings only" if loud else "",
        source=_HERMES_ENVIRONMENT,
    )


def check_serialisation(facts: Facts) -> Check:
    """Whether a debugging switch makes kernel launches synchronous."""
    variables = _part(facts, "environment")
    on = {name: why for name, why in _SERIAL.items() if _is_set(variables, name)}
    return Check(
        name="debugging switches",
        verdict=WARN if on else OK,
        found="; ".join(f"{name}: {why}" for name, why in on.items()) or "none is on",
        advice=f"unset {', '.join(on)}" if on else "",
        source="Hermes, Table 4: synchronisation; PyTorch documentation",
    )


def check_network_switches(facts: Facts) -> Check:
    """Whether a fast path of a collective library is disabled."""
    variables = _part(facts, "environment")
    on = {name: why for name, why in _SLOW_NETWORK.items() if _is_set(variables, name)}
    return Check(
        name="collective library",
        verdict=WARN if on else OK,
        found="; ".join(f"{name}: {why}" for name, why in on.items()) or "no fast path is switched off",
        advice=f"unset {', '.join(on)} unless the machine needs it" if on else "",
        source=f"{_HERMES_NETWORK}; {_NCCL}",
    )


def check_governor(facts: Facts) -> Check:
    """Whether the CPUs run at full speed."""
    governors = _part(_part(facts, "cpu"), "governors")
    slow = {name: count for name, count in governors.items() if name not in ("performance", "schedutil")}
    found = ", ".join(f"{count} CPUs {name}" for name, count in governors.items())
    return Check(
        name="CPU governor",
        verdict=UNKNOWN if not governors else WARN if slow else OK,
        found=found or "not readable (a virtual machine, or a container without /sys)",
        advice="cpupower frequency-set --governor performance" if slow else "",
        source=_HERMES_ENVIRONMENT,
    )


def check_affinity(facts: Facts) -> Check:
    """Whether the trainer or its loader workers share too few CPUs."""
    cpu, affinity = _part(facts, "cpu"), _part(facts, "affinity")
    workers = _part(facts, "loader_workers")
    tight = []
    for pid in affinity:
        allowed = _number(affinity, pid)
        listed = workers.get(pid)
        children = [count for count in listed if isinstance(count, int)] if isinstance(listed, list) else []
        if allowed is not None and children and allowed < 1 + len(children) and max(children) <= allowed:
            tight.append(f"process {pid} and its {len(children)} children share {allowed:.0f} CPUs")
    total = _number(cpu, "count") or 0
    known = [count for count in affinity.values() if isinstance(count, int)]
    found = f"{min(known)} of {total:.0f} CPUs allowed" if known else "affinity is not readable"
    return Check(
        name="CPU affinity",
        verdict=UNKNOWN if not known else WARN if tight else OK,
        found="; ".join(tight) or found,
        advice="taskset -acp 0-N PID, or start without taskset: a mask is inherited by loader workers" if tight else "",
        source=_HERMES_BINDING,
    )


def check_threads(facts: Facts) -> Check:
    """Whether the node's ranks together start more threads than it has CPUs."""
    variables, affinity = _part(facts, "environment"), _part(facts, "affinity")
    cpus = _number(_part(facts, "cpu"), "count") or 0
    text = variables.get("OMP_NUM_THREADS", "")
    threads = int(text) if isinstance(text, str) and text.isdecimal() else None
    ranks = len(affinity) if _part(facts, "loader_workers") else 1
    if threads is None:
        return Check(
            name="threads",
            verdict=WARN if ranks > 1 else OK,
            found=f"OMP_NUM_THREADS is not set: each of {ranks} processes may use every CPU",
            advice="torchrun sets 1; CPUs / ranks of the node is a good start" if ranks > 1 else "",
            source="PyTorch documentation, torchrun",
        )
    over = ranks * threads > cpus > 0
    return Check(
        name="threads",
        verdict=WARN if over else OK,
        found=f"{ranks} processes x {threads} threads on {cpus:.0f} CPUs",
        advice=f"OMP_NUM_THREADS={max(int(cpus) // ranks, 1)}" if over else "",
        source="PyTorch documentation, torchrun",
    )


def check_shared_memory(facts: Facts) -> Check:
    """Whether /dev/shm has space for what loader workers pass on."""
    shm = _part(facts, "shared_memory")
    total, free = _number(shm, "total_bytes"), _number(shm, "free_bytes")
    if total is None or free is None:
        return Check(name=SHARED_MEMORY, verdict=FAIL, found="no /dev/shm", advice="mount a tmpfs there")
    small = total < SHM_MIN_BYTES or free < total / 10
    return Check(
        name=SHARED_MEMORY,
        verdict=WARN if small else OK,
        found=f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of /dev/shm free",
        advice="docker run --shm-size=8g, or an emptyDir with medium: Memory" if small else "",
        source="PyTorch documentation, multiprocessing; Hermes, Table 4: I/O",
    )


def check_quota(facts: Facts) -> Check:
    """Whether a CPU quota occasionally stops the job."""
    cgroup = _part(facts, "cgroup")
    quota, throttled = _number(cgroup, "quota_cpus"), _number(cgroup, "throttled_usec") or 0.0
    periods, stopped = _number(cgroup, "nr_periods") or 0.0, _number(cgroup, "nr_throttled") or 0.0
    share = stopped / periods if periods else 0.0
    often = share > 0.01  # noqa: PLR2004  (1 % of periods of 100 ms is a stall every 10 s)
    found = "no quota" if quota is None else f"{quota:g} CPUs"
    if cgroup:
        found += f"; stopped in {share:.1%} of its periods, {throttled / 1e6:.1f} s in all"
    return Check(
        name="CPU quota",
        verdict=WARN if often else OK if cgroup else UNKNOWN,
        found=f"{found}; stopped in {share:.1%} of its periods, {throttled / 1e6:.1f} s in all"
        if cgroup
        else "no cgroup",
        advice="raise or remove the CPU limit: a throttled process stands still for the rest of 100 ms"
        if often
        else "",
        source="Linux kernel documentation, cgroup v2",
    )


def check_swap(facts: Facts) -> Check:
    """Whether memory is swapped out."""
    memory = _part(facts, "memory")
    total, free = _number(memory, "swap_bytes"), _number(memory, "swap_free_bytes")
    if total is None or free is None:
        return Check(name="swap", verdict=UNKNOWN, found="not readable", source=_HERMES_ENVIRONMENT)
    used = total - free
    return Check(
        name="swap",
        verdict=WARN if used > 1 << 30 else OK,
        found=f"{used / 2**30:.1f} GiB in use" if total else "none",
        advice="swapoff -a, or free memory" if used > 1 << 30 else "",
        source=_HERMES_ENVIRONMENT,
    )


def check_open_files(facts: Facts) -> Check:
    """Whether sockets and workers fit the limit of open files."""
    files = _number(_part(facts, "limits"), "open_files")
    small = files is not None and 0 <= files < OPEN_FILES_MIN
    return Check(
        name="open files",
        verdict=UNKNOWN if files is None else WARN if small else OK,
        found="not readable" if files is None else "unlimited" if files < 0 else f"{files:.0f}",
        advice="ulimit -n 65536" if small else "",
        source="PyTorch documentation, multiprocessing (file descriptors)",
    )


def check_locked_memory(facts: Facts) -> Check:
    """Whether RDMA can register its memory."""
    variables = _part(facts, "environment")
    locked = _number(_part(facts, "limits"), "locked_bytes")
    uses = any(name.startswith(("NCCL_IB_", "HCCL_RDMA")) for name in variables)
    small = uses and locked is not None and 0 <= locked < 1 << 30
    return Check(
        name="locked memory",
        verdict=UNKNOWN if locked is None else WARN if small else OK,
        found="not readable" if locked is None else "unlimited" if locked < 0 else f"{locked / 2**20:.0f} MiB",
        advice="ulimit -l unlimited: RDMA registers its buffers" if small else "",
        source=_NCCL,
    )


def check_load(facts: Facts) -> Check:
    """Whether other processes keep the CPUs busy."""
    cpu = _part(facts, "cpu")
    load, count = _number(cpu, "load_1min"), _number(cpu, "count")
    if load is None or not count:
        return Check(name="load", verdict=UNKNOWN, found="not readable", source=_HERMES_ENVIRONMENT)
    busy = load > 1.2 * count
    return Check(
        name="load",
        verdict=WARN if busy else OK,
        found=f"{load:.1f} runnable on {count:.0f} CPUs in the last minute",
        advice="find who else runs here: top, or the exporter's host metrics" if busy else "",
        source="Hermes, Table 4: CPU, contention",
    )


def check_rank(facts: Facts) -> Check:
    """Whether the environment gives a rank, and in which variable. During training, a process group overrides it."""
    name = "rank"
    if "launcher" not in facts:
        return Check(name=name, verdict=UNKNOWN, found="missing from these facts: an older version wrote them")
    variables = {key: value for key, value in _part(facts, "launcher").items() if isinstance(value, str)}
    try:
        place = read_place(variables)
    except ConfigError as error:
        return Check(name=name, verdict=WARN, found=str(error), advice="a training with these variables is not watched")
    if place.source == SINGLE_PROCESS:
        found = "no launcher's variables: rank 0 of 1, unless training makes a process group"
    else:
        found = f"{place.rank} of {place.world_size}, local rank {place.local_rank}, by {place.source}"
    return Check(name=name, verdict=OK, found=found)


def check_collective_kernels(facts: Facts) -> Check:
    """Whether the agent observes collectives in C++: there is a build for exactly this torch, Python and Lockstep."""
    name = "collective kernels"
    versions, kernels = _part(facts, "versions"), _part(facts, "collective_kernels")
    torch, listed = versions.get("torch"), kernels.get("builds")
    if not isinstance(listed, list):
        return Check(name=name, verdict=UNKNOWN, found="missing from these facts: an older version wrote them")
    if not torch:
        return Check(name=name, verdict=OK, found="torch is not installed here")
    builds = [build for build in listed if isinstance(build, Mapping)]
    for build in builds:
        if all(build.get(part) == kernels.get(part) for part in ("python", "source")) and build.get("torch") == torch:
            return Check(name=name, verdict=OK, found=f"C++, built for torch {torch} in {build.get('directory')}")
    others = ", ".join(sorted({f"torch {build.get('torch')} with {build.get('python')}" for build in builds}))
    reason = f"the builds are for {others}, or for another Lockstep" if others else "no build"
    found = f"Python: {reason}, and torch here is {torch}; `lockstep build-hooks` builds those in C++"
    return Check(name=name, verdict=OK, found=found)


def check_mark_writer(facts: Facts) -> Check:
    """Whether the agent writes its marks in C, i.e. the extension was built where Lockstep was installed."""
    name = "mark writer"
    has_extension = facts.get("mark_extension")
    if not isinstance(has_extension, bool):
        return Check(name=name, verdict=UNKNOWN, found="missing from these facts: an older version wrote them")
    if has_extension:
        return Check(name=name, verdict=OK, found="C extension")
    found = (
        "pure Python: no C extension of this version, so a step costs the training thread 5 times as much; install "
        "Lockstep again where there is a compiler"
    )
    return Check(name=name, verdict=OK, found=found)


CHECKS: tuple[Callable[[Facts], Check], ...] = (
    check_rank,
    check_log_level,
    check_serialisation,
    check_network_switches,
    check_governor,
    check_affinity,
    check_threads,
    check_shared_memory,
    check_shared_directory,
    check_unwatched,
    check_quota,
    check_swap,
    check_open_files,
    check_locked_memory,
    check_load,
    check_collective_kernels,
    check_mark_writer,
    *HARDWARE_CHECKS,
)
