"""Model, strategy and batch from a job's TOML of torchtitan."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.simulator.imports.values import section, whole

_LLAMA3: Mapping[str, Mapping[str, int]] = {
    "8B": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336},
    "70B": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672},
    "405B": {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248},
}
_LLAMA3_VOCABULARY = 128256
_FSDP_STAGE = 3


def document_of_torchtitan(values: Mapping[str, Any], where: str, *, ranks: int) -> dict[str, Any]:
    """Return model, strategy and batch of a specification for so many ranks.

    Raises
    ------
    LockstepError
        A value is wrong, or the model is none that is known.
    """
    model, training = section(values, "model", where), section(values, "training", where)
    parallel = section(values, "parallelism", where)
    flavor = str(model.get("flavor"))
    if flavor not in _LLAMA3 or model.get("name") != "llama3":
        got = f"{model.get('name')} {flavor}"
        raise MalformedError("model", where=where, got=got, expected=f"llama3 with one of {', '.join(_LLAMA3)}")
    tp, cp, pp = (whole(parallel, f"{kind}_parallel_degree", where, 1) for kind in ("tensor", "context", "pipeline"))
    if ranks % (tp * pp * cp):
        raise ConfigError(f"ranks: got {ranks}, expected a multiple of tp {tp} x pp {pp} x cp {cp}")
    dp = ranks // (tp * pp * cp)
    replicas = whole(parallel, "data_parallel_replicate_degree", where, 1)
    if dp % replicas:
        expected = f"a divisor of dp {dp}"
        raise MalformedError("data_parallel_replicate_degree", where=where, got=replicas, expected=expected)
    is_sharded = replicas == 1 or replicas < dp
    size = whole(training, "local_batch_size", where, whole(training, "batch_size", where, 8))
    batch = training.get("global_batch_size", -1)
    precision: Any = "fsdp"
    quantized = section(section(section(values, "quantize", where), "linear", where), "float8", where)
    if section(values, "float8", where).get("enable_float8_linear") or quantized:
        precision = {"optimizer": 10, "product": 1, "current_scaling": True}
    is_compiled = bool(training.get("compile") or section(values, "compile", where).get("enable"))
    return {
        "model": {
            "type": "llama",
            **_LLAMA3[flavor],
            "vocabulary": _LLAMA3_VOCABULARY,
            "sequence": whole(training, "seq_len", where, 2048),
            "eager": not is_compiled,
            "precision": precision,
        },
        "batch": batch if batch > 0 else size * dp,
        "strategy": {
            "tp": tp,
            "cp": cp,
            **({"context_exchange": "merge"} if cp > 1 else {}),
            "dp": dp,
            "pp": pp,
            "zero": _FSDP_STAGE if is_sharded else 0,
            "hsdp_replicas": replicas if is_sharded else 1,
            "sequence_parallel": tp > 1,
            **_async_tensor(values, parallel, where, compiled=is_compiled),
            **_recompute(section(values, "activation_checkpoint", where), _LLAMA3[flavor]["layers"], where),
            "micro_batch_size": size if pp == 1 else whole(parallel, "pipeline_parallel_microbatch_size", where, 1),
        },
    }


def _async_tensor(
    values: Mapping[str, Any], parallel: Mapping[str, Any], where: str, *, compiled: bool
) -> dict[str, Any]:
    """Return async tensor parallelism, which torch.compile makes; before 2025 it was an experimental option."""
    older = section(values, "experimental", where).get("enable_async_tensor_parallel")
    if not (parallel.get("enable_async_tensor_parallel") or older):
        return {}
    if not compiled:
        raise ConfigError(f"{where}: got enable_async_tensor_parallel without compilation, expected [compile] enable")
    return {"overlap_tensor": True, "late_tensor_sums": True}


def _recompute(values: Mapping[str, Any], layers: int, where: str) -> dict[str, Any]:
    """Return the checkpointing; with a number n for an option every n-th layer is checkpointed whole."""
    mode, option = values.get("mode", "selective"), str(values.get("selective_ac_option", "2"))
    if mode in ("none", "full"):
        return {"recompute": mode}
    if mode == "selective" and option == "op":
        return {"recompute": "per_operator"}
    if mode == "selective" and option.isascii() and option.isdecimal() and int(option[:9]) > 0:
        chosen = range(int(option[:9]) - 1, layers, int(option[:9]))
        return {"overrides": [{"node": f"layer{index}", "recompute": "full"} for index in chosen]}
    expected = "none, full, or selective with op or a number"
    raise MalformedError("activation_checkpoint", where=where, got=f"{mode} with {option}", expected=expected)
