"""Marks where the training's stream waits for another one that communicates: `torch.cuda.Stream.wait_event`.

FSDP2 calls its collectives on streams of its own and makes the training's stream wait for an event there, without
waiting for a Work. `Stream.wait_stream` uses the same method. Calls unrelated to the step's collectives cost a few
comparisons.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal, patch

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Patch the method; without a device it passes all calls on."""
    import torch  # noqa: PLC0415  (training imported it)

    return patch(torch.cuda.Stream, "wait_event", _wrapped(agent, torch.cuda.Stream.wait_event))


def _wrapped(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    begin, end = agent.mark("wait_begin"), agent.mark("wait_end")
    records_here = agent.guard(agent.records_here)

    def wait_event(self: Any, event: Any) -> Any:
        device = agent.device
        if device is None or not device.has_aside or not device.is_home(self.stream_id) or not records_here():
            return original(self, event)
        begin()
        try:
            return original(self, event)
        finally:
            end()

    return wait_event
