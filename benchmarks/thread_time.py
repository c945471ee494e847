"""CPU time of a call on this thread, with warm caches and with cold ones."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.caches import touch

_ROUNDS = 9


def hot_ns(operation: Callable[[], Any], calls: int) -> float:
    """Return the CPU time of a call in the quietest round."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.thread_time_ns()
        for _ in range(calls):
            operation()
        rounds.append((time.thread_time_ns() - began) / calls)
    return min(rounds)


def cold_ns(operation: Callable[[], Any], calls: int, memory: bytearray) -> float:
    """Return the CPU time of a call after everything that it needs has left the caches."""
    times = []
    for _ in range(calls):
        touch(memory)
        began = time.thread_time_ns()
        operation()
        times.append(time.thread_time_ns() - began)
    return statistics.quantiles(times, n=4)[0]


def empty() -> None:
    """Do nothing."""
