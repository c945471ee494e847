"""Marks when a checkpoint is written, in `torch.save`, which all frameworks use, also for distributed checkpoints.

Any thread may write it; the concurrent step is not a usual one.
"""

from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal, patch
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Flag the step in which a save begins, and the one in which it ends."""
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
