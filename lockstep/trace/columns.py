"""A trace as columns: what every analysis works on.

Shape suffix: E complete events ("ph": "X"), in the order of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PYTHON = "python_function"
OPERATOR = "cpu_op"
ANNOTATION = "user_annotation"

Mask = NDArray[np.bool_]
"""Which events, array of shape (n_events,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """The complete events of one rank's trace; arrays are read, never written.

    `start_ns` and `duration_ns` are int64 arrays of shape (n_events,), exact to the ns that the profiler wrote, the
    start on the wall clock where the trace says its base. `name`, `category` and `thread` are int32 codes of shape
    (n_events,) into `names`, `categories` and `threads` (process and thread id, as the file has them).
    """

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    name: NDArray[np.int32]
    category: NDArray[np.int32]
    thread: NDArray[np.int32]
    names: list[str]
    categories: list[str]
    threads: list[tuple[object, object]]
    trace_bytes: int
    """Size of the JSON, unpacked."""
    event_count: int
    """Events of every kind, flows and metadata included."""
    dropped_count: int
    """Complete events left out because a field of theirs made no sense."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Return the end of every event; the loader has made sure that no sum overflows."""
        return self.start_ns + self.duration_ns

    def category_code(self, category: str) -> int:
        """Return the code of `category`, or -1, which no event has."""
        return self.categories.index(category) if category in self.categories else -1

    def named(self, accept: Callable[[str], bool]) -> Mask:
        """Return which events have an accepted name; each name is looked at once."""
        accepted: Mask = np.fromiter(map(accept, self.names), np.bool_, len(self.names))[self.name]
        return accepted
