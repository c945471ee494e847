"""The Python profiler of the training thread: torch's, for a capture with stacks, or the training's (e.g. cProfile).

A thread has one. torch installs its own at the start and, at the end, removes whatever is installed by then: one that
the training began meanwhile is restored. That of another thread cannot be accessed from here and stays lost.
"""

import sys
from collections.abc import Callable
from typing import Any


class PythonProfiler:
    """The profiler that torch has installed on the calling thread, the training thread; created after its start."""

    def __init__(self) -> None:
        self._own = sys.getprofile()

    @property
    def is_displaced(self) -> bool:
        """Whether the training has installed another one, or none."""
        return sys.getprofile() is not self._own

    def keep_theirs(self) -> Callable[[], Any]:
        """Return a function that restores the training's profiler once torch has ended."""
        theirs: Any = sys.getprofile()
        if theirs is None or theirs is self._own:
            return lambda: None
        lsprof = sys.modules.get("_lsprof")
        if lsprof is not None and isinstance(theirs, lsprof.Profiler):  # cProfile's, in C: it takes the place itself
            enable: Callable[[], Any] = theirs.enable
            return enable
        return lambda: sys.setprofile(theirs) if callable(theirs) else None
