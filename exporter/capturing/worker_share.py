"""How much of a processor the worker that reads traces takes during training.

What no other process wants it takes whole. Of a core that others want it takes BURST_RATIO while a budget of its time
lasts, and BUSY_RATIO when that is spent; BUSY_RATIO also fills the budget again. So within any time T it takes at most
BUSY_RATIO x T + BURST_SECONDS of a core from training, which is its promise, and a capture is read in seconds.

A priority alone keeps no promise: it counts next to processes of the worker's own control group and session only;
another group gets half a core and more, however low its processes stand. So the worker looks, every few milliseconds
of its own time, whether it had to wait for a processor, and then pauses until it has had no more than its share.
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
"""Of a core that others want, over time: ranks that are slower by 2.5 % and more are what detectors look for."""
BURST_RATIO = 0.25
"""The same while the budget lasts: what imports and three traces need takes 10 s instead of two minutes."""
BURST_SECONDS = 6.0
"""Of a core: what the imports (0.85 s) and the traces of one capture on one node need, 0.3 to 1 s each."""
SLICE_CPU_SECONDS = 0.008
"""Of the worker's own, between two looks: what one step of a rank may lose at once. Two ticks of a kernel's clock."""
_WAITED_RATIO = 0.1  # of a slice's time: less is a wake-up or an interrupt, not somebody who wants the core
_PAUSE_MAX_S = 5.0
_NICENESS_MAX, _NICENESS_FACTOR, _RATIO_MIN = 19, 1.25, 1e-3
_NS = 1e9
_SECONDS = struct.Struct("<d")


class Share(NamedTuple):
    """What the worker may take of a core that others want: over time, at once, and how long, seconds of the core."""

    busy_ratio: float = BUSY_RATIO
    burst_ratio: float = BURST_RATIO
    burst_seconds: float = BURST_SECONDS


class BurstBudget:
    """Seconds of a core that may still be taken at the higher ratio; shared with the forks of the process."""

    def __init__(self, share: Share, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._memory = mmap.mmap(-1, _SECONDS.size)
        self._left(share.burst_seconds)
        self._filled_s = clock()

    @property
    def left_s(self) -> float:
        """Seconds of a core that are left."""
        return float(_SECONDS.unpack_from(self._memory)[0])

    def _left(self, seconds: float) -> None:
        _SECONDS.pack_into(self._memory, 0, max(0.0, min(seconds, self._share.burst_seconds)))

    def refill(self) -> None:
        """Add what the time since the last call brings; before each trace, by the process that forks."""
        now_s = self._clock()
        self._left(self.left_s + self._share.busy_ratio * (now_s - self._filled_s))
        self._filled_s = now_s

    def spend(self, cpu_s: float) -> None:
        """Note time on a core that others wanted."""
        self._left(self.left_s - cpu_s)


class Spent(NamedTuple):
    """What a process has had of a processor, how long it waited for one, and the time; seconds."""

    cpu_s: float
    waited_s: float
    clock_s: float


class Governor:
    """Pauses a process that others wait for until it has had no more than its share since it last looked."""

    def __init__(
        self,
        share: Share,
        budget: BurstBudget,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], Spent] | None = None,
    ) -> None:
        self._share = share
        self._budget = budget
        self._sleep = sleep
        self._clock = clock or spent
        self._last = self._clock()

    def look(self) -> None:
        """To be called after each slice; sleeps if it must."""
        now = self._clock()
        cpu_s, waited_s, wall_s = (after - before for after, before in zip(now, self._last, strict=True))
        if waited_s > _WAITED_RATIO * wall_s:
            has_budget = self._budget.left_s > 0
            self._budget.spend(cpu_s)
            pause_s = cpu_s / (self._share.burst_ratio if has_budget else self._share.busy_ratio) - wall_s
            if pause_s > 0:
                self._sleep(min(pause_s, _PAUSE_MAX_S))
        self._last = self._clock()


def govern(share: Share, budget: BurstBudget) -> None:
    """Look after each slice of this process's time from now on; timers are not inherited by forks."""
    governor = Governor(share, budget)
    signal.signal(signal.SIGPROF, lambda *_: governor.look())
    signal.setitimer(signal.ITIMER_PROF, SLICE_CPU_SECONDS, SLICE_CPU_SECONDS)


def niceness_of(ratio: float) -> int:
    """Return the niceness that leaves so much of a core next to one busy process: a fifth less for each 1 (kernel)."""
    least = max(ratio, _RATIO_MIN)
    return min(_NICENESS_MAX, max(0, round(math.log((1 - least) / least, _NICENESS_FACTOR)))) if least < 1 else 0


def spent() -> Spent:
    """Return it of this process' only thread; where the kernel does not count waits, all but computing is one."""
    clock_s = time.monotonic()
    try:
        cpu_ns, waited_ns, *_ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        cpu_s = time.process_time()
        return Spent(cpu_s, clock_s - cpu_s, clock_s)
    return Spent(cpu_ns / _NS, waited_ns / _NS, clock_s)
