"""A critical path as segments, and what takes most of it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class PathClass(StrEnum):
    """What a segment is."""

    COMPUTE = "compute"
    """A kernel; in a trace without a device an operator of a library."""
    MEMORY = "memory"
    COMMUNICATION = "communication"
    HOST = "host"
    GAP = "gap"
    """Work of the device that could have begun and had not: latency of launches, waits that were not recorded."""
    IDLE = "idle"
    """A thread of the host of which the trace records nothing: without stacks mostly Python."""


class Why(StrEnum):
    """What made the walk go to a segment from the one after it."""

    END = "end of the window"
    STREAM = "before it on its stream"
    LAUNCH = "launched it"
    RECORDED_WAIT = "it waited for this"
    THREAD = "before it on its thread"
    ALIGNMENT = "ended when it began"
    RAN_LAST = "ran last while it stood still"

    @property
    def is_guess(self) -> bool:
        """Whether time alone shows it, and no record of the profiler."""
        return self in _GUESSES


_GUESSES = frozenset({Why.ALIGNMENT, Why.RAN_LAST})


class Segment(NamedTuple):
    """Part of the window. `event` is an index of the columns, ABSENT for idle time; a gap's is what begins after it."""

    name: str
    path_class: PathClass
    start_ns: int
    end_ns: int
    event: int
    why: Why


class PathShare(NamedTuple):
    """What all segments of one name and class take of the path together."""

    name: str
    path_class: PathClass
    ns: int
    segments: int

    def as_json(self) -> dict[str, str | int]:
        """Return the share under the keys of the report."""
        return {"name": self.name, "class": self.path_class.value, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Segments in order of time; each begins where the one before it ends, from the window's start to its end."""

    window_ns: tuple[int, int]
    segments: Sequence[Segment]

    def by_class(self) -> dict[PathClass, int]:
        """Return ns by class, every class; they sum to the window."""
        found = dict.fromkeys(PathClass, 0)
        for segment in self.segments:
            found[segment.path_class] += segment.end_ns - segment.start_ns
        return found

    def guessed_ns(self) -> int:
        """Return the time of the segments to which time alone led, and no record of the profiler."""
        return sum(end_ns - start_ns for _, _, start_ns, end_ns, _, why in self.segments if why in _GUESSES)


def ranked(path: CriticalPath) -> list[PathShare]:
    """Return what lies on a path, most time first; the ns sum to the window."""
    found: defaultdict[tuple[str, PathClass], list[int]] = defaultdict(lambda: [0, 0])
    for name, path_class, start_ns, end_ns, _, _ in path.segments:
        share = found[name, path_class]
        share[0] += end_ns - start_ns
        share[1] += 1
    shares = (PathShare(*key, ns, count) for key, (ns, count) in found.items())
    return sorted(shares, key=lambda share: (-share.ns, share.name, share.path_class))
