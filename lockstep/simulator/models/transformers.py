"""Transformers as modules: gpt, llama, moe. A sample is one sequence of `sequence` tokens.

Stored activations follow Korthikanti et al. 2022, section 4: sbh(10 + 24/t + 5as/(ht)) bytes per layer at 2 bytes per
element; selective recomputation drops the last term. FLOPs count attention in full, without a causal mask, as in
Narayanan et al. 2021; the parameters of gpt are their 12lh^2(1 + 13/(12h) + (V + s)/(12lh)) and a final norm.
"""

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.models.attention import AttentionHeads, LatentAttention, attention, attention_block
from lockstep.simulator.models.experts import gated, mixture, ungated
from lockstep.simulator.models.model import MIXED, ModelSpec, Module, Operator, OperatorInput, Precision
from lockstep.simulator.models.primitives import ACTIVATION_BACKWARD_MOVES, linear, norm, pointwise, residual

_SINGLE_BYTES = 4.0
# The vocabulary-parallel loss in single precision, kernel by kernel: maximum (read), subtraction, exponential (both in
# place), sum (read), division (in place); backward: one product in place.
_LOSS_MOVES = 8.0
_LOSS_BACKWARD_MOVES = 2.0
# One kernel reads the logits in forward, and in backward reads them and writes their gradient (flash-attn's
# CrossEntropyLoss).
_FUSED_LOSS_MOVES, _FUSED_LOSS_BACKWARD_MOVES = 1.0, 2.0
# A metric of the loss reads the logits, casts them to single precision and computes their log-softmax: written, read,
# written.
_METRIC_MOVES = 3.0


def _embedding(s: float, h: float, vocabulary: float, *, positions: bool, dropout: bool) -> Module:
    lookup = Operator(
        name="lookup",
        dims={"s": s, "v": vocabulary},
        reads=(OperatorInput(("b", "s"), 0.0),),
        writes=("b", "s", "_"),
        output_elements=s * h,
        moved_elements=2 * s * h,
        weights=vocabulary * h,
        weight_dims=("v",),
    )
    table = norm("positions", s, h, weights=s * h, width=0.0)
    tail = (table,) if positions else ()
    return Module(name="embedding", children=(lookup, *tail, residual("sum", s, h, dropout=dropout)))


def _loss(s: float, vocabulary: float, width: float, *, fused: bool, metrics: int) -> Operator:
    """Return the loss in single precision, with a kernel for each step, or `fused` into one that keeps only the logits.

    Each of `metrics` computes it once more, after the backward pass has freed its memory.
    """
    cast_bytes = _SINGLE_BYTES + width if width < _SINGLE_BYTES else 0.0
    forward_bytes, backward_bytes = (
        moves * _SINGLE_BYTES + cast_bytes for moves in (_LOSS_MOVES, _LOSS_BACKWARD_MOVES)
    )
    if fused:
        forward_bytes, backward_bytes = _FUSED_LOSS_MOVES * width, _FUSED_LOSS_BACKWARD_MOVES * width
    forward_bytes, backward_ratio = _with_metrics(forward_bytes, backward_bytes, width, metrics)
    single_bytes = 0.0 if fused else _SINGLE_BYTES * s * vocabulary
    return Operator(
        name="loss",
        dims={"s": s, "v": vocabulary},
        reads=(OperatorInput(("b", "s", "v")),),
        writes=("b", "s"),
        output_elements=0.0,
        moved_elements=forward_bytes / width * s * vocabulary,
        backward_ratio=backward_ratio,
        stored_input_bytes=width * s * vocabulary * fused,
        stored_own_bytes=single_bytes,
        workspace_bytes=single_bytes,  # the logits in single precision, later their gradient
    )


