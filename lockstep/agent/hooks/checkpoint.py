"""When a checkpoint is written: `torch.save`, at which those of all frameworks end, distributed ones too.

Any thread may write it; the step that runs meanwhile is not one like the others.
"""

from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal, patch
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Flag the step in which something is saved, and the one in which that ends."""
    import torch  # noqa: PLC0415  (training imported it)

    original = torch.save
    flag = agent.mark("flag")
    checkpoint = int(Flag.CHECKPOINT)

    def save(*args: Any, **kwargs: Any) -> Any:
        flag(checkpoint)
        try:
            return original(*args, **kwargs)
        finally:
            flag(checkpoint)

    removals = [patch(torch, "save", save), patch(torch.serialization, "save", save)]

    def remove() -> None:
        for removal in removals:
            removal()

    return remove
