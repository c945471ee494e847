# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which call stack each host event of a thread is, and the measure of time inside it but in no callee.

Host events nest in time. What ends after its caller, by the clock's rounding, is cut to it. A node is a call stack:
its caller's node and a name; node 0 stands for no call at all.

Shape suffixes: E events of one thread in order of start, the longer first; N nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.tree import DEPTH_MAX

ROOT = 0
_NAME_BITS = 32


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
class Nested:
    """`node` and `caller` (an event, or -1) of each event, and its end, cut to its caller's; (n_events,) each.

    `node` is ROOT for what nests deeper than anybody programs: its time stays its caller's.
    """

    stacks: Stacks
    node: NDArray[np.int64]
    caller: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def nest(start_ns_E: NDArray[np.int64], end_ns_E: NDArray[np.int64], name_E: Sequence[int]) -> Nested:
    """Return the stack of every event; start < end, in the order above.

    The loop is plain: on lists it is as fast as the forms in numpy (0.3 to 0.4 us an event, benchmarks of the design).
    """
    stacks = Stacks()
    nodes: dict[int, int] = {}
    node_E: list[int] = []
    caller_E: list[int] = []
    cut_ns_E: list[int] = []
    open_end_ns: list[int] = []
    open_node, open_event = [ROOT], [-1]
    for event, (start_ns, end_ns, name) in enumerate(zip(start_ns_E.tolist(), end_ns_E.tolist(), name_E, strict=True)):
        while open_end_ns and open_end_ns[-1] <= start_ns:
            open_end_ns.pop()
            open_node.pop()
            open_event.pop()
        caller_E.append(open_event[-1])
        cut_ns = min(end_ns, open_end_ns[-1]) if open_end_ns else end_ns
        cut_ns_E.append(cut_ns)
        if len(open_end_ns) == DEPTH_MAX:
            node_E.append(ROOT)
            continue
        key = open_node[-1] << _NAME_BITS | name
        node = nodes.get(key)
        if node is None:
            node = nodes[key] = len(stacks)
            stacks.parent.append(open_node[-1])
            stacks.name.append(name)
        node_E.append(node)
        open_end_ns.append(cut_ns)
        open_node.append(node)
        open_event.append(event)
    return Nested(stacks, *(np.array(each, np.int64) for each in (node_E, caller_E, cut_ns_E)))


def own_time(nested: Nested, exposed_ns_E: NDArray[np.int64]) -> NDArray[np.int64]:
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
