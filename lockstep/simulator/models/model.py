"""A model's work: operators with named dimensions, in modules that nest like those of the code.

An operator's figures are those of one sample without any split. Its dimensions define how it may be split: a split of
`h`, which a linear layer has in its input but not in its output, leaves partial sums.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

BATCH = "b"
"""The dimension that every operator has: samples, whose number is set by the strategy."""


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """An operator's input: which of its dimensions is at which position of the incoming tensor.

    `share` is the part of that tensor that is read: attention reads queries and keys, split differently, from one.
    """

    dims: tuple[str, ...]
    share: float = 1.0


Extent = str | float
"""A factor of a size: a dimension of the operator, at its size on a rank, or a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """A matrix product in an operator's forward pass; every size is the product of its factors.

    `repeats` is the number of equal products that a rank computes at once, such as attention heads or experts. The
    operands of `interleaved` products are adjacent in the rows of one tensor; `grouped` ones have as many rows as
    tokens chose their expert.
    """

    rows: tuple[Extent, ...]
    columns: tuple[Extent, ...]
    inner: tuple[Extent, ...]
    repeats: tuple[Extent, ...] = ()
    interleaved: bool = False
    grouped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The `chosen` ones of `experts` to which a token is sent; all are equally likely, and each rank has as many."""

    experts: int
    chosen: int

    def share_once_per_part(self, parts: float) -> float:
        """Return the ratio of copies that cross between `parts` of equally many ranks with DeepEP to those without it.

        Without it a token is sent to each of its experts, with it once to each part that has one of them. For example,
        a token with 8 of 128 experts on 2 nodes crosses the network once instead of 4 times.
        """
        elsewhere = self.experts - self.experts / parts
        misses = prod(max(0.0, elsewhere - drawn) / (self.experts - drawn) for drawn in range(self.chosen))
        return parts * (1 - misses) / self.chosen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operator:
    """One layer, forward and backward. Compared by identity: one object represents all its repetitions.

    `flops` belong to the forward pass, `moved_elements` are the activations that it reads and writes; backward takes
    `backward_ratio` times both, or `backward_moves_ratio` times the latter if given. `dims` maps each dimension that
    can be split, except the batch, to its size; `reads` and `writes` are the dimensions at each position of the input
    and output tensors. `weight_dims` are those that also split the weights; `shared_weights` are counted in another
    operator. `products` are the matrix products that the FLOPs consist of, empty if unknown. `separate_share` and
    `separate_backward_share` are the parts of the moved elements that separate kernels move before or after the
    products; `launches` counts kernels in forward, `backward_launches` in backward, `backward_ratio` times as many if
    None. The host issues the products of `separate_repeats` one after the other. The products of a `narrow` operator
    may have factors in a narrower format than the activations. A `fused_attention` computes only `executed_share` of
    the FLOPs, half with a causal mask; `key_sharers` query heads share one key and value head; `routing` is how tokens
    reach their experts, for which `permuted_elements` of those that each pass moves are copied. `stored_*` are the
    bytes kept for backward, of the input tensor and of the operator's own results; `workspace_bytes` exist only while
    it runs. `selective` operators are computed again by selective recomputation; `kept_input_share` is the part of the
    input that recomputation per operator keeps.
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
    backward_launches: float | None = None
    separate_repeats: bool = False
    permuted_elements: float = 0.0
    fused_attention: bool = False
    executed_share: float = 1.0
    key_sharers: float = 1.0
    routing: Routing | None = None

    def without_permutation(self) -> "Operator":
        """Return the operator where tokens need no copy for each expert before they are sent."""
        ratio = self.backward_ratio if self.backward_moves_ratio is None else self.backward_moves_ratio
        moved = self.moved_elements - self.permuted_elements
        backward = self.moved_elements * ratio - self.permuted_elements
        return replace(
            self,
            moved_elements=moved,
            backward_moves_ratio=backward / moved if moved else 0.0,
            permuted_elements=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """Operators and modules in the order of the data flow, with unique names. Compared by identity."""

    name: str
    children: tuple["Module | Operator", ...]

    def operators(self) -> Iterator[Operator]:
        """Yield the operators below, in the order of the data flow."""
        for child in self.children:
            if isinstance(child, Operator):
                yield child
            else:
                yield from child.operators()


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per element: activations, weights, gradients as kept and as sent, and the optimizer's state.

    `product` is for the factors of linear layers' matrix products, None for that of the activations; 1 is FP8. The
    head, the router and attention use the activations' format, as in Transformer Engine and torchao. FP8 factors are
    scaled by the largest elements of previous steps, with `current_scaling` by their own, or with `block_scaling` in
    blocks (MXFP8). `stored_product` is for the inputs that linear layers with FP8 factors keep for backward, None for
    that of the activations.
    """

    activation: float = 2
    weight: float = 2
    gradient: float = 4
    sent_gradient: float = 4
    optimizer: float = 12
    product: float | None = None
    stored_product: float | None = None
    current_scaling: bool = False
    block_scaling: bool = False


MIXED = Precision()
"""Megatron's mixed precision: half weights, full gradients, full weights and two moments: 18 bytes a parameter."""
HALF_GRADIENTS = Precision(gradient=2, sent_gradient=2)
DEEPSPEED_FP16 = Precision(gradient=2, sent_gradient=2, optimizer=16)
"""DeepSpeed's FP16 optimizer with ZeRO: half weights and gradients; full gradients, weights and moments sharded."""
DEEPSPEED_BF16 = Precision(gradient=6)
"""DeepSpeed's BF16 optimizer: bf16 and full gradients both kept whole; full weights and moments."""
FSDP = Precision(optimizer=10)
"""FSDP's mixed precision, 16 bytes a parameter: full sharded weights (2 of their bytes count as `weight`, since they
are gathered in half precision), full gradients and two moments."""
FULL = Precision(activation=4, weight=4, gradient=4, sent_gradient=4, optimizer=8)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelSpec:
    """A model: its modules, the tokens of a sample, and its number formats.

    `blocks` are the units that a pipeline divides: name and module of each; a repeated module is one object.
    """

    name: str
    blocks: tuple[tuple[str, Module], ...]
    tokens: float = 1.0
    precision: Precision = MIXED

    def operators(self) -> Iterator[Operator]:
        """Yield every operator, repetitions included."""
        for _, block in self.blocks:
            yield from block.operators()

    @cached_property
    def routing(self) -> Routing | None:
        """How tokens come to the experts of the layers that have any, None in a model without experts."""
        return next((op.routing for op in self.operators() if op.routing), None)

    @property
    def parameters(self) -> float:
        """Number of parameters; shared ones count once."""
        return sum(op.weights for op in self.operators() if not op.shared_weights)

    @cached_property
    def flops_per_sample(self) -> float:
        """FLOPs of forward and backward of one sample, without recomputation: the numerator of MFU."""
        return sum(op.flops * (1 + op.backward_ratio) for op in self.operators())
