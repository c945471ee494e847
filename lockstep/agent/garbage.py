"""HOT (budget 500 ns a collection): when Python's garbage collector ran, noted without a line of Python.

Python runs signal handlers before the next line of Python code, and the collector swallows what its callbacks raise: in
a callback written in Python, a Ctrl-C or SIGTERM that arrives during a long collection would be lost to the training.
So the callback is put together from C functions, in which no handler runs; what it noted is read at a step's end.
"""

import gc
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from threading import get_ident
from time import monotonic_ns
from typing import Any

EVENTS_MAX = 8192
"""Beginnings and ends that are kept: a process that ends no step must not fill memory."""
_OLDEST_GENERATION = 2

Event = tuple[int, int, bool]
"""(time in ns, thread, whether a collection began there)."""


class CollectionLog:
    """Collections of every thread since the last `take`. `callback` is for `gc.callbacks`."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.taken: list[tuple[int, int]] = []
        """What `take` returned last."""
        self._full_before = _full_collections()
        # The collector calls callback(phase, info), which is getattr(phases, "start" or "stop", info): a property.
        names = ("start", "stop")
        phases = type("Phases", (), {name: property(self._noter(name == "start")) for name in names})()
        self.callback: Callable[[str, dict[str, Any]], Any] = partial(getattr, phases)

    def _noter(self, begins: bool) -> Callable[[Any], Any]:  # noqa: FBT001  (what it notes)
        """Return a function of one argument, C all the way down, that appends the event of this moment."""
        moments = zip(iter(monotonic_ns, None), iter(get_ident, None), repeat(begins), strict=False)
        return partial(next, map(self.events.append, moments))

    def take(self, thread: int) -> list[tuple[int, int]]:
        """Return (start ns, end ns) of the collections of `thread`, in order, and forget all that have ended."""
        self.taken = []
        events = self.events
        began_ns = 0
        while events:
            at_ns, where, begins = events.popleft()
            if begins:
                began_ns = at_ns
            elif began_ns and where == thread:
                self.taken.append((began_ns, at_ns))
        return self.taken

    def take_full_count(self) -> int:
        """Return how many collections of the oldest generation there were since it was asked last, on any thread."""
        count = _full_collections()
        before, self._full_before = self._full_before, count
        return count - before


def _full_collections() -> int:
    return int(gc.get_stats()[_OLDEST_GENERATION]["collections"])
