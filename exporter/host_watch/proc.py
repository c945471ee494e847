"""Reads /proc. Each function reads one kernel file; the root is a parameter.

What cannot be read is None and never 0: another PID namespace, a process that is gone, a kernel without the figure.
Files are read through descriptors, at a third of the cost of text files, because a node has thousands of processes.
"""

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from exporter.kernel_files import PROC, read

PROCESSES_MAX = 8192
"""Processes read at once, lowest pids first; a node of 256 cores has 3,000 kernel threads."""
COMMAND_MAX = 64
"""Length of a command name; the kernel keeps 15 bytes, 63 for its own threads."""

_STAT_BYTES = 1024
_STATUS_BYTES = 16 << 10
_NODE_STAT_BYTES = 64 << 10  # lines of 600 cores; what follows them is not needed
_CORES_MAX = 8192  # the kernel's own limit
_DESCRIPTORS_MAX = 4096
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_WORKING = (1, 2, 3, 6, 7)
"""user, nice, system, irq, softirq; excludes idle, iowait and the time that other virtual machines took."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat. `start` distinguishes processes that had the same pid one after the other.

    `own_ns` is the CPU time of all its threads, `reaped_ns` that of its children that have ended and been waited for.
    """

    pid: int
    parent: int
    command: str
    start: int
    own_ns: int
    reaped_ns: int


def read_processes(proc: str = PROC) -> dict[int, Process]:
    """Return the processes of this PID namespace by pid, at most PROCESSES_MAX; empty if none can be read."""
    try:
        with os.scandir(proc) as entries:
            pids = sorted(int(entry.name) for entry in entries if entry.name.isascii() and entry.name.isdigit())
    except OSError:
        return {}
    found = (read_process(pid, proc) for pid in pids[:PROCESSES_MAX])
    return {process.pid: process for process in found if process is not None}


def read_process(pid: int, proc: str = PROC) -> Process | None:
    """Return one process."""
    data = read(f"{proc}/{pid}/stat", _STAT_BYTES)
    # The command may contain anything, including parentheses and blanks: it ends at the last parenthesis.
    begin, end = data.find(b"("), data.rfind(b")")
    values = data[end + 1 :].split()
    if not 0 <= begin < end or len(values) < 20:  # noqa: PLR2004  (up to its start)
        return None
    try:
        parent, start = int(values[1]), int(values[19])
        user, system, user_reaped, system_reaped = map(int, values[11:15])
    except ValueError:
        return None
    command = data[begin + 1 : end].decode(errors="replace")[:COMMAND_MAX]
    own_ns, reaped_ns = (user + system) * _NS_PER_TICK, (user_reaped + system_reaped) * _NS_PER_TICK
    return Process(pid, parent, command, start, own_ns, reaped_ns)


def thread_times_ns(pid: int, thread: int, proc: str = PROC) -> tuple[int | None, int | None]:
    """Return how long a thread has been on a CPU, and has waited for one, since it started.

    None also if the kernel does not count it.
    """
    values = read(f"{proc}/{pid}/task/{thread}/schedstat", _STAT_BYTES).split()
    if len(values) != 3 or not _number(values[0]):  # noqa: PLR2004  (all 0: not counted)
        return None, None
    return _number(values[0]), _number(values[1])


def allowed_cores(pid: int, proc: str = PROC) -> frozenset[int] | None:
    """Return the cores that a process's main thread may use."""
    for line in read(f"{proc}/{pid}/status", _STATUS_BYTES).splitlines():
        if line.startswith(b"Cpus_allowed_list:"):
            return parse_cores(line.partition(b":")[2].decode(errors="replace"))
    return None


def parse_cores(text: str) -> frozenset[int] | None:
    """Return the cores of a list like `0-3,8`; None if it is not such a list."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first_text, _, last_text = part.partition("-")
        first = _number(first_text)
        last = _number(last_text) if last_text else first
        if first is None or last is None or not first <= last < _CORES_MAX:
            return None
        cores.update(range(first, last + 1))
    return frozenset(cores)


def busy_ns(proc: str = PROC) -> dict[int, int]:
    """Return each core's busy time for all processes, including other PID namespaces; empty if unknown."""
    found = {}
    for line in read(f"{proc}/stat", _NODE_STAT_BYTES).splitlines():
        words = line.split()
        if not words or not words[0].startswith(b"cpu"):
            break  # the cores come first
        core, times = _number(words[0][3:]), [_number(word) for word in words]
        worked = [times[index] for index in _WORKING if index < len(times)]
        if core is not None and len(worked) == len(_WORKING):
            found[core] = sum(value or 0 for value in worked) * _NS_PER_TICK
    return found


def pressure_ns(proc: str = PROC) -> int | None:
    """Return the time since boot during which some task of the node waited for a CPU (PSI)."""
    for line in read(f"{proc}/pressure/cpu", _STAT_BYTES).splitlines():
        if line.startswith(b"some "):
            total_us = _number(line.rpartition(b"total=")[2])
            return None if total_us is None else total_us * 1000
    return None


def load(proc: str = PROC) -> float | None:
    """Return the number of tasks that run or wait, averaged over a minute."""
    try:
        return float(read(f"{proc}/loadavg", _STAT_BYTES).split()[0])
    except (IndexError, ValueError):
        return None


def has_open(pid: int, path: str, proc: str = PROC) -> bool:
    """Whether a process has a file open; False if its descriptors are not visible."""
    try:
        wanted = Path(path).stat()
        links = list(islice(Path(f"{proc}/{pid}/fd").iterdir(), _DESCRIPTORS_MAX))
    except OSError:
        return False
    return any(_is_same(link, wanted) for link in links)


def _is_same(link: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(link.stat(), wanted)
    except OSError:  # closed meanwhile
        return False


def _number(text: bytes | str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
