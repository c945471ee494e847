"""Transformers as modules: gpt, llama, moe. A sample is one sequence of `sequence` tokens.

Stored activations follow Korthikanti et al. 2022, section 4: sbh(10 + 24/t + 5as/(ht)) bytes a layer at 2 bytes an
element, of which selective recomputation drops the last term. FLOPs count attention in full, without the causal half,
as Narayanan et al. 2021 do; parameters of gpt are their 12lh^2(1 + 13/(12h) + (V + s)/(12lh)) and a final norm.
"""

from lockstep.simulator.models.model import MIXED, ModelSpec, Module, Operator, Precision, Product, Read

_TOKENS = ("b", "s", "h")
_MASK_BYTES = 1.0
# Scores written, read and written by softmax, read and written by dropout with a mask of half an element, read.
_UNFUSED_SCORE_MOVES = 6.5
# Backward reads dropout's output for the values' product, writes and passes gradients through dropout (mask again) and
# softmax (its output again), and reads them for the queries' and the keys' product.
_UNFUSED_SCORE_BACKWARD_MOVES = 9.5
# Of those the products themselves write and read the scores once each, and in backward read dropout's output, write
# gradients and read them twice; softmax and dropout are kernels next to them.
_UNFUSED_SEPARATE_SHARE = 4.5 / _UNFUSED_SCORE_MOVES
_UNFUSED_SEPARATE_BACKWARD_SHARE = 5.5 / _UNFUSED_SCORE_BACKWARD_MOVES
_UNFUSED_LAUNCHES = 4.0  # two products, softmax with scale and mask, dropout
_CAUSAL_SHARE = 0.5  # fused attention skips the blocks above the diagonal
_GELU_BACKWARD_MOVES = 1.5  # reads input and gradient, writes one: 3 elements to 2
_SWIGLU_BACKWARD_MOVES = 5 / 3  # reads both inputs and the gradient, writes two: 5 elements to 3
_UNFUSED_SCORE_BYTES = 5.0  # softmax and dropout outputs at 2 bytes, a mask of 1
_SINGLE_BYTES = 4.0
# The vocabulary-parallel loss in single precision, kernel by kernel: maximum (read), subtraction, exponential (both in
# place), sum (read), division (in place); backward: one product in place.
_LOSS_MOVES = 8.0
_LOSS_BACKWARD_MOVES = 2.0


# What recomputation per operator keeps: the stream that enters a layer, every second product's output, attention's.
_WHOLE, _EVERY_SECOND = 1.0, 0.5


