"""What happened between two readings of the node, by rank. Pure functions of the two.

Other work on a rank's cores is what the cores did (/proc/stat, which includes other containers and short-lived
processes) minus what the run's processes did. The kernel does not report where a process ran, so a process that may use
other cores too is assumed to have spread its work evenly. The breakdown of others by name is therefore an estimate,
capped at their measured total.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.host_watch.host_reading import HostReading, Key, RankReading, own_since
from exporter.host_watch.proc import Process

BUSIEST_MAX = 3
_LEAST_CORES = 0.01  # the resolution of the CPU's ticks in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened to a rank from `begin_ns` to `end_ns` (CLOCK_MONOTONIC); None is unknown, 0 a measured zero.

    `on_cpu_ns` and `run_queue_wait_ns` are its training thread's. `cpu_ns` is the work of its process and descendants
    anywhere. On its `cores`, `services_ns` is the work of Lockstep's own services, `others_ns` that of everything
    outside its run. `busiest` are the commands of others with their CPU time there, at most BUSIEST_MAX.
    """

    begin_ns: int
    end_ns: int
    on_cpu_ns: int | None = None
    run_queue_wait_ns: int | None = None
    throttled_ns: int | None = None
    cpu_ns: int | None = None
    cores: int | None = None
    services_ns: int | None = None
    others_ns: int | None = None
    busiest: tuple[tuple[str, int], ...] = ()


def compare(before: HostReading, after: HostReading, own_pid: int | None = None) -> dict[Key, Interval]:
    """Return the interval of every rank whose process is the same in both readings.

    `own_pid` is the process of Lockstep's services here; neither they nor what they start count as others.
    """
    comparison = _Comparison(before, after, own_pid)
    found = {}
    for key, now in after.ranks.items():
        then = before.ranks.get(key)
        if then is not None and now.process is not None and _is_same(then.process, now.process):
            found[key] = comparison.interval(key, then, now)
    return found


class _Comparison:
    def __init__(self, before: HostReading, after: HostReading, own_pid: int | None) -> None:
        self._before, self._after = before, after
        self._children: dict[int, list[int]] = {}
        for process in after.processes.values():
            self._children.setdefault(process.parent, []).append(process.pid)
        self._children_before: dict[int, list[int]] = {}
        for process in before.processes.values():
            self._children_before.setdefault(process.parent, []).append(process.pid)
        self._own_ns = {pid: own_since(process, before.processes) for pid, process in after.processes.items()}
        self._services = self._services_below(own_pid)

    def interval(self, key: Key, then: RankReading, now: RankReading) -> Interval:
        """Return what one rank met."""
        assert now.process is not None
        services_ns = self._services_ns(now.cores) if now.cores and self._services else None
        others_ns = self._others_ns(key[0], now.cores) if now.cores else None
        if others_ns is not None and services_ns is not None:
            others_ns = max(others_ns - services_ns, 0)
        return Interval(
            begin_ns=self._before.at_ns,
            end_ns=self._after.at_ns,
            on_cpu_ns=_grown(then.on_cpu_ns, now.on_cpu_ns),
            run_queue_wait_ns=_grown(then.run_queue_wait_ns, now.run_queue_wait_ns),
            throttled_ns=_throttled(then.throttled_ns, now.throttled_ns),
            cpu_ns=self._tree_ns(now.process.pid),
            cores=len(now.cores) if now.cores else None,
            services_ns=services_ns,
            others_ns=others_ns,
            busiest=self._named(key[0], now.cores, others_ns) if now.cores and others_ns is not None else (),
        )

    def _services_below(self, own_pid: int | None) -> set[int]:
        """Return Lockstep's processes: `own_pid` and its descendants, without training started from there."""
        if own_pid is None:
            return set()
        services = _descendants(own_pid, self._children)
        for reading in self._after.ranks.values():
            if reading.process is not None:
                services -= _descendants(reading.process.pid, self._children)
        return services

    def _services_ns(self, cores: frozenset[int]) -> int:
        """Return the CPU time of Lockstep's living processes on `cores`."""
        return round(sum(self._own_ns.get(pid, 0) * self._share(pid, cores) for pid in self._services))

    def _roots(self, run: str) -> list[int] | None:
        """Return the run's processes on this node; None if one of them is unknown, because its work is unknown too."""
        readings = [reading.process for key, reading in self._after.ranks.items() if key[0] == run]
        known = [process.pid for process in readings if process is not None]
        return known if len(known) == len(readings) else None

    def _tree_ns(self, root: int) -> int:
        """Return the CPU time of a process and its descendants, including those that have ended."""
        then = sum(_total(self._before.processes, pid) for pid in _descendants(root, self._children_before))
        now = sum(_total(self._after.processes, pid) for pid in _descendants(root, self._children))
        return max(now - then, 0)

    def _others_ns(self, run: str, cores: frozenset[int]) -> int | None:
        roots = self._roots(run)
        busy = [_grown(self._before.busy_ns.get(core), self._after.busy_ns.get(core)) for core in cores]
        if roots is None or None in busy:
            return None
        run_ns = 0.0
        for root in set(roots):
            tree = _descendants(root, self._children)
            run_ns += sum(self._own_ns.get(pid, 0) * self._share(pid, cores) for pid in tree)
            ended_ns = self._tree_ns(root) - sum(self._own_ns.get(pid, 0) for pid in tree)
            run_ns += max(ended_ns, 0) * self._share(root, cores)
        return max(sum(each or 0 for each in busy) - round(run_ns), 0)

    def _named(self, run: str, cores: frozenset[int], others_ns: int) -> tuple[tuple[str, int], ...]:
        ours = {pid for root in self._roots(run) or () for pid in _descendants(root, self._children)} | self._services
        spent: Counter[str] = Counter()
        for pid, own_ns in self._own_ns.items():
            if own_ns > 0 and pid not in ours:
                spent[self._after.processes[pid].command] += round(own_ns * self._share(pid, cores))
        scale = min(1.0, others_ns / max(spent.total(), 1))
        least_ns = _LEAST_CORES * (self._after.at_ns - self._before.at_ns)
        named = ((command, round(ns * scale)) for command, ns in spent.most_common(BUSIEST_MAX))
        return tuple((command, ns) for command, ns in named if ns >= least_ns)

    def _share(self, pid: int, cores: frozenset[int]) -> float:
        """Return the share of a process's work on `cores`; all of the node's cores count if its affinity is unknown."""
        allowed = self._after.affinities.get(pid) or frozenset(self._after.busy_ns)
        return len(allowed & cores) / len(allowed) if allowed else 0.0


def _is_same(then: Process | None, now: Process) -> bool:
    return then is not None and (then.pid, then.start) == (now.pid, now.start)


def _total(processes: Mapping[int, Process], pid: int) -> int:
    process = processes.get(pid)
    return 0 if process is None else process.own_ns + process.reaped_ns


def _descendants(root: int, children: Mapping[int, list[int]]) -> set[int]:
    """Return a process and all of its descendants."""
    found = {root}
    waiting = [root]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting += new
    return found


def _grown(then: int | None, now: int | None) -> int | None:
    return None if then is None or now is None or now < then else now - then


def _throttled(then: Mapping[str, int], now: Mapping[str, int]) -> int | None:
    """Return the longest time of the groups: they are nested, so their times may overlap."""
    grown = (_grown(then.get(group), value) for group, value in now.items())
    return max((each for each in grown if each is not None), default=None)


def covering(intervals: Iterable[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    """Return the intervals that overlap a span, in order."""
    return [each for each in intervals if each.begin_ns < end_ns and each.end_ns > start_ns]
