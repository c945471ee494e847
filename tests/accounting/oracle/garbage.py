"""HOT (budget 500 ns a collection): when Python's garbage collector ran, noted without a line of Python.

Python runs signal handlers before the next line of Python code, and the collector swallows what its callbacks raise: in
a callback written in Python, a Ctrl-C or SIGTERM that arrives during a long collection would be lost to the training.
So the callback is put together from C functions, in which no handler runs; what it noted is read at a step's end.
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
_COUNTS_KNOWN = sys.version_info < (3, 14)
"""Whether a collection of a generation sets the counts of all younger ones to 0; the one of 3.14 works in slices."""


class CollectionLog:
    """Collections of every thread since the last `take`. `callback` is for `gc.callbacks`."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.taken: list[tuple[int, int]] = []
        """What `take` returned last."""
        self.generations: dict[int, int] = {}
        """Generation of those that `take` returned last, by their end, as far as they are noted."""
        self.notes_generations = False
        self._full_before = _full_collections()
        # The collector calls callback(phase, info), which is getattr(phases, "start" or "stop", info): a property.
        phases = {"start": property(self._noter(begins=True)), "stop": property(self._noter(begins=False))}
        self._phases: Any = type("Phases", (), phases)
        self.callback: Callable[[str, dict[str, Any]], Any] = partial(getattr, self._phases())

    def note_generations(self, *, wanted: bool) -> None:
        """From now on, note which generation is collected, or no more; it costs 200 ns a collection."""
        if wanted != self.notes_generations:
            self.notes_generations = wanted
            self._phases.stop = property(self._noter(begins=False, counts=wanted and _COUNTS_KNOWN))

    def _noter(self, *, begins: bool, counts: bool = False) -> Callable[[Any], Any]:
        """Return a function of one argument, C all the way down, that appends the event of this moment."""
        counted = iter(gc.get_count, None) if counts else repeat(None)
        moments = zip(iter(monotonic_ns, None), iter(get_ident, None), repeat(begins), counted, strict=False)
        return partial(next, map(self.events.append, moments))

    def take(self, thread: int) -> list[tuple[int, int]]:
        """Return (start ns, end ns) of the collections of `thread`, in order, and forget all that have ended."""
        self.taken = []
        if self.generations:
            self.generations = {}
        events = self.events
        began_ns = 0
        while events:
            at_ns, where, begins, counts = events.popleft()
            if begins:
                began_ns = at_ns
            elif began_ns and where == thread:
                self.taken.append((began_ns, at_ns))
                if counts is not None:
                    self.generations[at_ns] = _generation(counts)
        return self.taken

    def take_full_count(self) -> int:
        """Return how many collections of the oldest generation there were since it was asked last, on any thread."""
        count = _full_collections()
        before, self._full_before = self._full_before, count
        return count - before


def _generation(counts: Counts) -> int:
    """Return what was collected just before: its own count and the younger ones are 0, the next one's is not."""
    _, young, middle = counts
    return 0 if young else 1 if middle else _OLDEST_GENERATION


def _full_collections() -> int:
    return int(gc.get_stats()[_OLDEST_GENERATION]["collections"])
