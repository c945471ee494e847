"""How many graphs torch.compile has compiled: dynamo's own counters, which the mark buffer reads at each step's end.

Nothing is hooked: whatever dynamo traces or guards on could make it compile once more. Nothing is imported either: a
training that compiles has loaded dynamo, any other one has compiled nothing. Counted are the graphs that dynamo hands
to a backend: first compilations and recompilations alike. Not counted are traces that end without a graph, and
backwards, which belong to their forward's graph.
"""

import sys
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_MODULE = "torch._dynamo.utils"


def install(agent: "Agent") -> Removal:
    """Let the agent look for the counters until they are there."""
    agent.find_counters = counters

    def remove() -> None:
        agent.find_counters = lambda: None
        agent.marks.compilations = None

    return remove


def counters() -> dict[str, Any] | None:
    """Return dynamo's counters; None before its import, and while that runs."""
    found = getattr(sys.modules.get(_MODULE), "counters", None)
    return found if isinstance(found, dict) else None


def compiled_graphs() -> int:
    """Return how many graphs it counts."""
    stats = (counters() or {}).get("stats")  # a defaultdict: indexing would write into it
    return int(stats.get("unique_graphs", 0)) if stats else 0
