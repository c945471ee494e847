"""The agent's one failure boundary: an exception of ours never reaches training.

Every function that training may run into passes through `Boundary.guard`. After the first failure the agent is a null
agent: `on_failure` makes every hook inert, and only the count goes on.
"""

import sys
from collections.abc import Callable
from typing import Any


def say(message: str) -> None:
    """Write one line to stderr, or nothing where there is none."""
    try:
        print(f"lockstep: {message}", file=sys.stderr, flush=True)  # noqa: T201  (the one line a user sees)
    except (OSError, ValueError, AttributeError):  # closed, broken or absent: nobody is listening
        return


def describe(error: BaseException) -> str:
    """Return an error as one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


class Boundary:
    """Counts failures and reports the first one."""

    def __init__(self, on_failure: Callable[[int], None]) -> None:
        self._on_failure = on_failure
        self.failures = 0

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` such that it returns None instead of raising."""

        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:  # noqa: BLE001  (the one boundary; KeyboardInterrupt is the user's and passes)
                self._failed(function, error)
                return None

        return guarded

    def _failed(self, function: Callable[..., Any], error: Exception) -> None:
        self.failures += 1
        try:
            self._on_failure(self.failures)
        except Exception as second:  # noqa: BLE001  (a failure of the failure path must not reach training either)
            say(f"agent could not note its failure: {describe(second)}")
        if self.failures == 1:
            where = getattr(function, "__qualname__", "a hook")
            say(f"agent stopped after a failure in {where}: {describe(error)}; training goes on without it")
