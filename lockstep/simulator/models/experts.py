"""The feed-forward layer of a mixture of experts: shared experts, router, routed experts and their combination."""

from collections.abc import Iterator
from functools import partial

from lockstep.simulator.models.model import MatrixProduct, Operator, OperatorInput, Routing
from lockstep.simulator.models.primitives import ACTIVATION_BACKWARD_MOVES, KEPT_EVERY_SECOND, linear, pointwise

_SWIGLU_MOVES, _SWIGLU_BACKWARD_MOVES = 3.0, 5.0
"""Forward reads both inputs and writes one output; backward reads them and the gradient, and writes two gradients."""
_EAGER_SWIGLU_MOVES, _EAGER_SWIGLU_BACKWARD_MOVES = 5.0, 9.0
"""Activation and product as separate kernels, as in PyTorch's eager mode."""
_SORT_MOVES = 2.0
"""Tokens arrive ordered by the sending rank. A rank with several experts sorts them by expert, and back before it
returns them (Megatron-LM's MoEAlltoAllTokenDispatcher, `sort_chunks_by_idxs`): each token and each gradient is read and
written once per sort."""
_PADDING_MOVES = 2.0
"""FP8 products need a multiple of 16 or 128 tokens for each expert. Where the dispatcher does not pad them, they are
copied to that size and back (Megatron-LM's TEGroupedMLP, `quantization_padding`), and so are their gradients."""
_ROUTER_BACKWARD_MOVES = 5.0
"""The router's product reads its input for the weights' gradient and writes the input's, to which that of the experts
is added."""
_ADDED_MOVES = 3.0
"""The sum of shared and routed experts; their gradients are that of the sum."""
_ROUTER_LAUNCHES = 3.0
"""The router's product, the top of its scores, and the auxiliary loss, each in one kernel or a few with Megatron-LM's
`--moe-router-fusion` (`TopKRouter`); in a CUDA graph (`moe_router` of `--cuda-graph-scope`) they cost the host nothing.
The permutation of the tokens (`--moe-permute-fusion`) is outside of it."""


def gated(
    s: float, h: float, ffn: float, *, width: float, prefix: str = "", eager: bool = False
) -> tuple[Operator, ...]:
    """Return a gated feed-forward layer of `ffn` features without biases; its gate is one kernel, with `eager` two."""
    moves, backward_moves = (
        (_EAGER_SWIGLU_MOVES, _EAGER_SWIGLU_BACKWARD_MOVES) if eager else (_SWIGLU_MOVES, _SWIGLU_BACKWARD_MOVES)
    )
    swiglu = pointwise(
        f"{prefix}swiglu", s, ffn, inputs=2, stored=width, moved=moves, backward_moves=backward_moves / moves
    )
    return (
        linear(f"{prefix}fc1", s, h, 2 * ffn, width=width, bias=False),
        swiglu,
        linear(f"{prefix}fc2", s, ffn, h, width=width, bias=False),
    )


def ungated(s: float, h: float, ffn: float, *, width: float) -> tuple[Operator, ...]:
    """Return a feed-forward layer of `ffn` features without a gate or biases; its activation is one kernel."""
    return (
        linear("fc1", s, h, ffn, width=width, bias=False),
        pointwise("activation", s, ffn, stored=width, moved=2, backward_moves=ACTIVATION_BACKWARD_MOVES),
        linear("fc2", s, ffn, h, width=width, bias=False),
    )


