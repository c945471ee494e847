"""CPU time of this thread on the machine that budgets are for, with warm caches and with cold ones.

Virtual machines of one kind differ by a factor of three, and from one second to the next, as others use their cores.
Fixed work therefore runs right before and after whatever is measured, and where it takes longer than REFERENCE_NS, the
cost is scaled to the machine that takes that. On a faster machine a cost is what was measured: budgets are of time, and
a machine that is faster at one thing is not equally so at another. The work is Python that computes in warm caches: it
shows how fast a core is, not how far its memory is.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.caches import touch
from benchmarks.checks import Check
from lockstep.contracts.marks import MARK_BYTES, MARK_STRUCT

REFERENCE_MARKS = 20_000
REFERENCE_NS = 1_600_000
"""What `_count_kinds` takes at best on the four-core machine that the figures of the documentation were measured on."""
_ROUNDS = 15
_COLD_ROUNDS = 7


def thread_ns(work: Callable[[], object]) -> int:
    """Return the CPU time that this thread takes for some work."""
    began_ns = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began_ns


class ReferenceMachine:
    """Scales what is measured here; `slowness` has how many times as long this machine took, by measurement."""

    def __init__(self, clock: Callable[[Callable[[], object]], int] = thread_ns) -> None:
        self.slowness: list[float] = []
        self._clock = clock
        self._marks = bytes(REFERENCE_MARKS * MARK_BYTES)

    def scaled(self, measure: Callable[[], float]) -> float:
        """Return what the reference machine would have measured, or what this one has if it is faster."""
        before_ns = self._clock(self._reference)
        cost = measure()
        self.slowness.append((before_ns + self._clock(self._reference)) / (2 * REFERENCE_NS))
        return cost / max(self.slowness[-1], 1.0)

    def median(self, measure: Callable[[], float], rounds: int = _ROUNDS) -> float:
        """Return the median of several measurements, each scaled."""
        return statistics.median(self.scaled(measure) for _ in range(rounds))

    def hot_ns(self, operation: Callable[[], Any], calls: int) -> float:
        """Return what a call takes with warm caches."""
        return self.median(lambda: warm_ns(operation, calls))

    def cold_ns(self, operation: Callable[[], Any], calls: int, memory: bytearray) -> float:
        """Return what a call takes with cold caches."""
        return cold_ns(operation, calls, memory, self.scaled)

    def cold_beyond_empty_ns(self, operation: Callable[[], Any], calls: int, memory: bytearray) -> float:
        """Return how much longer a call takes with cold caches than one that does nothing.

        The two take turns, in rounds of which the median counts: what disturbs the machine for a second disturbs both.
        """
        each = max(calls // _COLD_ROUNDS, 4)
        return statistics.median(
            self.cold_ns(operation, each, memory) - self.cold_ns(empty, each, memory) for _ in range(_COLD_ROUNDS)
        )

    def check(self) -> Check:
        """Return the line that shows how fast this machine was meanwhile."""
        low, middle, high = min(self.slowness), statistics.median(self.slowness), max(self.slowness)
        return Check("time of the reference work, against its machine", f"{middle:.2f} ({low:.2f} to {high:.2f})")

    def _reference(self) -> object:
        return _count_kinds(self._marks)


def warm_ns(operation: Callable[[], Any], calls: int) -> float:
    """Return what a call takes here, one after another."""

    def all_calls() -> None:
        for _ in range(calls):
            operation()

    return thread_ns(all_calls) / calls


def cold_ns(
    operation: Callable[[], Any],
    calls: int,
    memory: bytearray,
    scaled: Callable[[Callable[[], float]], float] = lambda measure: measure(),
) -> float:
    """Return what a call takes after all that it needs has left the caches: the lower quartile, each call scaled."""

    def call() -> int:
        touch(memory)
        return thread_ns(operation)

    return statistics.quantiles((scaled(call) for _ in range(calls)), n=4)[0]


def empty() -> None:
    """Do nothing."""


def _count_kinds(marks: bytes) -> int:
    """Unpack marks and count their kinds: work that no change of the agent or the accounting touches."""
    counts: dict[int, int] = {}
    for _, kind, _, _, _ in MARK_STRUCT.iter_unpack(marks):
        counts[kind] = counts.get(kind, 0) + 1
    return len(counts)
