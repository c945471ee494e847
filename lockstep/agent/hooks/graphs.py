"""Marks captures and replays of CUDA graphs, in the methods of `torch.cuda.CUDAGraph`, which all of torch uses.

`torch.cuda.graph`, `make_graphed_callables` and torch.compile's graph trees call them. A capture begun by direct calls
of the CUDA library is seen on the current stream only (device/device_streams.py); a replay by such calls is not seen.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.device.graphs import GRAPHS
from lockstep.agent.hooks.patching import Removal, patch
from lockstep.contracts.marks import UNKNOWN_DOMAIN

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Patch the methods, which exist also without a device."""
    import torch  # noqa: PLC0415  (training imported it)

    graph_type = torch.cuda.CUDAGraph
    wrappers = {"capture_begin": _beginning, "capture_end": _ending, "reset": _ending, "replay": _replaying}
    removals = [
        patch(graph_type, name, wrap(agent, getattr(graph_type, name)))
        for name, wrap in wrappers.items()
        if hasattr(graph_type, name)
    ]

    def remove() -> None:
        for removal in removals:
            removal()

    return remove


def _beginning(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    begin, end = agent.guard(GRAPHS.begin), agent.guard(GRAPHS.end)

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            begin(self)  # first, so that no thread of ours calls the device during the capture
            return original(self, *args, **kwargs)
        except BaseException:
            end(self, agent.marks.thread)
            raise

    return capture_begin


def _ending(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    end = agent.guard(GRAPHS.end)

    def finish(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            end(self, agent.marks.thread)

    return finish


def _replaying(agent: "Agent", original: Callable[..., Any]) -> Callable[..., Any]:
    marks = agent.marks

    def note(graph: Any) -> None:
        if not agent.records_here():
            return
        traffic = GRAPHS.traffic(graph)
        if traffic is None:
            marks.unmeasured(UNKNOWN_DOMAIN, 0, 0, 0)
        for domain, (count, payload_bytes, bus_bytes) in (traffic or {}).items():
            marks.unmeasured(domain, count, payload_bytes, bus_bytes)

    note_guarded = agent.guard(note)

    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        note_guarded(self)
        return original(self, *args, **kwargs)

    return replay
