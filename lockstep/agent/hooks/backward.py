"""Marks when the training thread runs backward, by wrapping the autograd engine, which all of backward goes through.

`Tensor.backward`, `torch.autograd.backward` and `grad`, activation checkpointing and code that calls the engine itself
(Megatron-LM's pipeline schedule) all look up `Variable._execution_engine`. An instance of a subclass replaces it: the
C++ engine behind it is a singleton, and torch.compile recognises engines by their class.

The engine shows which threads work for a backward: while it runs a node of the graph, a hook or a callback, on the
caller's thread or its own (one for each device, more for deeply nested backwards), that thread has a graph task
(`GraphTaskGuard`, torch/csrc/autograd/graph_task.h).
"""

from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_NO_GRAPH_TASK = -1


def install(agent: "Agent") -> Removal:
    """Replace torch's engine by a wrapped one."""
    import torch  # noqa: PLC0415  (training imported it)
    from torch.autograd.variable import Variable  # noqa: PLC0415

    holder: Any = Variable
    original = holder._execution_engine  # noqa: SLF001  (the engine has no public name)
    run = original.run_backward
    begin, end = agent.mark("backward_begin"), agent.mark("backward_end")

    graph_task_id = torch._C._current_graph_task_id  # noqa: SLF001  (no public name; torch's checkpoint and FSDP ask it)
    agent.in_graph_task = lambda: graph_task_id() != _NO_GRAPH_TASK

    class WatchedEngine(torch._C._ImperativeEngine):  # type: ignore[misc]  # noqa: SLF001
        """torch's engine with marks around it."""

        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            """Run a backward between two marks."""
            try:
                begin()  # inside: an exception of the training's signal handler ends the span as well
                result = run(*args, **kwargs)
            except BaseException:
                end()
                raise
            end()
            return result

    watched = WatchedEngine()
    holder._execution_engine = watched  # noqa: SLF001

    def remove() -> None:
        if holder._execution_engine is watched:  # noqa: SLF001
            holder._execution_engine = original  # noqa: SLF001

    return remove
