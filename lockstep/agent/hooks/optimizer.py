"""Marks optimizer steps, by torch's own global hooks, which every torch.optim.Optimizer calls.

A gradient scaler skips its optimizer on overflow, so `GradScaler.step` is hooked as well: the iteration ends there too.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal, patch

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Register for every optimizer and every scaler. Where the outermost one ends, an iteration may end."""
    from torch.amp.grad_scaler import GradScaler  # noqa: PLC0415  (training imported torch)
    from torch.optim.optimizer import (  # noqa: PLC0415
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    marks = agent.marks
    marks.watch_closure = _closure_watcher(agent)
    handles = (
        register_optimizer_step_pre_hook(agent.mark("optimizer_pre_hook")),
        register_optimizer_step_post_hook(agent.mark("optimizer_post_hook")),
    )
    restore = patch(GradScaler, "step", _scaled(agent, GradScaler.step))

    def remove() -> None:
        restore()
        marks.watch_closure = None
        for handle in handles:
            handle.remove()

    return remove


def _scaled(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    begin, end = agent.mark("scaler_begin"), agent.mark("scaler_end")

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        begin(self, optimizer)
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            end(self)

    return step


def _closure_watcher(agent: "Agent") -> Callable[..., Any]:
    """Return a function that replaces the closure among an optimizer's arguments by a marked one, or returns None.

    torch passes (optimizer, *arguments) to a pre-hook and accepts such a pair as the result.
    """
    begin, end = agent.mark("closure_begin"), agent.mark("closure_end")

    def watched(closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return closure(*args, **kwargs)
            finally:
                end()

        return evaluate

    def watch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1 and callable(args[1]):
            return (args[0], watched(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": watched(kwargs["closure"])}
        return None

    return agent.guard(watch)
