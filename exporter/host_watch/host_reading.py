"""One reading of the node: the kernel's counters since boot. `intervals.py` compares two readings."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporter.host_watch import proc
from exporter.host_watch.cgroups import throttled_ns
from exporter.host_watch.proc import Process
from exporter.kernel_files import CGROUPS, PROC

Key = tuple[str, int]
"""Run and rank."""

_AFFINITIES_MAX = 128
"""Processes whose affinity is read in one reading, the busiest ones: 20 us each. The others' is not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank whose ring is read. `pid` is the process that holds the ring, None if unknown here.

    `claimed_pid` is the pid that the ring names; it is trusted only if that process has the ring's file open.
    """

    run: str
    rank: int
    ring: str
    pid: int | None
    claimed_pid: int | None = None

    @property
    def key(self) -> Key:
        """Return run and rank."""
        return self.run, self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """A reading of a rank's process, None if unknown. `cores` are those that its training thread may use.

    The training thread is assumed to be the process's main thread. `throttled_ns` is by control group.
    """

    process: Process | None = None
    on_cpu_ns: int | None = None
    run_queue_wait_ns: int | None = None
    throttled_ns: Mapping[str, int] = field(default_factory=dict)
    cores: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The node at `at_ns` (CLOCK_MONOTONIC).

    `busy_ns` is by core; `affinities` are the cores of recently active processes.
    """

    at_ns: int
    ranks: Mapping[Key, RankReading]
    processes: Mapping[int, Process]
    affinities: Mapping[int, frozenset[int]]
    busy_ns: Mapping[int, int]
    pressure_ns: int | None
    load: float | None


def read_node(
    targets: Sequence[Target], before: HostReading | None, *, root: str = PROC, cgroups: str = CGROUPS
) -> HostReading:
    """Read the node and the targets; comparison with the previous reading `before` shows which processes were active.

    Blocking, 15 us for each process of the node; safe on any thread. Never raises: what cannot be read is omitted.
    """
    processes = proc.read_processes(root)
    ranks = {target.key: _read_rank(target, processes, root, cgroups) for target in targets}
    worked = _busiest(processes, before)
    affinities = {pid: proc.allowed_cores(pid, root) for pid in worked}
    return HostReading(
        at_ns=time.monotonic_ns(),
        ranks=ranks,
        processes=processes,
        affinities={pid: cores for pid, cores in affinities.items() if cores},
        busy_ns=proc.busy_ns(root),
        pressure_ns=proc.pressure_ns(root),
        load=proc.load(root),
    )


def _read_rank(target: Target, processes: Mapping[int, Process], root: str, cgroups: str) -> RankReading:
    pid = target.pid
    if pid is None and target.claimed_pid is not None and proc.has_open(target.claimed_pid, target.ring, root):
        pid = target.claimed_pid
    process = None if pid is None else processes.get(pid) or proc.read_process(pid, root)
    if pid is None or process is None:
        return RankReading()
    on_cpu_ns, run_queue_wait_ns = proc.thread_times_ns(pid, pid, root)
    return RankReading(
        process=process,
        on_cpu_ns=on_cpu_ns,
        run_queue_wait_ns=run_queue_wait_ns,
        throttled_ns=throttled_ns(pid, root, cgroups),
        cores=proc.allowed_cores(pid, root),
    )


def _busiest(processes: Mapping[int, Process], before: HostReading | None) -> list[int]:
    """Return the processes that were active since the previous reading, at most _AFFINITIES_MAX."""
    if before is None:
        return []
    worked = [(own_since(process, before.processes), pid) for pid, process in processes.items()]
    return [pid for own_ns, pid in sorted(worked, reverse=True)[:_AFFINITIES_MAX] if own_ns > 0]


def own_since(process: Process, before: Mapping[int, Process]) -> int:
    """Return a process's own CPU time since the previous reading; all of it if the process started in between."""
    earlier = before.get(process.pid)
    known_ns = earlier.own_ns if earlier is not None and earlier.start == process.start else 0
    return max(process.own_ns - known_ns, 0)
