"""Reads the memory of a process and of its control groups from the kernel: a few small files per function.

What cannot be read is None and never 0. None of these files takes the process's memory lock, so a training thread that
maps memory never waits for a reader.
"""

import os
from dataclasses import dataclass

from exporter.kernel_files import CGROUPS, PROC, group_folders, number_field, read

WORKERS_MAX = 64
"""Child processes of a rank that are read; a DataLoader has 4 to 16 workers."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM_BYTES = 256
_FILE_BYTES = 16 << 10
_V1_UNLIMITED_BYTES = 1 << 62  # v1 writes the largest multiple of a page instead of "max"
_V2 = ("memory.max", "memory.current", b"inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHeadroom:
    """How much more memory a process may use before the kernel kills it; `limit_bytes` belongs to the tightest limit.

    That is one of its control groups, or the host (MemAvailable of MemTotal).
    """

    limit_bytes: int
    available_bytes: int


def anonymous_bytes(pid: int, proc: str = PROC) -> int | None:
    """Return a process's resident memory, excluding file and shared pages, which the kernel can drop."""
    words = read(f"{proc}/{pid}/statm", _STATM_BYTES).split()
    if len(words) < 3 or not (words[1].isdigit() and words[2].isdigit()):  # noqa: PLR2004  (size, resident, shared)
        return None
    return max(int(words[1]) - int(words[2]), 0) * _PAGE_BYTES


def workers_bytes(pid: int, proc: str = PROC) -> int | None:
    """Return the same, summed over the children of a process's main thread; None without any.

    Pages that a child has shared with its parent since the fork count in both, until one of them writes.
    """
    children = read(f"{proc}/{pid}/task/{pid}/children", _FILE_BYTES).split()[:WORKERS_MAX]
    sizes = [anonymous_bytes(int(child), proc) for child in children if child.isdigit()]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def headroom(pid: int, proc: str = PROC, cgroups: str = CGROUPS) -> MemoryHeadroom | None:
    """Return the least headroom among the host and a process's control groups; None if nothing is known."""
    host = _host(proc)
    found = [_group(folder, is_v2=is_v2) for folder, is_v2 in group_folders(pid, "memory", proc, cgroups)]
    limits = [limit for limit in (host, *found) if limit is not None]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def _host(proc: str) -> MemoryHeadroom | None:
    text = read(f"{proc}/meminfo", _FILE_BYTES)
    total, available = number_field(text, b"MemTotal:"), number_field(text, b"MemAvailable:")
    if total is None or available is None:
        return None
    return MemoryHeadroom(limit_bytes=total << 10, available_bytes=available << 10)


def _group(folder: str, *, is_v2: bool) -> MemoryHeadroom | None:
    """Return what a group may still use; file pages that no one uses count as free."""
    limit_name, usage_name, reclaimable = _V2 if is_v2 else _V1
    limit, usage = _number(f"{folder}/{limit_name}"), _number(f"{folder}/{usage_name}")
    if limit is None or usage is None or limit >= _V1_UNLIMITED_BYTES:  # "max" is no limit
        return None
    droppable = number_field(read(f"{folder}/memory.stat", _FILE_BYTES), reclaimable) or 0
    return MemoryHeadroom(limit_bytes=limit, available_bytes=max(limit - usage + droppable, 0))


def _number(path: str) -> int | None:
    text = read(path, _STATM_BYTES).strip()
    return int(text) if text.isdigit() else None
