"""How many graphs torch.compile has compiled, read at a step's end from dynamo's own count.

Nothing is hooked: whatever dynamo traces or guards on could make it compile once more. Nothing is imported either: a
training that compiles has loaded dynamo, any other one has compiled nothing. Counted are the graphs that dynamo hands
to a backend: first compilations and recompilations alike. Not counted are traces that end without a graph, and
backwards, which belong to their forward's graph.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lockstep.agent.hooks import Removal

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

_MODULE = "torch._dynamo.utils"


def install(agent: "Agent") -> Removal:
    """Let the recorder ask at each step's end."""
    recorder = agent.recorder
    count = counter()
    recorder.compilations = count

    def remove() -> None:
        if recorder.compilations is count:
            recorder.compilations = None

    return remove


def counter() -> Callable[[], int]:
    """Return a function that answers how many graphs this process has compiled so far; it never decreases.

    The training may clear dynamo's counters (`torch._dynamo.utils.counters.clear()`): counting goes on from there.
    """
    counters: Mapping[str, Mapping[str, int]] | None = None
    seen = before = 0

    def count() -> int:
        nonlocal counters, seen, before
        if counters is None:
            counters = getattr(sys.modules.get(_MODULE), "counters", None)  # absent also while its import runs
            if counters is None:
                return 0
        stats = counters.get("stats")  # a defaultdict: indexing would write into it
        graphs = stats.get("unique_graphs", 0) if stats else 0
        if graphs < seen:
            before += seen
        seen = graphs
        return before + graphs

    return count
