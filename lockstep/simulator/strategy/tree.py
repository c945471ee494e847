"""The strategy tree: how a model's operators are split, where they run, and in which order (Proteus, section IV).

The tree mirrors the model, with an inner node for each module and a leaf for each operator. Four primitives apply to
any node: `split`, `map`, `schedule`, `recompute`. A node inherits from its parent what it does not state itself. If
neither a leaf nor a node above it states an axis, the leaf's input determines its split (`resolve`, `operators.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.models.model import BATCH, ModelSpec, Module, Operator
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.schedule import Schedule

PARAMETER = "parameter"
GRADIENT = "gradient"
OPTIMIZER = "optimizer"
MEMORY_ITEMS = (OPTIMIZER, GRADIENT, PARAMETER)
"""Items that ZeRO shards, in the order of its stages: stage 1 the first, stage 3 all."""

FULL = "full"
SELECTIVE = "selective"
PER_OPERATOR = "per_operator"
"""torchtitan's selective checkpointing by operator: outputs of fused attention and of every second product are kept."""
NONE = "none"
REPLICATE = "replicate"
"""In place of a dimension: axes that must not split."""
_RECOMPUTE = (NONE, SELECTIVE, PER_OPERATOR, FULL)


@dataclass(slots=True, eq=False)
class Node:
    """A module or an operator of the tree, with its statements.

    `splits` maps mesh axes to a dimension, or to None if the axis must not split; `memory` maps items of MEMORY_ITEMS
    to the axes over which they are sharded.
    """

    name: str
    module: Module | Operator
    parent: "Node | None" = None
    children: dict[str, "Node"] = field(default_factory=dict)
    splits: dict[str, str | None] = field(default_factory=dict)
    memory: dict[str, frozenset[str]] = field(default_factory=dict)
    mesh: Mesh | None = None
    order: Schedule | None = None
    recomputation: str | None = None

    def split(self, item: str = "computation", /, **dims: str | tuple[str, ...] | None) -> "Node":
        """Split dimensions over mesh axes, as in `split(o="tp", b=("ep", "dp"))`; returns the node.

        On an inner node this applies to the leaves below that have the dimension. With an `item` of MEMORY_ITEMS the
        keyword is `over`: the axes over which that item is sharded. `replicate="tp"` overrides a parent's statement.

        Raises
        ------
        ConfigError
            The operator has no such dimension, or no such item exists.
        """
        if item in MEMORY_ITEMS:
            self.memory[item] = frozenset(_names(dims.get("over")))
            return self
        if item != "computation":
            raise ConfigError(f"item to split in {self.name}: got {item!r}, expected one of {MEMORY_ITEMS}")
        for dim, axes in dims.items():
            if isinstance(self.module, Operator) and dim not in (BATCH, REPLICATE, *self.module.dims):
                raise ConfigError(
                    f"dimension to split in {self.name}: got {dim!r}, expected one of {(BATCH, *self.module.dims)}"
                )
            for axis in _names(axes):
                self.splits[axis] = None if dim == REPLICATE else dim
        return self

    def map(self, mesh: Mesh) -> "Node":
        """Place the node on `mesh`; returns the node."""
        self.mesh = mesh
        return self

    def schedule(self, schedule: Schedule) -> "Node":
        """Set the order of micro-batches; returns the node. The root's order applies to the job."""
        self.order = schedule
        return self

    def recompute(self, what: str = FULL) -> "Node":
        """Set what backward recomputes instead of keeping it: "full", "per_operator", "selective" or "none".

        Returns the node.
        """
        if what not in _RECOMPUTE:
            raise ConfigError(f"recomputation of {self.name}: got {what!r}, expected one of {_RECOMPUTE}")
        self.recomputation = what
        return self

    def __getitem__(self, path: str) -> "Node":
        """Return the node at `path`, names joined by dots.

        Raises
        ------
        ConfigError
            There is no such node; the message names the nearest.
        """
        node = self
        for name in path.split("."):
            if name not in node.children:
                near = get_close_matches(name, node.children, n=1) or list(node.children)[:1]
                raise ConfigError(f"node in {node.name}: got {name!r}, expected for example {near}")
            node = node.children[name]
        return node

    def find(self, pattern: str) -> Iterator["Node"]:
        """Yield the leaves below the node whose operator's name matches the shell pattern."""
        for child in self.children.values():
            if isinstance(child.module, Operator):
                if pattern == "*" or fnmatchcase(child.name, pattern):
                    yield child
            else:
                yield from child.find(pattern)

    def above(self) -> Iterator["Node"]:
        """Yield the node and those above it, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def stated(self) -> object:
        """Return the statements at and below the node as a value, equal for nodes with the same compilation result."""
        splits, memory = self.splits, self.memory
        mine = (tuple(splits.items()) if splits else (), tuple(memory.items()) if memory else (), self.recomputation)
        return (mine, *map(Node.stated, self.children.values())) if self.children else mine


@dataclass(frozen=True, slots=True, eq=False)
class StrategyTree:
    """A model and its root node; `root.children` are the model's blocks in order. Its creator may change it."""

    model: ModelSpec
    root: Node

    @classmethod
    def of(cls, model: ModelSpec) -> "StrategyTree":
        """Return the tree of `model` without any statement."""
        root = Node(model.name, Module(name=model.name, children=tuple(module for _, module in model.blocks)))
        for name, module in model.blocks:
            root.children[name] = _grow(name, module, root)
        return cls(model, root)

    def __getitem__(self, path: str) -> Node:
        return self.root[path]


@dataclass(frozen=True, slots=True)
class ResolvedStrategy:
    """The tree's statements for one leaf: the dimension by axis, the axes by item, and the recomputation."""

    splits: Mapping[str, str | None]
    memory: Mapping[str, frozenset[str]]
    recomputation: str


def resolve(leaf: Node) -> ResolvedStrategy:
    """Return the statements for `leaf`; those of lower nodes take precedence over those of nodes above.

    A parent's split of a dimension that the operator lacks has no effect here.
    """
    assert isinstance(leaf.module, Operator)
    dims = (BATCH, *leaf.module.dims, None)
    splits: dict[str, str | None] = {}
    memory: dict[str, frozenset[str]] = {}
    recomputation = None
    for node in leaf.above():
        for axis, dim in node.splits.items():
            if axis not in splits and dim in dims:
                splits[axis] = dim
        for item, axes in node.memory.items():
            memory.setdefault(item, axes)
        recomputation = recomputation or node.recomputation
    return ResolvedStrategy(splits, memory, recomputation or NONE)


def _grow(name: str, module: Module | Operator, parent: Node) -> Node:
    node = Node(name, module, parent)
    if isinstance(module, Module):
        for child in module.children:
            node.children[child.name] = _grow(child.name, child, node)
    return node


def _names(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else (axes or ())
