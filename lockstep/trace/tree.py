"""Builds a call tree from spans of one thread, merged by path of names.

Only nesting in time makes a caller. Frames and operators nest, but for the clock's rounding: what ends after its
caller is cut to it. Annotations do not: they are entered inside one frame and left inside another (`__enter__`,
`__exit__`), so they are cut to the span between those two. After that, for every node,

    total = self + sum of the children's totals.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

ROOT = -1
DEPTH_MAX = 4096
"""Deeper spans stay in their caller's self time. Python stops at 1000 frames unless set otherwise; what nests deeper
is a file made to be expensive."""


@dataclass(frozen=True, slots=True)
class CallTree:
    """Nodes in columns; `parent` is an index or ROOT, and a parent stands before its children.

    `window_ns` is (start, end) and holds every span; `steps` is the number of step marks in it, None without marks.
    `until_ns` are the totals until each step but the first begins, of the nodes known by then; `begins_ns` is when
    steps begin, none without marks.
    """

    window_ns: tuple[int, int]
    steps: int | None
    parent: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    total_ns: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    until_ns: list[list[int]] = field(default_factory=list)
    begins_ns: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.parent)

    def step_lengths_ns(self) -> list[int]:
        """Return how long each step of `step_totals_ns` is, from its mark to the next."""
        ends_ns = [*self.begins_ns[1:], self.window_ns[1]]
        lengths_ns = [end - begin for begin, end in zip(self.begins_ns, ends_ns, strict=False)]
        return lengths_ns[: len(self.step_totals_ns())]

    def step_totals_ns(self) -> list[list[int]]:
        """Return the totals of all nodes in each step that is known by itself, one list a step; none without marks."""
        if self.steps is None:
            return []
        padded = [[*each, *[0] * (len(self) - len(each))] for each in self.until_ns]
        moments = [[0] * len(self), *padded, *([self.total_ns] if len(padded) == self.steps - 1 else [])]
        return [[later - before for before, later in zip(*between, strict=True)] for between in pairwise(moments)]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What a span is a call of. The object itself is the identity: spans of one call share one object."""

    kind: str
    name: str
    is_annotation: bool


class TreeBuilder:
    """Fills a tree from spans that come in order of start, the longer first where they start together.

    The C extension (`_tree.c`) does the same. Without it half the cost of a summary is spent here: spans are plain
    tuples, and `add` has what `_enter` does with a span that its caller holds (benchmarks/trace_cost.py).
    """

    def __init__(self, tree: CallTree) -> None:
        self.tree = tree
        self._nodes: dict[tuple[int, Call], int] = {}
        self._stack: list[tuple[int, int, Call]] = []  # (end, node, call) of the open spans, callers first
        self._deferred: list[tuple[int, int, int, Call]] = []  # a heap by start; the serial keeps ties in order
        self._serial = 0

    def add(self, spans: Iterable[tuple[int, int, Call]]) -> None:
        """Take all spans of the thread: (start, end, call), ns, start < end."""
        deferred, stack, nodes = self._deferred, self._stack, self._nodes
        total_ns, count = self.tree.total_ns, self.tree.count
        for start_ns, end_ns, call in spans:
            while deferred and deferred[0][0] <= start_ns:
                self._enter_deferred()
            while stack and stack[-1][0] <= start_ns:
                stack.pop()
            parent = ROOT
            if stack:
                until_ns, parent, _ = stack[-1]
                if end_ns > until_ns or len(stack) == DEPTH_MAX:
                    self._enter(start_ns, end_ns, call)
                    continue
            node = nodes.get((parent, call))
            if node is None:
                node = self._add_node(parent, call)
            total_ns[node] += end_ns - start_ns
            count[node] += 1
            stack.append((end_ns, node, call))
        while deferred:
            self._enter_deferred()

    def totals_until_ns(self, moment_ns: int) -> list[int]:
        """Return the totals of the nodes so far, without what open spans last beyond a moment that comes next."""
        totals = self.tree.total_ns.copy()
        for end_ns, node, _ in self._stack:
            totals[node] -= max(0, end_ns - moment_ns)
        return totals

    def _enter_deferred(self) -> None:
        start_ns, _, end_ns, call = heappop(self._deferred)
        self._enter(start_ns, end_ns, call)

    def _enter(self, start_ns: int, end_ns: int, call: Call) -> None:
        tree, stack = self.tree, self._stack
        while stack and stack[-1][0] <= start_ns:
            stack.pop()
        if stack and end_ns > stack[-1][0]:
            if call.is_annotation:
                self._defer(end_ns, call)
                return
            self._cut_annotations(start_ns, end_ns)
            end_ns = min(end_ns, stack[-1][0]) if stack else end_ns
        if len(stack) == DEPTH_MAX:
            return
        parent = stack[-1][1] if stack else ROOT
        node = self._nodes.get((parent, call))
        if node is None:
            node = self._add_node(parent, call)
        tree.total_ns[node] += end_ns - start_ns
        tree.count[node] += 1
        stack.append((end_ns, node, call))

    def _add_node(self, parent: int, call: Call) -> int:
        tree = self.tree
        tree.parent.append(parent)
        tree.name.append(call.name)
        tree.kind.append(call.kind)
        tree.total_ns.append(0)
        tree.count.append(0)
        node = self._nodes[parent, call] = len(tree) - 1
        return node

    def _defer(self, end_ns: int, call: Call) -> None:
        """Let an annotation begin where the outermost frame ends inside which it was entered."""
        left_ns = max(open_end_ns for open_end_ns, _, _ in self._stack if open_end_ns < end_ns)
        self._serial += 1
        heappush(self._deferred, (left_ns, self._serial, end_ns, call))

    def _cut_annotations(self, start_ns: int, end_ns: int) -> None:
        """End the annotations on top of the stack where the frame begins inside which they are left."""
        stack, tree = self._stack, self.tree
        while stack and stack[-1][2].is_annotation and stack[-1][0] < end_ns:
            cut_end_ns, node, _ = stack.pop()
            tree.total_ns[node] -= cut_end_ns - start_ns
