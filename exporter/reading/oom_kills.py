"""The kernel's counts of processes that it killed for want of memory: of a control group, and of the host."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

from exporter.kernel_files import CGROUPS, PROC, group_folders, number_field

SAMPLE_INTERVAL_NS = 1_000_000_000
_SAMPLES = 6
"""The kernel counts a kill when it begins; the memory of the process, and so its end, can take seconds after that."""
_FIELD = b"oom_kill"


class OomKills:
    """A count of kills over the last seconds. `locate` returns the file that holds it, empty for none.

    The file may change: a process can move to another control group, and what that has counted before is not news.
    """

    def __init__(self, locate: Callable[[], str]) -> None:
        self._locate = locate
        self._path = ""
        self._counts: deque[int | None] = deque(maxlen=_SAMPLES)  # the oldest first
        self._due_ns = 0

    def sample(self, now_ns: int) -> None:
        """Read the count, at most once a second of CLOCK_MONOTONIC."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + SAMPLE_INTERVAL_NS
        path = self._locate()
        if path != self._path:
            self._path = path
            self._counts.clear()
        self._counts.append(_count(path))

    def have_risen(self) -> bool | None:
        """Whether the count is higher than the oldest sample; None where one of the two cannot be read."""
        before, now = self._counts[0] if self._counts else None, _count(self._path)
        return None if before is None or now is None else now > before


def host_oom_kills(proc: str = PROC) -> OomKills:
    """Return the count of this host, which holds every control group's kills."""
    return OomKills(lambda: f"{proc}/vmstat")


def group_oom_kills(pid: int, proc: str = PROC, cgroups: str = CGROUPS) -> OomKills:
    """Return the count of the control group whose memory the process uses, to be sampled while the process lives.

    `oom_kill` counts processes of the group killed by any OOM killer (Linux, Documentation/admin-guide/cgroup-v2.rst,
    memory.events; cgroup v1 has it in memory.oom_control). The innermost group that counts is the process's own.
    """
    return OomKills(lambda: _group_file(pid, proc, cgroups))


def _group_file(pid: int, proc: str, cgroups: str) -> str:
    for folder, is_v2 in group_folders(pid, "memory", proc, cgroups):
        path = f"{folder}/{'memory.events' if is_v2 else 'memory.oom_control'}"
        if _count(path) is not None:
            return path
    return ""


def _count(path: str) -> int | None:
    try:
        text = Path(path).read_bytes() if path else b""  # to its end: one read(2) returns a page of /proc/vmstat
    except OSError:  # the group is gone, or the kernel does not count
        return None
    return number_field(text, _FIELD)
