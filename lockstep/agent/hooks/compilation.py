"""Counts the graphs that torch.compile has compiled, by dynamo's own counters, read at each step's end.

Nothing is hooked, since anything that dynamo traces or guards on could cause a recompilation. Nothing is imported
either: a training that compiles has loaded dynamo, any other has compiled nothing. The count is of the graphs that
dynamo hands to a backend: first compilations and recompilations alike. It excludes traces that end without a graph, and
backwards, which belong to their forward's graph.
"""

import sys
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks.patching import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_MODULE = "torch._dynamo.utils"


def install(agent: "Agent") -> Removal:
    """Poll for the counters until they exist."""
    agent.find_counters = counters

    def remove() -> None:
        agent.find_counters = lambda: None
        agent.marks.compilations = None

    return remove


def counters() -> dict[str, Any] | None:
    """Return dynamo's counters; None before and during its import."""
    found = getattr(sys.modules.get(_MODULE), "counters", None)
    return found if isinstance(found, dict) else None


def compiled_graphs() -> int:
    """Return the number of compiled graphs."""
    stats = (counters() or {}).get("stats")  # a defaultdict: indexing would write into it
    return int(stats.get("unique_graphs", 0)) if stats else 0
