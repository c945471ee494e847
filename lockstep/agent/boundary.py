"""The agent's only failure boundary: an exception of ours never reaches training.

Every function that training may call passes through `FailureGuard.guard`. After the first failure the agent is a null
agent: `on_failure` makes every hook inert, and only the count continues.

Python runs the training's signal handlers wherever its main thread is, including inside these functions. An exception
raised by a handler is the training's and passes, be it KeyboardInterrupt or one of its own.
"""

import sys
from collections.abc import Callable
from typing import Any


def warn(message: str) -> None:
    """Write one line to stderr, or nothing if there is none."""
    try:
        print(f"lockstep: {message}", file=sys.stderr, flush=True)  # noqa: T201  (the one line a user sees)
    except Exception:  # noqa: BLE001  (closed, absent, or an object of the training's that raises what it likes)
        return


def describe(error: BaseException) -> str:
    """Format an error as one line of at most 300 characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  (of a class of the training's)
        text = ""
    return f"{type(error).__name__}: {text}"[:300]


def came_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised `error`: one of the arguments of its frame is the frame it interrupted."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        interrupted = frame.f_back
        for value in frame.f_locals.values():
            arguments = value if isinstance(value, tuple) else (value,)
            if interrupted is not None and any(argument is interrupted for argument in arguments):
                return True
        trace = trace.tb_next
    return False


class FailureGuard:
    """Counts failures and reports the first one."""

    def __init__(self, on_failure: Callable[[int], None]) -> None:
        self._on_failure = on_failure
        self.failures = 0

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function` so that it returns None instead of raising."""

        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:  # the one boundary
                if self.absorbs(function, error):
                    return None
                raise

        return guarded

    def contain(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Wrap `function` so that a failure disables only `what`: one line on stderr, once, and None is returned.

        For functions that inspect the training's own objects, whose classes may do anything; marks need none of it.
        """
        is_named = False

        def name(_function: Callable[..., Any], error: Exception) -> None:
            nonlocal is_named
            if not is_named:
                is_named = True
                warn(f"{what}: not known, reading failed: {describe(error)}; everything else is watched")

        def contained(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:  # part of the failure boundary
                if self.absorbs(function, error, name):
                    return None
                raise

        return contained

    def absorbs(
        self,
        function: Callable[..., Any],
        error: Exception,
        note: Callable[[Callable[..., Any], Exception], None] | None = None,
    ) -> bool:
        """Whether `error` is a failure of the agent's own in `function`; if so count it, and report the first one.

        For hooks that are too hot for a wrapper. An error that is not absorbed is the training's and must be re-raised.
        `note` replaces counting, which ends the agent.
        """
        try:
            if came_by_signal(error):
                return False
            (note or self._failed)(function, error)
        except RecursionError:  # the training's call stack leaves no room to report it
            pass
        return True

    def _failed(self, function: Callable[..., Any], error: Exception) -> None:
        self.failures += 1
        try:
            self._on_failure(self.failures)
        except Exception as second:  # noqa: BLE001  (a failure of the failure path must not reach training either)
            warn(f"agent could not note its failure: {describe(second)}")
        if self.failures == 1:
            where = getattr(function, "__qualname__", "a hook")
            warn(f"agent stopped after a failure in {where}: {describe(error)}; training goes on without it")
