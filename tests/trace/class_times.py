"""What the training thread did in the window, in classes that sum to it: from the call tree that travels.

The account of device, host and collectives side by side needs the trace itself: `step_breakdown`.
"""

from lockstep.contracts.messages import CallNode
from lockstep.trace.names import DATA_KIND, GC_KIND, KINDS
from lockstep.trace.tree import ROOT

IDLE = "idle"
_CONTAINERS = (DATA_KIND, GC_KIND)
"""Whatever runs below a node of these kinds, user code as well, belongs to it; collection goes before data."""


def break_down(tree: list[CallNode], window_ns: int) -> dict[str, int]:
    """Return ns by kind (`names.KINDS`) and IDLE; they sum to `window_ns`.

    Self time goes to the node's kind, except that everything below the loader is data and everything below a collection
    is gc. On host backends the wait for a collective inside backward is self time of a Python frame. Idle is what no
    node covers: with stacks nearly nothing, without them the time of Python itself.
    """
    spent_ns = dict.fromkeys((*KINDS, IDLE), 0)
    owners: list[str] = []
    for node in tree:
        above = owners[node.parent] if node.parent != ROOT else node.kind
        owners.append(above if above in _CONTAINERS and node.kind != GC_KIND else node.kind)
        spent_ns[owners[-1]] += node.self_ns
    spent_ns[IDLE] = window_ns - sum(spent_ns.values())
    return spent_ns
