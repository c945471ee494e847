"""When Python's garbage collector stops the training thread. Collections on other threads are not counted."""

import gc
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_OLDEST_GENERATION = 2


def install(agent: "Agent") -> Removal:
    """Listen to the collector, which never runs inside itself, so one start time is enough."""
    recorder = agent.recorder
    started_ns = 0

    def note(phase: str, info: dict[str, Any]) -> None:
        nonlocal started_ns
        if get_ident() != recorder.thread:
            return
        if phase == "start":
            started_ns = monotonic_ns()
            mark(started_ns, info["generation"])
        elif started_ns:
            ended_ns = monotonic_ns()
            agent.collected(started_ns, ended_ns, info["generation"] == _OLDEST_GENERATION)
            mark(ended_ns, info["generation"])
            started_ns = 0

    def mark(now_ns: int, generation: int) -> None:
        """See a long collection on the device too, where it may be hidden; the short ones are not worth two events."""
        if generation == _OLDEST_GENERATION and recorder.timeline is not None:
            recorder.timeline.mark(now_ns)

    callback = agent.guard(note)
    gc.callbacks.append(callback)

    def remove() -> None:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)

    return remove
