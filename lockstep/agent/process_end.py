"""How a child of multiprocessing ends: a forked one runs no atexit functions, and a failed one is not seen by them."""

import sys
from collections.abc import Callable
from typing import Any

_LAST = -1000
"""Priority among multiprocessing's finalizers: the training's own come first."""


def watch_child_end(end: Callable[[bool], None]) -> None:
    """Have `end(ended_well)` called at the end of this process if it is a child of multiprocessing.

    Without an exception, or with `sys.exit(0)`, it ended well. `torch.multiprocessing.spawn` turns a failure of its
    function into `sys.exit(1)`.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize  # noqa: PLC0415  (imported by whoever started this process)

    def ending() -> None:
        error = sys.exc_info()[1]
        end(error is None or (isinstance(error, SystemExit) and error.code in (None, 0)))

    Finalize(None, ending, exitpriority=_LAST)
