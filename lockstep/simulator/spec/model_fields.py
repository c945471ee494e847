"""The fields of a specification that describe the model: architecture, sizes and number formats."""

from collections.abc import Mapping

from lockstep.simulator.models.model import DEEPSPEED_BF16, DEEPSPEED_FP16, FSDP, FULL, HALF_GRADIENTS, MIXED
from lockstep.simulator.spec.field import (
    BLOCKS_MAX,
    DIM_MAX,
    SECTION,
    Field,
    amount,
    count,
    flag,
    number,
    optional,
    optional_count,
    section,
    sections,
    text,
)

PRECISIONS = {
    "mixed": MIXED,
    "half_gradients": HALF_GRADIENTS,
    "fsdp": FSDP,
    "deepspeed_fp16": DEEPSPEED_FP16,
    "deepspeed_bf16": DEEPSPEED_BF16,
    "full": FULL,
}
_BYTES = {
    name: amount(help_, "bytes per element", None, above=0.0 if name == "activation" else None)
    for name, help_ in {
        "activation": "activations",
        "weight": "weights",
        "gradient": "gradients as stored",
        "sent_gradient": "gradients as sent",
        "optimizer": "the optimizer's state",
    }.items()
}
_BYTES["product"] = optional(
    number("factors of linear layers' products, except the head's; like the activations if null; 1 is FP8", 1.0, 8.0)
)
_BYTES["stored_product"] = optional(
    number(
        "inputs that linear layers with FP8 factors keep for backward; like the activations if null (torchao), 1 with "
        "Transformer Engine",
        1.0,
        8.0,
    )
)
_BYTES["current_scaling"] = flag(
    "FP8 factors are scaled by their own largest element, which reads each factor once more (Transformer Engine's "
    "Float8CurrentScaling, torchao's tensorwise scaling), instead of by those of earlier steps",
    default=False,
)

_BYTES["block_scaling"] = flag(
    "FP8 factors have a scale for each block (MXFP8); the factors of each expert are cast by themselves",
    default=False,
)


def _precision(default: str) -> Field:
    return Field(
        kind=SECTION,
        help="number formats: a name, or bytes per element; formats that are not given are those of `mixed`. `mixed` "
        "is Megatron's, with 18 bytes per parameter; `half_gradients` stores and sends gradients in half precision; "
        "`fsdp` stores 16 bytes, `deepspeed_fp16` and `deepspeed_bf16` 20, as those optimizers do; `full` is single "
        "precision",
        or_name=tuple(PRECISIONS),
        fields=_BYTES,
        default=default,
    )


_TRANSFORMER = {
    "layers": count("transformer layers", BLOCKS_MAX),
    "hidden": count("features of a token"),
    "heads": count("attention heads"),
    "head_dim": optional_count("features of a head; features of a token divided by heads if null"),
    "sequence": count("tokens of a sample"),
}
_LATENT = {
    "kv_rank": count("features of the latent vector of keys and values (kv_lora_rank)"),
    "query_rank": optional_count("features of the latent vector of queries (q_lora_rank); none if null"),
    "nope_dim": count("features of a query and a key without position (qk_nope_head_dim)", DIM_MAX, 128),
    "rope_dim": count("features of a query and a key with position (qk_rope_head_dim)", DIM_MAX, 64),
    "value_dim": count("features of a value (v_head_dim)", DIM_MAX, 128),
}
_PADDED = {
    "vocabulary_multiple": count(
        "the vocabulary is padded to a multiple of this times tp (Megatron-LM: 128)", DIM_MAX, 1
    ),
}
_FUSED_LOSS = {
    "fused_loss": flag(
        "cross entropy in one kernel that stores only the logits, in their own format (flash-attn's, Liger's)",
        default=False,
    ),
}


def _tied(*, default: bool) -> dict[str, Field]:
    return {"tied_embeddings": flag("the output weights are the embedding's", default=default)}


_FFN = {
    "ffn": count("features inside the wide layer"),
    "kv_heads": optional_count("heads of keys and values; the same as heads if null"),
    "latent": optional(
        section("multi-head latent attention (DeepSeek); kv_heads and head_dim do not apply to it", _LATENT)
    ),
    "head_norm": flag("the features of each query and each key are normalized (Qwen3)", default=False),
    "vocabulary": count("tokens of the vocabulary", DIM_MAX, 32000),
    **_PADDED,
    **_FUSED_LOSS,
    **_tied(default=False),
    "precision": _precision("mixed"),
}
OPERATOR = {
    "name": text("unique name"),
    "flops": amount("FLOPs of one sample, forward", "FLOPs", above=None),
    "moved_elements": amount("activation elements read and written for one sample, forward", "elements", above=None),
    "parameters": amount("parameters", "elements", above=None),
    "stored_bytes": amount("bytes that one sample stores for backward", "bytes", above=None),
}
"""The columns of a profile, in order."""
_IMAGES = {"classes": count("classes of images", DIM_MAX, 1000), "precision": _precision("full")}
MODELS: Mapping[str, Mapping[str, Field]] = {
    "gpt": {
        **_TRANSFORMER,
        "vocabulary": count("tokens of the vocabulary", DIM_MAX, 51200),
        **_PADDED,
        "fused_attention": flag("attention that never writes its scores (FlashAttention)", default=False),
        **_FUSED_LOSS,
        "loss_metrics": count(
            "metrics that compute the loss of each micro-batch again from its logits (Composer: 2 in training)",
            DIM_MAX,
            0,
            low=0,
        ),
        "dropout": flag("dropout before each residual addition", default=True),
        **_tied(default=True),
        "precision": _precision("mixed"),
    },
    "llama": {
        **_TRANSFORMER,
        **_FFN,
        "gate": flag(
            "the wide layer has a gate (SwiGLU); without, it is a product, an activation and a product (Nemotron 4)",
            default=True,
        ),
        "eager": flag(
            "norms, rotations and gates run kernel by kernel, as in PyTorch without torch.compile or fused kernels",
            default=False,
        ),
        "matrix_rotations": flag(
            "with eager, queries and keys are rotated by matrices (foundation-model-stack) instead of complex numbers",
            default=False,
        ),
    },
    "moe": {
        **_TRANSFORMER,
        **_FFN,
        "experts": count("experts of a layer"),
        "chosen": count("experts that a token uses", DIM_MAX, 2),
        "shared_ffn": count("features of the shared experts that process all tokens", DIM_MAX, 0, low=0),
        "dense_layers": count("dense layers before those with experts", BLOCKS_MAX, 0, low=0),
        "dense_ffn": optional_count("features inside the wide layer of dense layers"),
        "padded_tokens": flag(
            "tokens of experts are copied to the sizes that FP8 products need, and back (Megatron-LM's all-to-all "
            "dispatcher)",
            default=False,
        ),
        "graphed_router": flag(
            "the host does not issue the router's kernels, which are in a CUDA graph (Megatron-LM: --cuda-graph-scope "
            "moe_router)",
            default=False,
        ),
        "separate_experts": flag(
            "the host issues the products, casts and gradients of each expert by themselves (Transformer Engine's "
            "GroupedLinear), instead of one kernel for all experts of a rank",
            default=False,
        ),
    },
    "vgg19": _IMAGES,
    "resnet50": _IMAGES,
    "operators": {
        "file": optional(
            text(
                "CSV file of the operators in the folder of the specification, with the header: " + ", ".join(OPERATOR)
            )
        ),
        "operators": sections("the operators in order, instead of a file", "one operator", OPERATOR),
        "tokens": amount("tokens (or samples) that a sample counts as", "tokens", 1.0),
        "precision": _precision("full"),
    },
}
