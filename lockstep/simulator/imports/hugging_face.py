"""A model from the config.json of Hugging Face Transformers."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.imports.values import whole

_TIED = ("gemma", "gemma2", "cohere")
"""Llamas whose configuration leaves out that output weights are the embedding's, as it does for what is the default."""
_UNGATED = ("nemotron", "starcoder2")
"""Llamas whose wide layer has no gate."""
_LLAMAS = (
    *_UNGATED,
    *("llama", "mistral", "qwen2", "qwen3", *_TIED, "ernie4_5", "glm4", "granite", "internlm2", "olmo", "olmo2"),
    *("phi3", "seed_oss", "smollm3", "stablelm"),
)
_HEAD_NORMS = ("qwen3", "qwen3_moe")
"""Llamas that normalize each query and each key."""
_EXPERTS = {
    **dict.fromkeys(("mixtral", "granitemoe", "phimoe"), "num_local_experts"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe"), "num_experts"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe"), "n_routed_experts"),
}
"""Where a mixture of experts has their number."""
_GPTS: Mapping[str, Mapping[str, str]] = {
    "gpt2": {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "sequence": "n_positions", "ffn": "n_inner"},
    "gpt_neox": {"ffn": "intermediate_size"},
    "opt": {"ffn": "ffn_dim"},
    "bloom": {"layers": "n_layer", "heads": "n_head", "sequence": "seq_length"},
}
"""Names of a GPT's sizes where they are not the usual ones."""
_UNTIED_GPTS = ("gpt_neox",)
_DROPOUTS = {"gpt2": ("resid_pdrop", 0.1), "gpt_neox": ("hidden_dropout", 0.0), "opt": ("dropout", 0.1)}
"""The probability of dropout by type, and what it is where it is left out."""
_GPT_RATIO = 4
_EVERY_LAYER = ("decoder_sparse_step", "moe_layer_freq")
"""Every how many layers have experts."""


def model_of_hugging_face(config: Mapping[str, Any], where: str, *, sequence: int | None = None) -> dict[str, Any]:
    """Return the section `model` of a specification; the longest sequence of the model if none is given.

    Raises
    ------
    MalformedError
        A value is missing or wrong, or the model has what no model of the simulator has.
    """
    kind = config.get("model_type")
    if kind in _GPTS:
        return _gpt(config, where, str(kind), sequence)
    if kind not in (*_LLAMAS, *_EXPERTS):
        expected = f"one of {', '.join((*_GPTS, *_LLAMAS, *_EXPERTS))}"
        if "text_config" in config:
            expected = f"a language model: a file with what is in text_config, whose model_type is {expected}"
        raise MalformedError("model_type", where=where, got=kind, expected=expected)
    heads = whole(config, "num_attention_heads", where)
    found: dict[str, Any] = {
        "type": "moe" if kind in _EXPERTS else "llama",
        "layers": whole(config, "num_hidden_layers", where),
        "hidden": whole(config, "hidden_size", where),
        "heads": heads,
        "kv_heads": whole(config, "num_key_value_heads", where, heads),
        "ffn": whole(config, "intermediate_size", where),
        "vocabulary": whole(config, "vocab_size", where),
        "sequence": sequence or whole(config, "max_position_embeddings", where),
        "tied_embeddings": bool(config.get("tie_word_embeddings", kind in _TIED)),
    }
    if kind in _UNGATED:
        found["gate"] = False
    if kind in _HEAD_NORMS:
        found["head_norm"] = True
    _check_window(config, where, found["sequence"])
    if config.get("head_dim"):
        found["head_dim"] = whole(config, "head_dim", where)
    if config.get("kv_lora_rank"):
        found["latent"] = _latent(config, where)
        del found["kv_heads"]
        found.pop("head_dim", None)
    return found | _mixture(config, where, str(kind), found["ffn"]) if kind in _EXPERTS else found


def _check_window(config: Mapping[str, Any], where: str, sequence: int) -> None:
    """Refuse attention to a window of tokens, which costs less than the attention of the simulator's models."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None and whole(config, "sliding_window", where) < sequence:
        expected = f"at least the {sequence} tokens of a sample, or a shorter --sequence: windows are not simulated"
        raise MalformedError("sliding_window", where=where, got=window, expected=expected)


def _mixture(config: Mapping[str, Any], where: str, kind: str, dense_ffn: int) -> dict[str, Any]:
    """Return what a mixture of experts has beyond a dense model; the gate of shared experts' output is left out."""
    if config.get("mlp_only_layers"):
        got = f"dense layers among those with experts: {config['mlp_only_layers']}"
        raise MalformedError("mlp_only_layers", where=where, got=got, expected="a model without")
    for name in _EVERY_LAYER:
        if whole(config, name, where, 1) != 1:
            raise MalformedError(name, where=where, got=config[name], expected="1: experts in every layer")
    ffn = whole(config, "moe_intermediate_size", where, dense_ffn)
    found: dict[str, Any] = {
        "ffn": ffn,
        "experts": whole(config, _EXPERTS[kind], where),
        "chosen": whole(config, "num_experts_per_tok", where),
    }
    if config.get("n_shared_experts"):
        found["shared_ffn"] = whole(config, "n_shared_experts", where) * ffn
    elif config.get("shared_expert_intermediate_size"):
        found["shared_ffn"] = whole(config, "shared_expert_intermediate_size", where)
    if config.get("first_k_dense_replace"):
        found |= {"dense_layers": whole(config, "first_k_dense_replace", where), "dense_ffn": dense_ffn}
    return found


def _latent(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kv_rank": whole(config, "kv_lora_rank", where),
        "nope_dim": whole(config, "qk_nope_head_dim", where),
        "rope_dim": whole(config, "qk_rope_head_dim", where),
        "value_dim": whole(config, "v_head_dim", where),
    }
    if config.get("q_lora_rank"):
        found["query_rank"] = whole(config, "q_lora_rank", where)
    return found


def _gpt(config: Mapping[str, Any], where: str, kind: str, sequence: int | None) -> dict[str, Any]:
    """Return a GPT, whose attention Transformers computes with PyTorch's fused kernel."""
    names = _GPTS[kind]
    hidden = whole(config, names.get("hidden", "hidden_size"), where)
    ffn = names.get("ffn", "")
    if whole(config, ffn, where, _GPT_RATIO * hidden) != _GPT_RATIO * hidden:
        raise MalformedError(ffn, where=where, got=config[ffn], expected=f"{_GPT_RATIO} times the {hidden} features")
    if whole(config, "word_embed_proj_dim", where, hidden) != hidden:
        got, expected = config["word_embed_proj_dim"], f"the {hidden} features: a projection is not simulated"
        raise MalformedError("word_embed_proj_dim", where=where, got=got, expected=expected)
    dropout, usual = _DROPOUTS.get(kind, ("hidden_dropout", 0.0))
    length = names.get("sequence", "max_position_embeddings")
    return {
        "type": "gpt",
        "layers": whole(config, names.get("layers", "num_hidden_layers"), where),
        "hidden": hidden,
        "heads": whole(config, names.get("heads", "num_attention_heads"), where),
        "vocabulary": whole(config, "vocab_size", where),
        "sequence": sequence or whole(config, length, where),
        "tied_embeddings": bool(config.get("tie_word_embeddings", kind not in _UNTIED_GPTS)),
        "fused_attention": True,
        "dropout": bool(config.get(dropout, usual)),
    }
