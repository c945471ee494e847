"""Tracks the memory of every rank of this node over its steps, for /metrics and for heartbeats.

A tick reads one small file per rank (6 us). Steps are known at every fifth tick or so, when the rings have been read; a
sample in between is placed by its time at the step that it had most likely reached. Child processes are read once a
second; control groups, and the processes that hold the rings, every five seconds.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from exporter.host_watch.host_reading import Key, Target
from exporter.host_watch.proc import has_open
from exporter.kernel_files import CGROUPS, PROC
from exporter.memory.reading import MemoryHeadroom, anonymous_bytes, headroom, workers_bytes
from exporter.memory.series import MemorySeries
from exporter.reading.run_state import RankState, RunState
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.memory_metrics import DEVICE_ALLOCATED, DEVICE_PEAK
from lockstep.contracts.memory_report import DEVICE, HOST, WORKERS, MemorySlope, RankMemory

_log = logging.getLogger(__name__)

SECOND_NS = 1_000_000_000
TARGETS_NS = 5 * SECOND_NS
WORKERS_NS = SECOND_NS
REPORT_NS = 2 * SECOND_NS
"""Least time between two heartbeats caused by a new trend: the coordinator learns of a leak within seconds, at low
cost."""
_UNPLACED_MAX = 16
"""Samples of a rank that wait for its next step; the oldest is then placed at the last known one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemoryView:
    """What is shown of one rank; None is unknown. `growth` is in bytes per step, by part, for the parts that grow."""

    sizes: Mapping[str, int]
    headroom: MemoryHeadroom | None
    growth: Mapping[str, float]


