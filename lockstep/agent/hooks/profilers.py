"""Yields to other users of torch's profiler, so that our capture ends before another begins (capture/session.py).

torch.profiler, torch.autograd.profiler and its emit_nvtx and emit_itt all use three functions of one module.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.capture.session import PATIENCE_S, SESSION
from lockstep.agent.hooks.patching import Removal, patch

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_BEGINNINGS = ("_prepare_profiler", "_enable_profiler")
_END = "_disable_profiler"


def install(agent: "Agent") -> Removal:
    """Make every profiler that is not ours acquire the session; names that this torch lacks are skipped.

    On a thread that does not train, the user's call may be delayed by up to PATIENCE_S, and is then refused with a
    RuntimeError: continuing would crash the process.
    """
    from torch.autograd import profiler  # noqa: PLC0415  (training imported it)

    admit, leave = agent.guard(SESSION.admit), agent.guard(SESSION.leave)

    def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, **kwargs: Any) -> Any:
            if admit() is False:
                raise RuntimeError(
                    f"a capture of Lockstep runs on the training thread, which made no step for {PATIENCE_S:g} s; "
                    "a second profiler would crash the process"
                )
            try:
                return original(*args, **kwargs)
            except BaseException:
                leave()
                raise

        return begin

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                leave()

        return end

    removals = [
        patch(profiler, name, (ending if name == _END else beginning)(getattr(profiler, name)))
        for name in (*_BEGINNINGS, _END)
        if hasattr(profiler, name)
    ]
    SESSION.watch_forks()

    def remove() -> None:
        for removal in removals:
            removal()

    return remove
