"""Attention and the operators that compute its queries, keys and values: grouped heads, multi-head latent attention.

Latent attention (DeepSeek-AI 2024, section 2.1) computes queries, keys and values from two narrow latent vectors of a
token; the part of a key that carries the position is shared by all heads.
"""

from dataclasses import dataclass

from lockstep.simulator.models.model import MatrixProduct, Operator, OperatorInput
from lockstep.simulator.models.primitives import (
    KEPT_EVERY_SECOND,
    NORM_BACKWARD_MOVES,
    NORM_MOVES,
    TOKENS,
    linear,
    norm,
    residual,
)

# Scores written, read and written by softmax, read and written by dropout with a mask of half an element, read.
_UNFUSED_SCORE_MOVES = 6.5
# Backward reads dropout's output for the values' product, writes and passes gradients through dropout (mask again) and
# softmax (its output again), and reads them for the queries' and the keys' product.
_UNFUSED_SCORE_BACKWARD_MOVES = 9.5
# The matrix products write and read the scores once each, and in backward read dropout's output, write gradients and
# read them twice. The rest of the moves belongs to softmax and dropout, which are separate kernels.
_UNFUSED_SEPARATE_MOVES = 4.5
_UNFUSED_SEPARATE_BACKWARD_MOVES = 5.5
# The output of the heads is copied to the order of the tokens, and its gradient back.
_CONTEXT_MOVES = 2.0
# Gradients of queries, keys and values are concatenated: read and written.
_CONCATENATION_MOVES = 2.0
# A rotation of queries and keys reads and writes them.
_ROTATION_MOVES = 2.0
# PyTorch's eager mode casts them to single precision, multiplies complex numbers and casts back: 20 bytes each.
_EAGER_ROTATION_MOVES = 10.0
# With 2 x 2 matrices a kernel writes both products of each element, and another adds them: 36 bytes
# (`RotaryEmbedding` in fms/modules/positions.py of foundation-model-stack).
_EAGER_MATRIX_ROTATION_MOVES = 18.0
_UNFUSED_LAUNCHES = 4.0  # two products, softmax with scale and mask, dropout
_CAUSAL_SHARE = 0.5  # fused attention skips the blocks above the diagonal
_UNFUSED_SCORE_BYTES = 5.0  # softmax and dropout outputs at 2 bytes, a mask of 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHeads:
    """Attention heads: number of query heads, of key and value heads, and features of a query or key and of a value."""

    queries: int
    keys: int
    key_dim: float
    value_dim: float

    @classmethod
    def of(
        cls, hidden: float, heads: int, kv_heads: int | None = None, head_dim: int | None = None
    ) -> "AttentionHeads":
        """Return heads whose queries, keys and values have `head_dim` features each, `hidden / heads` if None."""
        size = head_dim or hidden / heads
        return cls(queries=heads, keys=kv_heads or heads, key_dim=size, value_dim=size)

    @property
    def query_features(self) -> float:
        """Features of a token's queries."""
        return self.queries * self.key_dim

    @property
    def kv_features(self) -> float:
        """Features of a token's keys and values."""
        return self.keys * (self.key_dim + self.value_dim)

    @property
    def output_features(self) -> float:
        """Features of a token in the output of attention."""
        return self.queries * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes of multi-head latent attention, named as in DeepSeek's configurations.

    `query_rank` is None if queries are computed from the token itself. `nope_dim` and `rope_dim` are the features of a
    query or key without and with the position.
    """

    kv_rank: int
    query_rank: int | None
    nope_dim: int
    rope_dim: int
    value_dim: int

    def heads(self, count: int) -> AttentionHeads:
        """Return `count` heads, each with its own keys and values."""
        return AttentionHeads(
            queries=count, keys=count, key_dim=self.nope_dim + self.rope_dim, value_dim=self.value_dim
        )


def attention(s: float, heads: AttentionHeads, *, width: float, fused: bool, rotation_moves: float = 0.0) -> Operator:
    """Return the core of attention; it can be split by heads, and queries by sequence; keys and values are read whole.

    A rotation of queries and keys by their position reads and writes `rotation_moves` elements for each of theirs.
    """
    total = heads.query_features + heads.kv_features
    scores = 0.0 if fused else heads.queries * s * s
    rotations = rotation_moves * s * (heads.query_features + heads.keys * heads.key_dim)
    copies = rotations + _CONTEXT_MOVES * s * heads.output_features * (not fused)
    separate = copies + _UNFUSED_SEPARATE_MOVES * scores
    moves = s * (total + heads.output_features) + copies + _UNFUSED_SCORE_MOVES * scores
    copies += _CONCATENATION_MOVES * s * total
    backward_separate = copies + _UNFUSED_SEPARATE_BACKWARD_MOVES * scores
    backward_moves = 2 * s * (total + heads.output_features) + copies + _UNFUSED_SCORE_BACKWARD_MOVES * scores
    return Operator(
        name="attention",
        dims={"s": s, "a": heads.queries},
        reads=(
            OperatorInput(("b", "s", "a"), heads.query_features / total),
            OperatorInput(("b", "_", "a"), heads.kv_features / total),
        ),
        writes=("b", "s", "a"),
        output_elements=s * heads.output_features,
        flops=2 * s * s * (heads.query_features + heads.output_features),
        moved_elements=moves,
        backward_moves_ratio=backward_moves / moves,
        stored_input_bytes=width * s * total,
        stored_own_bytes=_UNFUSED_SCORE_BYTES * scores,
        selective=True,
        kept_input_share=KEPT_EVERY_SECOND,
        products=(
            MatrixProduct(rows=("s",), columns=(s,), inner=(heads.key_dim,), repeats=("b", "a"), interleaved=True),
            MatrixProduct(rows=("s",), columns=(heads.value_dim,), inner=(s,), repeats=("b", "a"), interleaved=True),
        ),
        separate_share=separate / moves,
        separate_backward_share=backward_separate / backward_moves,
        launches=1.0 if fused else _UNFUSED_LAUNCHES,
        fused_attention=fused,
        executed_share=_CAUSAL_SHARE if fused else 1.0,
        key_sharers=heads.queries / heads.keys,
    )


def attention_block(
    s: float,
    h: float,
    heads: AttentionHeads,
    width: float,
    *,
    latent: LatentAttention | None = None,
    head_norm: bool = False,
    eager: bool = False,
    matrix_rotations: bool = False,
) -> tuple[Operator, ...]:
    """Return a Llama's fused attention between two norms, without biases; with `eager`, small kernels stay separate.

    With `matrix_rotations` too, queries and keys are rotated by matrices instead of complex numbers. With `head_norm`,
    the features of each query and each key are normalized before their rotation.
    """
    made: tuple[Operator, ...]
    eager_moves = _EAGER_MATRIX_ROTATION_MOVES if matrix_rotations else _EAGER_ROTATION_MOVES
    if latent is None:
        made = (linear("qkv", s, h, heads.query_features + heads.kv_features, width=width, bias=False),)
        if head_norm:
            made = (*made, _head_norm(s, heads, width))
    else:
        made = _latent(s, h, heads.queries, latent, width)
    return (
        norm("norm1", s, h, weights=h, width=width, eager=eager),
        *made,
        attention(s, heads, width=width, fused=True, rotation_moves=eager_moves if eager else _ROTATION_MOVES),
        linear("proj", s, heads.output_features, h, width=width, bias=False),
        residual("residual1", s, h, dropout=False),
        norm("norm2", s, h, weights=h, width=width, eager=eager),
    )


def _head_norm(s: float, heads: AttentionHeads, width: float) -> Operator:
    """Return the norms of queries and keys, whose weights all heads share (Qwen3); values pass them unchanged."""
    features = heads.query_features + heads.keys * heads.key_dim
    total = heads.query_features + heads.kv_features
    return Operator(
        name="head_norm",
        dims={"s": s, "a": total},
        reads=(OperatorInput(("b", "s", "a")),),
        writes=("b", "s", "a"),
        output_elements=s * total,
        moved_elements=NORM_MOVES * s * features,
        backward_moves_ratio=NORM_BACKWARD_MOVES / NORM_MOVES,
        weights=2 * heads.key_dim,
        stored_input_bytes=width * s * features,
    )


def _latent(s: float, h: float, heads: int, latent: LatentAttention, width: float) -> tuple[Operator, ...]:
    """Return the operators before latent attention: down projection, norms of the latent vectors, up projection.

    Every tensor parallel rank computes the latent vectors itself, as in Megatron-LM; only the up projection is split.
    """
    rank, rope = latent.kv_rank, latent.rope_dim
    narrow = (latent.query_rank or 0) + rank
    source = latent.query_rank or h  # of the queries
    queries, others = heads * (latent.nope_dim + rope), heads * (latent.nope_dim + latent.value_dim)
    # Keys contain the part with the position once for each head.
    total = queries + others + heads * rope
    down = linear("latent_down", s, h, narrow + rope, width=width, bias=False)
    # Uncompressed queries read the token itself, which bypasses the latent vectors.
    passed = s * (source + rank + rope)
    latent_norm = Operator(
        name="latent_norm",
        dims={"s": s},
        reads=(OperatorInput(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=passed,
        moved_elements=2 * s * narrow,
        weights=narrow,
        stored_input_bytes=width * s * narrow,
    )
    up = Operator(
        name="latent_up",
        dims={"s": s, "o": total},
        reads=(OperatorInput(TOKENS),),
        writes=("b", "s", "o"),
        output_elements=s * total,
        flops=2 * s * (source * queries + rank * others),
        moved_elements=s * (source + rank + rope + total),
        weights=source * queries + rank * others,
        weight_dims=("o",),
        stored_input_bytes=width * s * (narrow + rope),
        products=(
            MatrixProduct(rows=("b", "s"), columns=("o", queries / total), inner=(source,)),
            MatrixProduct(rows=("b", "s"), columns=("o", others / total), inner=(rank,)),
        ),
        narrow=True,
    )
    return down, latent_norm, up