def mixture(
    s: float,
    h: float,
    ffn: float,
    *,
    experts: int,
    chosen: int,
    shared_ffn: float,
    width: float,
    padded_tokens: bool = False,
    graphed_router: bool = False,
    separate_experts: bool = False,
) -> Iterator[Operator]:
    """Yield the operators of a mixture of experts; all tokens pass the `shared_ffn` features of the shared experts.

    Shared experts come before the routed ones, as in Megatron-LM without overlap. The input of routed experts has a
    fourth dimension, the expert. Their outputs are added without being kept: the router's weights are multiplied with
    the features between both products (Megatron-Core, `weighted_bias_swiglu_impl`) or with the experts' input
    (torchtitan, `score_before_experts`), and these are kept anyway. `padded_tokens` are copied to the sizes that FP8
    products need, and back. A token is copied for each of its experts before it is sent (not with DeepEP). The host
    does not issue the kernels of a `graphed_router`; it issues those of `separate_experts` for each expert.
    """
    if shared_ffn:
        yield from gated(s, h, shared_ffn, width=width, prefix="shared_")
    routed = ("b", "s", "_", "x")
    permuted = (1 + chosen) * s * h  # a token is read and written for each of its experts, in backward the reverse
    # With shared experts, their operators already store the router's input; their output is added in the combination.
    kept, added = (0.0, 1.0) if shared_ffn else (1.0, 0.0)
    yield Operator(
        name="router",
        dims={"s": s},
        reads=(OperatorInput(("b", "s", "_")),),
        writes=routed,
        output_elements=chosen * s * h,
        flops=2 * s * h * experts,
        moved_elements=s * h + permuted,
        backward_moves_ratio=(_ROUTER_BACKWARD_MOVES * s * h + permuted) / (s * h + permuted),
        permuted_elements=permuted,
        weights=h * experts,
        stored_input_bytes=width * s * h * kept,
        launches=1 + _ROUTER_LAUNCHES * (not graphed_router),
        backward_launches=1 + (1 + _ROUTER_LAUNCHES) * (not graphed_router),
    )
    copied, copies = h * (_SORT_MOVES + _PADDING_MOVES * padded_tokens), 1.0 + padded_tokens
    expert = partial(
        _expert,
        copied=copied,
        copies=copies,
        experts=experts,
        chosen=chosen,
        width=width,
        separate=separate_experts,
    )
    yield expert("expert1", s, h, 2 * ffn)
    yield Operator(
        name="expert_gate",
        dims={"s": s, "e": experts, "o": ffn},
        reads=(OperatorInput(("b", "s", "o", "e")),),
        writes=("b", "s", "o", "e"),
        output_elements=chosen * s * ffn,
        moved_elements=_SWIGLU_MOVES * chosen * s * ffn,
        backward_ratio=1.0,
        backward_moves_ratio=_SWIGLU_BACKWARD_MOVES / _SWIGLU_MOVES,
        stored_input_bytes=2 * width * chosen * s * ffn,
        kept_input_share=KEPT_EVERY_SECOND,
    )
    yield expert("expert2", s, ffn, h)
    summed = _ADDED_MOVES * added * s * h
    yield Operator(
        name="combine",
        dims={"s": s},
        reads=(OperatorInput(routed),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=summed + permuted,
        backward_ratio=1.0,
        backward_moves_ratio=permuted / (summed + permuted),
        permuted_elements=permuted,
    )


def _expert(
    name: str,
    s: float,
    inner: float,
    outer: float,
    *,
    copied: float,
    copies: float,
    experts: int,
    chosen: int,
    width: float,
    separate: bool,
) -> Operator:
    """Return one of the products of experts, with `copies` of its tokens that move `copied` elements of each."""
    moves, backward_moves = inner + outer + copied, 2 * (inner + outer) + copied
    return Operator(
        name=name,
        dims={"s": s, "e": experts, "h": inner, "o": outer},
        reads=(OperatorInput(("b", "s", "h", "e")),),
        writes=("b", "s", "o", "e"),
        output_elements=chosen * s * outer,
        flops=2 * chosen * s * inner * outer,
        moved_elements=chosen * s * moves,
        backward_moves_ratio=backward_moves / moves,
        separate_share=copied / moves,
        separate_backward_share=copied / backward_moves,
        weights=experts * inner * outer,
        weight_dims=("e", "h", "o"),
        stored_input_bytes=width * chosen * s * inner,
        products=(
            MatrixProduct(
                rows=("b", "s", chosen / experts), columns=("o",), inner=("h",), repeats=("e",), grouped=True
            ),
        ),
        narrow=True,
        launches=1 + copies,
        backward_launches=2 + copies,
        separate_repeats=separate,
        routing=Routing(experts=experts, chosen=chosen),
    )
