"""A critical path as segments, and its largest entries."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class PathClass(StrEnum):
    """Class of a segment."""

    COMPUTE = "compute"
    """A kernel; in a trace without a device an operator of a library."""
    MEMORY = "memory"
    COMMUNICATION = "communication"
    HOST = "host"
    GAP = "gap"
    """Device work that could have begun but had not: latency of launches, waits that were not recorded."""
    IDLE = "idle"
    """A host thread of which the trace records nothing: mostly Python in traces without stacks."""


class DependencyKind(StrEnum):
    """Why the walk went to a segment from the one after it."""

    END = "end of the window"
    STREAM = "before it on its stream"
    LAUNCH = "launched it"
    RECORDED_WAIT = "it waited for this"
    THREAD = "before it on its thread"
    ALIGNMENT = "ended when it began"
    RAN_LAST = "ran last while it stood still"

    @property
    def is_guess(self) -> bool:
        """Whether only time suggests it, without a record of the profiler."""
        return self in _GUESSES


_GUESSES = frozenset({DependencyKind.ALIGNMENT, DependencyKind.RAN_LAST})
CLASSES, DEPENDENCY_KINDS = tuple(PathClass), tuple(DependencyKind)
CODE_OF: dict[StrEnum, int] = {
    each: code for members in (CLASSES, DEPENDENCY_KINDS) for code, each in enumerate(members)
}
"""What columns of segments hold: places in `CLASSES` and in `DEPENDENCY_KINDS`."""


class Segment(NamedTuple):
    """Part of the window. `event` is an index of the columns, ABSENT for idle time; a gap's is what begins after it."""

    name: str
    path_class: PathClass
    start_ns: int
    end_ns: int
    event: int
    why: DependencyKind


class PathShare(NamedTuple):
    """Total of all segments of one name and class on the path."""

    name: str
    path_class: PathClass
    ns: int
    segments: int

    def as_json(self) -> dict[str, str | int]:
        """Return the share under the keys of the report."""
        return {"name": self.name, "class": self.path_class.value, "ns": self.ns}


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """Segments in order of time; each begins where the one before it ends, from the window's start to its end.

    Arrays of shape (n_segments,): times in ns, int64; `name`, places in `names`, int64; `path_class` and `why`, codes
    of `CODE_OF`, int8; `event` as of `Segment`, int64.
    """

    window_ns: tuple[int, int]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    name: NDArray[np.int64]
    names: list[str]
    path_class: NDArray[np.int8]
    event: NDArray[np.int64]
    why: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def segments(self) -> list[Segment]:
        """Return the segments one by one; a path of a million has them in columns only until someone asks for them."""
        columns = (self.name, self.path_class, self.start_ns, self.end_ns, self.event, self.why)
        return [
            Segment(self.names[name], CLASSES[path_class], start_ns, end_ns, event, DEPENDENCY_KINDS[why])
            for name, path_class, start_ns, end_ns, event, why in zip(*(each.tolist() for each in columns), strict=True)
        ]

    def by_class(self) -> dict[PathClass, int]:
        """Return ns by class, every class; they sum to the window."""
        return dict(zip(CLASSES, _sums(self.path_class, self.lengths_ns(), len(CLASSES)), strict=True))

    def guessed_ns(self) -> int:
        """Return the time of the segments reached by time alone, without a record of the profiler."""
        by_why = _sums(self.why, self.lengths_ns(), len(DEPENDENCY_KINDS))
        return sum(ns for why, ns in zip(DEPENDENCY_KINDS, by_why, strict=True) if why.is_guess)

    def lengths_ns(self) -> NDArray[np.int64]:
        """Return the length of each segment, ns."""
        return self.end_ns - self.start_ns


def _sums(codes: NDArray[np.integer], values_ns: NDArray[np.int64], count: int) -> list[int]:
    """Return sums by code; exact, for a window in ns is far below 2**53."""
    sums: list[int] = np.bincount(codes, values_ns, count).astype(np.int64).tolist()
    return sums


def ranked(path: CriticalPath) -> list[PathShare]:
    """Return the entries of a path, most time first; their ns sum to the window."""
    keys, place = np.unique(path.name * len(CLASSES) + path.path_class, return_inverse=True)
    ns, counts = _sums(place, path.lengths_ns(), len(keys)), np.bincount(place, minlength=len(keys)).tolist()
    named = [(path.names[key // len(CLASSES)], CLASSES[key % len(CLASSES)]) for key in keys.tolist()]
    shares = [PathShare(*key, *sums) for key, *sums in zip(named, ns, counts, strict=True)]
    return sorted(shares, key=lambda share: (-share.ns, share.name, share.path_class))