def norm(name: str, s: float, h: float, *, weights: float, width: float) -> Operator:
    """Return a normalisation of `weights` parameters over tokens of `h` elements; it cannot be split by features."""
    return Operator(
        name=name,
        dims={"s": s},
        reads=(Read(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=2 * s * h,
        weights=weights,
        stored_input_bytes=width * s * h,
        kept_input_share=_WHOLE,
    )


def linear(
    name: str, s: float, h: float, o: float, *, width: float, bias: bool = True, shared: bool = False
) -> Operator:
    """Return output(b, s, o) = sum over h of input(b, s, h) weight(o, h)."""
    return Operator(
        name=name,
        dims={"s": s, "h": h, "o": o},
        reads=(Read(_TOKENS),),
        writes=("b", "s", "o"),
        output_elements=s * o,
        flops=2 * s * h * o,
        moved_elements=s * (h + o),
        weights=h * o + o * bias,
        weight_dims=("h", "o"),
        shared_weights=shared,
        stored_input_bytes=width * s * h,
        kept_input_share=_WHOLE if name == "proj" else 0.0,  # what attention leaves
        products=(Product(rows=("b", "s"), columns=("o",), inner=("h",)),),
        narrow=name != "logits",
    )


def attention(s: float, h: float, heads: int, kv_heads: int, *, width: float, fused: bool) -> Operator:
    """Return the core of attention: the heads split, and queries by sequence; keys and values are needed whole.

    `h` counts the features of all heads of the queries.
    """
    kv = 2 * kv_heads / heads
    scores = 0.0 if fused else heads * s * s
    head = h / heads
    return Operator(
        name="attention",
        dims={"s": s, "a": heads},
        reads=(Read(("b", "s", "a"), 1 / (1 + kv)), Read(("b", "_", "a"), kv / (1 + kv))),
        writes=("b", "s", "a"),
        output_elements=s * h,
        flops=4 * s * s * h,
        moved_elements=s * h * (2 + kv) + _UNFUSED_SCORE_MOVES * scores,
        backward_moves_ratio=None if fused else _UNFUSED_SCORE_BACKWARD_MOVES / _UNFUSED_SCORE_MOVES,
        stored_input_bytes=width * s * h * (1 + kv),
        stored_own_bytes=_UNFUSED_SCORE_BYTES * scores,
        selective=True,
        kept_input_share=_EVERY_SECOND,
        products=(
            Product(rows=("s",), columns=(s,), inner=(head,), repeats=("b", "a")),
            Product(rows=("s",), columns=(head,), inner=(s,), repeats=("b", "a")),
        ),
        separate_share=0.0 if fused else _UNFUSED_SEPARATE_SHARE,
        separate_backward_share=0.0 if fused else _UNFUSED_SEPARATE_BACKWARD_SHARE,
        launches=1.0 if fused else _UNFUSED_LAUNCHES,
        fused_attention=fused,
        executed_share=_CAUSAL_SHARE if fused else 1.0,
    )


def pointwise(
    name: str, s: float, f: float, *, inputs: float = 1.0, stored: float, moved: float, backward_moves: float = 1.0
) -> Operator:
    """Return an operator on each of s x f elements that reads `inputs` as many; `moved` counts all it touches.

    Backward touches `backward_moves` times as many.
    """
    return Operator(
        name=name,
        dims={"s": s, "f": f},
        reads=(Read(("b", "s", "f")),),
        writes=("b", "s", "f"),
        output_elements=s * f,
        moved_elements=moved * s * f,
        backward_ratio=1.0,
        backward_moves_ratio=backward_moves,
        stored_input_bytes=stored * inputs * s * f,
        kept_input_share=_EVERY_SECOND,
    )


def residual(name: str, s: float, h: float, *, dropout: bool) -> Operator:
    """Return dropout and the addition to the residual stream; its mask is kept."""
    return Operator(
        name=name,
        dims={"s": s},
        reads=(Read(("b", "s", "_")),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=3.5 * s * h if dropout else 3 * s * h,
        backward_ratio=1.0,
        stored_own_bytes=_MASK_BYTES * s * h * dropout,
    )


def _embedding(s: float, h: float, vocabulary: float, *, positions: bool, dropout: bool) -> Module:
    lookup = Operator(
        name="lookup",
        dims={"s": s, "v": vocabulary},
        reads=(Read(("b", "s"), 0.0),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=2 * s * h,
        weights=vocabulary * h,
        weight_dims=("v",),
    )
    table = norm("positions", s, h, weights=s * h, width=0.0)
    tail = (table,) if positions else ()
    return Module(name="embedding", children=(lookup, *tail, residual("sum", s, h, dropout=dropout)))


def _head(s: float, h: float, vocabulary: float, *, weights: float, width: float, shared: bool) -> Module:
    cast_bytes = _SINGLE_BYTES + width if width < _SINGLE_BYTES else 0.0
    forward_bytes, backward_bytes = (
        moves * _SINGLE_BYTES + cast_bytes for moves in (_LOSS_MOVES, _LOSS_BACKWARD_MOVES)
    )
    loss = Operator(
        name="loss",
        dims={"s": s, "v": vocabulary},
        reads=(Read(("b", "s", "v")),),
        writes=("b", "s"),
        output_elements=0.0,
        moved_elements=forward_bytes / width * s * vocabulary,
        backward_ratio=backward_bytes / forward_bytes,
        stored_own_bytes=_SINGLE_BYTES * s * vocabulary,
        workspace_bytes=_SINGLE_BYTES * s * vocabulary,  # the logits in single precision, later their gradient
    )
    logits = linear("logits", s, h, vocabulary, width=width, bias=False, shared=shared)
    return Module(name="head", children=(norm("final_norm", s, h, weights=weights, width=width), logits, loss))


def _model(
    name: str, modules: tuple[Module, Module, Module], *, layers: int, s: float, precision: Precision
) -> ModelSpec:
    embedding, layer, head = modules
    blocks = [("embedding", embedding), *((f"layer{index}", layer) for index in range(layers)), ("head", head)]
    return ModelSpec(name=name, blocks=tuple(blocks), tokens=s, precision=precision)


def gpt(
    *,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    vocabulary: int = 51200,
    head_dim: int | None = None,
    fused_attention: bool = False,
    precision: Precision = MIXED,
    name: str = "gpt",
) -> ModelSpec:
    """Return a GPT: learnt positions, a wide layer of 4 `hidden`, dropout, output weights tied to the embedding."""
    s, h, width = float(sequence), float(hidden), precision.activation
    queries = heads * head_dim if head_dim else h
    layer = Module(
        name="layer",
        children=(
            norm("norm1", s, h, weights=2 * h, width=width),
            linear("qkv", s, h, 3 * queries, width=width),
            attention(s, queries, heads, heads, width=width, fused=fused_attention),
            linear("proj", s, queries, h, width=width),
            residual("residual1", s, h, dropout=True),
            norm("norm2", s, h, weights=2 * h, width=width),
            linear("fc1", s, h, 4 * h, width=width),
            pointwise("gelu", s, 4 * h, stored=width, moved=2, backward_moves=_GELU_BACKWARD_MOVES),
            linear("fc2", s, 4 * h, h, width=width),
            residual("residual2", s, h, dropout=True),
        ),
    )
    embedding = _embedding(s, h, vocabulary, positions=True, dropout=True)
    head = _head(s, h, vocabulary, weights=2 * h, width=width, shared=True)
    return _model(name, (embedding, layer, head), layers=layers, s=s, precision=precision)


def _llama_attention(
    s: float, h: float, heads: int, kv_heads: int, width: float, *, head_dim: int | None
) -> tuple[Operator, ...]:
    queries = heads * head_dim if head_dim else h
    return (
        norm("norm1", s, h, weights=h, width=width),
        linear("qkv", s, h, queries * (1 + 2 * kv_heads / heads), width=width, bias=False),
        attention(s, queries, heads, kv_heads, width=width, fused=True),
        linear("proj", s, queries, h, width=width, bias=False),
        residual("residual1", s, h, dropout=False),
        norm("norm2", s, h, weights=h, width=width),
    )


def llama(
    *,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    ffn: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    vocabulary: int = 32000,
    precision: Precision = MIXED,
    name: str = "llama",
) -> ModelSpec:
    """Return a Llama: gated wide layers, grouped keys and values, fused attention, no biases, untied output weights."""
    s, h, width = float(sequence), float(hidden), precision.activation
    wide = (
        linear("fc1", s, h, 2 * ffn, width=width, bias=False),
        pointwise("swiglu", s, ffn, inputs=2, stored=width, moved=3, backward_moves=_SWIGLU_BACKWARD_MOVES),
        linear("fc2", s, ffn, h, width=width, bias=False),
        residual("residual2", s, h, dropout=False),
    )
    layer = Module(
        name="layer", children=(*_llama_attention(s, h, heads, kv_heads or heads, width, head_dim=head_dim), *wide)
    )
    embedding = _embedding(s, h, vocabulary, positions=False, dropout=False)
    head = _head(s, h, vocabulary, weights=h, width=width, shared=False)
    return _model(name, (embedding, layer, head), layers=layers, s=s, precision=precision)


def _experts(s: float, h: float, ffn: float, *, experts: int, chosen: int, width: float) -> tuple[Operator, ...]:
    """Return router, experts and combination. Tokens arrive at experts by a fourth position: that of the expert."""
    routed = ("b", "s", "_", "x")

    def expert(name: str, inner: float, outer: float) -> Operator:
        return Operator(
            name=name,
            dims={"s": s, "e": experts, "h": inner, "o": outer},
            reads=(Read(("b", "s", "h", "e")),),
            writes=("b", "s", "o", "e"),
            output_elements=chosen * s * outer,
            flops=2 * chosen * s * inner * outer,
            moved_elements=chosen * s * (inner + outer),
            weights=experts * inner * outer,
            weight_dims=("e", "h", "o"),
            stored_input_bytes=width * chosen * s * inner,
            products=(Product(rows=("b", "s", chosen / experts), columns=("o",), inner=("h",), repeats=("e",)),),
            narrow=True,
        )

    router = Operator(
        name="router",
        dims={"s": s},
        reads=(Read(("b", "s", "_")),),
        writes=routed,
        output_elements=chosen * s * h,
        flops=2 * s * h * experts,
        moved_elements=(1 + chosen) * s * h,
        weights=h * experts,
        stored_input_bytes=width * s * h,
    )
    gate = Operator(
        name="expert_gate",
        dims={"s": s, "e": experts, "o": ffn},
        reads=(Read(("b", "s", "o", "e")),),
        writes=("b", "s", "o", "e"),
        output_elements=chosen * s * ffn,
        moved_elements=3 * chosen * s * ffn,
        backward_ratio=1.0,
        stored_input_bytes=2 * width * chosen * s * ffn,
        kept_input_share=_EVERY_SECOND,
    )
    combine = Operator(
        name="combine",
        dims={"s": s},
        reads=(Read(routed),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=(1 + chosen) * s * h,
        backward_ratio=1.0,
        stored_input_bytes=width * chosen * s * h,
    )
    return router, expert("expert1", h, 2 * ffn), gate, expert("expert2", ffn, h), combine


def moe(
    *,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    ffn: int,
    experts: int,
    chosen: int = 2,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    vocabulary: int = 32000,
    precision: Precision = MIXED,
    name: str = "moe",
) -> ModelSpec:
    """Return a mixture of experts: a Llama whose every wide layer is `experts`, of which a token uses `chosen`.

    Load is balanced: every expert gets its even share of tokens.
    """
    s, h, width = float(sequence), float(hidden), precision.activation
    layer = Module(
        name="layer",
        children=(
            *_llama_attention(s, h, heads, kv_heads or heads, width, head_dim=head_dim),
            *_experts(s, h, ffn, experts=experts, chosen=chosen, width=width),
            residual("residual2", s, h, dropout=False),
        ),
    )
    embedding = _embedding(s, h, vocabulary, positions=False, dropout=False)
    head = _head(s, h, vocabulary, weights=h, width=width, shared=False)
    return _model(name, (embedding, layer, head), layers=layers, s=s, precision=precision)
