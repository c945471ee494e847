"""Reads the node periodically, and keeps totals of each rank for /metrics and its latest intervals for captured spans.

Readings are taken on a thread: every 5 s when nothing is captured, every second around captures. Their cost is limited:
when nothing is captured, the next reading waits until the cost so far is at most COST_RATIO of a core.
"""

import asyncio
import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exporter.host_watch.host_reading import HostReading, Key, Target, read_node
from exporter.host_watch.intervals import BUSIEST_MAX, Interval, compare, covering
from exporter.host_watch.sampler import ResourceSampler
from lockstep.contracts.messages import HostSpan
from lockstep.contracts.node_samples import NodeSamples

QUIET_NS = 5_000_000_000
CAPTURE_NS = 1_000_000_000
LEAST_NS = 200_000_000
"""Least time between two readings, however many ranks answer: ticks of 10 ms resolve nothing shorter."""
NEAR_NS = 10_000_000_000
"""How long readings stay frequent after an event of a capture; readings at quiet times bracket longer spans well
enough."""
COST_RATIO = 0.004
"""Share of one core over time; the budget is 0.005."""
REACH_S = 2.0
_KEPT_INTERVALS = 128  # ten minutes: as long as traces may wait to be summarised
_FORGET_NS = 600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """A reading, the intervals of each rank since the previous reading, and the CPU time that both took."""

    reading: HostReading
    intervals: dict[Key, Interval]
    cost_ns: int


def sample_node(targets: Sequence[Target], before: HostReading | None) -> HostSample:
    """Take a reading of the node. Blocking, safe on any thread; never raises."""
    began_ns = time.thread_time_ns()
    reading = read_node(targets, before)
    intervals = {} if before is None else compare(before, reading, os.getpid())
    return HostSample(reading=reading, intervals=intervals, cost_ns=time.thread_time_ns() - began_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTotals:
    """Totals of a rank since it was first watched, across its attempts; None if never known."""

    run_queue_wait_ns: int | None = None
    throttled_ns: int | None = None
    cpu_ns: int | None = None
    others_ns: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """The node as a whole at the latest reading; `cost_ns` is the cost of all readings and samples.

    `delay_ns` is an upper bound of how long a training thread has waited for a CPU because of Lockstep's services:
    their work on its cores, capped at its wait, of the rank with the most.
    """

    pressure_ns: int | None = None
    load: float | None = None
    cost_ns: int = 0
    delay_ns: int = 0


@dataclass(slots=True)
class _Rank:
    totals: HostTotals = field(default_factory=HostTotals)
    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=_KEPT_INTERVALS))
    seen_ns: int = 0


