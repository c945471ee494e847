"""Which gradients to send together: Hermes' adaptive gradient fusion (appendix E), and the optimum.

Gradients become ready in order, each after its computation. A segment of them is sent as one message once its last
gradient is ready and the previous segment has been sent (equation 5). Many segments pay many latencies, few leave a
long tail: the objective is to end communication early (equation 4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lockstep.contracts.errors import ConfigError

Cost = Callable[[float], float]
"""Seconds to sum a volume of gradients in bytes; more bytes never take less."""

Segmentation = tuple[int, ...]
"""How many gradients each segment holds, in order."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a backward operator: its bytes, and the operator's computing time, seconds."""

    volume_bytes: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Fusion:
    """A segmentation of the gradients, and when its communication ends, in seconds from the start of backward."""

    segments: Segmentation
    end_s: float


class Task:
    """Gradients in the order in which backward leaves them, and what sending costs.

    Raises
    ------
    ConfigError
        No gradients.
    """

    def __init__(self, gradients: Sequence[Gradient], cost: Cost) -> None:
        if not gradients:
            raise ConfigError("gradients to fuse: got none, expected at least one")
        self.count = len(gradients)
        self._ready_s = list(accumulate((g.compute_s for g in gradients), initial=0.0))
        self._bytes = list(accumulate((g.volume_bytes for g in gradients), initial=0.0))
        self._cost = cost

    def end_of(self, segments: Segmentation) -> float:
        """Return when communication ends (equation 5); `segments` must hold all gradients."""
        end_s, begin = 0.0, 0
        for size in segments:
            end_s = self.send(begin, begin + size, end_s)
            begin += size
        if begin != self.count:
            raise ConfigError(f"segments: got {begin} gradients in {segments}, expected {self.count}")
        return end_s

    def send(self, begin: int, end: int, free_s: float) -> float:
        """Return when gradients `begin` to `end` are through, sent as one over a link that is free at `free_s`."""
        return max(self._ready_s[end], free_s) + self._cost(self._bytes[end] - self._bytes[begin])

    def ready_s(self, count: int) -> float:
        """Return when the first `count` gradients are ready."""
        return self._ready_s[count]

    def volume_bytes(self, begin: int, end: int) -> float:
        """Return the bytes of gradients `begin` to `end`."""
        return self._bytes[end] - self._bytes[begin]


def unfused(task: Task) -> Fusion:
    """Return the fusion with each gradient by itself, in the order of backward."""
    return _fusion(task, (1,) * task.count)


def one_bucket(task: Task) -> Fusion:
    """Return the fusion with all gradients in one segment, after backward."""
    return _fusion(task, (task.count,))


def fixed_buckets(task: Task, bucket_bytes: float) -> Fusion:
    """Return buckets that are sent as soon as they hold `bucket_bytes`, as frameworks do."""
    sizes, begin = [], 0
    for end in range(1, task.count + 1):
        if task.volume_bytes(begin, end) >= bucket_bytes or end == task.count:
            sizes.append(end - begin)
            begin = end
    return _fusion(task, tuple(sizes))


def forward_search(task: Task) -> Fusion:
    """Return Hermes' greedy search.

    A segment takes the next gradient if, sent together, it has been sent before the following gradient would begin:
    when that is ready, or when the two have been sent apart. Fusing then delays no gradient.
    """
    sizes, begin, free_s = [], 0, 0.0
    while begin < task.count:
        end = begin + 1
        while end < task.count and _delays_none(task, begin, end, free_s):
            end += 1
        free_s = task.send(begin, end, free_s)
        sizes.append(end - begin)
        begin = end
    return _fusion(task, tuple(sizes))


def _delays_none(task: Task, begin: int, end: int, free_s: float) -> bool:
    next_s = task.send(end, end + 1, task.send(begin, end, free_s))
    if end + 1 < task.count:
        next_s = max(next_s, task.ready_s(end + 2))
    return task.send(begin, end + 1, free_s) <= next_s


def exact(task: Task) -> Fusion:
    """Return a segmentation whose communication ends first, by dynamic programming over where the last segment begins.

    An earlier end of the segments before never makes a segment end later, so the best end of each prefix suffices: the
    time grows with the square of the gradients.
    """
    best_s = [0.0] * (task.count + 1)
    begins = [0] * (task.count + 1)
    for end in range(1, task.count + 1):
        best_s[end], begins[end] = min((task.send(begin, end, best_s[begin]), begin) for begin in range(end))
    sizes: list[int] = []
    end = task.count
    while end:
        sizes.append(end - begins[end])
        end = begins[end]
    return _fusion(task, tuple(reversed(sizes)))


def _fusion(task: Task, segments: Segmentation) -> Fusion:
    return Fusion(segments, task.end_of(segments))