@dataclass(slots=True)
class _Rank:
    pid: int
    attempt: int
    step: int = -1
    step_ns: int = 0
    """When `step` was first known, CLOCK_MONOTONIC."""
    unplaced: deque[tuple[int, str, int]] = field(default_factory=deque)
    """Samples since then: time ns, part, bytes."""
    sizes: dict[str, int] = field(default_factory=dict)
    series: dict[str, MemorySeries] = field(default_factory=dict)
    headroom: MemoryHeadroom | None = None
    device_limit_bytes: int | None = None
    growing: frozenset[str] = frozenset()

    def note_step(self, step: int, now_ns: int) -> None:
        """Place the samples since the last step, evenly over the steps that have ended since then."""
        first, first_ns = (step, now_ns) if self.step < 0 else (self.step, self.step_ns)
        lasted_ns = max(1, now_ns - first_ns)
        while self.unplaced:
            time_ns = self.unplaced[0][0]
            self._place(first + max(0, step - first) * (time_ns - first_ns) // lasted_ns)
        self.step, self.step_ns = step, now_ns

    def add(self, now_ns: int, part: str, size_bytes: int) -> None:
        """Add a sample, whose step is known later."""
        self.sizes[part] = size_bytes
        self.unplaced.append((now_ns, part, size_bytes))
        if len(self.unplaced) > _UNPLACED_MAX:
            self._place(self.step)

    def _place(self, step: int) -> None:
        _, part, size_bytes = self.unplaced.popleft()
        if step >= 0:
            self.series.setdefault(part, MemorySeries()).add(step, size_bytes)

    def growth(self) -> dict[str, float]:
        """Return bytes per step, by part, of the parts that grow steadily."""
        found = {part: series.growth for part, series in self.series.items()}
        return {part: trend.bytes_per_step for part, trend in found.items() if trend is not None}


class MemoryWatch:
    """Runs on the event loop. `targets` returns the ranks and their processes; `clock_ns` is CLOCK_MONOTONIC."""

    def __init__(
        self,
        targets: Callable[[], Iterable[Target]],
        *,
        proc: str = PROC,
        cgroups: str = CGROUPS,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._targets = targets
        self._proc, self._cgroups = proc, cgroups
        self._clock_ns = clock_ns
        self._pids: dict[Key, int] = {}
        self._ranks: dict[Key, _Rank] = {}
        self._targets_ns = self._workers_ns = self._reported_ns = -TARGETS_NS
        self._is_news = False

    def tick(self, runs: Iterable[RunState]) -> bool:
        """Sample every rank; return whether to send a heartbeat at once, because a part has begun to grow."""
        now_ns = self._clock_ns()
        is_refresh = now_ns - self._targets_ns >= TARGETS_NS
        if is_refresh:
            self._targets_ns = now_ns
            self._find_processes()
        with_workers = now_ns - self._workers_ns >= WORKERS_NS
        if with_workers:
            self._workers_ns = now_ns
        for run in runs:
            for rank_state in run.ranks.values():
                key = run.name, rank_state.rank
                self._sample(key, rank_state, now_ns, with_workers=with_workers, with_headroom=is_refresh)
        if not self._is_news or now_ns - self._reported_ns < REPORT_NS:
            return False
        self._is_news, self._reported_ns = False, now_ns
        return True

    def _find_processes(self) -> None:
        found: dict[Key, int] = {}
        for target in self._targets():
            known = self._pids.get(target.key)
            claimed = target.claimed_pid
            if target.pid is not None:
                found[target.key] = target.pid
            elif claimed is not None and (known == claimed or has_open(claimed, target.ring, self._proc)):
                found[target.key] = claimed
        self._pids = found
        self._ranks = {key: rank for key, rank in self._ranks.items() if key in found}

    def _sample(self, key: Key, rank_state: RankState, now_ns: int, *, with_workers: bool, with_headroom: bool) -> None:
        pid = self._pids.get(key)
        if pid is None:
            return
        rank = self._ranks.get(key)
        if rank is None or (rank.pid, rank.attempt) != (pid, rank_state.header.attempt):
            rank = self._ranks[key] = _Rank(pid, rank_state.header.attempt)
            with_headroom = True
        own = anonymous_bytes(pid, self._proc)
        if own is None:  # it has ended
            return
        if with_headroom:
            rank.headroom = headroom(pid, self._proc, self._cgroups)
        rank.add(now_ns, HOST, own)
        if with_workers:
            workers = workers_bytes(pid, self._proc)
            if workers is None:
                rank.sizes.pop(WORKERS, None)
            else:
                rank.add(now_ns, WORKERS, workers)
            self._add_device(rank, rank_state, now_ns)
        step = rank_state.totals.last_step
        if step is None or step == rank.step:
            return
        rank.note_step(step, now_ns)
        growing = frozenset(rank.growth())
        self._is_news |= not growing <= rank.growing
        rank.growing = growing

    def _add_device(self, rank: _Rank, rank_state: RankState, now_ns: int) -> None:
        """Add the framework's counters, which the agent refreshes once a second."""
        try:
            device = None if rank_state.ring is None else rank_state.ring.device_memory()
        except (MalformedError, OSError) as error:  # counted where the ring is read for its records
            _log.debug("rank %d: %s", rank_state.rank, error)
            return
        if device is not None:
            reserved, rank.sizes[DEVICE_ALLOCATED], rank.sizes[DEVICE_PEAK], rank.device_limit_bytes = device
            rank.add(now_ns, DEVICE, reserved)

    def report(self, run: RunState) -> list[RankMemory]:
        """Return the memory of a run's ranks, in ascending order of rank."""
        return [self._report(rank, self._ranks[run.name, rank]) for rank in sorted(run.ranks) if self._has(run, rank)]

    def _has(self, run: RunState, rank: int) -> bool:
        known = self._ranks.get((run.name, rank))
        return known is not None and known.step >= 0 and HOST in known.sizes

    def _report(self, number: int, rank: _Rank) -> RankMemory:
        known = rank.headroom
        return RankMemory(
            rank=number,
            step=rank.step,
            host_bytes=rank.sizes[HOST],
            workers_bytes=rank.sizes.get(WORKERS),
            available_bytes=None if known is None else known.available_bytes,
            limit_bytes=None if known is None else known.limit_bytes,
            device_bytes=rank.sizes.get(DEVICE),
            device_limit_bytes=rank.device_limit_bytes,
            trends=[
                MemorySlope(
                    part=part,
                    level=level,
                    first_step=trend.first_step,
                    last_step=trend.last_step,
                    bytes_per_step=trend.bytes_per_step,
                    is_steady=trend.is_steady,
                )
                for part, series in sorted(rank.series.items())
                for level, trend in enumerate(series.trends)
                if trend is not None
            ],
        )

    def views(self) -> dict[Key, RankMemoryView]:
        """Return what is shown, by run and rank."""
        return {
            key: RankMemoryView(
                sizes=dict(rank.sizes),
                headroom=rank.headroom,
                growth=rank.growth(),
            )
            for key, rank in self._ranks.items()
        }
