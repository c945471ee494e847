"""Summaries built by hand: a tree as nested tuples, times in ms a step."""

from lockstep.contracts.messages import CallNode, TraceSummary

STEPS = 2


def summary(rank: int, *roots, collectives=None, window_ms=None, error="") -> TraceSummary:
    """Return a summary of two steps. A node is (name, self ms a step, *children); kinds follow from `_KINDS`."""
    tree: list[CallNode] = []
    for root in roots:
        _add(tree, -1, root)
    window_ns = sum(node.total_ns for node in tree if node.parent == -1)
    return TraceSummary(
        run="job",
        node=f"n{rank}",
        rank=rank,
        request_id=1,
        window_ns=window_ns if window_ms is None else round(window_ms * STEPS * 1e6),
        steps=STEPS,
        trace_bytes=1000,
        event_count=10,
        tree=tree,
        collectives={name: [round(each) for each in values] for name, values in (collectives or {}).items()},
        error=error,
    )


_KINDS = {
    "aten": "operator",
    "autograd": "operator",
    "c10d": "communication",
    "wait": "communication",
    "enumerate": "data",
    "Python GC": "gc",
}


def _add(tree: list[CallNode], parent: int, node) -> int:
    name, self_ms, *children = node
    kind = next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), "python")
    self_ns = round(self_ms * STEPS * 1e6)
    at = len(tree)
    tree.append(CallNode(parent=parent, name=name, kind=kind, total_ns=0, self_ns=self_ns, count=STEPS))
    total_ns = self_ns + sum(_add(tree, at, child) for child in children)
    tree[at] = CallNode(parent=parent, name=name, kind=kind, total_ns=total_ns, self_ns=self_ns, count=STEPS)
    return total_ns
