"""When an optimizer steps: torch's own global hooks, which every torch.optim.Optimizer calls, made before or after."""

from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Register for every optimizer. Where the outermost one ends, the training step ends."""
    from torch.optim.optimizer import (  # noqa: PLC0415  (training imported it)
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    enter = agent.guard(agent.recorder.enter_optimizer)
    leave = agent.guard(agent.recorder.leave_optimizer)

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        enter(optimizer)

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        leave()

    handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
