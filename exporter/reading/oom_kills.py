"""The kernel's counts of out-of-memory kills, of a control group and of the host."""

from collections import deque
from collections.abc import Callable

from exporter.kernel_files import CGROUPS, PROC, group_folders, number_field

SAMPLE_INTERVAL_NS = 1_000_000_000
_SAMPLES = 6
"""How long a count is kept: the kernel counts a kill when it begins; freeing the memory can delay the end by seconds.
"""
_FIELD = b"oom_kill"


class OomKills:
    """The count of kills over the last seconds. `locate` returns the file that holds it, empty for none.

    The file may change, and counts of different files are not compared. A process can move to another control group,
    and cgroup v1 shows an exiting process in the root group while the kernel reclaims its memory.
    """

    def __init__(self, locate: Callable[[], str]) -> None:
        self._locate = locate
        self._samples: deque[tuple[str, int | None]] = deque(maxlen=_SAMPLES)  # file and count, the oldest first
        self._due_ns = 0

    def sample(self, now_ns: int) -> None:
        """Read the count, at most once a second of CLOCK_MONOTONIC."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + SAMPLE_INTERVAL_NS
        path = self._locate()
        self._samples.append((path, _count(path)))

    def have_risen(self) -> bool | None:
        """Return whether a file's count has risen since its oldest sample; None if no file was sampled twice."""
        oldest: dict[str, int | None] = {}
        for path, count in self._samples:
            oldest.setdefault(path, count)
        pairs = [(before, _count(path)) for path, before in oldest.items()]
        known = [now > before for before, now in pairs if before is not None and now is not None]
        return any(known) if known else None


def host_oom_kills(proc: str = PROC) -> OomKills:
    """Return the host's count, which includes the kills of every control group."""
    return OomKills(lambda: f"{proc}/vmstat")


def group_oom_kills(pid: int, proc: str = PROC, cgroups: str = CGROUPS) -> OomKills:
    """Return the count of the control group that the process's memory is charged to; sample it while the process lives.

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
    if not path:
        return None
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a Path costs more than the reading)
            text = file.readall()  # to its end: one read(2) returns a page of /proc/vmstat
    except OSError:  # the group is gone, or the kernel does not count
        return None
    return number_field(text, _FIELD)
