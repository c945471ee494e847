"""Reads a node's facts from /proc, /sys, the environment and installed versions. Does not import torch.

What cannot be read is left out; nothing raises. Files of /proc and /sys are small, and only their beginning is read.
The only program that is started is nvidia-smi (`hardware`).
"""

import os
import platform
import re
import resource
import shutil
import socket
import sysconfig
from collections.abc import Iterable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from lockstep.contracts import native_hooks
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.launchers import VARIABLES
from lockstep.doctor.files import text_of
from lockstep.doctor.hardware import read_hardware
from lockstep.doctor.shared_directory import read_shared_directory

FACTS_VERSION = 1
PACKAGES = (
    *("torch", "torch-npu", "triton", "numpy", "mindspore", "megatron-core", "deepspeed", "transformers", "accelerate"),
    *("lightning", "flash-attn", "transformer-engine", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12"),
    *("nvidia-cudnn-cu13", "lockstep"),
)
VARIABLE_PREFIXES = (
    *("NCCL_", "HCCL_", "ASCEND_", "ACLNN_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "GLOO_", "UCX_", "FI_"),
    *("KMP_", "MALLOC_", "MS_", "TASK_QUEUE_", "GLOG_", "NVTE_", "TRITON_"),
)
"""Variables that control collectives, memory, threads and logs."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY", re.IGNORECASE)
_VALUE_MAX = 256  # characters of a variable's value
_CPUS_MAX = 4096
_BUILDS_MAX = 100
_DRIVERS = {
    "nvidia": ("proc/driver/nvidia/version", re.compile(r"Kernel Module(?: for \S+)?\s+(\S+)")),
    "ascend": ("usr/local/Ascend/driver/version.info", re.compile(r"Version\s*=\s*(\S+)")),
    "amdgpu": ("sys/module/amdgpu/version", re.compile(r"(\S+)")),
}


def read_facts(
    *,
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
    pids: Iterable[int] = (),
) -> dict[str, Any]:
    """Return the facts of this node as JSON values.

    `root` is where /proc and /sys are found. `pids` are processes of the job; if they can be read, their environment
    and affinity are used instead of this process's.
    """
    chosen = [pid for pid in pids if (root / f"proc/{pid}").is_dir()]
    variables = dict(environment)
    for pid in chosen[:1]:
        variables = _environment_of(root, pid) or variables
    return {
        "facts_version": FACTS_VERSION,
        "host": socket.gethostname(),
        "versions": _versions(root),
        "environment": _wanted(variables),
        "launcher": {name: variables[name][:_VALUE_MAX] for name in VARIABLES if name in variables},
        "cpu": _cpu(root),
        "affinity": {str(pid): _affinity(root, pid) for pid in (chosen or [os.getpid()])},
        "loader_workers": {str(pid): _children(root, pid) for pid in chosen},
        "shared_memory": _space(root / "dev/shm"),
        "shared_directory": read_shared_directory(variables, root / "proc/self/mountinfo"),
        "memory": _memory(root),
        "limits": _limits(),
        "cgroup": _cgroup(root),
        "collective_kernels": _collective_kernels(environment),
        "hardware": read_hardware(root),
        "mark_extension": _has_mark_extension(),
    }


def _has_mark_extension() -> bool:
    """Whether the agent can use its C extension; it ignores an older build without kernels (mark_writer.py)."""
    try:
        return hasattr(import_module("lockstep.agent._marks"), "CollectiveKernel")
    except ImportError:
        return False


def _versions(root: Path) -> dict[str, str]:
    found = {"kernel": platform.release(), "python": platform.python_version(), "libc": " ".join(platform.libc_ver())}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for name, (path, pattern) in _DRIVERS.items():
        match = pattern.search(text_of(root / path))
        if match:
            found[f"{name} driver"] = match[1]
    return found


def _wanted(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value[:_VALUE_MAX]
        for name, value in sorted(variables.items())
        if name.startswith(VARIABLE_PREFIXES) and not _SECRET.search(name)
    }


def _environment_of(root: Path, pid: int) -> dict[str, str]:
    pairs = (line.partition("=") for line in text_of(root / f"proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _cpu(root: Path) -> dict[str, Any]:
    cpus = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"))[:_CPUS_MAX]
    governors: dict[str, int] = {}
    for cpu in cpus:
        governor = text_of(cpu / "cpufreq/scaling_governor").strip()
        if governor:
            governors[governor] = governors.get(governor, 0) + 1
    status = text_of(root / "proc/self/status")
    return {
        "count": len(cpus) or os.cpu_count() or 0,
        "governors": governors,
        "allowed": _cpu_count(_field(status, "Cpus_allowed_list")),
        "load_1min": _first_number(text_of(root / "proc/loadavg")),
        "transparent_huge_pages": _chosen(text_of(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "numa_balancing": text_of(root / "proc/sys/kernel/numa_balancing").strip(),
    }


def _affinity(root: Path, pid: int) -> int | None:
    """Return the number of CPUs that a process may use."""
    return _cpu_count(_field(text_of(root / f"proc/{pid}/status"), "Cpus_allowed_list"))


def _children(root: Path, pid: int) -> list[int | None]:
    """Return the number of CPUs that each child of a process may use: the loader workers, if it has any."""
    children = text_of(root / f"proc/{pid}/task/{pid}/children").split()
    return [_affinity(root, int(child)) for child in children[:256] if child.isdecimal()]


def _field(status: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith(name + ":")), "")


def _cpu_count(text: str) -> int | None:
    """Return the number of CPUs in a list like `0-3,8`, or None if it is not a list."""
    count = 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return None
        count += int(last) - int(first) + 1 if dash else 1
    return count


def _first_number(text: str) -> float | None:
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None


def _chosen(text: str) -> str:
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""


def _space(path: Path) -> dict[str, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return {}
    return {"total_bytes": usage.total, "free_bytes": usage.free}


def _memory(root: Path) -> dict[str, int]:
    """Return sizes of /proc/meminfo in bytes."""
    names = {"MemTotal": "total_bytes", "SwapTotal": "swap_bytes", "SwapFree": "swap_free_bytes"}
    found = {}
    for line in text_of(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in names and rest.split()[:1] and rest.split()[0].isdecimal():
            found[names[name]] = int(rest.split()[0]) * 1024
    return found


def _collective_kernels(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the torch, Python and sources of existing C++ kernel builds, and those that this node needs."""
    builds = []
    for place in native_hooks.search_directories(environment):
        for path in sorted(place.glob(f"*/{native_hooks.MANIFEST_NAME}"))[:_BUILDS_MAX]:
            try:
                target = native_hooks.read_manifest(path).target
            except (OSError, MalformedError):
                continue
            builds.append(
                {"directory": str(path.parent), "torch": target.torch_version, "python": target.python}
                | {"source": target.source_sha256}
            )
    try:
        source = native_hooks.source_sha256()
    except OSError:
        source = ""
    return {"builds": builds, "python": str(sysconfig.get_config_var("SOABI")), "source": source}


def _limits() -> dict[str, int]:
    """Return the soft limits; -1 is unlimited."""
    wanted = {"open_files": resource.RLIMIT_NOFILE, "locked_bytes": resource.RLIMIT_MEMLOCK}
    return {name: resource.getrlimit(limit)[0] for name, limit in wanted.items()}


def _cgroup(root: Path) -> dict[str, float]:
    """Return quota and throttling of this process's cgroup (version 2); empty without one."""
    path = next((line[3:] for line in text_of(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    base = root / "sys/fs/cgroup"
    folder = base / path.strip("/") if path and ".." not in path else base
    found: dict[str, float] = {}
    quota = text_of(folder / "cpu.max").split()
    if len(quota) == len(("quota", "period")) and all(part.isdecimal() for part in quota):
        found["quota_cpus"] = int(quota[0]) / max(int(quota[1]), 1)
    for line in text_of(folder / "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("throttled_usec", "nr_throttled", "nr_periods") and value.strip().isdecimal():
            found[name] = int(value)
    return found
