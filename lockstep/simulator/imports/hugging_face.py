"""A model from the config.json of Hugging Face Transformers."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.imports.values import whole

_LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3")
_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
_UNSUPPORTED = {
    "kv_lora_rank": "multi-head latent attention",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "first_k_dense_replace": "dense layers among those with experts",
    "mlp_only_layers": "dense layers among those with experts",
}


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
    if kind in _MIXTURES:
        found["experts"] = whole(config, "num_local_experts" if kind == "mixtral" else "num_experts", where)
        found["chosen"] = whole(config, "num_experts_per_tok", where)
        found["ffn"] = whole(config, "moe_intermediate_size", where, found["ffn"])
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
