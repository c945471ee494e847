"""HOT (budget 500 ns a collection): when Python's garbage collector ran, noted without a line of Python.

Python runs signal handlers before the next line of Python code, and the collector swallows what its callbacks raise: in
a callback written in Python, a Ctrl-C or SIGTERM that arrives during a long collection would be lost to the training.
So the callback is put together from C functions, in which no handler runs; what it noted is read later. The C
extension's marks are such a function themselves; this log is for processes without it, and for captures.
"""

import gc
import sys
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

Counts = tuple[int, int, int]
"""Of `gc.get_count`: allocations, and collections of each younger generation since the generation's own."""
Event = tuple[int, int, bool, Counts | None]
"""(time in ns, thread, whether a collection began there, counts at its end if they are noted)."""
Collection = tuple[int, int, int | None]
"""(start ns, end ns, generation, if that is known)."""
_COUNTS_KNOWN = sys.version_info < (3, 14)
"""Whether a collection of a generation sets the counts of all younger ones to 0; the one of 3.14 works in slices."""


class CollectionLog:
    """Collections of every thread since the last `drain`. `callback` is for `gc.callbacks`."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._full_before = _full_collections()
        # The collector calls callback(phase, info), which is getattr(phases, "start" or "stop", info): a property.
        phases = {"start": property(self._noter(begins=True)), "stop": property(self._noter(begins=False))}
        self.callback: Callable[[str, dict[str, Any]], Any] = partial(getattr, type("Phases", (), phases)())

    def _noter(self, *, begins: bool) -> Callable[[Any], Any]:
        """Return a function of one argument, C all the way down, that appends the event of this moment."""
        counted = repeat(None) if begins or not _COUNTS_KNOWN else iter(gc.get_count, None)
        moments = zip(iter(monotonic_ns, None), iter(get_ident, None), repeat(begins), counted, strict=False)
        return partial(next, map(self.events.append, moments))

    def drain(self, thread: int) -> list[Collection]:
        """Return the collections of `thread`, in order, and forget all that have ended.

        Where their generation is not known, as many of the last ones as were full are taken as those.
        """
        taken: list[Collection] = []
        events = self.events
        began_ns = 0
        while events:
            at_ns, where, begins, counts = events.popleft()
            if begins:
                began_ns = at_ns
            elif began_ns and where == thread:
                taken.append((began_ns, at_ns, None if counts is None else _generation(counts)))
        return taken if _COUNTS_KNOWN else self._with_full(taken)

    def _with_full(self, taken: list[Collection]) -> list[Collection]:
        count = _full_collections()
        first = len(taken) - (count - self._full_before)
        self._full_before = count
        return [
            (begin, end, _OLDEST_GENERATION if index >= first else None) for index, (begin, end, _) in enumerate(taken)
        ]


def _generation(counts: Counts) -> int:
    """Return what was collected just before: its own count and the younger ones are 0, the next one's is not."""
    _, young, middle = counts
    return 0 if young else 1 if middle else _OLDEST_GENERATION


def _full_collections() -> int:
    return int(gc.get_stats()[_OLDEST_GENERATION]["collections"])
