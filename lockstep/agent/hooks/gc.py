"""Marks when Python's garbage collector stops the training thread. Collections on other threads are not counted."""

import gc
from typing import TYPE_CHECKING, Any

from lockstep.agent.garbage import CollectionLog
from lockstep.agent.hooks.patching import Removal
from lockstep.agent.mark_writer import C_EXTENSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Register callbacks of the collector in which Python runs no signal handler (garbage.py)."""
    marks: Any = agent.marks
    callback: Callable[[str, dict[str, Any]], Any] = marks.collect
    if agent.mark_writer != C_EXTENSION:
        marks.garbage = CollectionLog()
        callback = marks.garbage.callback
    gc.callbacks.append(callback)

    def remove() -> None:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)

    return remove
