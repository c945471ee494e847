"""Who profiles Python on the training thread: torch, for a capture with stacks, or the training (cProfile and others).

A thread has one such profiler. Torch takes it when it begins and, when it ends, takes away whatever is there by then:
one that the training began meanwhile is put back. That of another thread cannot be seen from here and stays lost.
"""

import sys
from collections.abc import Callable
from typing import Any


class PythonProfiler:
    """What torch has put on the calling thread, the training thread; made behind its start."""

    def __init__(self) -> None:
        self._own = sys.getprofile()

    @property
    def is_displaced(self) -> bool:
        """Whether the training has put another one, or none, in its place."""
        return sys.getprofile() is not self._own

    def keep_theirs(self) -> Callable[[], Any]:
        """Return what puts the training's profiler back once torch has ended."""
        theirs: Any = sys.getprofile()
        if theirs is None or theirs is self._own:
            return lambda: None
        lsprof = sys.modules.get("_lsprof")
        if lsprof is not None and isinstance(theirs, lsprof.Profiler):  # cProfile's, in C: it takes the place itself
            enable: Callable[[], Any] = theirs.enable
            return enable
        return lambda: sys.setprofile(theirs) if callable(theirs) else None
