"""What a model asks of devices: operators with named dimensions, in modules that nest as the code's do.

An operator's figures are those of one sample, unsplit. Its dimensions show how it may be split: splitting `h` of a
linear layer, which is in its input and not in its output, leaves partial sums behind.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

BATCH = "b"
"""The dimension that every operator has: samples, whose number the strategy sets."""


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """What an operator reads of the tensor before it: which of its dimensions lies at which position, and how much.

    `share` is the part of the incoming tensor: attention reads queries and keys from one tensor, split differently.
    """

    dims: tuple[str, ...]
    share: float = 1.0


Extent = str | float
"""One factor of a size: a dimension of the operator, as it is split on a rank, or a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """A matrix product in an operator's forward pass; every size is the product of its factors.

    `repeats` are those of equal products that a rank computes at once: heads of attention, experts. The operands of
    `interleaved` ones lie next to each other in the rows of one tensor.
    """

    rows: tuple[Extent, ...]
    columns: tuple[Extent, ...]
    inner: tuple[Extent, ...]
    repeats: tuple[Extent, ...] = ()
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operator:
    """One layer, forward and backward. Compared by identity: one object stands for all its repetitions.

    `flops` are the forward pass's, `moved_elements` the activations that it reads and writes; backward takes
    `backward_ratio` times both, or `backward_moves_ratio` times the latter where that is given. `dims` maps what can be
    split to its size, but for the batch; `reads` and `writes` are the dimensions at each position of the tensors
    before and after. `weight_dims` are those that also split the weights; `shared_weights` are counted in another
    operator. `products` are the shapes in which the FLOPs come, none where nothing is known. `separate_share` and
    `separate_backward_share` are the parts of the moved elements that kernels near the products move, before or after
    them; `launches` counts kernels. A `narrow` one's products may take narrower factors than the activations. Of a
    `fused_attention` only `executed_share` of the FLOPs is computed: half with a causal mask; `key_sharers` heads of
    queries share one of keys and values. `stored_*` are elements
    kept for backward times their bytes: of the tensor before, and of the operator's own making; `workspace_bytes` exist
    only while it runs. `selective` marks what selective recomputation computes again; `kept_input_share` is the part of
    the input that recomputation per operator keeps.
    """

    name: str
    dims: Mapping[str, float]
    reads: tuple[OperatorInput, ...]
    writes: tuple[str, ...]
    output_elements: float
    flops: float = 0.0
    moved_elements: float = 0.0
    backward_ratio: float = 2.0
    backward_moves_ratio: float | None = None
    weights: float = 0.0
    weight_dims: tuple[str, ...] = ()
    shared_weights: bool = False
    stored_input_bytes: float = 0.0
    stored_own_bytes: float = 0.0
    workspace_bytes: float = 0.0
    narrow: bool = False
    selective: bool = False
    kept_input_share: float = 0.0
    products: tuple[MatrixProduct, ...] = ()
    separate_share: float = 0.0
    separate_backward_share: float = 0.0
    launches: float = 1.0
    fused_attention: bool = False
    executed_share: float = 1.0
    key_sharers: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """Operators and modules in the order of the data, by unique names. Compared by identity."""

    name: str
    children: tuple["Module | Operator", ...]

    def operators(self) -> Iterator[Operator]:
        """Yield the operators below, in the order of the data."""
        for child in self.children:
            if isinstance(child, Operator):
                yield child
            else:
                yield from child.operators()


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of one element: activations, weights, gradients as kept and as sent, and the optimizer's state.

    `product` is that of the factors of linear layers' products, None for as the activations; 1 is FP8. The head, the
    router and attention stay at the activations' format, as Transformer Engine and torchao leave them. FP8 factors are
    scaled by the largest elements of steps before, or with `current_scaling` by their own. `stored_product` is that in
    which linear layers with FP8 factors keep their inputs for backward, None for as the activations.
    """

    activation: float = 2
    weight: float = 2
    gradient: float = 4
    sent_gradient: float = 4
    optimizer: float = 12
    product: float | None = None
    stored_product: float | None = None
    current_scaling: bool = False


MIXED = Precision()
"""Megatron's mixed precision: half weights, full gradients, full weights and two moments: 18 bytes a parameter."""
HALF_GRADIENTS = Precision(gradient=2, sent_gradient=2)
DEEPSPEED_FP16 = Precision(gradient=2, sent_gradient=2, optimizer=16)
"""DeepSpeed's FP16 optimizer with ZeRO: half weights and gradients; full gradients, weights and moments in parts."""
DEEPSPEED_BF16 = Precision(gradient=6)
"""DeepSpeed's BF16 optimizer: bf16 and full gradients both kept whole; full weights and moments."""
FSDP = Precision(optimizer=10)
"""FSDP's mixed precision, 16 bytes a parameter: full weights in parts (2 of their bytes count as `weight`, which is how
they are gathered), full gradients and two moments."""
FULL = Precision(activation=4, weight=4, gradient=4, sent_gradient=4, optimizer=8)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelSpec:
    """A model: its modules, the tokens in a sample, and its number formats.

    `blocks` are what a pipeline divides: names by place, and modules; a module that repeats is one object.
    """

    name: str
    blocks: tuple[tuple[str, Module], ...]
    tokens: float = 1.0
    precision: Precision = MIXED

    def operators(self) -> Iterator[Operator]:
        """Yield every operator, repetitions included."""
        for _, block in self.blocks:
            yield from block.operators()

    @property
    def parameters(self) -> float:
        """The number of parameters, shared ones once."""
        return sum(op.weights for op in self.operators() if not op.shared_weights)

    @cached_property
    def flops_per_sample(self) -> float:
        """Forward and backward of one sample, without recomputation: the numerator of MFU."""
        return sum(op.flops * (1 + op.backward_ratio) for op in self.operators())
