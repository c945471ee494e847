"""torch's own threads: waits for them before a profiler starts or stops, and before the interpreter exits.

A finished collective is freed by the backend's thread if that holds the last reference, and freeing a tensor that
Python has seen needs the interpreter lock. A thread that requests the lock after the interpreter is gone is ended by
CPython inside a destructor, which aborts the process: "terminate called without an active exception", after a
successful training. torch alone does this if a process ends within milliseconds of its last collective; the agent's own
time at that collective makes it likelier.

If a profiler with stacks starts or stops while such a thread takes the interpreter lock, it walks over thread states
that are being created or freed. If it stops while a collective runs under it, the thread is left with a freed queue.
torch 2.13 crashes in either case with a segmentation fault, within seconds if both are repeated, also without an agent.

Linux shows which threads run. A thread that sleeps while no one holds the lock waits for work, and needs nothing more.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, sleep

LIMIT_NS = 2_000_000_000
"""Longest wait; only a thread that is runnable and gets no processor takes long."""
_PAUSE_S = 0.001
_QUIET_LOOKS = 3
"""Consecutive checks: a pause gives the lock to waiting threads, unless another Python thread takes it first."""
_TASKS = Path("/proc/self/task")
_PREFIX = "pt_"  # prefix of the names that torch gives its threads
_ASLEEP = "S"


def let_finish(
    states: Callable[[], list[str]] | None = None,
    pause: Callable[[float], None] = sleep,
    clock: Callable[[], int] = monotonic_ns,
    *,
    limit_ns: int = LIMIT_NS,
    is_busy: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until every thread of torch sleeps and has nothing to do; return False if one is busy after `limit_ns`.

    `states` returns the scheduling state of each such thread, as in proc_pid_stat(5); `pause` releases the lock.
    `is_busy` is true if work is known that a thread only waits for, asleep: a collective in flight.
    """
    states = states or thread_states
    deadline_ns = clock() + limit_ns
    quiet = 0
    while quiet < _QUIET_LOOKS:
        found = states()
        if not found:
            return True
        quiet = quiet + 1 if not is_busy() and all(state == _ASLEEP for state in found) else 0
        if not quiet and clock() >= deadline_ns:  # by a thread that runs, not by looks that wait for a crowded core
            return False
        pause(_PAUSE_S)
    return True


def thread_states() -> list[str]:
    """Return the scheduling state, one letter, of each thread of torch in this process; none if /proc is hidden."""
    found = []
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return []
    for task in tasks:
        try:
            name, _, rest = (task / "stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
        except OSError:  # ended meanwhile
            continue
        if name.startswith(_PREFIX):
            found.append(rest[:1])
    return found
