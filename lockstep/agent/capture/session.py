"""Arbitrates torch's profiler session, of which a process has one, between our captures and the training.

torch does not report when two overlap. Measured with 2.13 on a host: a thread that prepares or starts a profiler while
another one is prepared or running takes the session over, and the other's `stop`, or its export after that, is a
segmentation fault; from another thread as well, and also when the other one is only in the warm-up of its schedule,
which no flag of torch shows. So ours never begins while another is prepared or running, and ends before another begins.

This module only arbitrates; `hooks/profilers.py` calls it where profilers begin and end.
"""

import os
from collections.abc import Callable
from threading import Event, Lock, get_ident
from typing import Any

PATIENCE_S = 60.0
"""How long a profiler of another thread waits for the training thread to reach a boundary and end ours: a long step."""

_NO_THREAD = 0  # no thread's id
THEIRS = "the training starts a profiler of its own"
FORKS = "the training forks a process"


class ProfilerSession:
    """The owner of the session: none, ours or theirs. Any thread may call."""

    def __init__(self) -> None:
        self._watches_forks = False
        self.reset()

    def reset(self) -> None:
        """Forget everything: in a forked child the lock may be held by a thread that does not exist there."""
        self._lock = Lock()
        self._owner = _NO_THREAD
        self._theirs = False
        self._inside = False
        self._over = Event()
        self._end: Callable[[str], None] | None = None
        self.wanted = False
        """Whether another profiler waits for ours to end."""

    def claim(self, end: Callable[[str], None]) -> bool:
        """Acquire the session for the calling thread unless the training holds it.

        `end(why)` is called on this thread when the capture must end at once; it leads to `release`.
        """
        with self._lock:
            if self._theirs or self._owner != _NO_THREAD:
                return False
            self._owner = get_ident()
            self._end = end
            self._over.clear()
            return True

    @property
    def on_own_thread(self) -> bool:
        """Whether ours runs and belongs to the calling thread; only the thread that started it may stop it."""
        return self._owner == get_ident()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call torch on behalf of our own capture: profilers that start and stop inside are ours."""
        self._inside = True
        try:
            return function(*args)
        finally:
            self._inside = False

    def release(self) -> None:
        """Release the session."""
        with self._lock:
            self._owner = _NO_THREAD
            self._end = None
            self.wanted = False
            self._over.set()

    def admit(self) -> bool:
        """Make room for a profiler that is not ours, and return whether that was possible.

        On the training thread ours ends here. Another thread waits until the training thread has reached a step
        boundary; it gets False if that takes longer than PATIENCE_S, and must not continue then.
        """
        if self._inside and self.on_own_thread:
            return True
        while True:
            with self._lock:
                if self._owner == _NO_THREAD:
                    self._theirs = True
                    return True
                self.wanted = True
                over = self._over
            if self.on_own_thread:
                self._end_now(THEIRS)
            elif not over.wait(PATIENCE_S):
                return False

    def leave(self) -> None:
        """Record that a profiler that is not ours has ended."""
        if not (self._inside and self.on_own_thread):
            with self._lock:
                self._theirs = False

    def watch_forks(self) -> None:
        """From now on, end ours before the training thread forks.

        The child would inherit the running profiler and record until it exits: 2 MB a step in a data worker.
        """
        if not self._watches_forks:
            self._watches_forks = True
            os.register_at_fork(before=self._before_fork, after_in_child=self.reset)

    def _before_fork(self) -> None:
        if self.on_own_thread and not self._inside:
            self._end_now(FORKS)

    def _end_now(self, why: str) -> None:
        end = self._end
        try:
            if end is not None:
                end(why)
        finally:
            self.release()


SESSION = ProfilerSession()
"""The session of this process; torch has one per process."""
