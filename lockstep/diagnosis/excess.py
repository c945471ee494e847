"""Where in its call tree a suspect takes longer than its peers.

Ranks of a synchronous job end a step together, so totals near the root are equal: a suspect that works longer waits
less. So the decision uses not the difference of a node but the excess that it *holds*,

    held = max(0, own difference, sum of what the children hold),

which a negative difference elsewhere cannot cancel. Times are ns per step; a node missing in a peer's summary is 0
there (it was below the summary's share of the window). Time in the window outside all roots can be a node of its own
(`Scope.outside`): Python itself, if a trace has no stacks.
"""

from dataclasses import dataclass
from statistics import median

from lockstep.contracts.messages import CallNode, TraceSummary
from lockstep.diagnosis.frames import is_own
from lockstep.trace.names import PYTHON_KIND
from lockstep.trace.patterns.pattern import OUTSIDE
from lockstep.trace.tree import ROOT

HOLDING_RATIO = 0.6
"""Share of the excess that a callee must hold to be walked into: more than half, so that no two callees can qualify,
with a margin for the noise of a capture of a few steps."""

Path = tuple[tuple[str, str], ...]
"""(kind, name) from a root to a node."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the trees that is compared.

    `only` and `named`: the subtrees of nodes of these kinds and names; everything if both are empty. `without`: kinds
    whose subtrees are subtracted from all totals above them. `outside`: whether time in no recorded call is a node too.
    """

    only: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    outside: bool = False

    def begins_at(self, node: CallNode) -> bool:
        """Whether this node's subtree belongs to the scope, wherever it is in the tree."""
        return not (self.only or self.named) or node.kind in self.only or node.name in self.named


@dataclass(frozen=True, slots=True)
class ExcessTree:
    """The suspect's tree with, per node, the ns per step of the suspect, of the peers' median, and held."""

    nodes: list[CallNode]
    children: dict[int, list[int]]
    own_ns: list[float]
    peers_ns: list[float]
    held_ns: list[float]

    @property
    def explained_ns(self) -> float:
        """The excess that the whole tree holds, ns per step."""
        return sum(self.held_ns[root] for root in self.children.get(ROOT, []))

    def walk(self, excess_ns: float) -> list[int]:
        """Return the nodes from a root down to the last that holds `HOLDING_RATIO` of the excess.

        The excess is `excess_ns`, limited to what the tree holds, so that summed noise of many nodes does not hide the
        relevant one; if it is 0 or less, what the tree holds is used.
        """
        yardstick_ns = min(excess_ns, self.explained_ns) if excess_ns > 0 else self.explained_ns
        walked: list[int] = []
        at = ROOT
        while callees := self.children.get(at):
            at = max(callees, key=lambda index: self.held_ns[index])
            if self.held_ns[at] < HOLDING_RATIO * yardstick_ns or self.held_ns[at] <= 0:
                break
            walked.append(at)
        while walked and is_own(self.nodes[walked[-1]].name):  # its excess belongs to its callees
            walked.pop()
        return walked


def compare(suspect: TraceSummary, peers: list[TraceSummary], scope: Scope) -> ExcessTree:
    """Return the suspect's excess over the median of its peers (0 without peers), per node."""
    per_peer = [_by_path(peer, scope) for peer in peers]
    nodes = _nodes(suspect, scope)
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    own_ns = [total_ns / max(suspect.steps, 1) for total_ns in counted_totals(nodes, scope)]
    peers_ns = [median(peer.get(path, 0.0) for peer in per_peer) if peers else 0.0 for path in paths(nodes)]
    held_ns = [0.0] * len(nodes)
    for index in reversed(range(len(nodes))):
        below_ns = sum(held_ns[child] for child in children.get(index, []))
        held_ns[index] = max(0.0, own_ns[index] - peers_ns[index], below_ns)
    return ExcessTree(nodes, children, own_ns, peers_ns, held_ns)


def _nodes(summary: TraceSummary, scope: Scope) -> list[CallNode]:
    """Return the call tree, plus a root for the rest of the window if the scope includes it."""
    outside_ns = summary.window_ns - sum(node.total_ns for node in summary.tree if node.parent == ROOT)
    if not scope.outside or not summary.tree or outside_ns <= 0:
        return summary.tree
    outside = CallNode(
        parent=ROOT, name=OUTSIDE, kind=PYTHON_KIND, total_ns=outside_ns, self_ns=outside_ns, count=summary.steps
    )
    return [*summary.tree, outside]


def paths(tree: list[CallNode]) -> list[Path]:
    """Return the path of each node."""
    found: list[Path] = []
    for node in tree:
        above = found[node.parent] if node.parent != ROOT else ()
        found.append((*above, (node.kind, node.name)))
    return found


def counted_totals(tree: list[CallNode], scope: Scope) -> list[int]:
    """Return the part of each node's total that lies in the scope, ns over all captured steps.

    Time of the agent and the profiler themselves is excluded; calls of the training below their frames are included.
    """
    inside: list[bool] = []
    for node in tree:
        above = node.parent != ROOT and inside[node.parent]
        inside.append(above or scope.begins_at(node))
    counted = [node.total_ns if within else 0 for node, within in zip(tree, inside, strict=True)]
    below_ns = [0] * len(tree)
    for index in reversed(range(len(tree))):
        node = tree[index]
        if node.kind in scope.without:
            counted[index] = 0
        elif is_own(node.name) and counted[index] > 0:
            counted[index] = max(0, counted[index] - max(0, node.total_ns - below_ns[index]))
        if node.parent != ROOT:
            below_ns[node.parent] += node.total_ns
        if node.parent == ROOT:
            continue
        if not inside[node.parent]:
            counted[node.parent] += counted[index]
        else:
            counted[node.parent] -= node.total_ns - counted[index]
    return counted


def _by_path(summary: TraceSummary, scope: Scope) -> dict[Path, float]:
    """Return ns per step by path."""
    steps = max(summary.steps, 1)
    nodes = _nodes(summary, scope)
    totals = counted_totals(nodes, scope)
    found: dict[Path, float] = {}
    for path, total_ns in zip(paths(nodes), totals, strict=True):
        found[path] = found.get(path, 0.0) + total_ns / steps
    return found
