# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which call stack each host event of a thread is, and the measure of time inside it but in no callee.

Host events nest in time. What ends after its caller, by the clock's rounding, is cut to it. A node is a call stack:
its caller's node and a name; node 0 stands for no call at all.

Shape suffixes: E events of one thread in order of start, the longer first; N nodes.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.spans import flatten
from lockstep.trace.tree import DEPTH_MAX

ROOT = 0
_NAME_BITS = 32
_NAME_MASK = (1 << _NAME_BITS) - 1


@dataclass(slots=True)
class Stacks:
    """Nodes in columns: `parent` stands before its children, `name` is a code; the root's are ROOT and -1."""

    parent: list[int] = field(default_factory=lambda: [ROOT])
    name: list[int] = field(default_factory=lambda: [-1])

    def __len__(self) -> int:
        return len(self.parent)

    def path(self, node: int) -> list[int]:
        """Return the names from the outermost call to `node`."""
        names = []
        while node != ROOT:
            names.append(self.name[node])
            node = self.parent[node]
        return names[::-1]


@dataclass(frozen=True, slots=True)
class NestedEvents:
    """`node` and `caller` (an event, or -1) of each event, and its end, cut to its caller's; (n_events,) each.

    `node` is ROOT for what nests deeper than anybody programs: its time stays its caller's.
    """

    stacks: Stacks
    node: NDArray[np.int64]
    caller: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def nest(start_ns_E: NDArray[np.int64], end_ns_E: NDArray[np.int64], name_E: NDArray[np.int64]) -> NestedEvents:
    """Return the stack of every event; start < end, in the order above. Nodes are numbered as they are first met.

    Depth by depth, for an event's node follows from its caller's: a third of what a loop over the events costs
    (benchmarks/trace_bench.py).
    """
    flat = flatten(start_ns_E, end_ns_E)
    node_E = np.full(len(start_ns_E) + 1, ROOT, np.int64)  # the last one is the caller of what has none
    by_depth_E = np.argsort(np.minimum(flat.depth, DEPTH_MAX + 1).astype(np.uint16), kind="stable")
    counts = np.bincount(flat.depth, minlength=1)[1 : DEPTH_MAX + 1]
    keys_N, first_N, nodes = [np.zeros(1, np.int64)], [np.full(1, -1)], 1
    for at_E in np.split(by_depth_E, np.cumsum(counts))[: len(counts)]:
        key_E = node_E[flat.caller[at_E]] << _NAME_BITS | name_E[at_E]
        found_N, first, inverse_E = np.unique(key_E, return_index=True, return_inverse=True)
        node_E[at_E] = inverse_E + nodes
        nodes += len(found_N)
        keys_N.append(found_N)
        first_N.append(at_E[first])
    key_N = np.concatenate(keys_N)
    order_N = np.argsort(np.concatenate(first_N))
    number_N = np.argsort(order_N)
    parent_N, name_N = number_N[key_N >> _NAME_BITS][order_N], (key_N & _NAME_MASK)[order_N]
    stacks = Stacks([ROOT, *parent_N[1:].tolist()], [-1, *name_N[1:].tolist()])
    return NestedEvents(stacks, number_N[node_E[:-1]], flat.caller, flat.cut_ns)


def own_time(nested: NestedEvents, exposed_ns_E: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, per node, the exposed time of its events less that of their callees, ns, shape (n_nodes,).

    `exposed_ns_E` is a measure of [start, cut end) of each event. What nests too deep is not taken off its caller.
    """
    deep = nested.node == ROOT
    own_ns_N = _sums(nested.node[~deep], exposed_ns_E[~deep], len(nested.stacks))
    called = ~deep & (nested.caller >= 0)
    return own_ns_N - _sums(nested.node[nested.caller[called]], exposed_ns_E[called], len(nested.stacks))


def _sums(index: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return sums by index; exact, for a window in ns is far below 2**53."""
    return np.rint(np.bincount(index, values, count)).astype(np.int64)
