"""Detects the end of a multiprocessing child: a forked one runs no atexit functions, which miss failures too."""

import sys
from collections.abc import Callable
from typing import Any

from lockstep.agent.ending import cause_of

_LAST = -1000
"""Priority among multiprocessing's finalizers: the training's own come first."""


def watch_child_end(end: Callable[[BaseException | None], None]) -> None:
    """Have `end(error)` called at the end of this process if it is a child of multiprocessing; None: it ended well."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize  # noqa: PLC0415  (imported by the process that started this one)

    def ending() -> None:
        error = sys.exc_info()[1]
        end(None if error is None else cause_of(error))

    Finalize(None, ending, exitpriority=_LAST)