def _with_metrics(forward_bytes: float, backward_bytes: float, width: float, metrics: int) -> tuple[float, float]:
    """Return the bytes per logit that the loss and its metrics move in forward, and the ratio of backward's to them."""
    forward_bytes += metrics * (width + _METRIC_MOVES * _SINGLE_BYTES)
    return forward_bytes, backward_bytes / forward_bytes


def _head(
    s: float,
    h: float,
    vocabulary: float,
    *,
    weights: float,
    width: float,
    shared: bool,
    fused_loss: bool,
    loss_metrics: int = 0,
) -> Module:
    loss = _loss(s, vocabulary, width, fused=fused_loss, metrics=loss_metrics)
    logits = linear("logits", s, h, vocabulary, width=width, bias=False, shared=shared)
    return Module(name="head", children=(norm("final_norm", s, h, weights=weights, width=width), logits, loss))


def _model(
    name: str,
    modules: tuple[Module, Module, Module],
    *,
    layers: int,
    s: float,
    precision: Precision,
    first: tuple[Module, ...] = (),
) -> ModelSpec:
    """Return the model of embedding, `layers` layers and head; the `first` of the layers differ from the rest."""
    embedding, layer, head = modules
    made = (*first, *[layer] * (layers - len(first)))
    blocks = [("embedding", embedding), *((f"layer{index}", each) for index, each in enumerate(made)), ("head", head)]
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
    fused_loss: bool = False,
    loss_metrics: int = 0,
    dropout: bool = True,
    tied_embeddings: bool = True,
    precision: Precision = MIXED,
    name: str = "gpt",
) -> ModelSpec:
    """Return a GPT: learnt positions, a feed-forward layer of 4 `hidden` features, optionally `dropout`.

    With `tied_embeddings`, the output weights are those of the embedding.
    """
    s, h, width = float(sequence), float(hidden), precision.activation
    shape = AttentionHeads.of(h, heads, head_dim=head_dim)
    queries = shape.query_features
    layer = Module(
        name="layer",
        children=(
            norm("norm1", s, h, weights=2 * h, width=width),
            linear("qkv", s, h, 3 * queries, width=width),
            attention(s, shape, width=width, fused=fused_attention),
            linear("proj", s, queries, h, width=width),
            residual("residual1", s, h, dropout=dropout),
            norm("norm2", s, h, weights=2 * h, width=width),
            linear("fc1", s, h, 4 * h, width=width),
            pointwise("gelu", s, 4 * h, stored=width, moved=2, backward_moves=ACTIVATION_BACKWARD_MOVES),
            linear("fc2", s, 4 * h, h, width=width),
            residual("residual2", s, h, dropout=dropout),
        ),
    )
    embedding = _embedding(s, h, vocabulary, positions=True, dropout=dropout)
    head = _head(
        s,
        h,
        vocabulary,
        weights=2 * h,
        width=width,
        shared=tied_embeddings,
        fused_loss=fused_loss,
        loss_metrics=loss_metrics,
    )
    return _model(name, (embedding, layer, head), layers=layers, s=s, precision=precision)


def llama(
    *,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    ffn: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    latent: LatentAttention | None = None,
    vocabulary: int = 32000,
    fused_loss: bool = False,
    tied_embeddings: bool = False,
    head_norm: bool = False,
    gate: bool = True,
    eager: bool = False,
    matrix_rotations: bool = False,
    precision: Precision = MIXED,
    name: str = "llama",
) -> ModelSpec:
    """Return a Llama: gated feed-forward layers, grouped keys and values, fused attention, no biases.

    Without `gate`, a feed-forward layer is a product, an activation and a second product (Nemotron 4's squared ReLU).
    With `latent`, its attention is multi-head latent attention, and `kv_heads` and `head_dim` have no effect. With
    `head_norm`, queries and keys are normalized (Qwen3).
    A norm, a rotation and a gate are one kernel each; with `eager`, the kernels of PyTorch without torch.compile,
    with `matrix_rotations` too, those of foundation-model-stack.
    """
    s, h, width = float(sequence), float(hidden), precision.activation
    shape = latent.heads(heads) if latent else AttentionHeads.of(h, heads, kv_heads, head_dim)
    layer = _dense(
        s,
        h,
        shape,
        ffn,
        width,
        latent=latent,
        head_norm=head_norm,
        gate=gate,
        eager=eager,
        matrix_rotations=matrix_rotations,
    )
    embedding = _embedding(s, h, vocabulary, positions=False, dropout=False)
    head = _head(s, h, vocabulary, weights=h, width=width, shared=tied_embeddings, fused_loss=fused_loss)
    return _model(name, (embedding, layer, head), layers=layers, s=s, precision=precision)


