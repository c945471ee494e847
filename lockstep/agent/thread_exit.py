"""Detects when a thread ends: Python then releases its thread-local values, before its id can be reused.

Rejected: `threading.enumerate`, which does not know threads that Python did not start, and `sys._current_frames`, which
knows only ids. Both must be polled, and the system gives the id of an ended thread to the next one.
"""

from collections.abc import Callable
from functools import partial
from threading import get_ident, local
from typing import Any
from weakref import ref


class _Presence:
    """Lives as long as the thread whose thread-local value it is."""

    __slots__ = ("__weakref__",)


class ThreadExit:
    """Calls `on_exit(thread)` on the watched thread as its last Python code; of several only the last is watched."""

    def __init__(self, on_exit: Callable[[int], None]) -> None:
        self._on_exit = on_exit
        self._local = local()
        self._reference: ref[_Presence] | None = None

    def watch(self) -> None:
        """Watch the calling thread from now on, instead of the previous one."""
        presence = self._local.presence = _Presence()
        self._reference = ref(presence, partial(self._notify, get_ident()))

    def _notify(self, thread: int, _reference: Any) -> None:
        self._on_exit(thread)
