"""When the training thread runs backward: `Tensor.backward` and `torch.autograd.backward`, which the first one calls.

The recorder counts the outermost only. Code that calls the engine itself (Megatron-LM's pipeline schedule) is not seen;
its time is the step's host time then.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal, patch

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Patch both entries."""
    import torch  # noqa: PLC0415  (training imported it)

    removals = [
        patch(torch.Tensor, "backward", _wrapped(agent, torch.Tensor.backward)),
        patch(torch.autograd, "backward", _wrapped(agent, torch.autograd.backward)),
    ]

    def remove() -> None:
        for removal in removals:
            removal()

    return remove


def _wrapped(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    enter = agent.guard(agent.recorder.enter_backward)
    leave = agent.guard(agent.recorder.leave_backward)

    def backward(*args: Any, **kwargs: Any) -> Any:
        enter()
        try:
            result = original(*args, **kwargs)
        except BaseException:
            leave()
            raise
        leave()
        return result

    return backward
