"""When Python's garbage collector stops the training thread. Collections on other threads are not counted."""

import gc
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Listen to the collector, which never runs inside itself, so one start time is enough."""
    recorder = agent.recorder
    started_ns = 0

    def note(phase: str, _info: dict[str, Any]) -> None:
        nonlocal started_ns
        if get_ident() != recorder.thread:
            return
        if phase == "start":
            started_ns = monotonic_ns()
        elif started_ns:
            recorder.collected(started_ns, monotonic_ns())
            started_ns = 0

    callback = agent.guard(note)
    gc.callbacks.append(callback)

    def remove() -> None:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)

    return remove