def _dense(
    s: float,
    h: float,
    shape: AttentionHeads,
    ffn: int,
    width: float,
    *,
    latent: LatentAttention | None,
    head_norm: bool = False,
    gate: bool = True,
    eager: bool = False,
    matrix_rotations: bool = False,
) -> Module:
    """Return a layer of a Llama with a dense feed-forward layer."""
    block = attention_block(
        s, h, shape, width, latent=latent, head_norm=head_norm, eager=eager, matrix_rotations=matrix_rotations
    )
    wide = gated(s, h, ffn, width=width, eager=eager) if gate else ungated(s, h, ffn, width=width)
    return Module(name="layer", children=(*block, *wide, residual("residual2", s, h, dropout=False)))


def moe(
    *,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    ffn: int,
    experts: int,
    chosen: int = 2,
    shared_ffn: int = 0,
    dense_layers: int = 0,
    dense_ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    latent: LatentAttention | None = None,
    vocabulary: int = 32000,
    fused_loss: bool = False,
    tied_embeddings: bool = False,
    head_norm: bool = False,
    padded_tokens: bool = False,
    graphed_router: bool = False,
    separate_experts: bool = False,
    precision: Precision = MIXED,
    name: str = "moe",
) -> ModelSpec:
    """Return a mixture of experts: a Llama whose feed-forward layers are `experts`, of which a token uses `chosen`.

    All tokens pass the `shared_ffn` features of the shared experts. The first `dense_layers` layers have a dense
    feed-forward layer of `dense_ffn` features instead. The load is balanced: all experts get equally many tokens, which
    are copied to the sizes that FP8 products need if `padded_tokens`. The kernels of a `graphed_router` are in a CUDA
    graph; the host issues the products of `separate_experts` one after the other.

    Raises
    ------
    ConfigError
        There are more dense layers than layers, or `dense_ffn` is missing.
    """
    if dense_layers > layers or (dense_layers and dense_ffn is None):
        got = f"{dense_layers} of {layers} layers, with {dense_ffn} features"
        raise ConfigError(f"dense layers: got {got}, expected at most all layers, and their features")
    s, h, width = float(sequence), float(hidden), precision.activation
    shape = latent.heads(heads) if latent else AttentionHeads.of(h, heads, kv_heads, head_dim)
    wide = mixture(
        s,
        h,
        ffn,
        experts=experts,
        chosen=chosen,
        shared_ffn=shared_ffn,
        width=width,
        padded_tokens=padded_tokens,
        graphed_router=graphed_router,
        separate_experts=separate_experts,
    )
    block = attention_block(s, h, shape, width, latent=latent, head_norm=head_norm)
    layer = Module(name="layer", children=(*block, *wide, residual("residual2", s, h, dropout=False)))
    dense = _dense(s, h, shape, dense_ffn, width, latent=latent, head_norm=head_norm) if dense_ffn else None
    first = (dense,) * dense_layers if dense else ()
    embedding = _embedding(s, h, vocabulary, positions=False, dropout=False)
    head = _head(s, h, vocabulary, weights=h, width=width, shared=tied_embeddings, fused_loss=fused_loss)
    return _model(name, (embedding, layer, head), layers=layers, s=s, precision=precision, first=first)
