"""Strategies given by their degrees (tensor, context, expert, data, pipeline), with Megatron-LM's layout of ranks."""

from dataclasses import dataclass

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.models.model import ModelSpec, Operator
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import FULL, MEMORY_ITEMS, NONE, PER_OPERATOR, StrategyTree

STAGE_AXES = ("tp", "cp", "ep", "dp", "replica")
"""Axes of the mesh of a pipeline stage; the first varies fastest, the last exists with hybrid sharding only."""
_COLUMNS = ("qkv", "latent_up", "fc1", "shared_fc1", "logits", "expert1")
"""Operators whose outputs are split over tp; the next operators inherit the split until a row operator sums it."""
_ROWS = ("proj", "fc2", "shared_fc2", "expert2")
_KEPT_BLOCKS = {"embedding", "head"}
"""Blocks without recomputation, as in Megatron-LM, DeepSpeed and torchtitan."""
_SEQUENCE_PARALLEL = (
    *("norm*", "final_norm", "residual*", "positions", "sum", "router", "combine", "latent_down", "latent_norm"),
)
"""Operators that sequence parallelism splits over tp by tokens (Korthikanti et al. 2022, section 4.2.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """A strategy given by its degrees. There are tp * cp * dp * pp ranks, tp varies fastest; `ep` divides `dp`.

    `expert_tp` is the tensor parallel degree of experts: `tp` if None, or 1; then the `ep` ranks that share the experts
    are those of `tp` and of a part of `dp`. With `hsdp_replicas` (hybrid sharding), dp consists of that many replicas,
    and `zero` shards within each replica.

    `virtual` is the number of chunks per stage, `zero` the ZeRO stage over the ranks that share gradients. In a
    pipeline, gradients are summed and weights gathered once per step at every ZeRO stage: Megatron-LM's distributed
    optimizer keeps whole gradients between micro-batches, torchtitan whole weights as well. `recompute` "full" does not
    apply to embedding and head.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int | None = None
    dp: int = 1
    hsdp_replicas: int = 1
    pp: int = 1
    virtual: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    recompute: str = NONE

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "ep", "dp", "hsdp_replicas", "pp", "virtual"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.expert_tp not in (None, 1, self.tp):
            raise ConfigError(f"expert_tp: got {self.expert_tp}, expected 1 or tp={self.tp}")
        if self.ep % self._tensor_experts:
            raise ConfigError(f"ep: got {self.ep} with expert_tp=1, expected a multiple of tp={self.tp}")
        if self.dp % self.expert_axis:
            raise ConfigError(f"ep: got {self.ep}, expected a divisor of dp={self.dp * self._tensor_experts}")
        if self.dp % (self.expert_axis * self.hsdp_replicas):
            got, expected = f"{self.hsdp_replicas} with ep={self.ep}", f"a divisor of dp={self.dp}"
            raise ConfigError(f"hsdp_replicas: got {got}, expected {expected}")
        if self.hsdp_replicas > 1 and not self.zero:
            raise ConfigError(f"hsdp_replicas: got {self.hsdp_replicas} with zero=0, expected zero above 0")
        if not 0 <= self.zero <= len(MEMORY_ITEMS):
            raise ConfigError(f"zero: got {self.zero}, expected 0 to {len(MEMORY_ITEMS)}")
        if self.virtual > 1 and self.pp == 1:
            raise ConfigError(f"virtual: got {self.virtual} with pp=1, expected pp > 1 for several chunks a stage")

    @property
    def expert_axis(self) -> int:
        """Number of data parallel ranks that share the experts."""
        return self.ep // self._tensor_experts

    @property
    def _tensor_experts(self) -> int:
        """Number of tensor parallel ranks that share the experts instead of splitting each of them."""
        return self.tp if self.expert_tp == 1 else 1

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp


def preset(model: ModelSpec, degrees: Degrees, schedule: Schedule | None = None) -> StrategyTree:
    """Return the tree of `model` with `degrees`; the caller may change any node.

    Raises
    ------
    ConfigError
        There are more chunks than blocks.
    """
    tree = StrategyTree.of(model)
    tree.root.schedule(schedule or Schedule())
    _recompute(tree, degrees.recompute)
    tree.root.split(b=("ep", "dp", *(("replica",) if degrees.hsdp_replicas > 1 else ())), s="cp")
    _split_tensors(tree, experts_over_tp=degrees.expert_tp == 1)
    if degrees.sequence_parallel:
        for pattern in _SEQUENCE_PARALLEL:
            for leaf in tree.root.find(pattern):
                leaf.split(s="tp")
    in_parts = degrees.zero if degrees.pp == 1 else min(degrees.zero, 1)
    for item in MEMORY_ITEMS[:in_parts]:
        tree.root.split(item, over=("cp", "ep", "dp"))
    _map_stages(tree, degrees)
    return tree


def _recompute(tree: StrategyTree, what: str) -> None:
    tree.root.recompute(what)
    if what in (FULL, PER_OPERATOR):
        for name in _KEPT_BLOCKS & tree.root.children.keys():
            tree.root.children[name].recompute(NONE)


def _split_tensors(tree: StrategyTree, *, experts_over_tp: bool) -> None:
    rules = {**dict.fromkeys(_COLUMNS, "o"), **dict.fromkeys(_ROWS, "h"), "lookup": "v"}
    for leaf in tree.root.find("*"):
        if leaf.name.startswith("expert") and experts_over_tp:
            leaf.split(e=("tp", "ep"))
            continue
        dim = rules.get(leaf.name)
        if dim is not None and isinstance(leaf.module, Operator) and dim in leaf.module.dims:
            leaf.split(**{dim: "tp"})
        if leaf.name.startswith("expert"):
            leaf.split(e="ep")


def _map_stages(tree: StrategyTree, degrees: Degrees) -> None:
    """Map the blocks to stages: all but the first and the last are divided evenly, these two join their neighbours."""
    replicas, sharded = degrees.hsdp_replicas, degrees.dp // degrees.hsdp_replicas
    sizes = {"tp": degrees.tp, "cp": degrees.cp, "ep": degrees.expert_axis, "dp": sharded // degrees.expert_axis}
    sizes |= ({"replica": replicas} if replicas > 1 else {}) | {"pp": degrees.pp}
    mesh = Mesh.grid(sizes)
    blocks = list(tree.root.children.values())
    middle = blocks[1:-1]
    chunks = degrees.pp * degrees.virtual
    if chunks > max(1, len(middle)):
        raise ConfigError(
            f"stages: got {chunks} chunks, expected at most the {len(middle)} blocks of {tree.model.name}"
        )
    for chunk in range(chunks):
        dealt = middle[chunk * len(middle) // chunks : (chunk + 1) * len(middle) // chunks]
        first = blocks[:1] if chunk == 0 else []
        last = blocks[-1:] if chunk == chunks - 1 else []
        for block in (*first, *dealt, *last):
            block.map(mesh.at("pp", chunk % degrees.pp))