class HostWatch:
    """Runs on the event loop; only the readings are taken on a thread, one at a time.

    `targets` returns the ranks to read; it is called on the event loop before each reading. `sampler` reads their cores
    and the node's network and memory more often around captures.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        *,
        take_sample: Callable[[Sequence[Target], HostReading | None], HostSample] = sample_node,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sampler: ResourceSampler | None = None,
    ) -> None:
        self._sampler = sampler
        self.node = NodeLoad()
        self._targets = targets
        self._take_sample = take_sample
        self._clock_ns = clock_ns
        self._last: HostReading | None = None
        self._ranks: dict[Key, _Rank] = {}
        self._near_until_ns = 0
        self._samples_cost_ns = 0
        self._paid_ns = 0
        """The time at which the cost so far will be at most COST_RATIO."""
        self._wake = asyncio.Event()
        self._sampled = asyncio.Event()

    async def run(self) -> None:
        """Take readings until cancelled."""
        while True:
            self._wake.clear()
            targets = self._targets()
            if targets:
                self.take(await asyncio.to_thread(self._take_sample, targets, self._last))
            sampled_ns = self._clock_ns()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((self._pause_ns() if targets else CAPTURE_NS) / 1e9):
                    await self._wake.wait()
            await asyncio.sleep(max(sampled_ns + LEAST_NS - self._clock_ns(), 0) / 1e9)

    def note_capture(self) -> None:
        """Read the node at once and more often for a while: a capture was ordered, begins or ends."""
        self._near_until_ns = self._clock_ns() + NEAR_NS
        self._wake.set()
        if self._sampler is not None:
            self._sampler.note_capture(self._targets())

    async def reach(self, end_ns: int) -> None:
        """Wait for a reading taken after `end_ns`, at most REACH_S: one is due after each capture."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REACH_S):
                while self._last is not None and self._last.at_ns < end_ns:
                    self._sampled.clear()
                    await self._sampled.wait()

    def take(self, sample: HostSample) -> None:
        """Add what happened since the previous reading."""
        self._sampled.set()
        reading = self._last = sample.reading
        self._paid_ns = max(self._paid_ns, reading.at_ns) + round(sample.cost_ns / COST_RATIO)
        self._samples_cost_ns += sample.cost_ns
        cost_ns = self._samples_cost_ns + (0 if self._sampler is None else self._sampler.cost_ns)
        delay_ns = self.node.delay_ns + max(map(_delay_ns, sample.intervals.values()), default=0)
        self.node = NodeLoad(pressure_ns=reading.pressure_ns, load=reading.load, cost_ns=cost_ns, delay_ns=delay_ns)
        for key in reading.ranks:
            self._ranks.setdefault(key, _Rank()).seen_ns = reading.at_ns
        for key, interval in sample.intervals.items():
            rank = self._ranks[key]
            rank.intervals.append(interval)
            rank.totals = _added(rank.totals, interval)
        self._ranks = {key: rank for key, rank in self._ranks.items() if reading.at_ns - rank.seen_ns < _FORGET_NS}

    def _pause_ns(self) -> int:
        """Return how long to wait before the next reading."""
        now_ns = self._clock_ns()
        return CAPTURE_NS if now_ns < self._near_until_ns else max(QUIET_NS, self._paid_ns - now_ns)

    def totals(self) -> dict[Key, HostTotals]:
        """Return the totals of every recently watched rank."""
        return {key: rank.totals for key, rank in self._ranks.items()}

    def samples(self, run: str, rank: int, start_ns: int, end_ns: int) -> NodeSamples:
        """Return what was sampled and counted in a span of CLOCK_MONOTONIC, with wall-clock times."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        sampler = self._sampler
        series = {} if sampler is None else sampler.series(run, rank, start_ns, end_ns, offset_ns=offset_ns)
        return NodeSamples(resources=series, host=self.span(run, rank, start_ns, end_ns))

    def span(self, run: str, rank: int, start_ns: int, end_ns: int) -> HostSpan | None:
        """Return what happened to a rank around a span of CLOCK_MONOTONIC; None if the readings do not cover it.

        The readings enclose the span, so the result may cover more time: `span_ns` is its length.
        """
        watched = self._ranks.get((run, rank))
        found = [] if watched is None else covering(watched.intervals, start_ns, end_ns)
        if not found or found[0].begin_ns > start_ns or found[-1].end_ns < end_ns:
            return None
        span_ns = sum(each.end_ns - each.begin_ns for each in found)
        others_ns = _sum([each.others_ns for each in found])
        commands: Counter[str] = Counter()
        for each in found:
            commands.update(dict(each.busiest))
        return HostSpan(
            span_ns=span_ns,
            on_cpu_ns=_sum([each.on_cpu_ns for each in found]),
            run_queue_wait_ns=_sum([each.run_queue_wait_ns for each in found]),
            throttled_ns=_sum([each.throttled_ns for each in found]),
            cores=found[-1].cores,
            others_cores=None if others_ns is None else others_ns / span_ns,
            busiest=[(command, ns / span_ns) for command, ns in commands.most_common(BUSIEST_MAX)],
        )


def _delay_ns(interval: Interval) -> int:
    return min(interval.services_ns or 0, interval.run_queue_wait_ns or 0)


def _added(totals: HostTotals, interval: Interval) -> HostTotals:
    return HostTotals(
        run_queue_wait_ns=_plus(totals.run_queue_wait_ns, interval.run_queue_wait_ns),
        throttled_ns=_plus(totals.throttled_ns, interval.throttled_ns),
        cpu_ns=_plus(totals.cpu_ns, interval.cpu_ns),
        others_ns=_plus(totals.others_ns, interval.others_ns),
        cores=interval.cores,
    )


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a part of it is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
