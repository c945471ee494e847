"""When an optimizer steps: torch's own global hooks, which every torch.optim.Optimizer calls, made before or after.

A gradient scaler that met an overflow skips its optimizer, so `GradScaler.step` is watched as well: the iteration ends
there all the same.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal, patch

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Register for every optimizer and every scaler. Where the outermost one ends, an iteration may end."""
    from torch.amp.grad_scaler import GradScaler  # noqa: PLC0415  (training imported torch)
    from torch.optim.optimizer import (  # noqa: PLC0415
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    enter = agent.guard(agent.recorder.enter_optimizer)
    leave = agent.guard_mark(agent.recorder.leave_optimizer)

    watch = _closure_watcher(agent)

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        enter(optimizer)
        return watch(args, kwargs) if len(args) > 1 or kwargs else None

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        leave()

    handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
    restore = patch(GradScaler, "step", _scaled(agent, GradScaler.step))

    def remove() -> None:
        restore()
        for handle in handles:
            handle.remove()

    return remove


def _scaled(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    enter = agent.guard(agent.recorder.enter_scaler)
    leave = agent.guard(agent.recorder.leave_scaler)

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        enter(self, optimizer)
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            leave(self)

    return step


def _closure_watcher(agent: "Agent") -> Callable[..., Any]:
    """Return a function that answers an optimizer's arguments with the closure among them watched, or None.

    Torch gives a pre-hook (optimizer, *arguments) and takes such a pair back.
    """
    enter = agent.guard_mark(agent.recorder.enter_closure)
    leave = agent.guard_mark(agent.recorder.leave_closure)

    def watched(closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            enter()
            try:
                return closure(*args, **kwargs)
            finally:
                leave()

        return evaluate

    def watch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1 and callable(args[1]):
            return (args[0], watched(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": watched(kwargs["closure"])}
        return None

    return agent.guard(watch)
