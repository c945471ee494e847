"""When Python's garbage collector stops the training thread. Collections on other threads are not counted."""

import gc
from typing import TYPE_CHECKING

from lockstep.agent.garbage import CollectionLog
from lockstep.agent.hooks import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Listen to the collector; the recorder reads what was noted."""
    log = CollectionLog()
    agent.recorder.garbage = log
    gc.callbacks.append(log.callback)

    def remove() -> None:
        agent.recorder.garbage = None
        if log.callback in gc.callbacks:
            gc.callbacks.remove(log.callback)

    return remove
