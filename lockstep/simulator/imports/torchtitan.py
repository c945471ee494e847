"""Model, strategy and batch from a job's TOML of torchtitan."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.simulator.hardware.collectives import ALL_TO_ALL, DEEPEP, HYBRIDEP
from lockstep.simulator.imports.values import section, whole

_LLAMA3: Mapping[str, Mapping[str, int]] = {
    "8B": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336},
    "70B": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672},
    "405B": {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248},
}
_LLAMA3_VOCABULARY = 128256
_FSDP_STAGE = 3
_EXCHANGES = {"deepep": DEEPEP, "hybridep": HYBRIDEP}
"""By values of `expert_parallel_comm_backend`, what sends a token over the network once for each node."""
_FP8_CONVERTERS = ("float8", "quantize.linear.float8")
_INTERLEAVED, _INTERLEAVED_CHUNKS = "interleaved1f1b", 2
_SCHEDULES = ("1f1b", "gpipe", _INTERLEAVED)
_ENDS = 2
"""Layers that the embedding and the head count as."""


def document_of_torchtitan(
    values: Mapping[str, Any], where: str, *, ranks: int, model: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return model, strategy and batch of a specification for so many ranks.

    A model that is not known here is the section `model` of another source, if there is one.

    Raises
    ------
    LockstepError
        A value is wrong, or the model is none that is known.
    """
    training = section(values, "training", where)
    degrees, replicas = _degrees(values, where, ranks)
    dp, pp = degrees["dp"], degrees["pp"]
    is_sharded = replicas == 1 or replicas < dp
    size = whole(training, "local_batch_size", where, whole(training, "batch_size", where, 8))
    batch = training.get("global_batch_size", -1)
    is_compiled = _is_compiled(values, training, where)
    found = _model(values, where, model)
    if found["type"] == "llama":
        found["eager"] = not is_compiled
    parallel = section(values, "parallelism", where)
    return {
        "model": {
            **found,
            "sequence": whole(training, "seq_len", where, 2048),
            "precision": _precision(values, where),
        },
        "batch": batch if batch > 0 else size * dp,
        "strategy": {
            **degrees,
            **({"context_exchange": "merge"} if degrees["cp"] > 1 else {}),
            "zero": _FSDP_STAGE if is_sharded else 0,
            "hsdp_replicas": replicas if is_sharded else 1,
            "sequence_parallel": degrees["tp"] > 1,
            **_async_tensor(values, parallel, where, compiled=is_compiled),
            **_recompute(section(values, "activation_checkpoint", where), found["layers"], where),
            **_schedule(parallel, where, found["layers"], pp),
            **_dispatch(parallel),
            "micro_batch_size": size if pp == 1 else whole(parallel, "pipeline_parallel_microbatch_size", where, 1),
        },
    }


def _dispatch(parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return how tokens are sent to experts; "standard" and what is unknown are PyTorch's all-to-all."""
    backend = parallel.get("expert_parallel_comm_backend")
    return {"algorithms": {ALL_TO_ALL: _EXCHANGES[backend]}} if backend in _EXCHANGES else {}


def _degrees(values: Mapping[str, Any], where: str, ranks: int) -> tuple[dict[str, int], int]:
    """Return the degrees and the replicas of data parallelism; before 2025 they were training's and experimental."""
    found: dict[str, Any] = {}
    for name in ("experimental", "training", "parallelism"):
        found |= section(values, name, where)
    tp, cp, pp = (whole(found, f"{kind}_parallel_degree", where, 1) for kind in ("tensor", "context", "pipeline"))
    if ranks % (tp * pp * cp):
        raise ConfigError(f"ranks: got {ranks}, expected a multiple of tp {tp} x pp {pp} x cp {cp}")
    dp = ranks // (tp * pp * cp)
    replicas = whole(found, "data_parallel_replicate_degree", where, 1)
    if dp % replicas:
        expected = f"a divisor of dp {dp}"
        raise MalformedError("data_parallel_replicate_degree", where=where, got=replicas, expected=expected)
    shards = found.get("data_parallel_shard_degree", -1)
    if shards not in (-1, dp // replicas):
        expected = f"-1 or {dp // replicas}: {ranks} ranks over tp {tp} x cp {cp} x pp {pp} x {replicas} replicas"
        raise MalformedError("data_parallel_shard_degree", where=where, got=shards, expected=expected)
    degrees = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    ep = whole(found, "expert_parallel_degree", where, 1)
    if ep > 1:
        degrees |= {"ep": ep, "expert_tp": whole(found, "expert_tensor_parallel_degree", where, 1)}
    return degrees, replicas


def _model(values: Mapping[str, Any], where: str, other: Mapping[str, Any] | None) -> dict[str, Any]:
    model = section(values, "model", where)
    flavor = str(model.get("flavor"))
    if flavor in _LLAMA3 and model.get("name") == "llama3":
        return {"type": "llama", **_LLAMA3[flavor], "vocabulary": _LLAMA3_VOCABULARY}
    if other is None:
        expected = f"llama3 with one of {', '.join(_LLAMA3)}, or another model's --hugging-face"
        raise MalformedError("model", where=where, got=f"{model.get('name')} {flavor}", expected=expected)
    return dict(other)


def _precision(values: Mapping[str, Any], where: str) -> Any:
    """Return FSDP's formats, or FP8's, which a converter turns on; before 2025 an option did.

    The sections of FP8 are in every job file, whether it is on or not.
    """
    converters = section(values, "model", where).get("converters") or []
    names = converters.split(",") if isinstance(converters, str) else list(converters)
    unknown = [name for name in names if name.strip() not in _FP8_CONVERTERS]
    if unknown:
        expected = f"none, or one of {', '.join(_FP8_CONVERTERS)}"
        raise MalformedError("model.converters", where=where, got=unknown[0], expected=expected)
    if names or section(values, "float8", where).get("enable_float8_linear"):
        return {"optimizer": 10, "product": 1, "current_scaling": True}
    return "fsdp"


def _is_compiled(values: Mapping[str, Any], training: Mapping[str, Any], where: str) -> bool:
    """Return whether the model is compiled, as it is unless only the loss is named."""
    compiling = section(values, "compile", where)
    return bool(training.get("compile") or compiling.get("enable")) and "model" in compiling.get(
        "components", ("model",)
    )


def _schedule(parallel: Mapping[str, Any], where: str, layers: int, pp: int) -> dict[str, Any]:
    """Return the order of the micro-batches and the chunks of each stage, two of them in interleaved schedules."""
    name, size = "pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage"
    kind = str(parallel.get(name, "1F1B"))
    if pp == 1:
        return {}
    if kind.lower() not in _SCHEDULES:
        raise MalformedError(name, where=where, got=kind, expected=f"one of {', '.join(_SCHEDULES)}")
    if kind.lower() != _INTERLEAVED:
        return {"schedule": kind.lower()}
    if parallel.get(size) is None:
        return {"virtual": _INTERLEAVED_CHUNKS}
    chunks, left = divmod(-(-(layers + _ENDS) // whole(parallel, size, where)), pp)
    if left or chunks < _INTERLEAVED_CHUNKS:
        expected = (
            f"layers that make a multiple of {pp} stages, at least two each, of {layers} and {_ENDS} for the ends"
        )
        raise MalformedError(size, where=where, got=parallel[size], expected=expected)
    return {"virtual": chunks}


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
