"""Limits how much of a processor the worker that reads traces takes from training.

An idle core is used fully. Of a core that other processes want, the worker takes BURST_RATIO while a time budget lasts,
and BUSY_RATIO once the budget is spent; the budget refills at BUSY_RATIO. So within any time T it takes at most
BUSY_RATIO x T + BURST_SECONDS of a core from training, and a capture is still read within seconds.

A low priority alone does not guarantee this, because niceness only counts within one control group and session: another
group gets half a core or more, however low the priority of its processes. So every few milliseconds of its own CPU time
the worker checks whether it had to wait for a processor, and then pauses until it has had no more than its share.
"""

import math
import mmap
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BUSY_RATIO = 0.02
"""Share of a contended core over time; detectors look for ranks that are slower by 2.5 % or more."""
BURST_RATIO = 0.25
"""Share while the budget lasts: imports and three traces take 10 s instead of two minutes."""
BURST_SECONDS = 6.0
"""Core time for the imports (0.85 s) and the traces of one capture on one node (0.3 to 1 s each)."""
SLICE_CPU_SECONDS = 0.008
"""Own CPU time between two checks, which one step of a rank may lose at once. Two ticks of a kernel's clock."""
_WAITED_RATIO = 0.1  # of a slice's time: a shorter wait is a wake-up or an interrupt, not a process that wants the core
_PAUSE_MAX_S = 5.0
_NICENESS_MAX, _NICENESS_FACTOR, _RATIO_MIN = 19, 1.25, 1e-3
_NS = 1e9
_SECONDS = struct.Struct("<d")


class CpuShare(NamedTuple):
    """The worker's share of a contended core: over time, in a burst, and a burst's length in seconds of core time."""

    busy_ratio: float = BUSY_RATIO
    burst_ratio: float = BURST_RATIO
    burst_seconds: float = BURST_SECONDS


class BurstBudget:
    """Seconds of core time that may still be used at the higher ratio; shared with the forks of the process."""

    def __init__(self, share: CpuShare, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._memory = mmap.mmap(-1, _SECONDS.size)
        self._left(share.burst_seconds)
        self._filled_s = clock()

    @property
    def left_s(self) -> float:
        """Return the seconds of core time that are left."""
        return float(_SECONDS.unpack_from(self._memory)[0])

    def _left(self, seconds: float) -> None:
        _SECONDS.pack_into(self._memory, 0, max(0.0, min(seconds, self._share.burst_seconds)))

    def refill(self) -> None:
        """Add what has accrued since the last call; the parent process calls it before each trace."""
        now_s = self._clock()
        self._left(self.left_s + self._share.busy_ratio * (now_s - self._filled_s))
        self._filled_s = now_s

    def spend(self, cpu_s: float) -> None:
        """Record time spent on a core that other processes wanted."""
        self._left(self.left_s - cpu_s)


class ProcessorTimes(NamedTuple):
    """A process's CPU time, how long it waited for a processor, and the current time; seconds."""

    cpu_s: float
    waited_s: float
    clock_s: float


class CpuThrottle:
    """Pauses a process that makes others wait until it has had no more than its share since the last check."""

    def __init__(
        self,
        share: CpuShare,
        budget: BurstBudget,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], ProcessorTimes] | None = None,
    ) -> None:
        self._share = share
        self._budget = budget
        self._sleep = sleep
        self._clock = clock or spent
        self._last = self._clock()

    def look(self) -> None:
        """Check the share, to be called after each slice; sleeps if necessary."""
        now = self._clock()
        cpu_s, waited_s, wall_s = (after - before for after, before in zip(now, self._last, strict=True))
        if waited_s > _WAITED_RATIO * wall_s:
            has_budget = self._budget.left_s > 0
            self._budget.spend(cpu_s)
            pause_s = cpu_s / (self._share.burst_ratio if has_budget else self._share.busy_ratio) - wall_s
            if pause_s > 0:
                self._sleep(min(pause_s, _PAUSE_MAX_S))
        self._last = self._clock()


def govern(share: CpuShare, budget: BurstBudget) -> None:
    """Check after each slice of this process's CPU time from now on; forks do not inherit timers."""
    governor = CpuThrottle(share, budget)
    signal.signal(signal.SIGPROF, lambda *_: governor.look())
    signal.setitimer(signal.ITIMER_PROF, SLICE_CPU_SECONDS, SLICE_CPU_SECONDS)


def niceness_of(ratio: float) -> int:
    """Return the niceness that leaves this share of a core next to one busy process: a fifth less per level."""
    least = max(ratio, _RATIO_MIN)
    return min(_NICENESS_MAX, max(0, round(math.log((1 - least) / least, _NICENESS_FACTOR)))) if least < 1 else 0


def spent() -> ProcessorTimes:
    """Return the usage of this process's only thread; if the kernel counts no waits, all time off the CPU is one."""
    clock_s = time.monotonic()
    try:
        cpu_ns, waited_ns, *_ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        cpu_s = time.process_time()
        return ProcessorTimes(cpu_s, clock_s - cpu_s, clock_s)
    return ProcessorTimes(cpu_ns / _NS, waited_ns / _NS, clock_s)
