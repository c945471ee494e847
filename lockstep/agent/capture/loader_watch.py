"""Samples the DataLoader's queue and its workers at each request for a batch, during captures.

Hermes (section 4.2.2, figure 5) finds the slow stage of an input pipeline by its queues. torch's loader stores ready
batches in the iterator; reading and processing are one stage in its workers, whose CPU time and blocking the kernel
counts. Outside a capture the hook costs one attribute read per batch.
"""

from itertools import islice
from time import monotonic_ns
from typing import Any

READINGS_MAX = 256
"""Queue depths stored per capture; later batches are ignored. Readers take the facts from a short end of the file."""
WORKERS_MAX = 32
"""Workers read per sample, 15 us each."""
WORKERS_PERIOD_NS = 50_000_000
"""Interval between two samples of the workers: 32 of them cost 1 % of it."""
_STAT_BYTES = 1024
_BLOCKED = b"D"


class LoaderWatch:
    """Queue depths and worker times of one capture. Used by the training thread, from `begin` to `end`.

    `is_on` is true during a capture; the hook reads nothing else.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._reset()

    def _reset(self) -> None:
        self._depths: list[tuple[int, int, int]] = []
        self._first: tuple[int, dict[int, int]] | None = None
        self._last: tuple[int, dict[int, int]] | None = None
        self._blocked = self._looks = self._count = 0

    def begin(self) -> None:
        """Start sampling."""
        self._reset()
        self.is_on = True

    def end(self) -> dict[str, Any] | None:
        """Stop, and return the samples, None without a loader that has workers.

        `depths` are (CLOCK_MONOTONIC ns, batches ready, batches requested from workers and not ready). `workers` is
        their number, `span_ns` the time between the first and the last sample of them, `busy_ns` the time in it that
        the `seen` workers alive at both were on a CPU or waited for one, summed, and `blocked_ratio` the share of
        samples that found one in uninterruptible sleep.
        """
        self.is_on = False
        if not self._depths:
            return None
        found: dict[str, Any] = {"depths": self._depths, "workers": self._count}
        if self._first is not None and self._last is not None and self._last[0] > self._first[0]:
            (begun_ns, before), (ended_ns, after) = self._first, self._last
            both = [pid for pid in before if pid in after]
            found["span_ns"] = ended_ns - begun_ns
            found["busy_ns"] = sum(max(after[pid] - before[pid], 0) for pid in both)
            found["seen"] = len(both)
            found["blocked_ratio"] = self._blocked / max(self._looks, 1)
        self._reset()
        return found

    def look(self, iterator: Any) -> None:
        """Sample the iterator's queue at a request for a batch; an iterator without workers has none.

        If this version of torch stores its queue elsewhere, nothing is sampled in this capture.
        """
        workers = getattr(iterator, "_workers", None)
        if not workers or len(self._depths) >= READINGS_MAX:
            return
        try:
            self._note(iterator, workers, monotonic_ns())
        except (AttributeError, TypeError, NotImplementedError, OSError):
            self.is_on = False
            self._reset()

    def _note(self, iterator: Any, workers: Any, now_ns: int) -> None:
        # An entry of one element is a task under way, one of two holds a batch that came before its turn.
        early = sum(len(each) > 1 for each in list(iterator._task_info.values()))  # noqa: SLF001  (no public name)
        ready = early + iterator._data_queue.qsize()  # noqa: SLF001
        if iterator._data_queue is not iterator._worker_result_queue:  # noqa: SLF001  (batches go on to be pinned)
            ready += iterator._worker_result_queue.qsize()  # noqa: SLF001
        self._depths.append((now_ns, ready, max(iterator._tasks_outstanding - ready, 0)))  # noqa: SLF001
        self._count = len(workers)
        if self._last is None or now_ns - self._last[0] >= WORKERS_PERIOD_NS:
            self._look_at(workers, now_ns)

    def _look_at(self, workers: Any, now_ns: int) -> None:
        busy_ns: dict[int, int] = {}
        for worker in islice(workers, WORKERS_MAX):
            try:
                busy_ns[worker.pid] = _busy_ns(worker.pid)
                self._blocked += _is_blocked(worker.pid)
            except (OSError, ValueError, IndexError):
                continue  # it has ended, or the kernel does not count
            self._looks += 1
        self._last = now_ns, busy_ns
        if self._first is None:
            self._first = self._last


def _busy_ns(pid: int) -> int:
    """Return how long a process's main thread has been on a CPU or waited for one since it began."""
    with open(f"/proc/{pid}/schedstat", "rb") as file:  # noqa: PTH123  (a third of what a Path costs)
        on_cpu_ns, waited_ns = file.read(_STAT_BYTES).split()[:2]
    return int(on_cpu_ns) + int(waited_ns)


def _is_blocked(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (the same)
        return file.read(_STAT_BYTES).rpartition(b") ")[2][:1] == _BLOCKED


LOADER_WATCH = LoaderWatch()
"""The process's own: it has one capture at a time."""
