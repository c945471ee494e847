"""A model from the config.json of Hugging Face Transformers."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.imports.values import whole

_LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3")
_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3")
_EXPERTS = {"mixtral": "num_local_experts", "deepseek_v2": "n_routed_experts", "deepseek_v3": "n_routed_experts"}
_UNSUPPORTED = {"mlp_only_layers": "dense layers among those with experts"}


def model_of_hugging_face(config: Mapping[str, Any], where: str, *, sequence: int | None = None) -> dict[str, Any]:
    """Return the section `model` of a specification; the longest sequence of the model if none is given.

    Raises
    ------
    MalformedError
        A value is missing or wrong, or the model has what no model of the simulator has.
    """
    kind = config.get("model_type")
    for name, what in _UNSUPPORTED.items():
        if config.get(name):
            raise MalformedError(name, where=where, got=f"{what}: {config[name]}", expected="a model without")
    if kind == "gpt2":
        return _gpt2(config, where, sequence)
    if kind not in (*_LLAMAS, *_MIXTURES):
        expected = f"one of {', '.join(('gpt2', *_LLAMAS, *_MIXTURES))}"
        raise MalformedError("model_type", where=where, got=kind, expected=expected)
    heads = whole(config, "num_attention_heads", where)
    found: dict[str, Any] = {
        "type": "moe" if kind in _MIXTURES else "llama",
        "layers": whole(config, "num_hidden_layers", where),
        "hidden": whole(config, "hidden_size", where),
        "heads": heads,
        "kv_heads": whole(config, "num_key_value_heads", where, heads),
        "ffn": whole(config, "intermediate_size", where),
        "vocabulary": whole(config, "vocab_size", where),
        "sequence": sequence or whole(config, "max_position_embeddings", where),
    }
    if config.get("head_dim"):
        found["head_dim"] = whole(config, "head_dim", where)
    if config.get("kv_lora_rank"):
        found["latent"] = _latent(config, where)
        del found["kv_heads"]
        found.pop("head_dim", None)
    return found | _mixture(config, where, kind, found["ffn"]) if kind in _MIXTURES else found


def _mixture(config: Mapping[str, Any], where: str, kind: str, dense_ffn: int) -> dict[str, Any]:
    """Return what a mixture of experts has beyond a dense model; the gate of shared experts' output is left out."""
    ffn = whole(config, "moe_intermediate_size", where, dense_ffn)
    found: dict[str, Any] = {
        "ffn": ffn,
        "experts": whole(config, _EXPERTS.get(kind, "num_experts"), where),
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


def _gpt2(config: Mapping[str, Any], where: str, sequence: int | None) -> dict[str, Any]:
    return {
        "type": "gpt",
        "layers": whole(config, "n_layer", where),
        "hidden": whole(config, "n_embd", where),
        "heads": whole(config, "n_head", where),
        "vocabulary": whole(config, "vocab_size", where),
        "sequence": sequence or whole(config, "n_positions", where),
    }
